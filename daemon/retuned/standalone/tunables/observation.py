"""Observation of a server's tunables: their launches in recent traffic, and hypotheses on tables.

A tunable is a kernel of the catalog whose only structure is a table. Its incumbent is the server's
own choice, its environment the server's. Each one without a hypothesis has a reason in its record.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from retuned.contract import Digest, digest_of
from retuned.errors import RetunedError
from retuned.ports import Event, Stored
from retuned.report.tunable_families import prior_of
from retuned.runtime_client.tunable_use import used_classes
from retuned.runtime_client.tunables import SizeClassReport, TunableProcess, TunableReport
from retuned.stages.experiment import Turn, TurnOutcome
from retuned.stages.hypothesis import (
    Hypothesis,
    NotTried,
    Untried,
    believe_in_table,
    together,
)
from retuned.standalone.context import Context, RecordKind
from retuned.standalone.hypotheses import live_baseline, open_belief
from retuned.standalone.records import under_way
from retuned.standalone.tunables import captured_inputs
from retuned.standalone.tunables.experiments import place_of
from retuned.standalone.tunables.records import TunableRecord, seen, server_side
from retuned.tuned_files.records import TABLE

log = logging.getLogger(__name__)

_FIRST_WAIT, _LONGEST_WAIT = timedelta(minutes=10), timedelta(days=1)
"""How long after a failed experiment the next one waits; it doubles with each failure."""
_LOOKS = 4
"""Looks at a server's tunables in a window."""
_DETAIL_AGE = timedelta(minutes=1)
"""How old the numbers of an unchanged reason may be in a record."""
_QUIET = frozenset(
    {str(each) for each in (NotTried.NO_TRAFFIC, NotTried.NO_TIME, NotTried.UNDER_WAY)}
)
"""Reasons that change with traffic; they are not written to the history."""


def observe(ctx: Context) -> None:
    """Observe the server's tunables; make hypotheses on tables where they may save enough.

    Each tunable without a hypothesis has a reason in its record.
    """
    if ctx.tunables is None:
        return
    now_s = ctx.clock.monotonic_s()
    if now_s - ctx.tunables.memory.looked_s < _window_s(ctx) / _LOOKS:
        return  # a report of many tunables takes the server some milliseconds
    ctx.tunables.memory.looked_s = now_s
    try:
        processes = ctx.tunables.tap.processes()
    except RetunedError as error:
        log.info("tunables are looked at later: %s", error)
        return
    memory = ctx.tunables.memory
    memory.add(processes, horizon_s=(ctx.settings.explain_windows + 2) * _window_s(ctx))
    for definition in sorted({name for each in processes for name in each.tunables}):
        having = [each for each in processes if definition in each.tunables]
        try:
            _look(ctx, definition, having)
        except RetunedError as error:  # such as a policy that cannot be read: no other waits
            log.error("%s is looked at later: %s", definition, error)


def _window_s(ctx: Context) -> float:
    return ctx.settings.window.total_seconds()


def _look(ctx: Context, definition: str, processes: Sequence[TunableProcess]) -> None:
    report = processes[0].tunables[definition]
    known = seen(ctx.store, definition)
    found = TunableRecord(
        definition=definition,
        family=report.family[:64],
        kernel=report.kernel,
        module=report.module,
        source=report.source[:256],
        frozen=_frozen(report, known),
        environment=server_side(processes[0].facts),
    )
    answer = _refused(ctx, definition, processes) or _believed(ctx, found, processes)
    if isinstance(answer, Untried):
        found = found.model_copy(
            update={"reason": str(answer.reason), "detail": answer.detail[:1000]}
        )
    _keep(ctx, found)
    _let_record(ctx, definition, processes)
    if not isinstance(answer, Untried):
        open_belief(ctx, answer)


def _frozen(report: TunableReport, known: TunableRecord | None) -> dict[str, Any] | None:
    """Return the one choice of an autotuner; while a table hides it, what was known before."""
    if report.family != "autotune":
        return None
    # a class that was launched once, by which the choice was made, does not have it yet
    frozen = [each.config for each in report.asked if each.how == "frozen" and each.config]
    if frozen and all(each == frozen[0] for each in frozen):
        return frozen[0]
    same = known is not None and known.source == report.source
    return known.frozen if known is not None and same and report.table is not None else None


def _refused(ctx: Context, definition: str, processes: Sequence[TunableProcess]) -> Untried | None:
    """Return why nothing can be tried whatever the traffic is; None if something can."""
    reports = [each.tunables[definition] for each in processes]
    refused = next((each.refused for each in reports if each.refused), "")
    if refused:
        return Untried(reason=NotTried.SERVER_REFUSES, detail=refused)
    places = {
        (server_side(each.facts).digest, each.tunables[definition].source) for each in processes
    }
    if len(places) > 1:
        detail = f"{len(processes)} processes have {len(places)} sources or environments"
        return Untried(reason=NotTried.PROCESSES_DIFFER, detail=detail)
    if under_way(ctx.store, definition):
        return Untried(reason=NotTried.UNDER_WAY, detail="see `retuned history`")
    failed = _failed(ctx, definition)
    if failed and ctx.clock.now() < failed[-1].updated_at + _wait(len(failed)):
        until = f"{failed[-1].updated_at + _wait(len(failed)):%Y-%m-%d %H:%M} UTC"
        detail = f"{len(failed)} experiments failed; the next one may begin at {until}"
        return Untried(reason=NotTried.FAILED, detail=detail)
    return None


def _failed(ctx: Context, definition: str) -> list[Stored]:
    """Return the experiments on a tunable that failed in the last day, oldest first."""
    since = ctx.clock.now() - _LONGEST_WAIT
    return [
        stored
        for stored in ctx.store.list(RecordKind.EXPERIMENT, phase="failed")
        if stored.body.get("definition") == definition and stored.updated_at > since
    ]


def _wait(failures: int) -> timedelta:
    return min(_LONGEST_WAIT, _FIRST_WAIT * float(2 ** (min(failures, 16) - 1)))


def _believed(
    ctx: Context, found: TunableRecord, processes: Sequence[TunableProcess]
) -> Hypothesis | Untried:
    assert ctx.tunables is not None, "asked before"
    span_s = ctx.tunables.memory.span_s
    if span_s < ctx.settings.explain_windows * _window_s(ctx):
        detail = f"observed for {span_s:.0f} s so far"
        return Untried(reason=NotTried.NO_TRAFFIC, detail=detail)
    memory = ctx.tunables.memory
    pairs = [(before, each) for each in processes if (before := memory.before(each.name))]
    used = [
        each for pair in pairs for each in used_classes(found.definition, *pair, gain=expected_gain)
    ]
    busy_us = 1e6 * sum(max(0.0, now.steps.busy_s - old.steps.busy_s) for old, now in pairs)
    baseline = live_baseline(ctx, found.definition)
    place = place_of(ctx, found.definition, processes[0])
    belief = believe_in_table(
        found.definition,
        together(used),
        busy_us=busy_us or 1e6 * span_s * len(processes),
        observed_s=span_s,
        tried=_tried(ctx, found, baseline),
        in_force=_in_force(processes, found.definition),
        # a failed experiment is repeated as another one
        world=digest_of([baseline, found.environment.digest, len(_failed(ctx, found.definition))]),
        settings=ctx.settings.hypothesis,
    )
    if isinstance(place, Untried) and not isinstance(belief, Untried):
        return place
    return belief


def expected_gain(report: TunableReport, asked: SizeClassReport) -> float:
    """Return the ratio that measurements of the family suggest; 1 without one."""
    block = bool(report.geometry.get("block_shape"))
    prior = prior_of(report.family, report.kernel, how=asked.how, axes=asked.axes, block=block)
    return prior.expected if prior is not None else 1.0


def _tried(
    ctx: Context, found: TunableRecord, baseline: Digest
) -> set[tuple[tuple[str, int], ...]]:
    """Return the size classes that experiments have searched against what runs now."""
    against = {baseline, found.incumbent.digest}
    tried: set[tuple[tuple[str, int], ...]] = set()
    for stored in ctx.store.list(RecordKind.EXPERIMENT):
        body = stored.body
        if (
            body.get("definition") != found.definition
            or stored.phase == "failed"
            or body.get("environment") != found.environment.digest
            or body.get("incumbent") not in against
        ):
            continue
        keys = [tuple(sorted(dict(each["axes"]).items())) for each in body.get("workloads", ())]
        searched = _searched(ctx, stored.id)
        tried |= set(keys) if searched is None else {k for n, k in enumerate(keys) if n in searched}
    return tried


def _searched(ctx: Context, experiment: str) -> set[int] | None:
    """Return the places of the workloads that were searched; None where it is not known."""
    stored = ctx.store.get(RecordKind.TURNS, experiment)
    if stored is None:
        return None
    turns = [Turn.model_validate(each) for each in stored.body["turns"]]
    return {each.number - 1 for each in turns if each.outcome is TurnOutcome.TRIED}


def _in_force(
    processes: Sequence[TunableProcess], definition: str
) -> set[tuple[tuple[str, int], ...]]:
    return {
        tuple(sorted(each.axes.items()))
        for process in processes
        for each in process.tunables[definition].asked
        if each.how == TABLE
    }


def _keep(ctx: Context, found: TunableRecord) -> None:
    """Write what a look found; a new reason is a line of history."""
    stored = ctx.store.get(RecordKind.TUNABLE, found.definition)
    body, phase = found.model_dump(mode="json"), "left" if found.reason else "tuned"
    if stored is not None and {**stored.body, "detail": ""} == {**body, "detail": ""}:
        fresh = ctx.clock.now() - stored.updated_at < _DETAIL_AGE
        if fresh or stored.body["detail"] == found.detail:
            return
    with ctx.store.transaction():
        if stored is None:
            ctx.store.add(RecordKind.TUNABLE, found.definition, body, phase=phase)
        else:
            ctx.store.advance(
                RecordKind.TUNABLE, found.definition, expect=stored.phase, to=phase, body=body
            )
        known = "" if stored is None else str(stored.body.get("reason"))
        if found.reason in _QUIET or (stored is not None and known == found.reason):
            return
        ctx.store.record(
            Event(
                at=ctx.clock.now(),
                kind=RecordKind.TUNABLE,
                id=found.definition,
                what="not-tried" if found.reason else "believed",
                who="retuned",
                detail={"reason": found.reason, "detail": found.detail},
            )
        )


def _let_record(ctx: Context, definition: str, processes: Sequence[TunableProcess]) -> None:
    """Let launches be described with values of integer tensors while owner and policy allow it."""
    assert ctx.tunables is not None, "asked before"
    allowed = captured_inputs.is_allowed(ctx, definition)
    for each in processes:
        report = each.tunables[definition]
        lacks = any(not asked.ready and asked.launches for asked in report.asked)
        if report.recording == allowed or (allowed and not lacks):
            continue
        try:
            ctx.tunables.tap.record(each, definition, on=allowed)
        except RetunedError as error:
            log.info("%s is described without values: %s", definition, error)
