"""Reconciler of one machine: facts, a step of the state machine, writes.

The status is written first, in one transaction that reads the decisions and freezes again: a freeze
wins every race. Actions may be repeated. Orders follow from the status; the node agent takes them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

from retuned.api.proposal import ProposalPhase, Step, SwapProposalStatus
from retuned.api.target import TuningTargetStatus
from retuned.contract import Digest
from retuned.control import gate_facts, proposal, step_spans
from retuned.control.facts import (
    Activate,
    Deactivate,
    Quarantine,
    RolloutAction,
    RolloutFacts,
    RolloutStep,
)
from retuned.control.orders import awaits_commit, desired_orders
from retuned.errors import RetunedError, TemporaryError
from retuned.node import order_executor, order_intake, order_store, watcher
from retuned.node.order_context import STANDING
from retuned.ports import Stored
from retuned.stages import gate as gate_stage
from retuned.stages.gate import GateDecision, PolicyLimits, limits_of
from retuned.stages.swap import Spread, spread_by
from retuned.standalone import evidence as proving
from retuned.standalone.context import Context, RecordKind
from retuned.standalone.facts import (
    NODE,
    TARGET,
    FactMemory,
    LocalProposal,
    Machine,
    facts_of,
    freezes_of,
    observe,
    target_of,
    target_status,
)
from retuned.standalone.node import LocalNode
from retuned.standalone.records import GOING_BACK, UNDER_WAY, say, swap_order_of
from retuned.telemetry.labels import kebab

log = logging.getLogger(__name__)

_SPREADS = 256
_QUARANTINED = 256
"""Most artifacts in quarantine, the newest."""


class Reconciler:
    """Drives the proposals and the node agent of one machine.

    Parameters
    ----------
    ctx
        Ports and settings.
    """

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.node = LocalNode.over(ctx)
        self._memory = FactMemory()
        self._spreads: dict[tuple[str, Digest], Spread] = {}
        self._observed: Machine | None = None
        """What the last round of steps left, for the delivery of its orders."""

    def watch(self) -> None:
        """Judge the swaps in force; roll back immediately what does harm."""
        watcher.watch(self.node)

    def reconcile(self) -> bool:
        """Take a step of every proposal; return whether anything changed."""
        machine = observe(self.ctx, self._memory)
        changed = False
        for resource in machine.proposals:
            try:
                new = self._step(machine, resource)
            except RetunedError as error:  # one proposal delays no other
                log.error("proposal %s: %s", resource.id, error)
                continue
            if new is not None:
                changed = True
                machine = replace(
                    machine,
                    target=target_of(self.ctx),
                    proposals=tuple(new if e.id == new.id else e for e in machine.proposals),
                )
        self._close_unreadable(machine)
        self._end_void_requests()
        self._observed = machine
        return changed

    def deliver(self) -> bool:
        """Let the node agent take and commit its orders; return whether it delivered any."""
        node, machine = self.node, self._observed or observe(self.ctx, self._memory)
        self._observed = None
        before = self._orders()
        if machine.serves:  # while nothing runs, nothing can be withdrawn
            self._take(machine)
        node.standing.history.restart(order_executor.carry_out(node))
        return self._orders() != before

    def _take(self, machine: Machine) -> None:
        spreads: dict[str, Spread | None] = {}
        for each in machine.proposals:
            try:
                spreads[each.id] = self._spread(machine, each)
            except RetunedError as error:  # it is not ordered now
                log.warning("%s is not ordered: %s", each.spec.kernel, error)
        named = tuple(each for each in machine.proposals if each.id in spreads)
        orders = desired_orders(
            NODE,
            NODE,
            target=machine.target,
            proposals=named,
            spread=lambda each: spreads[each.stage_proposal().id],
        )
        traces = self._traces(named)
        order_intake.take(
            self.node, orders, traces={each.id: traces[each.proposal] for each in orders}
        )

    def _orders(self) -> dict[str, str]:
        return {kept.order.id: kept.phase for kept in order_store.latest(self.ctx.store).values()}

    def _step(self, machine: Machine, resource: LocalProposal) -> LocalProposal | None:
        """Take one step; return the proposal with its new status, None if nothing changed."""
        ctx, now = self.ctx, self.ctx.clock.now()
        facts = facts_of(ctx, self.node, self._memory, machine=machine, resource=resource)
        done = proposal.step(resource, facts, now=now)
        if done.status == resource.status and not done.actions:
            return None
        with self._span(resource, done.status), ctx.store.transaction():
            # a person may have decided in between
            fresh = replace(machine, freezes=freezes_of(ctx), target=target_of(ctx))
            facts = facts_of(ctx, self.node, self._memory, machine=fresh, resource=resource)
            done = proposal.step(resource, facts, now=now)
            self._record_gate(resource, facts)
            written = self._write(resource, done)
            acted = [self._act(action) for action in done.actions]
        if not written and not any(acted):
            return None
        return resource.model_copy(update={"status": done.status})

    def _span(
        self, resource: LocalProposal, status: SwapProposalStatus
    ) -> AbstractContextManager[None]:
        """Return the span of a step; a step without its own span belongs to the current one."""
        span = step_spans.of_proposal(resource, status)
        if span is None:
            return nullcontext()
        stored = self.ctx.store.get(RecordKind.PROPOSAL, resource.id)
        after = stored.traceparent if stored is not None else ""
        about = span.about | {"proposal": resource.id}
        links = []
        if span.stage == "rollback":
            kept = swap_order_of(self.ctx.store, resource.id)
            links = [kept.traceparent] if kept is not None else []
        return self.ctx.spans.span(span.stage, after=after, links=links, about=about)

    def _write(self, resource: LocalProposal, done: RolloutStep) -> bool:
        """Write a new status with the lines of history that it adds."""
        old, new, store = resource.status, done.status, self.ctx.store
        if new == old:
            return False
        body = new.model_dump(mode="json", by_alias=True)
        if not store.add(RecordKind.STATUS, resource.id, body, phase="current"):
            store.advance(RecordKind.STATUS, resource.id, expect="current", to="current", body=body)
        if new.phase is not old.phase:
            store.advance(
                RecordKind.PROPOSAL, resource.id, expect=str(old.phase), to=str(new.phase)
            )
        self._tell(resource, new)
        return True

    def _tell(self, resource: LocalProposal, new: SwapProposalStatus) -> None:
        """Write each change of phase into the history, and count it."""
        ctx, known = self.ctx, set(map(_key, resource.status.history))
        request = self._request(resource.id)
        for each in new.history:
            if _key(each) in known:
                continue
            by_person = request is not None and each.reason == "aborted"
            who = str(request.body["who"]) if request is not None and by_person else each.by
            about: dict[str, Any] = {"reason": each.reason, "slot": resource.spec.kernel}
            if each.to is new.phase:
                about["detail"] = new.detail
            say(ctx, resource.id, kebab(str(each.to)), who, **about)
            ctx.telemetry.count("retuned_swap_phases_total", phase=kebab(str(each.to)))
            if each.to is ProposalPhase.ROLLING_BACK:
                self._count_rollback(resource, each.reason)
            if each.to is ProposalPhase.EXPIRED:
                experiment = resource.stage_proposal().experiment
                ctx.store.advance(RecordKind.EXPERIMENT, experiment, expect="proposed", to="lapsed")
            failed = each.to is ProposalPhase.ROLLBACK_FAILED
            level = logging.ERROR if failed else logging.INFO
            log.log(level, "%s: %s, %s", resource.spec.kernel, each.to, each.reason or new.detail)
        if request is not None and _is_over(new.phase):
            ctx.store.advance(RecordKind.REQUEST, request.id, expect="new", to="done")

    def _count_rollback(self, resource: LocalProposal, reason: str) -> None:
        """Count a rollback, unless the node agent ordered it and has counted it."""
        if order_store.failure(self.ctx.store, resource.id) is None:
            self.ctx.telemetry.count("retuned_rollbacks_total", reason=reason)

    def _act(self, action: RolloutAction) -> bool:
        """Write what every node must run, or what is quarantined; return whether it changed."""
        status = target_status(self.ctx)
        if isinstance(action, Activate | Deactivate):
            kernel = action.entry.kernel if isinstance(action, Activate) else action.kernel
            entries = tuple(each for each in status.active_kernels if each.kernel != kernel)
            if isinstance(action, Activate):
                entries = (*entries, action.entry)
            return self._set_target(status.model_copy(update={"active_kernels": entries}))
        if isinstance(action, Quarantine):
            now = self.ctx.clock.now()
            others = [
                each
                for each in status.quarantine
                if each.digest != action.entry.digest and now < each.until
            ]
            kept = (*others, action.entry)[-_QUARANTINED:]
            return self._set_target(status.model_copy(update={"quarantine": kept}))
        return False  # notifications page while the phase lasts

    def _set_target(self, status: TuningTargetStatus) -> bool:
        if status == target_status(self.ctx):
            return False
        body = status.model_dump(mode="json", by_alias=True)
        if not self.ctx.store.add(RecordKind.TARGET, TARGET, body, phase="current"):
            self.ctx.store.advance(
                RecordKind.TARGET, TARGET, expect="current", to="current", body=body
            )
        return True

    def _record_gate(self, resource: LocalProposal, facts: RolloutFacts) -> None:
        """Keep a new answer of the gate for people; a change of its state is a line of history."""
        if not resource.status.phase.is_before_swap:
            return
        asked = gate_facts.ask(resource, facts, now=self.ctx.clock.now())
        if asked is None:
            return
        store, answer = self.ctx.store, asked.answer
        body = answer.model_dump(mode="json")
        known = store.get(RecordKind.GATE, resource.id)
        if known is not None and _without_time(known.body) == _without_time(body):
            return
        if known is None:
            store.add(RecordKind.GATE, resource.id, body, phase="current")
        else:
            store.advance(RecordKind.GATE, resource.id, expect="current", to="current", body=body)
        if known is None or known.body["state"] != body["state"]:
            self._tell_gate(resource, answer)

    def _tell_gate(self, resource: LocalProposal, answer: GateDecision) -> None:
        sentence = gate_stage.explain(answer)
        log.info("gate: %s", sentence)
        say(self.ctx, resource.id, f"gate-{answer.state}", sentence=sentence)

    def _spread(self, machine: Machine, resource: LocalProposal) -> Spread | None:
        """Return how the policy lets a swap spread over launches, and what its checks may cost.

        Raises
        ------
        TemporaryError
            If the policy or the evidence cannot be read now.
        """
        if not awaits_commit(resource):
            return None  # the node agent has the order, or needs none
        labels = gate_facts.labels_of(machine.target)
        chosen, _ = gate_facts.choose(machine.policies or (), resource.spec.kernel, labels=labels)
        if chosen is None:
            raise TemporaryError("its policy cannot be read now", delay_s=1.0)
        key = (resource.id, chosen.policy.digest)
        if key not in self._spreads:
            if len(self._spreads) >= _SPREADS:
                self._spreads.clear()
            self._spreads[key] = self._spread_by(limits_of(chosen.policy), resource)
        return self._spreads[key]

    def _spread_by(self, limits: PolicyLimits, resource: LocalProposal) -> Spread:
        document, _ = proving.believed(self.ctx, resource.stage_proposal())
        return spread_by(
            limits,
            shadow_every=self.ctx.settings.shadow_every,
            shadow_later=self.ctx.settings.shadow_later,
            evidence=document.evidence if document is not None else None,
        )

    def _traces(self, found: Sequence[LocalProposal]) -> dict[str, str]:
        """Return the span in which each proposal was last written."""
        spans = {}
        for each in found:
            stored = self.ctx.store.get(RecordKind.PROPOSAL, each.id)
            spans[each.id] = stored.traceparent if stored is not None else ""
        return spans

    def _request(self, id: str) -> Stored | None:
        waiting = self.ctx.store.list(RecordKind.REQUEST, phase="new")
        return next((each for each in waiting if each.body.get("target") == id), None)

    def _close_unreadable(self, machine: Machine) -> None:
        """End proposals that cannot be read, once the node agent has rolled them back.

        Nothing names their orders, so the node agent withdraws them.
        """
        ctx, read = self.ctx, {each.id for each in machine.proposals}
        for phase in (*UNDER_WAY, *GOING_BACK):
            for id in ctx.store.ids(RecordKind.PROPOSAL, phase=phase):
                kept = swap_order_of(ctx.store, id) if id not in read else None
                if kept is None or kept.phase in STANDING:
                    continue
                ctx.store.advance(
                    RecordKind.PROPOSAL, id, expect=phase, to=str(ProposalPhase.ROLLED_BACK)
                )
                say(ctx, id, "rolled-back", reason="withdrawn")

    def _end_void_requests(self) -> None:
        """End requests about proposals that have ended, or that do not exist."""
        ctx = self.ctx
        for request in ctx.store.list(RecordKind.REQUEST, phase="new"):
            id, who = str(request.body["target"]), str(request.body["who"])
            stored = ctx.store.get(RecordKind.PROPOSAL, id)
            if stored is not None and not _is_over(ProposalPhase(stored.phase)):
                continue
            if stored is not None:
                say(ctx, id, "request-void", who, phase=stored.phase)
            ctx.store.advance(RecordKind.REQUEST, request.id, expect="new", to="done")


def _key(step: Step) -> tuple[object, ...]:
    return step.at, step.from_, step.to, step.reason


def _is_over(phase: ProposalPhase) -> bool:
    """Whether a request for a rollback or an abort has taken effect, or cannot."""
    return phase.is_going_back or (phase.is_terminal and phase is not ProposalPhase.PROMOTED)


def _without_time(body: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name != "evaluated_at"}
