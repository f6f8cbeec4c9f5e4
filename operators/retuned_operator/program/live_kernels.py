"""Live kernels of servers: what their pods have lifted, read as a stranger's and kept by target.

A pod speaks for the code that its own servers run, and for no code beside it. What it tells may
lead to other parameters of a kernel that a server has already, which the server itself finds by the
digest of its source; it never brings a source, or a reference, that another pod would run. Every
target has definitions of its own: what one namespace tells is not known to another.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from datetime import datetime

from pydantic import ValidationError

from retuned import catalog
from retuned.agent_wire import MAX_DEFINITIONS, DefinitionPost
from retuned.catalog.own import OwnDefinition, entry_of, faults
from retuned.catalog.own.known import LONGEST_VARIABLE
from retuned.catalog.own.making import allows
from retuned.contract import AxisConst, Language, TrustClass, Workload
from retuned.errors import Refused, UsageError
from retuned.lifting.kept import LiftedRecord, same_launches
from retuned.ports import Store

log = logging.getLogger(__name__)

LIVE = "pod-kernel"
"""Kind of the records, by target and name: lifted <-> outdated."""
PREFIX = "lifted_"
"""Names of live kernels begin so, and no family of the catalog does."""
_MAX_SHAPES = 256
_MAX_READ = 512


class LiveKernels:
    """Definitions that pods have told.

    Parameters
    ----------
    store
        Where they are kept.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._read: OrderedDict[str, tuple[datetime, LiftedRecord]] = OrderedDict()

    def take(self, target: str, said: DefinitionPost) -> None:
        """Keep a definition, together with what other pods of the target have told of it.

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
        """Return a definition of a target, an outdated one too; None where there is none."""
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
    """Read what a pod told.

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
        return "its variant is somebody's source"
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
            raise _refused("definition-invalid", "a shape is none that it allows")


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
            raise _refused("definition-differs", f"{part}: another pod has told it otherwise")
    if not same_launches(before.own.lifted, new.own.lifted):
        raise _refused("definition-differs", "lifted: another pod has told it otherwise")
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
