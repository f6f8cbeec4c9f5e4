"""Users' own kernels in a cluster: a folder of files, each accepted or refused separately.

An administrator provides them, as policies, for every target. Definitions that pods report are
stored separately, by target. An invalid file is skipped and logged with its error and place. It
does not affect other files: an operator that ended because of one file could not roll back harmful
swaps.

The catalog as controllers ask it: what servers of a kind come with.

Live kernels of servers: definitions that pods report, untrusted and stored by target.
"""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path

from pydantic import ValidationError

from retuned import catalog
from retuned.api.agent import MAX_DEFINITIONS, DefinitionPost
from retuned.api.target import Vendor
from retuned.catalog.user import OwnDefinition, definition_files, entry_of, faults, load_definition
from retuned.catalog.user.inputs import allows
from retuned.catalog.user.registry import LONGEST_VARIABLE
from retuned.contract import AxisConst, Language, Solution, TrustClass, Workload
from retuned.errors import Refused, RetunedError, UsageError
from retuned.lifting.store_records import Geometries, LiftedRecord, same_launches
from retuned.ports import Store
from retuned.stages.profile import ProfileSettings
from retuned.stages.proposal import is_tunable
from retuned_operator.controllers.ports import Dims, LiveShapes, NoTunables, Tunables
from retuned_operator.schema import TuningTarget

log = logging.getLogger(__name__)

LIVE = "pod-kernel"
"""Kind of the records, by target and name: lifted <-> outdated."""
PREFIX = "lifted_"
"""Names of live kernels begin so, and no family of the catalog does."""
_MAX_SHAPES = 256
_MAX_READ = 512


class LiveKernels:
    """Definitions that pods have reported.

    Parameters
    ----------
    store
        Where they are kept.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._read: OrderedDict[str, tuple[datetime, LiftedRecord]] = OrderedDict()

    def take(self, target: str, said: DefinitionPost) -> None:
        """Store a definition, merged with the reports of other pods of the target.

        Raises
        ------
        Refused
            ``definition-malformed``, ``definition-brings-code``, ``definition-invalid``,
            ``definition-differs`` or ``too-many-definitions``.
        """
        new = _checked(said)
        known = {record.own.name: record for record in self.every(target)}
        before = self._get(target, new.own.name)
        if before is None and len(known) >= MAX_DEFINITIONS:
            raise _refused("too-many-definitions", f"{target} has {len(known)} already")
        record = new if before is None else _together(before, new)
        if record == before and new.own.name in known:
            return
        self._keep(target, record)
        for name, other in known.items():
            if name != record.own.name and same_launches(other.own.lifted, record.own.lifted):
                self._settle(target, other, record)

    def find(self, target: str, name: str) -> OwnDefinition | None:
        """Return a definition of a target, an outdated one too; None if it is not stored."""
        record = self._get(target, name)
        return None if record is None else record.own

    def every(self, target: str) -> Iterator[LiftedRecord]:
        """Yield what is lifted of a target, oldest first."""
        for id in self._store.ids(LIVE, phase="lifted", prefix=f"{target}/"):
            record = self._get(target, id.rpartition("/")[2])
            if record is not None:
                yield record

    def _get(self, target: str, name: str) -> LiftedRecord | None:
        if not name.startswith(PREFIX):
            return None
        id = f"{target}/{name}"
        stored = self._store.get(LIVE, id)
        if stored is None:
            return None
        at, record = self._read.get(id, (None, None))
        if record is None or at != stored.updated_at:
            try:
                record = LiftedRecord.model_validate(stored.body)
            except ValidationError as error:
                log.warning("%s is left out: %d fields are wrong", id, error.error_count())
                return None
            self._read[id] = (stored.updated_at, record)
            while len(self._read) > _MAX_READ:
                self._read.popitem(last=False)
        return record

    def _keep(self, target: str, record: LiftedRecord) -> None:
        id, body = f"{target}/{record.own.name}", record.model_dump(mode="json")
        self._read.pop(id, None)
        if self._store.add(LIVE, id, body, phase="lifted"):
            log.info("%s: %s is known", target, record.own.name)
            return
        for phase in ("lifted", "outdated"):
            self._store.advance(LIVE, id, expect=phase, to="lifted", body=body)

    def _settle(self, target: str, one: LiftedRecord, other: LiftedRecord) -> None:
        """Set aside which of two definitions of the same launches knows less of them."""
        less = min((one, other), key=lambda each: len(each.own.definition.variable_axes))
        id = f"{target}/{less.own.name}"
        self._store.advance(LIVE, id, expect="lifted", to="outdated")


def _checked(said: DefinitionPost) -> LiftedRecord:
    """Read a pod's report.

    Raises
    ------
    Refused
        As `LiveKernels.take`.
    """
    try:
        record = LiftedRecord.model_validate_json(said.text)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])[:200] or "the text"
        raise _refused("definition-malformed", f"{where}: {first['msg']}"[:300]) from None
    own = record.own
    if own.name != said.name or not own.name.startswith(PREFIX):
        raise _refused(
            "definition-malformed", f"its name is not {said.name} or not a live kernel's"
        )
    problem = _code_in(own)
    if problem:
        raise _refused("definition-brings-code", problem)
    for fault in faults(own):
        raise _refused("definition-invalid", f"{fault.place}: {fault.message}"[:300])
    try:
        entry_of(own, Language.TRITON)
    except UsageError as error:
        raise _refused("definition-invalid", str(error)[:300]) from error
    _check_shapes(record)
    return record


def _code_in(own: OwnDefinition) -> str:
    """Say what a definition brings beside parameters of the live kernel; empty where nothing."""
    if not own.judged_by_incumbent:
        return "it has a reference, or was lifted from nothing"
    if len(own.variants) != 1:
        return f"it has {len(own.variants)} variants; a live kernel has its own"
    (variant,) = own.variants
    if variant.incumbent is None or variant.serves or variant.language is not Language.TRITON:
        return "its variant is not the live kernel"
    if variant.trust is not TrustClass.PARAMETERS:
        return "its variant is source code from outside"
    if not own.definition.op_type.startswith(PREFIX) or catalog.languages(own.name):
        return "it takes the place of a kernel of the catalog"
    return ""


def _check_shapes(record: LiftedRecord) -> None:
    own = record.own
    if len(record.workloads) != len(record.grids) or len(record.workloads) > _MAX_SHAPES:
        raise _refused("definition-malformed", f"not one grid a shape, or over {_MAX_SHAPES}")
    for workload in record.workloads:
        if workload.definition != own.name or set(workload.axes) != {*own.definition.variable_axes}:
            raise _refused("definition-malformed", "a shape is another definition's")
        if not all(1 <= length <= LONGEST_VARIABLE for length in workload.axes.values()):
            raise _refused("definition-malformed", "a shape has a length that no launch has")
        if not _allows(own, workload.axes):
            raise _refused("definition-invalid", "a shape is outside its guard")


def _allows(own: OwnDefinition, axes: Mapping[str, int]) -> bool:
    constants = {n: a.value for n, a in own.definition.axes.items() if isinstance(a, AxisConst)}
    return allows(own, {**constants, **axes})


def _together(before: LiftedRecord, new: LiftedRecord) -> LiftedRecord:
    """Put together what two pods know of one kernel; of each shape the most launches count.

    Raises
    ------
    Refused
        ``definition-differs``.
    """
    for part in ("definition", "made", "variants"):
        if getattr(before.own, part) != getattr(new.own, part):
            raise _refused("definition-differs", f"{part}: another pod reports a different one")
    if not same_launches(before.own.lifted, new.own.lifted):
        raise _refused("definition-differs", "lifted: another pod reports a different one")
    found: dict[tuple[tuple[str, int], ...], tuple[Workload, tuple[int, int, int]]] = {}
    for record in (before, new):
        for workload, grid in zip(record.workloads, record.grids, strict=True):
            key = tuple(sorted(workload.axes.items()))
            seen = found.get(key)
            if seen is None or seen[0].weight < workload.weight:
                found[key] = (workload, grid)
    rows = sorted(found.values(), key=lambda each: -each[0].weight)[:_MAX_SHAPES]
    for own in (before.own, new.own):  # the one that allows more
        if all(_allows(own, workload.axes) for workload, _ in rows):
            return LiftedRecord(
                own=own,
                workloads=tuple(workload for workload, _ in rows),
                grids=tuple(grid for _, grid in rows),
            )
    return new


def _refused(code: str, message: str) -> Refused:
    error = Refused("".join(each if each.isprintable() else " " for each in message))
    error.code = code
    return error


MAX_CHARS = 160 << 10
"""Longest definition with its sources, as JSON: a task, which is an object of at most 1 MiB, has it
beside the incumbent and three finalists, and each of these may be most of it again."""
MAX_FILES = 256
"""Most definition files that are read: a launch is held against every definition."""
_MAX_SAID = 1_000
_HINT = "`retuned kernels show FILE` checks a file; the operator reads them when it starts"


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedFile:
    """A file that is not used."""

    path: Path
    """The file, or the folder if that cannot be read."""
    code: str
    """Stable reason, kebab-case."""
    where: str
    """Its path, with the line where that is known."""
    message: str
    """What is wrong, and what to do; in one line, as `where` is, without control characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DefinitionLoad:
    """What came of a folder."""

    names: tuple[str, ...] = ()
    """Definitions that the catalog knows now, in the order of their files."""
    left_out: tuple[SkippedFile, ...] = ()
    """What it does not."""


def learn(folder: Path | None) -> DefinitionLoad:
    """Make the definitions of a folder known to this process, one file after the other by name.

    Parameters
    ----------
    folder
        Definition files and the sources beside them; None is nothing at all.
    """
    if folder is None:
        return DefinitionLoad()
    names: list[str] = []
    left_out: list[SkippedFile] = []
    for path in _files(folder, left_out):
        try:
            names.append(_learn_one(path))
        except RetunedError as error:
            left_out.append(_left(path, error))
    for each in left_out:
        log.warning("%s is left out [%s]: %s; %s", each.where, each.code, each.message, _HINT)
    if names:
        log.info("%d definitions of %s are known: %s", len(names), folder, ", ".join(names))
    return DefinitionLoad(names=tuple(names), left_out=tuple(left_out))


def _files(folder: Path, left_out: list[SkippedFile]) -> Iterator[Path]:
    """Yield the files; that there are too many, or none can be listed, is left out as one thing."""
    try:
        if not folder.is_dir():
            raise _refused_file("cannot-open", "is not a folder; mount the definitions there")
        found = definition_files([folder])
        yield from islice(found, MAX_FILES)
        if next(found, None) is not None:
            raise _refused_file(
                "too-many-definitions", f"has over {MAX_FILES}; the rest is not read"
            )
    except RetunedError as error:
        left_out.append(_left(folder, error))
    except OSError as error:
        reason = _refused_file("cannot-open", f"cannot be read ({error.strerror})")
        left_out.append(_left(folder, reason))


def _learn_one(path: Path) -> str:
    """Read a file and make what it defines known; return the name.

    Raises
    ------
    RetunedError
        If it cannot be used.
    """
    own = load_definition(path)
    if own.name.startswith(PREFIX):
        raise _refused_file("name-reserved", f"names from '{PREFIX}' on are those of live kernels")
    if _length(own) > MAX_CHARS:
        raise _refused_file(
            "definition-too-large",
            f"is longer than {MAX_CHARS >> 10} KiB with its sources, and a task "
            "of an experiment has to hold it; give it fewer variants",
        )
    catalog.learn([own])
    return own.name


def _length(own: OwnDefinition) -> int:
    return len(json.dumps(own.model_dump(mode="json")))


def _left(path: Path, error: RetunedError) -> SkippedFile:
    where, message = _plain(error.where or str(path)), _plain(error.message)
    return SkippedFile(path=path, code=error.code, where=where, message=message)


def _plain(text: str) -> str:
    return "".join(each if each.isprintable() else " " for each in text)[:_MAX_SAID]


def _refused_file(code: str, message: str) -> Refused:
    error = Refused(message)
    error.code = code
    return error


class CatalogKernels:
    """The `Kernels` of the catalog that this image ships, and of what pods have lifted.

    Parameters
    ----------
    live
        What pods have lifted; None knows nothing of live kernels.
    tunables
        Tunables of servers; None knows none.
    buckets
        How profiles round lengths.
    """

    def __init__(
        self,
        live: LiveKernels | None = None,
        *,
        tunables: Tunables | None = None,
        buckets: ProfileSettings | None = None,
    ) -> None:
        self._live = live
        self._tunables = tunables or NoTunables()
        self._buckets = buckets or ProfileSettings()

    def incumbent(self, definition: str, *, target: TuningTarget) -> Solution | None:
        """Return the original of such servers; None for an unknown kernel."""
        if is_tunable(definition):
            launched = self._tunables.launched(target.full_name, definition)
            return None if launched is None else launched.incumbent
        entry = self._entry(definition, target)
        return None if entry is None else entry.incumbent

    def structures(self, definition: str, *, target: TuningTarget) -> tuple[str, ...]:
        """Return the source structures that a search can try; empty if none is known."""
        entry = self._entry(definition, target)
        return () if entry is None else tuple(space.name for space in entry.spaces)

    def recognise(
        self, kernel: str, dims: Dims, dtypes: tuple[str, ...], *, target: TuningTarget
    ) -> tuple[str, Mapping[str, int]] | None:
        """Return definition and variable axes of a launch; None for an unknown kernel."""
        binding = catalog.recognise(kernel, dims, dtypes)
        if binding is None or _language_of(target) not in catalog.languages(binding.definition):
            return None
        return binding.definition, binding.axes

    def live_shapes(self, *, target: TuningTarget) -> LiveShapes:
        """Return the function that finds possible shapes of launches of live kernels."""
        records = () if self._live is None else self._live.every(target.full_name)
        found = Geometries(records, buckets=self._buckets)
        return lambda stat: [(share.workload, share.part) for share in found.shares_of(stat)]

    def is_live(self, definition: str, *, target: TuningTarget) -> bool:
        """Whether it is a kernel that servers have no slot for before it is swapped."""
        return self._own(definition, target) is not None

    def _own(self, definition: str, target: TuningTarget) -> OwnDefinition | None:
        return None if self._live is None else self._live.find(target.full_name, definition)

    def _entry(self, definition: str, target: TuningTarget) -> catalog.KernelEntry | None:
        own = self._own(definition, target)
        if own is not None:
            return entry_of(own, own.languages[0])
        try:
            return catalog.get(definition, language=_language_of(target))
        except UsageError:
            return None


def _language_of(target: TuningTarget) -> Language:
    cpu = target.spec.gpu.vendor is Vendor.CPU
    return Language.CPU_CPP if cpu else Language.TRITON
