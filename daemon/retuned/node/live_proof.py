"""Live proof of one order: the runner that switches a swap off and on beside one server.

The plan of a pair is kept before its first block, and the state after it, so that a node agent that
ends continues with the pairs that it has. One machine and the sidecar run it. They differ in where
the verdict goes, which is behind `ProofRecord`.
"""

from __future__ import annotations

import logging
import math
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence, Set
from enum import StrEnum
from typing import Any, Protocol

from pydantic import ValidationError

from retuned.contract import Digest
from retuned.errors import CandidateError, RetunedError, TemporaryError
from retuned.ports import Clock, LiveSteps, SlotState, Store, Stored, Swapper
from retuned.stages.gate import LiveProof, LiveProofMode
from retuned.stages.swap import SwapOrder
from retuned.stages.watch import WatchReason, proof

log = logging.getLogger(__name__)

LIVE_PROOF = "live-proof"
"""Proof of a swap: proving -> a verdict. By the proposal's id on one machine, by the order's id in
a pod, where a proposal may have several orders."""
PROVING = "proving"
"""Phase of a record without a verdict."""
_NO_SAFE_POINT = "no-safe-point"
"""Reason code: one step took longer than the runtime waits for its end."""
_LOOK_S = 0.25
"""Between two observations of a block."""
_TURN_BURN_IN = 1
"""Steps at the start of a turn that are left out: the first one contains the switch."""
_PAUSE_S = 1.0
"""Between two readings of service levels while a proof is paused."""
_GRAPHS_SHARE = 1.0 / 3.0
"""Part of a proof's longest time that its first pair waits for graphs with the swap."""


class ProofNeed(StrEnum):
    """Whether a proof that runs is still wanted."""

    CONTINUE = "continue"
    WAIT = "wait"
    """It continues later."""
    END = "end"
    """The rollout has ended, or another order has the slot."""


class ProofRecord(Protocol):
    """What is stored of the proof of one order."""

    def known(self) -> proof.ProofState | None:
        """Return the state that an earlier run left of this order; None if there is none."""
        ...

    def begin(self, state: proof.ProofState) -> None:
        """Store the first state.

        Raises
        ------
        TemporaryError
            If it cannot be written.
        """
        ...

    def keep(self, state: proof.ProofState) -> None:
        """Store a later state; as `begin`."""
        ...

    def finish(self, state: proof.ProofState) -> None:
        """Store the last state with its report, and send the verdict on; as `begin`."""
        ...

    def need(self) -> ProofNeed:
        """Return whether the proof is still wanted, several times in each block."""
        ...


class ReportingRecord(ProofRecord, Protocol):
    """A record whose verdict can be read."""

    def report(self) -> proof.ProofReport | None:
        """Return the verdict; None without one."""
        ...


class Levels(Protocol):
    """Service levels of the server."""

    def met(self) -> bool:
        """Return whether they are met now; False where that cannot be seen."""
        ...


class Subject(Protocol):
    """What a proof is about: the order that a slot has in force."""

    @property
    def definition(self) -> str:
        """Name of the slot."""
        ...

    @property
    def artifact(self) -> Digest | None:
        """Artifact in force."""
        ...

    @property
    def epoch(self) -> int:
        """Number of the order."""
        ...


class Switch(Protocol):
    """The server's slots, as far as a proof switches them; a `Swapper` is one."""

    def slots(self) -> Sequence[SlotState]:
        """See `Swapper.slots`."""
        ...

    def bypass(self, definition: str, *, on: bool, arm: str | None = None) -> None:
        """See `Swapper.bypass`."""
        ...


class TurnTaker(Protocol):
    """Lets the server itself switch an arm between its steps, for turns of a few steps."""

    def take_turns(self, turns: Sequence[tuple[str, bool]], *, steps: int) -> None:
        """Let each turn run so many steps, with its label and whether the arm is on.

        After the last turn the arm is on, and steps have no label.

        Raises
        ------
        CandidateError
            If the server refuses.
        TemporaryError
            If it does not answer.
        """
        ...


class StoredProof:
    """States of a proof in a store: the part of a `ProofRecord` that every node has.

    Parameters
    ----------
    store
        Where the record is kept, under `LIVE_PROOF`.
    order
        The order that is proven; the state of another order is not continued.
    kind, id
        Of the record.
    """

    def __init__(self, store: Store, order: SwapOrder, *, kind: str = LIVE_PROOF, id: str) -> None:
        self._store, self._order = store, order
        self._kind, self._id = kind, id

    def known(self) -> proof.ProofState | None:
        """See `ProofRecord.known`; None if the state cannot be read."""
        record = self._store.get(self._kind, self._id)
        if record is None or record.body["order"] != self._order.id:
            return None
        try:
            return proof.ProofState.model_validate(record.body["state"])
        except ValidationError as error:
            log.warning("%s: the live proof begins again: %s", self._order.definition, error)
            return None

    def begin(self, state: proof.ProofState) -> None:
        """See `ProofRecord.begin`."""
        if not self._store.add(self._kind, self._id, self.body(state), phase=PROVING):
            self.keep(state)

    def keep(self, state: proof.ProofState) -> None:
        """See `ProofRecord.keep`."""
        self.advance(self.body(state), to=PROVING)

    def advance(self, body: dict[str, Any], *, to: str) -> bool:
        """Write a record without a verdict; False if it has one."""
        return self._store.advance(self._kind, self._id, expect=PROVING, to=to, body=body)

    def body(self, state: proof.ProofState) -> dict[str, Any]:
        """Return the record of a state."""
        return {
            "order": self._order.id,
            "definition": self._order.definition,
            "artifact": self._order.artifact,
            "state": state.model_dump(mode="json"),
        }


class UnstoredProof:
    """States of a proof in memory: one that is cut short begins again.

    Parameters
    ----------
    wanted
        Whether the proof may go on; asked several times in each block.
    """

    def __init__(self, wanted: Callable[[], bool] = lambda: True) -> None:
        self._wanted = wanted
        self.state: proof.ProofState | None = None
        """The last state; None before the first."""

    def known(self) -> proof.ProofState | None:
        """See `ProofRecord.known`."""
        return None

    def begin(self, state: proof.ProofState) -> None:
        """See `ProofRecord.begin`."""
        self.state = state

    def keep(self, state: proof.ProofState) -> None:
        """See `ProofRecord.keep`."""
        self.state = state

    def finish(self, state: proof.ProofState) -> None:
        """See `ProofRecord.finish`."""
        self.state = state

    def need(self) -> ProofNeed:
        """See `ProofRecord.need`."""
        return ProofNeed.CONTINUE if self._wanted() else ProofNeed.WAIT


def report_in(record: Stored | None) -> proof.ProofReport | None:
    """Return the verdict in a record; None without one."""
    if record is None or record.phase == PROVING:
        return None
    return proof.ProofReport.model_validate(record.body["report"])


def claim_of(report: proof.ProofReport, state: Mapping[str, Any]) -> proof.ProofClaim:
    """Return what a node reports of a proof that has ended.

    Parameters
    ----------
    state
        The last state as JSON.
    """
    return proof.ProofClaim(
        verdict=report.verdict,
        reason=report.reason,
        pairs=state["pairs"],
        pilot_huge=state["pilot_huge"],
        seconds=report.seconds,
        kernels=state.get("kernels", ()),
    )


def switch_on(swapper: Swapper, wanted: Set[tuple[str, str | None]]) -> None:
    """Switch on swaps that a proof has left off, by definition and artifact, as far as it goes.

    If the server does not answer, the next pass tries again.
    """
    if not wanted:
        return
    try:
        for slot in swapper.slots():
            if (slot.definition, slot.active) in wanted and slot.bypassed:
                swapper.bypass(slot.definition, on=False)
    except RetunedError as error:
        log.warning("swaps could not be switched on again: %s", error)


class _Interrupted(Exception):
    """The order is not in force any more, or the server is another one."""


class _Failed(Exception):
    """The server has taken the order back by itself, because a launch or a check of it failed."""


class _Waits(Exception):
    """The proof continues later."""


class ProofRunner:
    """The proof of one order.

    Parameters
    ----------
    order
        The swap, which is in force.
    rule
        The policy's rule; its mode decides what an interrupted proof leaves in force.
    record
        Where its states and its verdict go.
    swapper
        The server, whose slot is switched.
    live
        Its steps.
    clock
        Wall time, which continues over restarts.
    first
        From the time in seconds to the first state; `proof.begin` under the rule by default.
    kept
        Whether the swap was kept before: it is on without a verdict, and only harm switches it off.
    levels
        Read at the end of each block; None asks for none. A breach switches the swap off, and one
        that was kept on.
    turns
        Switches the arm where a pair has turns; without it no settings may ask for turns.
    """

    def __init__(
        self,
        order: Subject,
        rule: LiveProof,
        *,
        record: ProofRecord,
        swapper: Switch,
        live: LiveSteps,
        clock: Clock,
        first: Callable[[float], proof.ProofState] | None = None,
        kept: bool = False,
        levels: Levels | None = None,
        turns: TurnTaker | None = None,
    ) -> None:
        self._order, self._rule, self._record = order, rule, record
        self._swapper, self._live, self._clock = swapper, live, clock
        self._first = first or (lambda at_s: proof.begin(proof.settings_of(rule), at_s=at_s))
        self._kept, self._levels, self._turns = kept, levels, turns
        self._steps: dict[str, list[proof.StepRecord]] = {}
        """By label of their block."""
        self._labelled = 0
        """Steps read since the recording began."""

    def run(self, stop: threading.Event, *, most_pairs: float = math.inf) -> None:
        """Measure pairs until there is a verdict, `stop` is set, or there were so many."""
        state = self._begun()
        last = state.planned + most_pairs
        try:
            self._await_graphs(state, stop)
            self._live.begin()
            self._labelled = 0
            while not state.done and not stop.is_set() and state.planned < last:
                if state.paused:
                    state = self._paused(state)
                    continue
                state = self._keep(proof.next_pair(state, secrets.SystemRandom()))
                state = self._keep(self._measured(state, stop))
        except _Failed as error:
            log.warning("%s: the live proof ends: %s", self._order.definition, error)
            state = proof.step(state, proof.Vetoed(at_s=self._at_s()))
        except (_Interrupted, CandidateError) as error:
            if isinstance(error, CandidateError) and error.reason == _NO_SAFE_POINT:
                log.info("%s: the live proof waits: %s", self._order.definition, error)
            else:
                log.info("%s: the live proof ends: %s", self._order.definition, error)
                state = proof.step(state, proof.Interrupted(at_s=self._at_s()))
        except (TemporaryError, _Waits) as error:
            log.info("%s: the live proof waits: %s", self._order.definition, error)
        finally:
            self._left(state)
        if state.done:
            self._record.finish(state)

    def _await_graphs(self, state: proof.ProofState, stop: threading.Event) -> None:
        """Wait before the first pair until graphs are captured with the swap, as far as they will.

        The swap is on: graphs are captured with what is in force. After a part of the proof's time
        it begins without them, because a server that is never without requests captures none.
        """
        most_s = _GRAPHS_SHARE * state.settings.max_duration_s
        if not state.planned and self._slot_at_rest().awaits_graphs:
            log.info("%s: the live proof waits for graphs", self._order.definition)
        while not state.planned and self._slot_at_rest().awaits_graphs and not stop.is_set():
            if self._at_s() - state.began_s >= most_s:
                log.warning(
                    "%s: the live proof begins, and some graphs do not have the swap: the server "
                    "was never without requests (spec.pauses.recaptureAfter)",
                    self._order.definition,
                )
                return
            self._live.wait(_PAUSE_S)
            self._check_need()

    def _slot_at_rest(self) -> SlotState:
        """Return the slot with the swap on."""
        slot = self._slot()
        if slot.bypassed:
            self._swapper.bypass(self._order.definition, on=False)
            slot = self._slot()
        return slot

    # --- one pair ---------------------------------------------------------------------------------

    def _measured(self, state: proof.ProofState, stop: threading.Event) -> proof.ProofState:
        """Run the planned pair; return the state after it."""
        plan = state.plan
        assert plan is not None, "it was just planned"
        self._steps.clear()
        if plan.turn_steps:
            return self._in_turns(state, plan, stop)
        labels = [f"{plan.number}-{at}-{arm}" for at, arm in enumerate(plan.runs)]
        for label, arm in zip(labels, plan.runs, strict=True):
            if not self._block(plan, arm, label=label, stop=stop):
                return proof.step(state, proof.PairAbandoned(plan.number, at_s=self._at_s()))
            if self._levels is not None and not self._levels.met():
                if self._kept:  # it serves, and goes on serving: only the pair ends
                    raise _Waits("the service levels are not met")
                return proof.step(state, proof.ServiceLevel(met=False, at_s=self._at_s()))
        self._live.wait(_LOOK_S / 5)  # the device ends what the host has launched
        self._read()
        if plan.kind is not proof.PairKind.SHAM:
            state = self._with_kernels(state)
        blocks = [_block_of(self._steps.get(label, [])) for label in labels]
        event = proof.PairMeasured(plan.number, blocks[0], blocks[1], at_s=self._at_s())
        return proof.step(state, event)

    def _with_kernels(self, state: proof.ProofState) -> proof.ProofState:
        """Return the state with the times of the kernel in place, where its launches are timed."""
        found = proof.kernel_times(self._live.launches(), steps=self._labelled)
        if not found:
            return state
        return proof.step(state, proof.KernelsMeasured(found, at_s=self._at_s()))

    def _in_turns(
        self, state: proof.ProofState, plan: proof.PairPlan, stop: threading.Event
    ) -> proof.ProofState:
        """Let the server take the turns of a pair; return the state after it."""
        assert self._turns is not None, "settings with turns come with who takes them"
        sham = plan.kind is proof.PairKind.SHAM
        arms = [proof.Arm.OFF if sham else label for label in plan.order]
        labels = [f"{plan.number}-{at}-{arm}" for at, arm in enumerate(arms)]
        asked = [(label, arm is proof.Arm.ON) for label, arm in zip(labels, arms, strict=True)]
        self._slot()
        self._turns.take_turns(asked, steps=plan.turn_steps)
        began_s = self._live.now_s()
        while len(self._steps.get(labels[-1], ())) < plan.turn_steps:
            late = self._live.now_s() - began_s > plan.turns * plan.most_block_s
            if stop.is_set() or late:
                return proof.step(state, proof.PairAbandoned(plan.number, at_s=self._at_s()))
            self._live.wait(_LOOK_S)
            self._read()
            self._check_need()
        steps: dict[proof.Arm, list[proof.StepRecord]] = {each: [] for each in plan.labels}
        for label, of in zip(labels, plan.order, strict=True):
            steps[of].extend(self._steps.get(label, ())[_TURN_BURN_IN:])
        first, second = (_block_of_turns(steps[each]) for each in plan.labels)
        event = proof.PairMeasured(plan.number, first, second, at_s=self._at_s())
        return proof.step(state, event)

    def _paused(self, state: proof.ProofState) -> proof.ProofState:
        """Wait with the swap off; return the state after another check of the service levels."""
        self._slot()
        self._swapper.bypass(self._order.definition, on=True)
        self._live.wait(_PAUSE_S)
        self._read()
        self._check_need()
        met = self._levels is None or self._levels.met()
        after = proof.step(state, proof.ServiceLevel(met=met, at_s=self._at_s()))
        return state if after == state else self._keep(after)

    def _block(
        self, plan: proof.PairPlan, arm: proof.Arm, *, label: str, stop: threading.Event
    ) -> bool:
        """Run one block; return whether it ran to its end with the right arm."""
        off = arm is proof.Arm.OFF
        self._slot()  # a switch names a kernel, not an order
        self._swapper.bypass(self._order.definition, on=off, arm=label)
        began_s = self._live.now_s()
        while not stop.is_set():
            self._live.wait(_LOOK_S)
            self._read()
            self._check_need()
            count = len(self._steps.get(label, ()))
            elapsed_s = self._live.now_s() - began_s
            if proof.block_is_over(plan, elapsed_s=elapsed_s, steps=count):
                return self._slot().bypassed is off
        return False

    def _read(self) -> None:
        for label, step in self._live.read():
            self._labelled += 1
            self._steps.setdefault(label, []).append(step)

    def _check_need(self) -> None:
        """Raise where the proof is not wanted now: a freeze or a rollback does not wait for it."""
        need = self._record.need()
        if need is ProofNeed.END:
            raise _Interrupted("it is not wanted any more")
        if need is ProofNeed.WAIT:
            raise _Waits("it is not wanted now")

    def _slot(self) -> SlotState:
        """Return the slot, which has this very order in force; raises if it has not."""
        order = self._order
        for slot in self._swapper.slots():
            if slot.definition == order.definition:
                if slot.epoch == order.epoch and slot.tripped not in ("", WatchReason.ORPHANED):
                    raise _Failed(f"the server rolled the swap back ({slot.tripped})")
                if (slot.active, slot.epoch) != (order.artifact, order.epoch) or slot.tripped:
                    raise _Interrupted("the order is not in force any more")
                return slot
        raise _Interrupted("the slot is gone")

    # --- its state --------------------------------------------------------------------------------

    def _begun(self) -> proof.ProofState:
        """Return the state of this order; a pair that a daemon left is abandoned."""
        state = self._record.known()
        if state is None:
            state = self._first(self._at_s())
            self._record.begin(state)
            return state
        if state.plan is not None:
            event = proof.PairAbandoned(state.plan.number, at_s=self._at_s())
            state = proof.step(state, event)
        return self._keep(proof.step(state, proof.Tick(at_s=self._at_s())))

    def _keep(self, state: proof.ProofState) -> proof.ProofState:
        self._record.keep(state)
        return state

    def _at_s(self) -> float:
        return self._clock.now().timestamp()

    def _left(self, state: proof.ProofState) -> None:
        """Leave the slot as the verdict, or the lack of one, asks for."""
        ended = state.report if state.done else None
        on = self._rule.mode is LiveProofMode.OBSERVE
        on = on or (
            self._kept if ended is None else proof.keeps(ended, self._rule, kept=self._kept)
        )
        try:
            self._live.end()
            self._slot()
            self._swapper.bypass(self._order.definition, on=not on)
        except (_Interrupted, _Failed) as error:
            log.info("%s is not switched: %s", self._order.definition, error)
        except RetunedError as error:
            log.warning("%s could not be switched: %s", self._order.definition, error)


def _block_of(steps: list[proof.StepRecord]) -> proof.MeasuredBlock:
    if not steps:
        return proof.MeasuredBlock(steps=proof.columns_of(()), began_s=0.0, ended_s=0.0)
    first = steps[0]
    return proof.MeasuredBlock(
        steps=proof.columns_of(steps),
        began_s=first.ended_s - (first.period_s or 0.0),
        ended_s=steps[-1].ended_s,
    )


def _block_of_turns(steps: list[proof.StepRecord]) -> proof.MeasuredBlock:
    seconds = sum(each.period_s or 0.0 for each in steps)
    return proof.MeasuredBlock(steps=proof.columns_of(steps), began_s=0.0, ended_s=seconds)
