"""Live kernels on one machine: observed launches become definitions, stored in the state.

The definitions are read again at the next start, so that one with findings does not end with the
server that launched it.

Live kernels whose computation the catalog has: recognised once, and stored with the result.

The catalog as the loop asks for it: kernels of one language, with this machine's roofline.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from pydantic import ValidationError

from retuned import catalog
from retuned.catalog.user import OwnDefinition
from retuned.contract import Language, Solution, digest_of
from retuned.errors import RetunedError, TemporaryError, UsageError
from retuned.lifting.lift import Lifted, Outcome, SkippedKernel, lift_all
from retuned.lifting.recognition import RECOGNISED
from retuned.lifting.records import harmless
from retuned.lifting.store_records import Geometries, LiftedRecord, observed_digest, same_launches
from retuned.ports import Event, Store
from retuned.standalone.context import Context, RecordKind

log = logging.getLogger(__name__)

_ASKED = "@asked/"


def structured(ctx: Context, lifted: Lifted) -> Lifted:
    """Return a live kernel with the catalog's structures where it is recognised; else as it is."""
    if ctx.structures is None or not lifted.own.judged_by_incumbent:
        return lifted
    name = lifted.own.name
    known = ctx.store.get(RecordKind.LIFTED, _ASKED + name)
    if known is not None:
        own = _fitted(known.body.get("fitted"))
        return lifted if own is None else _with(lifted, own)
    try:
        found = ctx.structures(lifted)
    except (RetunedError, OSError) as error:
        log.warning("the computation of %s cannot be recognised: %s", name, error)
        return lifted
    is_new = found is not lifted
    body = {"fitted": found.own.model_dump(mode="json") if is_new else None}
    ctx.store.add(RecordKind.LIFTED, _ASKED + name, body, phase="asked")
    if is_new:
        _record_match(ctx, found)
    return found


def _fitted(body: object) -> OwnDefinition | None:
    """Read what was kept; what an older version wrote otherwise is as if it was not recognised."""
    if body is None:
        return None
    try:
        return OwnDefinition.model_validate(body)
    except ValidationError as error:
        log.warning("a fitted kernel is left out: %d fields are wrong", error.error_count())
        return None


def _with(lifted: Lifted, own: OwnDefinition) -> Lifted:
    workloads = (each.model_copy(update={"definition": own.name}) for each in lifted.workloads)
    return replace(lifted, own=own, workloads=tuple(workloads))


def _record_match(ctx: Context, found: Lifted) -> None:
    tags = [tag for tag in found.own.definition.tags if tag != RECOGNISED]
    ctx.store.record(
        Event(
            at=ctx.clock.now(),
            kind=RecordKind.LIFTED,
            id=found.own.name,
            what="kernel-recognised",
            who="retuned",
            detail={"computes": tags[-1], "structures": [v.structure for v in found.own.variants]},
        )
    )


MOST_LIFTED = 512
"""Most definitions that are kept: a server with more kernels than that has its first ones tuned."""
MOST_KEPT = 1024
"""Most reasons that are kept."""
_SEEN = "@seen"


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
    digest = observed_digest(records, bounds)
    seen = ctx.store.get(RecordKind.LIFTED, _SEEN)
    if seen is not None and seen.body.get("digest") == digest:
        return
    outcome = lift_all(records, bounds=bounds)
    outcome.lifted = [structured(ctx, each) for each in outcome.lifted]
    changed = _keep(ctx, outcome)
    with ctx.store.transaction():
        body = {"digest": digest}
        if not ctx.store.add(RecordKind.LIFTED, _SEEN, body, phase="seen"):
            ctx.store.advance(RecordKind.LIFTED, _SEEN, expect="seen", to="seen", body=body)
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
    for stored in store.list(RecordKind.LIFTED, phase=phase):
        try:
            yield LiftedRecord.model_validate(stored.body)
        except ValidationError as error:
            log.warning("%s is left out: %d fields are wrong", stored.id, error.error_count())


def refused(store: Store) -> Iterator[SkippedKernel]:
    """Yield what was not lifted, and why, oldest first."""
    for stored in store.list(RecordKind.LIFTED, phase="kept"):
        try:
            yield SkippedKernel(**stored.body)
        except TypeError:
            log.warning("%s is left out: an older version wrote it", stored.id)


def geometries(ctx: Context) -> Geometries:
    """Return the shapes of live kernels; those that the catalog does not know are left out.

    As are those of another language.
    """
    known = (each for each in lifted(ctx.store) if ctx.catalog.family(each.own.name))
    return Geometries(known, buckets=ctx.settings.profile)


def _keep(ctx: Context, outcome: Outcome) -> bool:
    """Write what is new; return whether any definition is new or changed."""
    store, changed = ctx.store, False
    room = MOST_LIFTED - len(store.ids(RecordKind.LIFTED, phase="lifted"))
    for each in outcome.lifted:
        record = LiftedRecord.of(each)
        body = record.model_dump(mode="json")
        name = record.own.name
        _outdate(ctx, record.own)
        if store.get(RecordKind.LIFTED, name) is not None:
            for phase in ("lifted", "outdated"):
                store.advance(RecordKind.LIFTED, name, expect=phase, to="lifted", body=body)
            changed = True
        elif room > 0 and store.add(RecordKind.LIFTED, name, body, phase="lifted"):
            room -= 1
            changed = True
            _say(ctx, name, "kernel-lifted", kernel=harmless(_kernel(record.own)))
    left = MOST_KEPT - len(store.ids(RecordKind.LIFTED, phase="kept"))
    for kept in outcome.kept[: max(0, left)]:
        body = asdict(kept)
        id = digest_of([kept.kernel, kept.source_digest, kept.reason])
        if store.add(RecordKind.LIFTED, id, body, phase="kept"):
            _say(ctx, id, "kernel-not-lifted", kernel=kept.kernel, reason=kept.reason)
    _forget_what_was_lifted(ctx, outcome)
    return changed


def _outdate(ctx: Context, own: OwnDefinition) -> None:
    """Set aside what the same launches were lifted to while less of them was known."""
    for record in lifted(ctx.store):
        if record.own.name != own.name and same_launches(record.own.lifted, own.lifted):
            ctx.store.advance(RecordKind.LIFTED, record.own.name, expect="lifted", to="outdated")


def _forget_what_was_lifted(ctx: Context, outcome: Outcome) -> None:
    """Tell no kernel as refused that needed more launches and got them."""
    now = {harmless(_kernel(each.own)) for each in outcome.lifted}
    still = {each.kernel for each in outcome.kept}
    for stored in ctx.store.list(RecordKind.LIFTED, phase="kept"):
        if stored.body.get("kernel") in now - still:
            ctx.store.advance(RecordKind.LIFTED, stored.id, expect="kept", to="settled")


def _kernel(own: OwnDefinition) -> str:
    return own.lifted.kernel if own.lifted is not None else ""


def _say(ctx: Context, id: str, what: str, **detail: object) -> None:
    ctx.store.record(
        Event(
            at=ctx.clock.now(),
            kind=RecordKind.LIFTED,
            id=id,
            what=what,
            who="retuned",
            detail=detail,
        )
    )


class KnownKernels:
    """Kernels of the catalog.

    Parameters
    ----------
    language
        Language of the server's kernels, and so of the variants.
    gflops
        Float32 operations per second that one core, or the GPU, reaches at best, in 1e9; 0 means
        unknown.
    gbytes_per_s
        Bytes per second that it can move at best, in 1e9; 0 means unknown.
    """

    def __init__(
        self,
        *,
        language: Language = Language.CPU_CPP,
        gflops: float = 0.0,
        gbytes_per_s: float = 0.0,
    ) -> None:
        self._language = language
        self._gflops = gflops
        self._gbytes_per_s = gbytes_per_s

    def recognise(
        self, kernel: str, dims: tuple[tuple[int, ...], ...], dtypes: tuple[str, ...]
    ) -> tuple[str, Mapping[str, int]] | None:
        """Return definition and variable axes of a launch; None if the catalog has none here."""
        binding = catalog.recognise(kernel, dims, dtypes)
        if binding is None or self._language not in catalog.languages(binding.definition):
            return None
        return binding.definition, binding.axes

    def incumbent(self, definition: str) -> Solution:
        """Return the variant that the server comes with."""
        return self._entry(definition).incumbent

    def family(self, definition: str) -> str:
        """Return the operator type; empty if the catalog no longer has the definition.

        A user's own definition ends with its file; its findings stay in the store.
        """
        try:
            return self._entry(definition).definition.op_type
        except UsageError:
            return ""

    def audited(self, definition: str) -> tuple[str, ...]:
        """Return the structure that runs in production: its other parameters are tried first."""
        return (self._entry(definition).incumbent.structure,)

    def structures(self, definition: str) -> tuple[str, ...]:
        """Return all source structures."""
        return tuple(space.name for space in self._entry(definition).spaces)

    def floor_ns(self, definition: str, axes: Mapping[str, int]) -> int:
        """Return the roofline time; 0 where unknown."""
        if self._gflops <= 0.0 or self._gbytes_per_s <= 0.0:
            return 0
        try:
            entry = self._entry(definition)
        except UsageError:
            return 0
        floor_us = entry.floor_us(axes, gflops=self._gflops, gbytes_per_s=self._gbytes_per_s)
        return int(floor_us * 1e3)

    def _entry(self, definition: str) -> catalog.KernelEntry:
        return catalog.get(definition, language=self._language)
