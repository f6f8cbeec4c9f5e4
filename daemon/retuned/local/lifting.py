"""Live kernels on one machine: what was seen of them becomes definitions, kept in the state.

What is kept is read again at the next start, so that a definition that something was found about
does not go with the server that showed it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pydantic import ValidationError

from retuned import catalog
from retuned.catalog.own import OwnDefinition
from retuned.contract import digest_of
from retuned.errors import TemporaryError, UsageError
from retuned.lifting.kept import Geometries, LiftedRecord, observed_digest, same_launches
from retuned.lifting.lift import Outcome, SkippedKernel, lift_all
from retuned.lifting.refusing import harmless
from retuned.local.context import Context, RecordKind
from retuned.local.recognised import structured
from retuned.ports import Event, Store

log = logging.getLogger(__name__)

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
