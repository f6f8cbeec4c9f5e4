"""Released Jobs: they wait for capacity, start and run; and the cost of their running. Pure.

Production may hold every accelerator for hours. A Job without capacity costs nothing and fails
nothing. After a while it is suspended, so that another experiment may start, and released again
later. Its deadline is its pod's and begins when the pod is on a node.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from retuned.api.experiment import ExperimentPhase, Spell
from retuned.api.values import Condition, ConditionStatus, camel, with_condition
from retuned.control.experiment_step import NECESSARY, TrialStep
from retuned.control.facts import DeleteJob, JobFact, JobState, SetSuspend

ROOM_PATIENCE = timedelta(minutes=10)
"""How long a released Job waits for capacity before it is suspended."""
ROOM_REST = timedelta(minutes=5)
"""How long it is then suspended."""
MAX_SPELLS = 32
"""Most spells in a status; the oldest are merged, none is dropped."""
WAITS_FOR_ROOM, STARTING, NO_ROOM = "waits-for-room", "starting", "no-room"
"""Reasons of experiments whose Job has no pod on a node, has one that does not run yet, or was
suspended for lack of capacity."""
LET_GO = (JobState.WAITING, JobState.STARTING, JobState.RUNNING)
"""States of a Job that was released and has not ended."""
_WAITS = "WaitsForRoom"
"""Type of the condition that holds the start of the wait."""
_P = ExperimentPhase


def rests(case: TrialStep) -> bool:
    """Whether a Job that found no capacity is still suspended."""
    since = _since(case)
    return case.status.reason == NO_ROOM and since is not None and case.now < since + ROOM_REST


def waited(case: TrialStep, job: JobFact) -> TrialStep:
    """Wait for capacity, or suspend the Job; Kueue decides that itself."""
    case = _marked(case, waits=True)
    since = _since(case)
    assert since is not None, "it was written just now"
    if case.facts.queued_elsewhere or case.now < since + ROOM_PATIENCE:
        return case.to(_P.QUEUED, WAITS_FOR_ROOM, job.reason)
    case = _marked(case, waits=False).to(_P.QUEUED, NO_ROOM, job.reason)
    return case.doing(SetSuspend(job=job.name, suspend=True))


def found_room(case: TrialStep) -> TrialStep:
    """Record that no Job waits for capacity now."""
    return _marked(case, waits=False) if _since(case) is not None else case


def _since(case: TrialStep) -> datetime | None:
    found = next((each for each in case.status.conditions if each.type == _WAITS), None)
    return found.last_transition_time if found is not None else None


def _marked(case: TrialStep, *, waits: bool) -> TrialStep:
    mark = Condition(
        type=_WAITS,
        status=ConditionStatus.TRUE if waits else ConditionStatus.FALSE,
        last_transition_time=case.now,
        reason=camel(WAITS_FOR_ROOM if waits else "does-not-wait"),
        message="",
    )
    return case.having(conditions=with_condition(case.status.conditions, mark))


def with_device_time(case: TrialStep) -> TrialStep:
    """Record when a measuring Job began and ended.

    If it ran and ended between two observations, the times of its pod count.
    """
    spells = list(case.status.device_time)
    jobs = {job.name: job for job in case.facts.jobs if job.role in NECESSARY}
    for n, spell in enumerate(spells):
        job = jobs.get(spell.job)
        if spell.ended_at is None and (job is None or job.state is not JobState.RUNNING):
            spells[n] = _ended(spell, job, now=case.now)
    for job in jobs.values():
        known = [spell for spell in spells if spell.job == job.name]
        runs = job.state is JobState.RUNNING
        if runs and all(spell.ended_at is not None for spell in known):
            begin = max([_clamped(job.began_at, case.now), *(_end(each) for each in known)])
            spells.append(Spell(job=job.name, started_at=begin))
        unseen = not runs and not known and None not in (job.began_at, job.ended_at)
        if unseen and len(spells) < MAX_SPELLS:  # beyond that, the oldest are merged
            begin = _clamped(job.began_at, case.now)
            spells.append(_ended(Spell(job=job.name, started_at=begin), job, now=case.now))
    if not spells:
        return case
    begun = case.status.started_at or spells[0].started_at
    return case.having(device_time=_few(spells), started_at=begun)


def closed(case: TrialStep) -> TrialStep:
    """End the spells of Jobs that this step ends: observations may be rare, and waiting is free.

    If a Job runs on because the operator died before it acted, its spell continues where it ended.
    """
    held = (a.job for a in case.actions if isinstance(a, SetSuspend) and a.suspend)
    ending = {*held, *(a.job for a in case.actions if isinstance(a, DeleteJob))}
    jobs = {job.name: job for job in case.facts.jobs}
    spells = tuple(
        _ended(spell, jobs.get(spell.job), now=case.now)
        if spell.ended_at is None and (spell.job in ending or case.status.phase.is_terminal)
        else spell
        for spell in case.status.device_time
    )
    return case.having(device_time=spells)


def device_seconds(
    spells: tuple[Spell, ...], *, now: datetime, since: datetime | None = None
) -> float:
    """Return the time that Jobs held an accelerator, seconds; since a moment if one is given."""
    begins = ((each, max(each.started_at, since or each.started_at)) for each in spells)
    parts = (min(each.ended_at or now, now) - begin for each, begin in begins)
    return sum(max(0.0, part.total_seconds()) for part in parts)


def _ended(spell: Spell, job: JobFact | None, *, now: datetime) -> Spell:
    said = job.ended_at if job is not None else None
    end = max(spell.started_at, _clamped(said, now))
    return spell.model_copy(update={"ended_at": end})


def _clamped(moment: datetime | None, now: datetime) -> datetime:
    """Return a node's time, or now if earlier: a node's clock may be ahead of ours."""
    return now if moment is None else min(moment, now)


def _end(spell: Spell) -> datetime:
    return spell.ended_at or spell.started_at


def _few(spells: list[Spell]) -> tuple[Spell, ...]:
    """Merge the oldest two while there are too many; their time stays, and counts later."""
    while len(spells) > MAX_SPELLS:
        first, second = spells[0], spells[1]
        length = _end(first) - first.started_at
        spells[:2] = [second.model_copy(update={"started_at": second.started_at - length})]
    return tuple(spells)
