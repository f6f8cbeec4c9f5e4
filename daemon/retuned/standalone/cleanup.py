"""Cleanup: once a day, old files of experiments and old windows are removed.

A kill at any moment is safe. What is removed can be made again from the records, or is a document
whose absence counts as missing evidence, which promotes nothing. Files go first, then the record
says so: a kill in between removes the rest on the next day. It runs on the thread of the
experiments while none runs, so that no lab uses what is removed.

What is in force, ordered, needed for a rollback, or waits for people stays, however old it is. The
rest goes by age: what can be made again after `Retention.things`, signed evidence after
`Retention.evidence`. Records stay: priors and data sets are made of verdicts and sources.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from itertools import pairwise
from pathlib import Path

from pydantic import ValidationError

from retuned.contract import Digest
from retuned.errors import RetunedError
from retuned.node.live_proof import PROVING
from retuned.node.order_context import STANDING
from retuned.node.order_store import bringer, latest
from retuned.ports import Event
from retuned.stages.proposal import Proposal
from retuned.stages.swap import SwapOrder
from retuned.stages.watch.attribution import AttributionOutcome
from retuned.stages.watch.proof import Verdict
from retuned.standalone.context import Context, RecordKind, Retention
from retuned.standalone.records import BEFORE_SWAP, GOING_BACK, UNDER_WAY, in_phases

log = logging.getLogger(__name__)


class LabArtifactType(StrEnum):
    """What is kept in the lab's folder; the names of its parts."""

    ARTIFACT = "artifacts"
    """Folder of a compiled variant, as a server loads it."""
    RAW = "evidence"
    """Raw numbers of one candidate, before they were signed."""
    COMPILED = "compiled"
    """Output of a compiler, kept so that nothing is compiled twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabFile:
    """A file or folder of the lab."""

    sort: LabArtifactType
    """What it is."""
    name: str
    """Its name in its folder; of artifacts and raw numbers the digest's digits."""
    age: timedelta
    """How long ago it was made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainedIds:
    """What stays whatever its age."""

    digests: frozenset[Digest]
    """Variants and evidence."""

    def holds(self, name: str) -> bool:
        """Whether something of this name is needed; names are digests with or without prefix."""
        digits = name.partition(".")[0].removeprefix("sha256:")
        return f"sha256:{digits}" in self.digests


def pins_of(
    orders: Iterable[SwapOrder], proposals: Iterable[Proposal], *, incumbents: Iterable[Digest] = ()
) -> RetainedIds:
    """Return what must stay.

    Parameters
    ----------
    orders
        Orders that are in force or may be carried out.
    proposals
        Proposals that wait, are in force, or that one of the orders carries out.
    incumbents
        What experiments that have not ended compare with.
    """
    found: set[Digest] = set(incumbents)
    for order in orders:
        found |= {each for each in (order.artifact, order.previous) if each is not None}
    for proposal in proposals:
        found |= {proposal.artifact, proposal.baseline}
        if proposal.evidence is not None:
            found.add(proposal.evidence)
    return RetainedIds(digests=frozenset(found))


def expendable(
    things: Sequence[LabFile], *, pins: RetainedIds, retention: Retention
) -> list[LabFile]:
    """Return what may go, oldest first.

    Examples
    --------
    >>> old = LabFile(sort=LabArtifactType.ARTIFACT, name="ab" * 32, age=timedelta(days=40))
    >>> unused = RetainedIds(digests=frozenset())
    >>> [each.name[:4] for each in expendable([old], pins=unused, retention=Retention())]
    ['abab']
    >>> used = RetainedIds(digests=frozenset({"sha256:" + "ab" * 32}))
    >>> expendable([old], pins=used, retention=Retention())
    []
    """
    old = [each for each in things if each.age > retention.things and not pins.holds(each.name)]
    return sorted(old, key=lambda each: (-each.age, each.sort, each.name))


def expendable_evidence(
    named: Collection[Digest], *, age: timedelta, pins: RetainedIds, retention: Retention
) -> list[Digest]:
    """Return the signed documents of one ended experiment that may go.

    Parameters
    ----------
    named
        Documents that its findings name.
    age
        How long ago it began.
    pins
        What stays.
    retention
        How long the rest is kept; documents at least as long as raw samples.
    """
    if age <= max(retention.evidence, retention.things):
        return []
    return sorted(each for each in named if not pins.holds(each))


def windows_of(drifts: Collection[str], *, windows: Sequence[str]) -> set[str]:
    """Return the windows that drift was found in, and of each the one before it.

    Parameters
    ----------
    drifts
        Ids of the reports; a report has its window's.
    windows
        Ids of all windows, oldest first.

    Examples
    --------
    >>> sorted(windows_of({"w3"}, windows=["w1", "w2", "w3", "w4"]))
    ['w2', 'w3']
    """
    before = {earlier for earlier, later in pairwise(windows) if later in drifts}
    return before | set(drifts)


EVERY = timedelta(days=1)
"""How often it is looked for what may go."""
STATE = "daily"
"""Id of the record of the last time."""
_ENDED = ("done", "proposed", "refused", "failed")
"""Phases of experiments that are over; a win that waits is in none of them."""
_NEEDED = (*BEFORE_SWAP, *UNDER_WAY, *GOING_BACK)
"""Phases of proposals whose artifact and evidence are needed, whatever is in force."""
_ASKED = ("new", "explained", "answered")
"""Phases of drift reports that asked for something."""
_PROVEN = {
    RecordKind.REPEATED_PROOF: (PROVING, *(str(v) for v in Verdict if v is not Verdict.HARMS)),
    RecordKind.ATTRIBUTION: tuple(
        str(o) for o in AttributionOutcome if o is not AttributionOutcome.TRYING
    ),
}
"""Proofs of kept swaps; no step reads them after a day."""
_OVER = ("judged", "skipped")
"""Phases of windows that no step reads again; only people look at them."""
_GOING = ".going-"
"""Beginning of the name of a folder that is being removed."""


def keep_house(ctx: Context) -> Counter[str]:
    """Remove what may go if that was not done today; return how many of each sort went."""
    last = ctx.store.get(RecordKind.HOUSEKEEPING, STATE)
    now = ctx.clock.now()
    if last is not None and now - last.updated_at < EVERY:
        return Counter()
    gone = Counter({str(RecordKind.WINDOW): _forget_windows(ctx)})
    try:
        pins = pins_now(ctx)
    except (RetunedError, ValidationError) as error:
        # a record that cannot be read may be what says that something is needed
        log.error("files of experiments are not removed: %s", error)
        return gone
    if ctx.lab is not None:
        gone += _clear_lab(ctx, ctx.lab, pins)
    gone[str(RecordKind.FINDING)] = _clear_evidence(ctx, pins)
    body = {"removed": dict(gone)}
    if not ctx.store.add(RecordKind.HOUSEKEEPING, STATE, body, phase="current"):
        ctx.store.advance(RecordKind.HOUSEKEEPING, STATE, expect="current", to="current", body=body)
    if gone.total():
        log.info("cleared away: %s", ", ".join(f"{n} {what}" for what, n in gone.items() if n))
    return gone


def pins_now(ctx: Context) -> RetainedIds:
    """Return what must stay at this moment.

    Raises
    ------
    ValidationError
        If a proposal or order that may be needed cannot be read.
    """
    kept = list(latest(ctx.store).values())
    for phase in STANDING:
        for each in ctx.store.list(RecordKind.ORDER, phase=phase):
            SwapOrder.model_validate(each.body)
    needed = in_phases(ctx, _NEEDED)
    named = {id for k in kept for id in (k.order.proposal, bringer(ctx.store, k.order).proposal)}
    carried = (ctx.store.get(RecordKind.PROPOSAL, id) for id in sorted(named))
    proposals = [
        Proposal.model_validate(each.body)
        for each in (*needed, *(found for found in carried if found is not None))
    ]
    open_phases = ("running", "done", "won", "lapsed")
    incumbents = [
        str(each.body["incumbent"])
        for phase in open_phases
        for each in ctx.store.list(RecordKind.EXPERIMENT, phase=phase)
    ]
    return pins_of([each.order for each in kept], proposals, incumbents=incumbents)


def _clear_lab(ctx: Context, root: Path, pins: RetainedIds) -> Counter[str]:
    """Remove compiled variants and raw numbers."""
    gone: Counter[str] = Counter()
    _finish(root)
    for thing in expendable(
        list(_things(root, now_s=ctx.clock.now().timestamp())),
        pins=pins,
        retention=ctx.settings.retention,
    ):
        try:
            _remove(root / thing.sort / thing.name)
        except OSError as error:  # tried again tomorrow
            log.warning("%s %s stays: %s", thing.sort, thing.name, error.strerror)
        else:
            gone[thing.sort] += 1
    return gone


def _things(root: Path, *, now_s: float) -> Iterator[LabFile]:
    """Yield what lies in the lab's folders; work in progress has names that begin with a dot."""
    for sort in LabArtifactType:
        try:
            entries = sorted(os.scandir(root / sort), key=lambda entry: entry.name)
        except FileNotFoundError:
            continue
        for entry in entries:
            if entry.name.startswith(".") or entry.is_symlink():
                continue
            age_s = max(0.0, now_s - entry.stat(follow_symlinks=False).st_mtime)
            yield LabFile(sort=sort, name=entry.name, age=timedelta(seconds=age_s))


def _remove(path: Path) -> None:
    """Remove a file, or a folder so that no half of it is ever seen under its name."""
    if not path.is_dir():
        path.unlink(missing_ok=True)
        return
    going = path.with_name(_GOING + path.name)
    path.rename(going)
    shutil.rmtree(going)


def _finish(root: Path) -> None:
    """Remove the rest of folders whose removal was interrupted."""
    for sort in LabArtifactType:
        for left in (root / sort).glob(f"{_GOING}*"):
            shutil.rmtree(left, ignore_errors=True)


def _forget_windows(ctx: Context) -> int:
    """Forget old windows, and reports that asked for nothing; return how many windows went."""
    before = ctx.clock.now() - ctx.settings.retention.windows
    asked = {id for phase in _ASKED for id in ctx.store.ids(RecordKind.DRIFT, phase=phase)}
    keep = windows_of(asked, windows=ctx.store.ids(RecordKind.WINDOW))
    ctx.store.forget(RecordKind.DRIFT, phase="noted", before=before)
    for kind, phases in _PROVEN.items():
        for phase in phases:
            ctx.store.forget(kind, phase=phase, before=before)
    return sum(
        ctx.store.forget(RecordKind.WINDOW, phase=phase, before=before, keep=keep)
        for phase in _OVER
    )


def _clear_evidence(ctx: Context, pins: RetainedIds) -> int:
    """Remove signed documents of experiments that ended long ago; return how many went."""
    cleared = set(ctx.store.ids(RecordKind.HOUSEKEEPING, phase="cleared"))
    now, retention = ctx.clock.now(), ctx.settings.retention
    oldest = max(retention.evidence, retention.things)
    gone = 0
    for phase in _ENDED:
        for id in ctx.store.ids(RecordKind.EXPERIMENT, phase=phase):
            stored = ctx.store.get(RecordKind.EXPERIMENT, id) if id not in cleared else None
            if stored is None or now - stored.created_at <= oldest:
                continue
            named = _named(ctx, id)
            doomed = expendable_evidence(
                named, age=now - stored.created_at, pins=pins, retention=retention
            )
            for digest in doomed:
                gone += ctx.store.drop_blob(digest)
            if len(doomed) == len(named):
                _cleared(ctx, id, count=len(doomed))
    return gone


def _named(ctx: Context, experiment: str) -> set[Digest]:
    """Return the documents that an experiment's findings name."""
    found = set()
    for stored in ctx.store.list(RecordKind.FINDING, prefix=f"{experiment}/"):
        verdict = stored.body.get("verdict")
        digest = verdict.get("evidence") if isinstance(verdict, dict) else None
        if isinstance(digest, str):
            found.add(digest)
    return found


def _cleared(ctx: Context, experiment: str, *, count: int) -> None:
    """Write that an experiment has no evidence any more; people who look for it find this."""
    with ctx.store.transaction():
        if ctx.store.add(RecordKind.HOUSEKEEPING, experiment, {"evidence": count}, phase="cleared"):
            ctx.store.record(
                Event(
                    at=ctx.clock.now(),
                    kind=RecordKind.EXPERIMENT,
                    id=experiment,
                    what="evidence-removed",
                    who="retuned",
                    detail={
                        "documents": count,
                        "after_days": ctx.settings.retention.evidence.total_seconds() / 86_400,
                    },
                )
            )
