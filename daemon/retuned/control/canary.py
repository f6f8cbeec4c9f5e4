"""Live proof by canary replicas, before any serving pod has the swap. Pure.

    A/A pairs of replicas -> pairs, one of them with the swap -> a verdict -> the waves

`retuned.stages.watch.proof.replicas` is the statistics. This module decides which pods exist for
it. The plan of a pair, with its coin, is in the status of the proposal before its pods are made.
The pods of a pair exist while the status names the pair and the proposal proves; any other pod of
the proposal is deleted. So each end of a proposal, and each hold, deletes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from retuned.api.agent import BootOrder, BootPhase
from retuned.api.proposal import (
    ProposalPhase,
    RolloutStatus,
    SwapProposal,
    SwapProposalStatus,
)
from retuned.api.replicas import ReplicaPairStatus, ReplicaProofStatus
from retuned.api.target import TuningTarget
from retuned.contract import Digest
from retuned.control.facts import ReplicaFact, ReplicaFacts
from retuned.control.live_proofs import NO_CANARY_REPLICAS
from retuned.control.orders import replica_order
from retuned.control.proposal_step import ProposalStep
from retuned.control.rollout import back
from retuned.control.waves import DetectedHarm
from retuned.stages.gate import LiveProof, LiveProofMode, NotSwitchable
from retuned.stages.watch.proof import (
    Arm,
    BootsAbandoned,
    BootsMeasured,
    BootWindow,
    Interrupted,
    ProofReason,
    ReplicaState,
    Tick,
    Verdict,
    assign,
    begin_replicas,
    boot_settings_of,
    keeps,
    step_replicas,
    wanted_pairs,
)

RUNNING = "canary-replicas-running"
"""Reason of a proposal whose replicas are measured."""
MOST_FAILURES = 3
"""Pairs in a row that do not count because of their pods, after which the proof ends."""
MOST_RESTARTS = 2
"""How often a proof may restart because the pod template changed."""
START_WITHIN = timedelta(minutes=15)
"""A replica whose containers do not run by then abandons its pair."""
SERVE_WITHIN = timedelta(minutes=45)
"""A replica that records no steps by then abandons its pair."""
REPORT_WITHIN = timedelta(minutes=15)
"""A window that is so much later than its end abandons its pair."""
KNOWS_WITHIN = timedelta(minutes=10)
"""A sidecar of a serving replica that reports no boot by then is of an older release."""
CLOCKS_DIFFER = timedelta(minutes=5)
"""Most that the clock of a replica may differ."""

PENDING = "replica-pending"
NOT_SERVING = "replica-not-serving"
NOT_REPORTED = "replica-not-reported"
GONE = "replica-gone"
NO_BOOTS = "boots-not-reported"
"""The replica's sidecar is of a release that measures no boots; further pairs would not either."""
DIFFERENT = "environments-differ"
MIXED = "mixed-arms"
CONTRADICTED = "contradicted"
TEMPLATE_CHANGED = "template-changed"
STATE_LOST = "state-lost"
_P = ProposalPhase


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedReplica:
    """A pod that must exist now."""

    name: str
    pair: str
    """Name of its pair."""
    uid: str
    """Its uid; empty if it may have to be made."""
    template: Digest
    """Pod template that it is made from."""


def is_proving(status: SwapProposalStatus) -> bool:
    """Whether replicas of a proposal are measured now; no serving pod has the swap then."""
    kept = status.replicas
    return status.phase is _P.PROVING and kept is not None and not kept.verdict


def is_proven(status: SwapProposalStatus) -> bool:
    """Whether a proof by replicas lets the swap go on."""
    return status.replicas is not None and bool(status.replicas.verdict) and status.replicas.kept


def is_due(case: ProposalStep) -> bool:
    """Whether replicas must prove the swap before it may begin, and the operator may make them."""
    if is_proven(case.status) or case.facts.replicas is None:
        return False
    rule = _rule(case)
    if rule is None or rule.mode is not LiveProofMode.REQUIRED:
        return False
    if rule.when_not_switchable is not NotSwitchable.CANARY:
        return False
    return is_proving(case.status) or case.facts.unavailable == NO_CANARY_REPLICAS


def wanted_replicas(status: SwapProposalStatus) -> tuple[WantedReplica, ...]:
    """Return the pods that must exist for a proposal; all others of it are deleted."""
    kept = status.replicas
    if kept is None or not is_proving(status):
        return ()
    return tuple(
        WantedReplica(name=name, pair=pair.name, uid=uid, template=kept.template)
        for pair in kept.open
        for name, uid in zip(pair.pods, pair.uids, strict=True)
    )


def due(
    status: SwapProposalStatus, existing: Mapping[str, str]
) -> tuple[tuple[WantedReplica, ...], tuple[str, ...]]:
    """Return the replicas to make, and the names of those to delete.

    A replica that the status knows and that is gone is not made again: it would be another boot.

    Parameters
    ----------
    status
        As stored.
    existing
        Replicas of the proposal that exist: uid by name.
    """
    wanted = {each.name: each for each in wanted_replicas(status)}
    make = tuple(e for e in wanted.values() if not e.uid and e.name not in existing)
    delete = tuple(
        name
        for name, uid in existing.items()
        if name not in wanted or wanted[name].uid not in ("", uid)
    )
    return make, delete


def boot_order(
    uid: str, proposals: Iterable[SwapProposal], *, target: TuningTarget
) -> BootOrder | None:
    """Return what a replica is to measure of its boot; None for every other pod.

    Parameters
    ----------
    uid
        The pod.
    proposals
        Every proposal for its target.
    target
        Its TuningTarget.
    """
    for resource in proposals:
        kept = resource.status.replicas
        if kept is None or not is_proving(resource.status):
            continue
        settings = boot_settings_of(kept.rule)
        for pair in kept.open:
            for name, known, arm in zip(pair.pods, pair.uids, pair.runs, strict=True):
                if known != uid:
                    continue
                order = replica_order(resource, uid, target=target)
                return BootOrder(
                    proposal=resource.stage_proposal().id,
                    definition=resource.spec.kernel,
                    replica=name,
                    arm=arm,
                    order=order.id if order is not None else "",
                    leave_out_s=settings.leave_out_s,
                    window_s=settings.window_s,
                )
    return None


def advanced(case: ProposalStep) -> ProposalStep:
    """Take a proof by replicas one step further.

    The result continues the proof, is held before the first replica, has a verdict that lets the
    swap continue (`is_proven`), or is a rollback. Call it where `is_due`.
    """
    facts = case.facts.replicas
    assert facts is not None, "the caller has looked"
    if not is_proving(case.status):
        unable = _unable(facts)
        if unable:
            return case.to(_P.SCHEDULED, NO_CANARY_REPLICAS, unable)
        case = _entered(case, facts)
    kept = case.status.replicas
    assert kept is not None, "it has begun"
    if facts.lost and kept.state:
        return _interrupted(case, kept, _begun(case, kept), why=STATE_LOST)
    state = facts.state if facts.state is not None and kept.state else _begun(case, kept)
    if facts.templates and kept.template not in facts.templates:
        if kept.anew >= MOST_RESTARTS:
            return _interrupted(case, kept, state, why=TEMPLATE_CHANGED)
        kept = _restarted(kept, facts.templates[0])
        state = _begun(case, kept)
    state = _without_lost_plans(state, kept, case.now)
    for pair in kept.open:
        kept, state = _observed(case, kept, state, pair)
    state = step_replicas(state, Tick(at_s=case.now.timestamp()))
    if state.done:
        return _concluded(case, kept.model_copy(update={"why": ""}), state)
    if kept.failures >= MOST_FAILURES or kept.why == NO_BOOTS:
        return _interrupted(case, kept, state, why=kept.why)
    if facts.templates and wanted_pairs(state):
        kept, state = _planned(case, kept, state, facts)
    return _kept(case.to(_P.PROVING, RUNNING, _progress(kept, state)), kept, state)


def stopped(case: ProposalStep) -> ProposalStep:
    """Name no replica any more where a proposal does not prove by them now.

    Their pods are deleted. A proof that was held continues later with other pairs.
    """
    kept = case.status.replicas
    if kept is None or kept.verdict or is_proving(case.status):
        return case
    update: dict[str, object] = {"open": (), "sentence": "held: no replica is in use"}
    if not case.phase.is_before_swap:
        update |= {
            "verdict": str(Verdict.NOT_CONCLUDED),
            "reason": str(ProofReason.INTERRUPTED),
            "at": case.now,
            "sentence": "not concluded (interrupted): the proposal went on or ended without it",
        }
    return case.having(replicas=kept.model_copy(update=update))


def _rule(case: ProposalStep) -> LiveProof | None:
    chosen = case.asked.chosen if case.asked is not None else None
    return chosen.policy.spec.live_proof if chosen is not None else None


def _unable(facts: ReplicaFacts) -> str:
    """Return why no replica can be made now, for people; empty if one can."""
    if facts.templates:
        return ""
    return facts.no_template or "no serving pod with the proposal's environment is known yet"


def _entered(case: ProposalStep, facts: ReplicaFacts) -> ProposalStep:
    """Begin a proof, or take up one that was held."""
    kept, rule = case.status.replicas, _rule(case)
    assert rule is not None, "the gate approved it by a policy"
    if kept is None or kept.verdict:
        kept = ReplicaProofStatus(
            environment=case.resource.spec.environment,
            template=facts.templates[0],
            since=case.now,
            rule=rule,
            made=kept.made if kept is not None else 0,
        )
    kept = kept.model_copy(update={"failures": 0, "why": ""})
    return case.having(replicas=kept).to(_P.PROVING, RUNNING)


def _begun(case: ProposalStep, kept: ReplicaProofStatus) -> ReplicaState:
    """Return the first state; its time counts from the start of the proof, not of a restart."""
    return begin_replicas(
        boot_settings_of(kept.rule), environment=kept.environment, at_s=kept.since.timestamp()
    )


def _restarted(kept: ReplicaProofStatus, template: Digest) -> ReplicaProofStatus:
    update: dict[str, object] = {
        "template": template,
        "state": None,
        "open": (),
        "anew": kept.anew + 1,
        "sham_pairs": 0,
        "pairs": 0,
        "boot_spread": None,
    }
    return kept.model_copy(update=update)


def _without_lost_plans(
    state: ReplicaState, kept: ReplicaProofStatus, now: datetime
) -> ReplicaState:
    """Abandon the plans that the status does not name: a hold has deleted their pods."""
    named = {pair.number for pair in kept.open}
    for plan in state.open:
        if plan.number not in named:
            state = step_replicas(state, BootsAbandoned(number=plan.number, at_s=now.timestamp()))
    return state


def _planned(
    case: ProposalStep, kept: ReplicaProofStatus, state: ReplicaState, facts: ReplicaFacts
) -> tuple[ReplicaProofStatus, ReplicaState]:
    """Draw the coin of one more pair; its pods are made once the status has it."""
    name = f"{case.resource.metadata.name}-{kept.made}"
    state = assign(state, (f"{name}-a", f"{name}-b"), coin=facts.coin)
    plan = state.open[-1]
    pair = ReplicaPairStatus(
        number=plan.number, name=name, sham=plan.sham, first=plan.first, since=case.now
    )
    update = {"open": (*kept.open, pair), "made": kept.made + 1}
    return kept.model_copy(update=update), state


def _observed(
    case: ProposalStep, kept: ReplicaProofStatus, state: ReplicaState, pair: ReplicaPairStatus
) -> tuple[ReplicaProofStatus, ReplicaState]:
    """Return status and state with what the two pods of a pair show."""
    facts, at_s = case.facts.replicas, case.now.timestamp()
    assert facts is not None, "the caller has looked"
    by_name = {each.name: each for each in facts.pods}
    seen = [by_name.get(name) for name in pair.pods]
    why = _trouble(pair, seen, kept, now=case.now)
    windows = None if why else _windows(seen)
    if windows is not None:
        why = _doubt(case, kept, pair, seen, windows)
    if not why and windows is not None:
        measured = BootsMeasured(pair.number, windows[0], windows[1], at_s=at_s)
        try:
            state = step_replicas(state, measured)
        except ValueError:
            why = CONTRADICTED
        else:
            found = next((p.void for p in state.pairs if p.plan.number == pair.number), None)
            return _counted(kept, pair, why=str(found) if found is not None else ""), state
    if why:
        state = step_replicas(state, BootsAbandoned(number=pair.number, at_s=at_s))
        return _counted(kept, pair, why=why), state
    uids = tuple(
        known or (each.uid if each is not None else "")
        for known, each in zip(pair.uids, seen, strict=True)
    )
    seen_at = pair.seen or (case.now if all(uids) else None)
    after = pair.model_copy(update={"uids": uids, "seen": seen_at})
    return kept.model_copy(
        update={"open": tuple(after if each is pair else each for each in kept.open)}
    ), state


def _counted(kept: ReplicaProofStatus, pair: ReplicaPairStatus, *, why: str) -> ReplicaProofStatus:
    """Return the status without a pair that is over."""
    rest = tuple(each for each in kept.open if each.number != pair.number)
    failures = kept.failures + 1 if why else 0
    return kept.model_copy(update={"open": rest, "failures": failures, "why": why[:64]})


def _trouble(
    pair: ReplicaPairStatus,
    seen: Sequence[ReplicaFact | None],
    kept: ReplicaProofStatus,
    *,
    now: datetime,
) -> str:
    """Return why a pair leads to nothing, a stable code; empty if it may."""
    for known, each in zip(pair.uids, seen, strict=True):
        if known and (each is None or each.uid != known):
            return GONE
    present = [each for each in seen if each is not None]
    for each in present:
        why = _trouble_of(each, kept, seen_at=pair.seen, now=now)
        if why:
            return why
    settings, age = boot_settings_of(kept.rule), now - pair.since
    if age >= START_WITHIN and (len(present) < len(seen) or not all(e.running for e in present)):
        return PENDING
    boots = [each.boot for each in present]
    if age >= SERVE_WITHIN:
        for boot in boots:
            if boot is None or boot.phase is BootPhase.WAITING:
                return (boot.reason if boot is not None else "") or NOT_SERVING
    measuring = timedelta(seconds=settings.leave_out_s + settings.window_s)
    return NOT_REPORTED if age >= SERVE_WITHIN + measuring + REPORT_WITHIN else ""


def _trouble_of(
    each: ReplicaFact, kept: ReplicaProofStatus, *, seen_at: datetime | None, now: datetime
) -> str:
    """Return why one replica is of no use, a stable code; empty if it may be."""
    if each.failed:
        return each.failed
    if each.environment is not None and each.environment != kept.environment:
        return DIFFERENT
    if each.boot is not None and each.boot.phase is BootPhase.FAILED:
        return each.boot.reason or "boot-failed"
    if seen_at is None or each.ready_since is None or not each.reports or each.boot is not None:
        return ""
    return NO_BOOTS if now >= max(seen_at, each.ready_since) + KNOWS_WITHIN else ""


def _windows(seen: Sequence[ReplicaFact | None]) -> tuple[BootWindow, BootWindow] | None:
    """Return the windows of a pair; None before both are complete.

    An operator that has just begun waits until the pods have reported the rest.
    """
    first, second = (
        each.boot.window
        if each is not None and each.environment is not None and each.boot is not None
        else None
        for each in seen
    )
    return (first, second) if first is not None and second is not None else None


def _doubt(
    case: ProposalStep,
    kept: ReplicaProofStatus,
    pair: ReplicaPairStatus,
    seen: Sequence[ReplicaFact | None],
    windows: tuple[BootWindow, BootWindow],
) -> str:
    """Return why the windows are not those of the planned pods, a stable code; empty if they are.

    What a replica reports is untrusted. It is compared with the plan, with what the API server
    knows of the pod, and with what the sidecar reports otherwise.
    """
    window_s = boot_settings_of(kept.rule).window_s
    artifact = case.resource.spec.artifact.digest
    for name, uid, arm, each, window in zip(
        pair.pods, pair.uids, pair.runs, seen, windows, strict=True
    ):
        assert each is not None, "it has a window"
        began, made = window.began_s, each.made_at
        earliest = (made - CLOCKS_DIFFER).timestamp()
        if (each.active == artifact) is not (arm is Arm.ON) or window.arm is not arm:
            return MIXED
        if window.environment != each.environment:
            return DIFFERENT
        if (
            not uid
            or window.replica != name
            or not window.boot.startswith(f"{uid}/")
            or abs(window.sums.wall_s - window_s) > 1.0
            or not earliest <= began <= (case.now + CLOCKS_DIFFER).timestamp()
        ):
            return CONTRADICTED
    return ""


def _progress(kept: ReplicaProofStatus, state: ReplicaState) -> str:
    """Return what runs, in one sentence."""
    settings = state.settings
    sham = state.fit is None
    count = len(state.sham) if sham else len(state.counted(sham=False))
    most = settings.sham_pairs if sham else settings.most_pairs
    kind = "A/A pair" if sham else "pair"
    used = 2 * len(kept.open)
    said = f"canary replicas: {kind} {min(count + 1, most)} of {most}; {used} replicas in use"
    if kept.why:
        said += f"; the last pair did not count ({kept.why})"
    return said


def _kept(case: ProposalStep, kept: ReplicaProofStatus, state: ReplicaState) -> ProposalStep:
    """Return the step with status and state."""
    spread = state.spread
    shams = state.sham if state.fit is None else state.counted(sham=True)
    update: dict[str, object] = {
        "sham_pairs": len(shams),
        "pairs": len(state.counted(sham=False)),
        "boot_spread": spread.high if spread is not None else None,
    }
    if not kept.verdict:
        update["sentence"] = _progress(kept, state)
    case = case.having(replicas=kept.model_copy(update=update))
    changed = case.facts.replicas is None or state != case.facts.replicas.state
    return replace(case, replica_state=state) if changed else case


def _interrupted(
    case: ProposalStep, kept: ReplicaProofStatus, state: ReplicaState, *, why: str
) -> ProposalStep:
    state = step_replicas(state, Interrupted(at_s=case.now.timestamp()))
    return _concluded(case, kept.model_copy(update={"why": why}), state)


def _concluded(case: ProposalStep, kept: ReplicaProofStatus, state: ReplicaState) -> ProposalStep:
    """Return the step with the verdict; unless it keeps the swap, the proposal is rolled back.

    No serving pod had the swap, so the rollback needs no report.
    """
    report = state.report
    assert report is not None, "it is done"
    required = kept.rule.model_copy(update={"mode": LiveProofMode.REQUIRED})
    update = {
        "open": (),
        "verdict": str(report.verdict),
        "reason": str(report.reason),
        "kept": keeps(report, required),
        "at": case.now,
        "effect": report.effect,
        "low": report.low,
        "high": report.high,
    }
    kept = kept.model_copy(update=update)
    case = _kept(case, kept, state)
    if kept.kept:
        return case
    if case.status.rollout is None:
        case = case.having(
            rollout=RolloutStatus(
                started_at=case.now, wave_started_at=case.now, last_swap_at=case.now
            )
        )
    return back(
        case,
        DetectedHarm(
            reason=f"live-proof-{report.reason}",
            detail=kept.why,
            blames=report.verdict is Verdict.HARMS,
        ),
    )
