"""Tunables on one machine: what recent traffic asks of them, experiments, and the tables that win.

A tunable is a kernel of the catalog whose only structure is a table. Its incumbent is the server's
own choice, its environment the server's. Everything else of the loop stays what it is.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from pydantic import Field, ValidationError

from retuned.contract import Digest, Environment, Guard, Name, Record, Solution, digest_of
from retuned.errors import CandidateError, HarnessError, RetunedError, TemporaryError
from retuned.experiment.tunables import TunableTask, variant_of
from retuned.ports import Event, Store, Stored
from retuned.report.tunable_families import prior_of
from retuned.runtime.tunables.records import (
    MAX_CAPTURES,
    MAX_RULES,
    canonical,
    digest_of_text,
)
from retuned.runtime_client.tunables import SizeClassReport, TunableProcess, TunableReport
from retuned.runtime_client.tuned_files import TUNABLE
from retuned.stages.experiment import ExperimentPlan, Turn, TurnOutcome
from retuned.stages.hypothesis import (
    Hypothesis,
    NotTried,
    Untried,
    UsedClass,
    believe_in_table,
)
from retuned.stages.profile import ProfileSettings
from retuned.stages.proposal import Proposal, Refusal, RefusalReason
from retuned.stages.verdict import ServerEnvironment
from retuned.standalone import captured_inputs
from retuned.standalone.context import Context, RecordKind, Tunables
from retuned.standalone.hypotheses import live_baseline, open_belief
from retuned.standalone.records import proposal_in_force, under_way
from retuned.store.approvals import Approvals
from retuned.tuned_files.formats import TABLE, FileChange

log = logging.getLogger(__name__)

BUCKETS = ProfileSettings(ladder=tuple(2**n for n in range(41)), step=2**40)
"""Size classes of tunables: powers of two, as the runtime counts them."""
_FIRST_WAIT, _LONGEST_WAIT = timedelta(minutes=10), timedelta(days=1)
"""How long after a failed experiment the next one waits; it doubles with each failure."""
_ROOM_BYTES = 1 << 30
"""Device memory that an experiment leaves free beside a server."""
_LOOKS = 4
"""Looks at a server's tunables in a window."""
_DETAIL_AGE = timedelta(minutes=1)
"""How old the numbers of an unchanged reason may be in a record."""
_QUIET = frozenset(
    {str(each) for each in (NotTried.NO_TRAFFIC, NotTried.NO_TIME, NotTried.UNDER_WAY)}
)
"""Reasons that come and go with traffic; they are no lines of history."""
_MOST_HEADS = 1 << 20
_FASTEST_BYTES_PER_S = 8e12
"""Memory bandwidth of the fastest GPUs of 2026: no attention reads its keys in less time."""


class TunableRecord(Record):
    """A tunable of the server, and why it gets no experiment; empty where it may."""

    definition: Name
    family: str = Field(max_length=64)
    kernel: str = Field(max_length=2000)
    module: str = Field(max_length=2000)
    source: str = Field(max_length=256)
    frozen: dict[str, Any] | None = None
    """Configuration that an autotuner of the server chose once for all sizes; None of others."""
    environment: Environment
    reason: str = ""
    detail: str = Field(default="", max_length=1000)

    @property
    def incumbent(self) -> Solution:
        """The server's own choice as a variant."""
        chosen = {"frozen": self.frozen} if self.frozen is not None else {}
        return variant_of(self.definition, [], author="server", source=self.source, **chosen)


# --- what is known of a tunable -------------------------------------------------------------------


def is_tunable(definition: str) -> bool:
    return definition.startswith(TUNABLE)


def seen(store: Store, definition: str) -> TunableRecord | None:
    """Return what is known of a tunable; None for any other kernel, and where nothing is known."""
    stored = store.get(RecordKind.TUNABLE, definition) if is_tunable(definition) else None
    if stored is None:
        return None
    try:
        return TunableRecord.model_validate(stored.body)
    except ValidationError as error:
        log.error("tunable %s cannot be understood: %s", definition, error)
        return None


def environment_of(ctx: Context, definition: str) -> Digest:
    """Return the environment that evidence on a kernel must come from."""
    known = seen(ctx.store, definition)
    return known.environment.digest if known is not None else ctx.environment


def server_side(facts: ServerEnvironment) -> Environment:
    """Return the environment of a server's process, which its experiments share.

    Examples
    --------
    >>> server_side(ServerEnvironment(process="1", cpu="cpu:a", triton="3.6.0")).arch
    'cpu:a'
    """
    numerics = dict(facts.numerics)
    if facts.device_name:
        numerics["GPU_NAME"] = facts.device_name
    return Environment(
        arch=facts.device or facts.cpu,
        driver=facts.driver,
        runtime=facts.runtime,
        torch=facts.torch,
        triton=facts.triton,
        numerics=numerics,
    )


def incumbent_named(store: Store, digest: Digest) -> Solution | None:
    """Return a server's own choice as a variant, by its digest; None where it is none."""
    for stored in store.list(RecordKind.TUNABLE):
        known = seen(store, stored.id)
        if known is not None and known.incumbent.digest == digest:
            return known.incumbent
    return None


# --- observe --------------------------------------------------------------------------------------


def observe(ctx: Context) -> None:
    """Look at the server's tunables, and believe in tables where they may save enough.

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
    used = [each for pair in pairs for each in used_classes(found.definition, *pair)]
    busy_us = 1e6 * sum(max(0.0, now.steps.busy_s - old.steps.busy_s) for old, now in pairs)
    baseline = live_baseline(ctx, found.definition)
    place = _place(ctx, found.definition, processes[0])
    belief = believe_in_table(
        found.definition,
        _together(used),
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


def used_classes(definition: str, before: TunableProcess, now: TunableProcess) -> list[UsedClass]:
    """Return what the launches between two reports of one process took, by size class.

    The runtime does not count replays of graphs: they follow from the steps of that size, with as
    many launches each as were captured. Their time is that of eager launches of the same class, or
    the time in which the fastest memory would deliver the keys and values.
    """
    report = now.tunables[definition]
    old = before.tunables.get(definition)
    counted = {canonical(each.axes): each for each in old.asked} if old is not None else {}
    block = bool(report.geometry.get("block_shape"))
    found = []
    for each in report.asked:
        was = counted.get(canonical(each.axes))
        eager = each.launches - each.captured - (was.launches - was.captured if was else 0)
        launches = max(0.0, eager + _replays(each, before, now))
        mean_us = each.timed_us / each.timed if each.timed else 0.0
        if report.family == "attention" and each.captured:
            sequences = each.axes.get("sequences", 0)
            mean_us = max(mean_us, _reading_us(report, now, sequences=sequences))
        prior = prior_of(report.family, report.kernel, how=each.how, axes=each.axes, block=block)
        found.append(
            UsedClass(
                axes=each.axes,
                launches=launches,
                time_us=launches * mean_us,
                gain_ratio=prior.expected if prior is not None else 1.0,
                ready=each.ready,
            )
        )
    return found


def _replays(asked: SizeClassReport, before: TunableProcess, now: TunableProcess) -> float:
    """Estimate the launches in replays of graphs that were captured in a size class."""
    size = asked.axes.get("rows", asked.axes.get("tokens"))
    if not asked.captured or not asked.sizes or size is None:
        return 0.0
    since = before.steps.sizes.get(str(size), (0, 0))
    every, decode = (
        a - b for a, b in zip(now.steps.sizes.get(str(size), (0, 0)), since, strict=True)
    )
    steps = {None: every, 0: every - decode}.get(asked.axes.get("decode"), decode)
    return max(0, steps) * asked.captured / len(asked.sizes)


def _reading_us(report: TunableReport, process: TunableProcess, *, sequences: int) -> float:
    """Return the least time to read the keys and values of recent decode steps, microseconds."""
    alike = [
        sum(step.keys)
        for step in process.steps.recent
        if step.keys
        and all(each == 1 for each in step.queries)
        and sequences < 2 * len(step.queries) <= 2 * sequences
    ]
    heads, size = (_number(report.geometry.get(name)) for name in ("kv_heads", "head_size"))
    if not alike:
        return 0.0
    width = 1 if "8" in str(report.geometry.get("kv_dtype")) else 2
    read_bytes = 2 * width * heads * size * sum(alike) / len(alike)
    return 1e6 * read_bytes / _FASTEST_BYTES_PER_S


def _number(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value <= _MOST_HEADS else 0


def _together(used: Sequence[UsedClass]) -> list[UsedClass]:
    """Add up the same size classes of several processes."""
    found: dict[tuple[tuple[str, int], ...], UsedClass] = {}
    for each in used:
        other = found.get(each.key)
        found[each.key] = UsedClass(
            axes=each.axes,
            launches=each.launches + (other.launches if other else 0.0),
            time_us=each.time_us + (other.time_us if other else 0.0),
            gain_ratio=each.gain_ratio,
            ready=each.ready or (other is not None and other.ready),
        )
    return list(found.values())


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


# --- experiment -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Place:
    """Where experiments on a tunable run."""

    device: str
    """Value of ``CUDA_VISIBLE_DEVICES``; empty without a GPU."""
    pauses: bool
    """Whether it is the server's own."""


def _place(ctx: Context, definition: str, process: TunableProcess) -> _Place | Untried:
    """Return another GPU of the server's model, else the server's own if the policy allows it."""
    assert ctx.tunables is not None, "asked before"
    device = process.environment.get("device")
    if not isinstance(device, Mapping):
        return _Place("", False)
    other = ctx.tunables.free_device(str(device.get("name", "")))
    if other is not None:
        return _Place(other, False)
    limits = ctx.policy_limits(definition)
    name = device.get("name")
    if process.steps.hook != "on":
        detail = f"no other {name} is free, and this server cannot be paused: {process.steps.hook}"
        return Untried(reason=NotTried.NO_GPU, detail=detail)
    if limits is not None and limits.pauses.experiments:
        uuid = str(device.get("uuid", ""))
        own = f"GPU-{uuid}" if uuid and not uuid.startswith("GPU-") else uuid
        return _Place(own or str(device.get("index", 0)), True)
    detail = f"no other {name} is free, and no policy has spec.pauses.experiments: true"
    return Untried(reason=NotTried.NO_GPU, detail=detail)


def task_of(ctx: Context, plan: ExperimentPlan) -> TunableTask:
    """Return what an experiment on a tunable needs from the server.

    Raises
    ------
    HarnessError
        If the server is no longer what the plan is about, or there is no place to experiment.
    TemporaryError
        If the server does not answer.
    CandidateError
        If it refuses to describe launches.
    """
    assert ctx.tunables is not None, "plans about tunables come from there"
    tap = ctx.tunables.tap
    having = [each for each in tap.processes() if plan.definition in each.tunables]
    if not having:
        raise HarnessError(f"no process of the server launches {plan.definition} any more")
    process = having[0]
    here = server_side(process.facts)
    if here.digest != plan.environment:
        raise HarnessError(f"the server is {here} now, the plan is for another environment")
    place = _place(ctx, plan.definition, process)
    if isinstance(place, Untried):
        raise HarnessError(f"{place.reason}: {place.detail}")
    device = process.environment.get("device")
    task = TunableTask(
        report=process.raw[plan.definition],
        recipes=[each for one in having for each in tap.recipes(one, plan.definition)],
        environment=process.environment,
        measured_in=here,
        device=place.device,
        in_force=_rules_in_force(ctx, plan.definition),
    )
    if not place.pauses:
        return task
    assert isinstance(device, Mapping), "a place with pauses is the server's own"
    beside = [
        each
        for each in having
        if each.environment.get("device", {}).get("uuid") == device.get("uuid")
    ]
    pauses = _announced(ctx, plan, beside)
    free = device.get("memory_free_bytes")
    return replace(
        task,
        exclusive=pauses,
        slice_s=0.8 * pauses.longest_s,
        memory_bytes=max(0, free - _ROOM_BYTES) if isinstance(free, int) else None,
    )


def _uuid(process: TunableProcess) -> object:
    device = process.environment.get("device")
    return device.get("uuid") if isinstance(device, Mapping) else None


def _rules_in_force(ctx: Context, definition: str) -> list[dict[str, Any]]:
    """Return the rules of the table that the server runs; none for its own choice."""
    under = proposal_in_force(ctx.store, definition)
    stored = ctx.store.get(RecordKind.FILE_CHANGE, under) if under else None
    return list(json.loads(stored.body["text"])["rules"]) if stored is not None else []


def _announced(ctx: Context, plan: ExperimentPlan, processes: Sequence[TunableProcess]) -> Pauses:
    """Return pauses of the server within the policy's limits, after they were announced."""
    assert ctx.tunables is not None, "asked before"
    limits = ctx.policy_limits(plan.definition)
    assert limits is not None, "a policy allowed it"
    longest_s, max_share = limits.pauses.longest_ms / 1e3, limits.pauses.max_share
    sentence = (
        f"the experiment on {plan.definition} uses the server's own GPU: the server pauses, each "
        f"time for at most {longest_s:.2f} s, and for at most {max_share:.0%} of the time"
    )
    log.warning("%s", sentence)
    _record(ctx, plan.id, "server-will-pause", sentence=sentence, definition=plan.definition)
    pauses = ctx.tunables.pauses[plan.id] = Pauses(
        ctx.tunables,
        processes,
        longest_s=longest_s,
        max_share=max_share,
        now_s=ctx.clock.monotonic_s,
        allowed=lambda: _may_pause(ctx, plan.definition),
    )
    return pauses


def _may_pause(ctx: Context, definition: str) -> bool:
    """Whether policy and freezes allow pauses at this moment."""
    limits, now = ctx.policy_limits(definition), ctx.clock.now()
    return (
        limits is not None
        and limits.experiments
        and limits.pauses.experiments
        and not any(
            freeze.scope.covers(target=ctx.settings.target, kernel=definition)
            for freeze in Approvals(ctx.store).freezes(now=now)
        )
    )


def tell_pauses(ctx: Context, plan: ExperimentPlan) -> None:
    """Write what the pauses of an experiment took, once it has ended."""
    pauses = ctx.tunables.pauses.pop(plan.id, None) if ctx.tunables is not None else None
    if pauses is None:
        return
    sentence = (
        f"{pauses.count} pauses of the server, {pauses.total_s:.1f} s together, the longest "
        f"{1e3 * pauses.worst_s:.0f} ms"
    )
    _record(ctx, plan.id, "server-paused", sentence=sentence, seconds=round(pauses.total_s, 3))


def _record(ctx: Context, experiment: str, what: str, **detail: object) -> None:
    event = Event(
        at=ctx.clock.now(),
        kind=RecordKind.EXPERIMENT,
        id=experiment,
        what=what,
        who="retuned",
        detail=detail,
    )
    ctx.store.record(event)


class Pauses:
    """Pauses of a server, one after the other; calling it gives the next one.

    Parameters
    ----------
    longest_s
        Longest pause, seconds.
    max_share
        Most time in pauses over elapsed time.
    now_s
        Monotonic clock.
    allowed
        Whether the server may be paused at this moment.
    """

    def __init__(
        self,
        tunables: Tunables,
        processes: Sequence[TunableProcess],
        *,
        longest_s: float,
        max_share: float,
        now_s: Callable[[], float],
        allowed: Callable[[], bool] = lambda: True,
    ) -> None:
        self._tunables, self._processes, self._allowed = tunables, processes, allowed
        self.longest_s, self._max_share, self._now_s = longest_s, max_share, now_s
        self.count, self.total_s, self.worst_s = 0, 0.0, 0.0
        self._due_s = 0.0
        self._begin_s = 0.0
        self._inner = ExitStack()

    def __call__(self) -> AbstractContextManager[None]:
        return self

    def __enter__(self) -> None:
        wait_s = self._due_s - self._now_s()
        if wait_s > 0:
            self._tunables.sleep(wait_s)
        if not self._allowed():
            raise HarnessError("the policy or a freeze allows no pauses of the server any more")
        self._inner = ExitStack()
        try:
            for each in self._processes:
                paused = self._tunables.tap.paused(each, seconds=self.longest_s)
                self._inner.enter_context(paused)
        except (CandidateError, TemporaryError) as error:  # no fault of a configuration
            self._inner.close()
            raise HarnessError(f"the server was not paused: {error}") from error
        self._begin_s = self._now_s()

    def __exit__(self, *error: object) -> None:
        """End the pause.

        Raises
        ------
        CandidateError
            ``slice-too-long`` if the server went on before.
        """
        try:
            self._inner.close()
        finally:
            took_s = self._now_s() - self._begin_s
            self.count, self.total_s = self.count + 1, self.total_s + took_s
            self.worst_s = max(self.worst_s, took_s)
            self._due_s = self._now_s() + took_s * (1.0 / self._max_share - 1.0)


# --- propose --------------------------------------------------------------------------------------


def with_table(ctx: Context, proposal: Proposal, solution: Solution) -> FileChange | Refusal:
    """Return the signed text that a proposal about a tunable would put in force.

    Raises
    ------
    TemporaryError
        If the server does not answer.
    """
    known = seen(ctx.store, proposal.definition)
    if known is None or ctx.tunables is None:
        raise TemporaryError(f"{proposal.definition} was not seen in the server", delay_s=1.0)
    having = [p for p in ctx.tunables.tap.processes() if proposal.definition in p.tunables]
    if not having:
        message = f"no process of the server launches {proposal.definition} now"
        raise TemporaryError(message, delay_s=1.0)
    report = having[0].tunables[proposal.definition]
    if report.source != known.source:
        detail = f"{report.module} has another source than was measured"
        return Refusal(reason=RefusalReason.SOURCE_DIFFERS, detail=detail[:1000])
    try:
        rules = within(_rules_of(solution), proposal.guard)
    except CandidateError as error:
        return Refusal(reason=RefusalReason.NOT_A_TABLE, detail=error.detail[:1000])
    if not rules:
        detail = f"no rule lies within {proposal.guard}"
        return Refusal(reason=RefusalReason.NOTHING_TO_CHANGE, detail=detail)
    rules = [*rules, *_rules_in_force(ctx, proposal.definition)]  # the first that matches is used
    if len(rules) > MAX_RULES:
        detail = f"{len(rules)} rules, with those in force, are more than {MAX_RULES}"
        return Refusal(reason=RefusalReason.NOT_A_TABLE, detail=detail)
    under = proposal_in_force(ctx.store, proposal.definition) or ""
    stored = ctx.store.get(RecordKind.FILE_CHANGE, under) if under else None
    limits = ctx.policy_limits(proposal.definition)
    may_capture = limits is not None and limits.pauses.recapture
    text = canonical(
        {
            "format": TABLE,
            "tunable": known.definition,
            "family": known.family,
            "source": known.source,
            "rules": rules,
            "captures": captures_of(report, rules) if may_capture else [],
            "before": str(stored.body["digest"]) if stored is not None else None,
        }
    )
    return FileChange(
        definition=known.definition,
        format=TABLE,
        digest=digest_of_text(text),
        text=text,
        path=known.module,
        under=under,
    )


def _rules_of(solution: Solution) -> list[dict[str, Any]]:
    try:
        rules = json.loads(solution.sources[0].content)["rules"]
        found = [{"when": dict(r["when"]), "config": dict(r["config"])} for r in rules]
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise CandidateError("not-a-table", detail=f"{solution.name}: {error!r:.200}") from error
    if len(found) > MAX_RULES:
        raise CandidateError("not-a-table", detail=f"{len(found)} rules are more than {MAX_RULES}")
    return found


def within(rules: Sequence[Mapping[str, Any]], guard: Guard) -> list[dict[str, Any]]:
    """Return the parts of rules that a guard allows.

    Examples
    --------
    >>> rules = [{"when": {"rows": [1, 64]}, "config": {"a": 1}},
    ...     {"when": {"rows": [65, 128]}, "config": {"a": 2}}]
    >>> within(rules, Guard(bounds={"rows": (33, 64)}))
    [{'when': {'rows': [33, 64]}, 'config': {'a': 1}}]
    """
    kept = []
    for rule in rules:
        when = {name: list(pair) for name, pair in rule["when"].items()}
        for name, (low, high) in guard.bounds.items():
            first, last = when.get(name, [low, high])
            when[name] = [max(first, low), min(last, high)]
        if all(first <= last for first, last in when.values()):
            kept.append({"when": when, "config": dict(rule["config"])})
    return kept


def captures_of(report: TunableReport, rules: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the captured batch sizes of the size classes that rules are for."""
    if report.ways.get("recapture") != "on" or report.family == "autotune":
        return []  # the size classes of an autotuner do not name batch sizes
    found: dict[int, dict[str, Any]] = {}
    for each in report.asked:
        if not each.captured or not any(_matches(rule, each.axes) for rule in rules):
            continue
        axes = {"longest": each.axes["longest"]} if "longest" in each.axes else {}
        for size in each.sizes:
            found.setdefault(size, {"size": size, "axes": axes})
    return [found[size] for size in sorted(found)][:MAX_CAPTURES]


def _matches(rule: Mapping[str, Any], axes: Mapping[str, int]) -> bool:
    return all(low <= axes.get(name, -1) <= high for name, (low, high) in rule["when"].items())
