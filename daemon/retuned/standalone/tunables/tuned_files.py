"""Kernels that the server configures by a file: what is tuned of them, and what a win writes.

A step of a server's file is a kernel of the catalog with the row as its incumbent. What a proposal
writes is kept under its id; its order goes through `ChangeSwapper`. So do the tables of
`retuned.standalone.tunables.observation`. What the server picks is read before anything rests on
it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import ValidationError

from retuned.contract import Digest, Solution
from retuned.errors import CandidateError, RetunedError, TemporaryError, UsageError
from retuned.node.order_store import latest
from retuned.ports import Event, Store
from retuned.stages.hypothesis import TABLE_STRUCTURE
from retuned.stages.profile import ProfileSettings, WorkloadProfile, bucket_low
from retuned.stages.proposal import Proposal, Refusal, RefusalReason
from retuned.stages.swap import SwapOrder
from retuned.stages.verdict import EvidenceFault
from retuned.standalone.context import Context, KernelCatalog, RecordKind
from retuned.standalone.records import in_force, proposal_in_force, say, under_way
from retuned.standalone.tunables import experiments as tunable_experiments
from retuned.standalone.tunables import records as tunable_records
from retuned.store.artifact_folder import MANIFEST, sign_artifact
from retuned.tuned_files.changes import Cost, change_of, choose, inside
from retuned.tuned_files.launches import Launch, incumbent_of, read_launch, structure_of
from retuned.tuned_files.records import TABLE, FileChange, Format, TunedFileStep

log = logging.getLogger(__name__)


class StoredChanges:
    """What is decided about files, read from the store; the `Changes` of a swapper."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def of(self, proposal: str) -> FileChange | None:
        """Return what a proposal writes; None where it swaps a kernel."""
        stored = self._store.get(RecordKind.FILE_CHANGE, proposal)
        return FileChange.model_validate(stored.body) if stored is not None else None

    def known(self) -> Mapping[str, Format]:
        """Return the kernels that files configure, and the tunables that had an order."""
        files = {subject.definition: subject.format for subject in subjects(self._store)}
        ordered = filter(tunable_records.is_tunable, latest(self._store))
        return files | dict.fromkeys(ordered, TABLE)


class ConfiguredKernels:
    """A catalog in which steps of a server's files are kernels, beside all others.

    Parameters
    ----------
    kernels
        All others.
    store
        Where the steps are kept.
    buckets
        How traces round lengths up.
    """

    def __init__(self, kernels: KernelCatalog, store: Store, *, buckets: ProfileSettings) -> None:
        self._kernels = kernels
        self._store = store
        self._buckets = buckets

    def recognise(
        self, kernel: str, dims: tuple[tuple[int, ...], ...], dtypes: tuple[str, ...]
    ) -> tuple[str, Mapping[str, int]] | None:
        """Return definition and axes of a launch; of a file's kernel, where its step is tuned."""
        named = self._kernels.recognise(kernel, dims, dtypes)
        launch = read_launch(kernel, dims, dtypes) if named is None else None
        subject = subject_of(self._store, launch.definition) if launch is not None else None
        if launch is None or subject is None:
            return named
        low = bucket_low(launch.tokens, self._buckets)
        if not inside(subject.run, low=low, high=launch.tokens):
            return None
        return launch.definition, {"M": launch.tokens}

    def incumbent(self, definition: str) -> Solution:
        """Return the variant that the server comes with: of a file's kernel, its row.

        Of a tunable, what the server chooses by itself.
        """
        known = tunable_records.seen(self._store, definition)
        if known is not None:
            return known.incumbent
        subject = subject_of(self._store, definition)
        if subject is None:
            return self._kernels.incumbent(definition)
        return incumbent_of(definition, subject.run.row, format=subject.format)

    def family(self, definition: str) -> str:
        """Return the operator type; a tunable is a family by itself."""
        if tunable_records.is_tunable(definition):
            return definition
        return self._kernels.family(definition)

    def audited(self, definition: str) -> tuple[str, ...]:
        """Return the structure that runs in production."""
        if tunable_records.is_tunable(definition):
            return (TABLE_STRUCTURE,)
        subject = subject_of(self._store, definition)
        if subject is not None:
            return (structure_of(subject.format),)
        return self._kernels.audited(definition)

    def structures(self, definition: str) -> tuple[str, ...]:
        """Return all structures: a row can say no other than the one that runs."""
        if tunable_records.is_tunable(definition):
            return (TABLE_STRUCTURE,)
        subject = subject_of(self._store, definition)
        if subject is not None:
            return (structure_of(subject.format),)
        return self._kernels.structures(definition)

    def floor_ns(self, definition: str, axes: Mapping[str, int]) -> int:
        """Return the roofline time; 0 where unknown."""
        return (
            0
            if tunable_records.is_tunable(definition)
            else self._kernels.floor_ns(definition, axes)
        )


def subjects(store: Store) -> Iterator[TunedFileStep]:
    """Yield the steps that are tuned, oldest first."""
    for stored in store.list(RecordKind.FILE, phase="tuned"):
        try:
            yield TunedFileStep.model_validate(stored.body)
        except ValidationError as error:
            log.warning("%s is left out: %d fields are wrong", stored.id, error.error_count())


def subject_of(store: Store, definition: str) -> TunedFileStep | None:
    """Return the step that is tuned as a definition; None where no file configures it."""
    stored = store.get(RecordKind.FILE, definition)
    if stored is None or stored.phase != "tuned":
        return None
    try:
        return TunedFileStep.model_validate(stored.body)
    except ValidationError:
        return None


def incumbent_named(store: Store, digest: Digest) -> Solution | None:
    """Return a server's row, or its own choice, as a variant; None if no server has it."""
    chosen = tunable_records.incumbent_named(store, digest)
    if chosen is not None:
        return chosen
    for subject in subjects(store):
        try:
            row, kind = subject.run.row, subject.format
            found = incumbent_of(subject.definition, row, format=kind)
        except (CandidateError, UsageError) as error:
            log.warning("%s is left out: %s", subject.definition, error)
            continue
        if found.digest == digest:
            return found
    return None


MOST_LOOKED_AT = 64
"""Definitions that one look asks the server about."""
_WINDOWS = 2
_RETRY_S = 1.0


def observe(ctx: Context) -> None:
    """Find the kernels of the last windows that a file configures, and ask what it says today.

    A step stays what is tuned while anything about it is under way or in force: what experiments
    and proposals rest on does not move under them.
    """
    if ctx.files is None:
        return
    launched = _launched(ctx)
    if not launched:
        return
    try:
        formats = ctx.files.formats()
        for definition, (launch, costs) in list(launched.items())[:MOST_LOOKED_AT]:
            if not _is_under_way(ctx, definition):
                here = [each for each in launch.formats if each in formats]
                _look(ctx, definition, launch.lookup, costs, formats=here)
    except RetunedError as error:
        log.info("files are looked at later: %s", error)


def _launched(ctx: Context) -> dict[str, tuple[Launch, list[Cost]]]:
    """Return what the last windows spent on kernels that a file configures."""
    found: dict[str, tuple[Launch, list[Cost]]] = {}
    for window in ctx.store.list(RecordKind.WINDOW, limit=_WINDOWS):
        for stat in WorkloadProfile.model_validate(window.body["profile"]).stats:
            signature = stat.signature
            launch = read_launch(signature.kernel, signature.dims, signature.dtypes)
            if launch is None:
                continue
            cost = Cost(
                low=bucket_low(launch.tokens, ctx.settings.profile),
                high=launch.tokens,
                gpu_time_ns=stat.gpu_time_ns,
            )
            found.setdefault(launch.definition, (launch, []))[1].append(cost)
    return found


def _is_under_way(ctx: Context, definition: str) -> bool:
    return in_force(ctx.store, definition) is not None or under_way(ctx.store, definition)


def _look(
    ctx: Context,
    definition: str,
    lookup: dict[str, object],
    costs: list[Cost],
    *,
    formats: list[Format],
) -> None:
    assert ctx.files is not None, "callers checked it"
    tested = {
        str(stored.body["incumbent"])
        for stored in ctx.store.list(RecordKind.EXPERIMENT)
        if stored.body.get("definition") == definition
    }
    problem: CandidateError | None = None
    for kind in formats:
        if kind not in ctx.files.measured:  # then the server need not be asked
            detail = f"no lab here has the library that carries out rows of {kind} files"
            problem = CandidateError("not-measurable", detail=detail)
            continue
        try:
            look = ctx.files.look(kind, lookup)
            chosen = choose(definition, look, costs, format=kind, lookup=lookup, tested=tested)
        except CandidateError as error:  # another server's file may be read here, too
            problem = error
            continue
        _keep(ctx, definition, chosen.model_dump(mode="json"), phase="tuned")
        return
    if problem is not None:
        body = {"reason": problem.reason, "detail": problem.detail[:500]}
        _keep(ctx, definition, body, phase="left")


def _keep(ctx: Context, definition: str, body: Mapping[str, object], *, phase: str) -> None:
    """Write what an observation found; the history gets only changes."""
    known = ctx.store.get(RecordKind.FILE, definition)
    if known is not None and (known.phase, dict(known.body)) == (phase, dict(body)):
        return
    with ctx.store.transaction():
        if known is None:
            ctx.store.add(RecordKind.FILE, definition, body, phase=phase)
        else:
            ctx.store.advance(RecordKind.FILE, definition, expect=known.phase, to=phase, body=body)
        what = "file-tuned" if phase == "tuned" else "file-left"
        detail = {name: body[name] for name in ("path", "reason", "detail") if name in body}
        ctx.store.record(
            Event(
                at=ctx.clock.now(),
                kind=RecordKind.FILE,
                id=definition,
                what=what,
                who="retuned",
                detail=detail,
            )
        )


def generators_for(ctx: Context, definition: str) -> tuple[str, ...]:
    """Return who proposes variants: of a file's kernel only what searches parameters."""
    if tunable_records.is_tunable(definition):
        return ("search",)
    named = ctx.settings.generators
    if subject_of(ctx.store, definition) is None:
        return named
    return tuple(name for name in named if name == "search") or ("search",)


def with_change(ctx: Context, answer: Proposal | Refusal, solution: Solution) -> Proposal | Refusal:
    """Return a proposal with what it writes, or why it can write nothing; others as they are.

    Raises
    ------
    RetunedError
        If the server does not say what it picks: the win is weighed again.
    """
    if not isinstance(answer, Proposal):
        return answer
    if tunable_records.is_tunable(answer.definition):
        table = tunable_experiments.with_table(ctx, answer, solution)
        return table if isinstance(table, Refusal) else _with(ctx, answer, table)
    subject = subject_of(ctx.store, answer.definition)
    if subject is None:
        return answer
    if ctx.files is None:
        raise TemporaryError("the daemon cannot read the server's files", delay_s=_RETRY_S)
    below = proposal_in_force(ctx.store, answer.definition)
    try:
        look = ctx.files.look(subject.format, subject.lookup)
        change = change_of(subject, solution, answer.guard, look=look, under=below or "")
    except CandidateError as error:
        known = {each.value for each in RefusalReason}
        reason = error.reason if error.reason in known else RefusalReason.FILE_UNUSABLE
        return Refusal(reason=RefusalReason(reason), detail=error.detail[:1000])
    return _with(ctx, answer, change)


def _with(ctx: Context, answer: Proposal, change: FileChange) -> Proposal:
    """Keep a change under its proposal, and name it there."""
    proposal = answer.model_copy(update={"change": change.digest})
    if ctx.store.get(RecordKind.PROPOSAL, proposal.id) is None:  # else it is decided on already
        body = change.model_dump(mode="json")
        if ctx.store.add(RecordKind.FILE_CHANGE, proposal.id, body, phase="current"):
            said = json.loads(change.text)
            wanted = ("guard", "rows", "rules", "captures", "before")
            about = {name: said[name] for name in wanted if name in said}
            what = "writes-table" if change.format == TABLE else "writes-file"
            say(ctx, proposal.id, what, path=change.path, change=change.digest, **about)
        else:
            ctx.store.advance(
                RecordKind.FILE_CHANGE, proposal.id, expect="current", to="current", body=body
            )
    return proposal


def is_change(ctx: Context, proposal: str) -> bool:
    """Whether a proposal writes a file, or puts a table in force."""
    return ctx.store.get(RecordKind.FILE_CHANGE, proposal) is not None


def is_fixed(ctx: Context, proposal: str) -> bool:
    """Whether what a proposal changes cannot be switched off and on: a file, not a table."""
    stored = ctx.store.get(RecordKind.FILE_CHANGE, proposal)
    return stored is not None and stored.body.get("format") != TABLE


def folder_of(ctx: Context, order: SwapOrder) -> Path:
    """Return the signed folder of a change for the server to check.

    Raises
    ------
    CandidateError
        If the change is not what was proposed.
    OSError
        If the change cannot be written for the server.
    """
    change = StoredChanges(ctx.store).of(order.proposal)
    stored = ctx.store.get(RecordKind.PROPOSAL, order.proposal)
    if change is None or stored is None or stored.body.get("change") != change.digest:
        detail = "the change to write differs from the proposed change"
        raise CandidateError(EvidenceFault.CONTRADICTED, detail=detail)
    if ctx.changes is None:
        raise CandidateError(EvidenceFault.CONTRADICTED, detail="the folder of changes is not set")
    return _published(ctx, ctx.changes, order, change)


def _published(ctx: Context, root: Path, order: SwapOrder, change: FileChange) -> Path:
    folder = root / change.digest.removeprefix("sha256:")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    (folder / MANIFEST).write_text(change.text, "utf-8")
    sign_artifact(
        folder,
        notary=ctx.notary,
        artifact=change.digest,
        definition=order.definition,
        target=order.target,
    )
    return folder
