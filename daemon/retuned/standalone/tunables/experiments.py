"""Experiments on tunables: their place, pauses of the server, and the table that a win proposes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from typing import Any

from retuned.contract import Solution
from retuned.errors import CandidateError, HarnessError, TemporaryError
from retuned.experiment.tunables import TunableTask
from retuned.ports import Event
from retuned.runtime.tunables.records import CAPTURE_SHARE
from retuned.runtime_client.tunables import TunableProcess
from retuned.stages.experiment import ExperimentPlan
from retuned.stages.hypothesis import (
    NotTried,
    Untried,
)
from retuned.stages.profile import ProfileSettings
from retuned.stages.proposal import Proposal, Refusal, rules_in, table_of
from retuned.standalone.context import Context, RecordKind, Tunables
from retuned.standalone.records import proposal_in_force
from retuned.standalone.tunables.records import seen, server_side
from retuned.store.approvals import Approvals
from retuned.tuned_files.records import TABLE, FileChange

log = logging.getLogger(__name__)

BUCKETS = ProfileSettings(ladder=tuple(2**n for n in range(41)), step=2**40)
"""Size classes of tunables: powers of two, as the runtime counts them."""
MOST_CANDIDATES = 64
"""Configurations of one size class, where no policy says how many."""
_ROOM_BYTES = 1 << 30
"""Device memory that an experiment leaves free beside a server."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where experiments on a tunable run."""

    device: str
    """Value of ``CUDA_VISIBLE_DEVICES``; empty without a GPU."""
    pauses: bool
    """Whether it is the server's own."""


def place_of(ctx: Context, definition: str, process: TunableProcess) -> Place | Untried:
    """Return another GPU of the server's model, else the server's own if the policy allows it."""
    assert ctx.tunables is not None, "asked before"
    device = process.environment.get("device")
    if not isinstance(device, Mapping):
        return Place("", False)
    other = ctx.tunables.free_device(str(device.get("name", "")))
    if other is not None:
        return Place(other, False)
    limits = ctx.policy_limits(definition)
    name = device.get("name")
    if process.steps.hook != "on":
        detail = f"no other {name} is free, and this server cannot be paused: {process.steps.hook}"
        return Untried(reason=NotTried.NO_GPU, detail=detail)
    if limits is not None and limits.pauses.experiments:
        uuid = str(device.get("uuid", ""))
        own = f"GPU-{uuid}" if uuid and not uuid.startswith("GPU-") else uuid
        return Place(own or str(device.get("index", 0)), True)
    detail = f"no other {name} is free, and no policy has spec.pauses.experiments: true"
    return Untried(reason=NotTried.NO_GPU, detail=detail)


def task_of(ctx: Context, plan: ExperimentPlan) -> TunableTask:
    """Return what an experiment on a tunable needs from the server.

    Raises
    ------
    HarnessError
        If the server no longer matches the plan, or no GPU may be used for the experiment.
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
    place = place_of(ctx, plan.definition, process)
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
    return rules_in(str(stored.body["text"])) if stored is not None else []


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
    under = proposal_in_force(ctx.store, proposal.definition) or ""
    stored = ctx.store.get(RecordKind.FILE_CHANGE, under) if under else None
    limits = ctx.policy_limits(proposal.definition)
    table = table_of(
        solution,
        proposal.guard,
        definition=known.definition,
        measured_source=known.source,
        launched=having[0].tunables[proposal.definition],
        in_force=_rules_in_force(ctx, proposal.definition),
        before=str(stored.body["digest"]) if stored is not None else None,
        recapture=limits is not None and limits.pauses.recapture,
        recapture_after=limits.pauses.recapture_after if limits is not None else None,
        capture_share=limits.pauses.max_share if limits is not None else CAPTURE_SHARE,
    )
    if isinstance(table, Refusal):
        return table
    return FileChange(
        definition=known.definition,
        format=TABLE,
        digest=table.digest,
        text=table.text,
        path=known.module,
        under=under,
    )
