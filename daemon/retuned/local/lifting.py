"""Live kernels on one machine: what was seen of them becomes definitions, kept in the state.

What is kept is read again at the next start, so that a definition that something was found about
does not go with the server that showed it.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import Field, ValidationError

from retuned import catalog
from retuned.catalog.own import LiftedFrom, OwnDefinition
from retuned.contract import Record, Workload, digest_of
from retuned.errors import TemporaryError, UsageError
from retuned.lifting.lift import Kept, Lifted, Outcome, lift_all
from retuned.lifting.refusing import harmless
from retuned.local.context import Context, Kind
from retuned.local.recognised import structured
from retuned.ports import Event, Store
from retuned.stages.profile import Signature, SignatureStat, bucket_low

log = logging.getLogger(__name__)

MOST_LIFTED = 512
"""Most definitions that are kept: a server with more kernels than that has its first ones tuned."""
MOST_KEPT = 1024
"""Most reasons that are kept."""
_SEEN = "@seen"
_GROWING = frozenset({"count", "device_time"})
"""Fields of an observation that say how often and how long, and nothing about what."""
_WARPS = (32, 64)
"""Threads of a warp, on NVIDIA's and on AMD's devices."""
_USUAL_WARPS = 4
"""Of a launch that does not say, in Triton."""


class LiftedRecord(Record):
    """A lifted definition as the store keeps it."""

    own: OwnDefinition
    """The definition."""
    workloads: tuple[Workload, ...] = Field(max_length=4096)
    """Live shapes; weights are launches that were seen."""
    grids: tuple[tuple[int, int, int], ...] = Field(max_length=4096)
    """Live grid of each of them."""

    @classmethod
    def of(cls, lifted: Lifted) -> LiftedRecord:
        """Wrap what came of observations."""
        return cls(own=lifted.own, workloads=lifted.workloads, grids=lifted.grids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One shape that a launch of some geometry may have had."""

    workload: Workload
    """Lengths; the weight is that of its launches among all of this geometry."""
    part: float
    """Share of these launches, 0 to 1."""


def observe(ctx: Context) -> None:
    """Lift what the server's runtime has seen since, if it has seen anything new."""
    if ctx.kernels is None:
        return
    try:
        records = ctx.kernels.observed()
    except TemporaryError as error:
        log.info("no launches were shown: %s", error)
        return
    if records:
        take(ctx, records)


def take(ctx: Context, records: Sequence[Mapping[str, Any]]) -> None:
    """Lift observations and keep what came of them; the same ones again change nothing."""
    bounds = ctx.settings.kernel_bounds
    digest = _digest(records, bounds)
    seen = ctx.store.get(Kind.LIFTED, _SEEN)
    if seen is not None and seen.body.get("digest") == digest:
        return
    outcome = lift_all(records, bounds=bounds)
    outcome.lifted = [structured(ctx, each) for each in outcome.lifted]
    changed = _keep(ctx, outcome)
    with ctx.store.transaction():
        body = {"digest": digest}
        if not ctx.store.add(Kind.LIFTED, _SEEN, body, phase="seen"):
            ctx.store.advance(Kind.LIFTED, _SEEN, expect="seen", to="seen", body=body)
    if changed:
        recall(ctx.store)
    log.info("live kernels: %d lifted, %d not", len(outcome.lifted), len(outcome.kept))


def recall(store: Store) -> int:
    """Make every lifted definition known to this process; return how many there are.

    Outdated ones too: variants of them may be in force.
    """
    known = 0
    for record in (*lifted(store), *lifted(store, phase="outdated")):
        try:
            catalog.learn([record.own])
            known += 1
        except UsageError as error:
            log.warning("a lifted definition is left out: %s", error)
    return known


def lifted(store: Store, *, phase: str = "lifted") -> Iterator[LiftedRecord]:
    """Yield what was lifted, oldest first; what an older version wrote otherwise is left out."""
    for stored in store.list(Kind.LIFTED, phase=phase):
        try:
            yield LiftedRecord.model_validate(stored.body)
        except ValidationError as error:
            log.warning("%s is left out: %d fields are wrong", stored.id, error.error_count())


def refused(store: Store) -> Iterator[Kept]:
    """Yield what was not lifted, and why, oldest first."""
    for stored in store.list(Kind.LIFTED, phase="kept"):
        try:
            yield Kept(**stored.body)
        except TypeError:
            log.warning("%s is left out: an older version wrote it", stored.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """One live shape of a lifted kernel, as a trace may show it."""

    workload: Workload
    grid: tuple[int, int, int]
    warps: int
    numel: int
    """Elements of its largest input."""


class Geometries:
    """Which shapes of lifted kernels a launch in a trace may have had.

    A trace of a GPU shows a kernel's name and grid, or, where an operator launched it, the shapes
    of that operator's tensors instead. These are not the kernel's arguments, but its largest input
    is among them. Where several shapes are possible, the time is divided as the launches were that
    the runtime counted.

    Parameters
    ----------
    ctx
        Kernels that its catalog does not know, as those of another language, are left out.
    """

    def __init__(self, ctx: Context) -> None:
        self._settings = ctx.settings.profile
        self._found: dict[str, list[_Shape]] = {}
        for record in lifted(ctx.store):
            origin, definition = record.own.lifted, record.own.definition
            if origin is None or not ctx.catalog.family(record.own.name):
                continue
            entry = origin.kernel.rpartition(":")[2].rpartition(".")[2]
            warps = origin.options.get("num_warps", _USUAL_WARPS)
            for workload, grid in zip(record.workloads, record.grids, strict=True):
                lengths = definition.lengths(workload.axes)
                sizes = [math.prod(lengths[a] for a in t.shape) for t in definition.inputs.values()]
                shape = _Shape(
                    workload=workload, grid=grid, warps=warps, numel=max(sizes, default=0)
                )
                self._found.setdefault(entry, []).append(shape)

    def shares_of(self, stat: SignatureStat) -> tuple[Share, ...]:
        """Return the shapes that launches of lifted kernels may have had; none for others."""
        signature = stat.signature
        fits = self._by_operator(signature) if signature.dims else _by_grid(signature)
        possible = [each.workload for each in self._found.get(signature.kernel, ()) if fits(each)]
        total = sum(workload.weight for workload in possible)
        if total <= 0:
            return ()
        return tuple(
            Share(
                workload=each.model_copy(update={"weight": stat.launches * each.weight / total}),
                part=each.weight / total,
            )
            for each in possible
        )

    def _by_operator(self, signature: Signature) -> Callable[[_Shape], bool]:
        """Fit by the largest tensor of the operator, of which a signature has upper edges."""
        largest = max(signature.dims, key=math.prod)
        high = math.prod(largest)
        low = math.prod(bucket_low(length, self._settings) for length in largest)
        return lambda shape: low <= shape.numel <= high


def _by_grid(signature: Signature) -> Callable[[_Shape], bool]:
    x, y, z = signature.threads
    threads = x * max(1, y) * max(1, z)
    return lambda shape: (
        shape.grid == signature.blocks
        and (threads == 0 or threads in {shape.warps * each for each in _WARPS})
    )


def _keep(ctx: Context, outcome: Outcome) -> bool:
    """Write what is new; return whether any definition is new or changed."""
    store, changed = ctx.store, False
    room = MOST_LIFTED - len(store.ids(Kind.LIFTED, phase="lifted"))
    for each in outcome.lifted:
        record = LiftedRecord.of(each)
        body = record.model_dump(mode="json")
        name = record.own.name
        _outdate(ctx, record.own)
        if store.get(Kind.LIFTED, name) is not None:
            for phase in ("lifted", "outdated"):
                store.advance(Kind.LIFTED, name, expect=phase, to="lifted", body=body)
            changed = True
        elif room > 0 and store.add(Kind.LIFTED, name, body, phase="lifted"):
            room -= 1
            changed = True
            _say(ctx, name, "kernel-lifted", kernel=harmless(_kernel(record.own)))
    left = MOST_KEPT - len(store.ids(Kind.LIFTED, phase="kept"))
    for kept in outcome.kept[: max(0, left)]:
        body = asdict(kept)
        id = digest_of([kept.kernel, kept.source_digest, kept.reason])
        if store.add(Kind.LIFTED, id, body, phase="kept"):
            _say(ctx, id, "kernel-not-lifted", kernel=kept.kernel, reason=kept.reason)
    _forget_what_was_lifted(ctx, outcome)
    return changed


def _outdate(ctx: Context, own: OwnDefinition) -> None:
    """Set aside what the same launches were lifted to while less of them was known."""
    for record in lifted(ctx.store):
        if record.own.name != own.name and _same_launches(record.own.lifted, own.lifted):
            ctx.store.advance(Kind.LIFTED, record.own.name, expect="lifted", to="outdated")


def _same_launches(one: LiftedFrom | None, other: LiftedFrom | None) -> bool:
    told = {"kernel", "source_digest", "floats", "constants", "options", "dtypes"}
    if one is None or other is None:
        return False
    return one.model_dump(include=told) == other.model_dump(include=told)


def _forget_what_was_lifted(ctx: Context, outcome: Outcome) -> None:
    """Tell no kernel as refused that needed more launches and got them."""
    now = {harmless(_kernel(each.own)) for each in outcome.lifted}
    still = {each.kernel for each in outcome.kept}
    for stored in ctx.store.list(Kind.LIFTED, phase="kept"):
        if stored.body.get("kernel") in now - still:
            ctx.store.advance(Kind.LIFTED, stored.id, expect="kept", to="settled")


def _digest(records: Sequence[Mapping[str, Any]], bounds: Mapping[str, Any]) -> str:
    """Return what says whether anything new was seen or said: launches, not how often."""
    told = sorted(
        json.dumps(
            {n: v for n, v in record.items() if n not in _GROWING}, sort_keys=True, default=str
        )
        for record in records
    )
    return digest_of([told, bounds] if bounds else told)


def _kernel(own: OwnDefinition) -> str:
    return own.lifted.kernel if own.lifted is not None else ""


def _say(ctx: Context, id: str, what: str, **detail: object) -> None:
    ctx.store.record(
        Event(at=ctx.clock.now(), kind=Kind.LIFTED, id=id, what=what, who="retuned", detail=detail)
    )
