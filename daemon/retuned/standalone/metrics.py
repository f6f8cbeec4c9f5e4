"""Metrics of one machine: records and devices as numbers, and devices beside experiments."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from retuned.api.proposal import ProposalPhase
from retuned.errors import RetunedError, TemporaryError
from retuned.node import devices, metrics
from retuned.ports import DeviceState, Event, Finding, Store, Stored
from retuned.stages.drift import DriftAction
from retuned.stages.gate import GateDecision, GateReason, SwapDecision, TuningFreeze
from retuned.standalone.context import Context, RecordKind
from retuned.standalone.proofs.sentinel import effect_rows
from retuned.standalone.records import (
    BEFORE_SWAP,
    GOING_BACK,
    IN_FORCE,
    in_force,
    in_phases,
    proposals,
    understood,
)
from retuned.store.approvals import Approvals
from retuned.telemetry import Row
from retuned.telemetry.labels import (
    EXPERIMENT_PHASES,
    HYPOTHESIS_PHASES,
    NEWS,
    PHASES,
    SwapLabels,
    Waiting,
    failing_rows,
    is_waiting,
    kebab,
    standing,
    waiting_rows,
)
from retuned.telemetry.loop_metrics import PENDING_ROWS

log = logging.getLogger(__name__)

_MAX_PROCESSES = 4096
WHAT = "devices"
"""Line of a history with the state of devices."""
_MOMENTS = {"begin": "as it began, ", "end": "as it ended, "}


class DevicePoller:
    """Reads the state of devices, repeatedly.

    Parameters
    ----------
    ctx
        Where they are read from, and where the history is.
    """

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._explained = ""
        """Newest drift report that was looked at."""

    def look(self) -> None:
        """Show how devices stand, and write it beside an alarm about the machine."""
        ctx = self._ctx
        if ctx.devices is None:
            return
        states = ctx.devices.read()
        servers, lab = ctx.server_processes(), descendants(os.getpid())
        for name, rows in devices.rows(states, servers=servers, lab=lab).items():
            ctx.telemetry.table(name, rows)
        self._explain(devices.sentence(states, ours=servers | lab))

    def _explain(self, sentence: str) -> None:
        """Write the state of the devices to each new alarm, also if nothing was unusual."""
        ctx = self._ctx
        for stored in ctx.store.list(RecordKind.DRIFT, above=self._explained):
            self._explained = stored.id
            if stored.body.get("action") == DriftAction.ALARM:
                note(
                    ctx,
                    RecordKind.DRIFT,
                    stored.id,
                    sentence=sentence or "nothing unusual to be seen",
                )


def beside_experiment(ctx: Context, experiment: str, *, moment: str) -> None:
    """Write beside an experiment what devices did when it began or ended, if it may matter."""
    states: tuple[DeviceState, ...] = tuple(ctx.devices.read()) if ctx.devices is not None else ()
    ours = ctx.server_processes() | descendants(os.getpid()) if states else frozenset()
    sentence = devices.sentence(states, ours=ours)
    if sentence:
        note(ctx, RecordKind.EXPERIMENT, experiment, sentence=sentence, moment=moment)


def said_beside(store: Store, kind: RecordKind, id: str) -> str:
    """Return what was written last of what devices did beside something, moment by moment."""
    lines = [each.detail for each in store.events(id=id) if (each.kind, each.what) == (kind, WHAT)]
    said = {str(line.get("moment", "")): str(line.get("sentence", "")) for line in lines}
    return "; ".join(f"{_MOMENTS.get(moment, '')}{words}" for moment, words in said.items())


def note(ctx: Context, kind: RecordKind, id: str, **detail: str) -> None:
    """Write a line of a history."""
    at = ctx.clock.now()
    ctx.store.record(Event(at=at, kind=kind, id=id, what=WHAT, who="retuned", detail=detail))


def descendants(pid: int, *, proc: Path = Path("/proc")) -> frozenset[int]:
    """Return a process and all that it has started and that still run."""
    found, left = {pid}, [pid]
    while left and len(found) < _MAX_PROCESSES:
        parent = left.pop()
        for task in sorted(proc.glob(f"{parent}/task/*/children")):
            try:
                words = task.read_text("ascii").split()
            except OSError:
                continue  # it has just ended
            fresh = {int(word) for word in words if word.isdecimal()} - found
            found |= fresh
            left += fresh
    return frozenset(found)


_BACK = (*GOING_BACK, str(ProposalPhase.ROLLED_BACK))
_EXPERIMENT = {
    "running": "running", "failed": "failed", "done": "no-improvement", "won": "succeeded",
    "proposed": "succeeded", "refused": "succeeded", "lapsed": "succeeded",
}  # fmt: skip
"""Metric label by phase. Proposals show whether a win was proposed; experiments do not."""


class StateMetrics:
    """Writes the state into metrics, repeatedly.

    Parameters
    ----------
    ctx
        Where it is read from.
    """

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._decisions: set[str] | None = None
        """Decisions that were counted, or there before this process."""

    def show(self) -> None:
        """Show everything; what cannot be read shows nothing rather than what was.

        Raises
        ------
        UnreadableInput
            If a freeze cannot be understood; the rest is shown.
        """
        _phases(self._ctx)
        _slots(self._ctx)
        _policies(self._ctx)
        _waiting(self._ctx)
        _in_force(self._ctx)
        _going_back(self._ctx)
        self._ctx.telemetry.table("retuned_sentinel_effect_ratio", effect_rows(self._ctx))
        self._count_decisions()
        _freezes(self._ctx)

    def _count_decisions(self) -> None:
        """Count what people have said since this process began; other processes write it."""
        ctx, there = self._ctx, set(self._ctx.store.ids(RecordKind.DECISION))
        for id in sorted(there - self._decisions) if self._decisions is not None else ():
            stored = ctx.store.get(RecordKind.DECISION, id)
            said = understood(ctx, stored, SwapDecision) if stored is not None else None
            if said is not None:
                ctx.telemetry.count(
                    "retuned_swap_decisions_total",
                    decision=kebab(str(said.decision)),
                    channel=said.channel,
                )
        self._decisions = there


def experiment_begun(ctx: Context, experiment: str) -> None:
    """Write what devices do when an experiment begins to run, if that may matter to its numbers."""
    beside_experiment(ctx, experiment, moment="begin")


def experiment_ended(ctx: Context, experiment: str, *, seconds: float) -> None:
    """Count an experiment that has come to its end, `seconds` after this process took it up."""
    stored = ctx.store.get(RecordKind.EXPERIMENT, experiment)
    if stored is None or stored.phase == "running":
        return
    beside_experiment(ctx, experiment, moment="end")
    outcome = _EXPERIMENT[stored.phase]
    ctx.telemetry.count("retuned_experiments_ended_total", outcome=outcome)
    ctx.telemetry.observe("retuned_experiment_duration_seconds", seconds, outcome=outcome)


def candidate_judged(ctx: Context, finding: Finding) -> None:
    """Count a candidate and what it cost."""
    reason = str(finding.verdict.reason)
    ctx.telemetry.count("retuned_candidates_total", reason=reason)
    ctx.telemetry.count("retuned_candidate_seconds_total", finding.seconds, reason=reason)
    ctx.telemetry.count("retuned_experiment_gpu_seconds_total", finding.seconds)


def _phases(ctx: Context) -> None:
    table = ctx.telemetry.table
    beliefs = _counted(ctx, RecordKind.HYPOTHESIS, HYPOTHESIS_PHASES, {})
    table("retuned_hypotheses", standing(beliefs, "phase", known=HYPOTHESIS_PHASES))
    ctx.telemetry.gauge("retuned_experiments_waiting", beliefs.get("open", 0))
    experiments = _counted(ctx, RecordKind.EXPERIMENT, _EXPERIMENT, _EXPERIMENT)
    table("retuned_experiments", standing(experiments, "phase", known=EXPERIMENT_PHASES))
    found = {kebab(phase): n for phase, n in ctx.store.counts(RecordKind.PROPOSAL).items()}
    table("retuned_proposals", standing(found, "phase", known=PHASES))


def _counted(
    ctx: Context, kind: RecordKind, phases: Iterable[str], names: Mapping[str, str]
) -> Mapping[str, int]:
    found: Counter[str] = Counter()
    for phase in phases:
        found[names.get(phase, phase)] += len(ctx.store.ids(kind, phase=phase))
    return found


def _slots(ctx: Context) -> None:
    try:
        samples = ctx.swapper.samples()
    except TemporaryError as error:
        log.debug("no slots to show: %s", error)
        samples = ()
    metrics.slots(ctx.telemetry, samples)


def _policies(ctx: Context) -> None:
    """Show which policies are in force; none if one of them cannot be used."""
    rows: list[Row] = []
    try:
        for policy in ctx.policies():
            metadata = policy.metadata
            rows.append(({"namespace": metadata.namespace, "policy": metadata.name}, 1.0))
        problem = getattr(ctx.policies, "problem", None)
    except (RetunedError, OSError) as error:
        problem = error
    if problem is not None:
        rows.append(({"namespace": "", "policy": "policy_files"}, 0.0))
    ctx.telemetry.table("retuned_policy_valid", rows)


def _waiting(ctx: Context) -> None:
    waiting: list[Waiting] = []
    answers: Counter[str] = Counter()
    for stored, proposal in proposals(ctx, BEFORE_SWAP):
        said = ctx.store.get(RecordKind.GATE, stored.id)
        if said is None:
            continue  # the gate decides on it shortly
        answer = understood(ctx, said, GateDecision)
        if answer is None:
            continue
        answers[str(answer.reason)] += 1
        if stored.phase == ProposalPhase.AWAITING_APPROVAL and is_waiting(answer):
            entry = Waiting(namespace="", name=stored.id, proposal=proposal, missing=answer.missing)
            waiting.append(entry)
    known = (str(each) for each in GateReason)
    ctx.telemetry.table("retuned_gate_standing", standing(answers, "reason", known=known))
    for name, rows in waiting_rows(waiting).items():
        ctx.telemetry.table(name, rows)


def _in_force(ctx: Context) -> None:
    rows: list[Row] = []
    for stored in in_phases(ctx, IN_FORCE):
        kernel, saving = stored.body.get("definition"), stored.body.get("expected_saving")
        if not (isinstance(kernel, str) and isinstance(saving, float)):
            continue
        if in_force(ctx.store, kernel) == stored.body.get("artifact"):
            names = {"namespace": "", "target": ctx.settings.target, "kernel": kernel}
            rows.append((names, saving))
    ctx.telemetry.table("retuned_swap_in_force_saving_ratio", rows)


def _going_back(ctx: Context) -> None:
    """Show what went back not long ago, and what does not; no record is too broken for that."""
    store, now = ctx.store, ctx.clock.now()
    back: list[Row] = []
    for stored in store.page(RecordKind.PROPOSAL, phases=_BACK, limit=PENDING_ROWS):
        if stored.updated_at < now - NEWS:
            continue
        begun = [each for each in store.events(id=stored.id) if each.what == "rolling-back"]
        if begun and begun[-1].at >= now - NEWS:
            reason = str(begun[-1].detail.get("reason", ""))
            back.append(({**_subject(ctx, stored).labels, "reason": reason}, 1.0))
    ctx.telemetry.table("retuned_swap_rolled_back", back)
    failing = store.list(RecordKind.PROPOSAL, phase=ProposalPhase.ROLLBACK_FAILED)
    rows = failing_rows({_subject(ctx, stored): () for stored in failing})
    ctx.telemetry.table("retuned_swap_rollback_failed", rows)


def _subject(ctx: Context, stored: Stored) -> SwapLabels:
    return SwapLabels(
        namespace="",
        proposal=stored.id,
        target=ctx.settings.target,
        kernel=str(stored.body.get("definition", "")),
    )


def _freezes(ctx: Context) -> None:
    standing_now: Iterable[TuningFreeze] = ()
    try:
        standing_now = Approvals(ctx.store).freezes(now=ctx.clock.now())
    finally:
        rows: list[Row] = [({"freeze": each.id}, each.at.timestamp()) for each in standing_now]
        ctx.telemetry.table("retuned_freeze_since_timestamp_seconds", rows)
