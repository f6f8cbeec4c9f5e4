"""Stored records of lifted kernels, and their match with launches of a trace. Pure.

`retuned run`, the sidecar and the operator share this code.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from retuned.catalog.user import LiftedFrom, OwnDefinition
from retuned.contract import Digest, Record, Workload, digest_of
from retuned.lifting.lift import Lifted
from retuned.stages.profile import ProfileSettings, Signature, SignatureStat, bucket_low

_GROWING = frozenset({"count", "device_time"})
"""Fields of an observation that hold only counts and durations."""
_WARPS = (32, 64)
_USUAL_WARPS = 4


class LiftedRecord(Record):
    """A lifted definition as stored."""

    own: OwnDefinition
    workloads: tuple[Workload, ...] = Field(max_length=4096)
    grids: tuple[tuple[int, int, int], ...] = Field(max_length=4096)

    @classmethod
    def of(cls, lifted: Lifted) -> LiftedRecord:
        return cls(own=lifted.own, workloads=lifted.workloads, grids=lifted.grids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One possible shape of launches with some geometry."""

    workload: Workload
    """Lengths; the weight is that of its launches among all of this geometry."""
    part: float
    """Share of these launches, 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """One live shape of a lifted kernel, as a trace may show it."""

    workload: Workload
    grid: tuple[int, int, int]
    warps: int
    numel: int


class Geometries:
    """Possible shapes of lifted kernels for launches in a trace.

    A GPU trace shows a kernel's name and grid, or, if an operator launched it, the shapes of that
    operator's tensors. These are not the kernel's arguments, but include its largest input. If
    several shapes are possible, the time is divided in proportion to the runtime's launch counts.

    `records` come from one server or from equal servers. `buckets` are the profile's rounding of
    lengths.
    """

    def __init__(self, records: Iterable[LiftedRecord], *, buckets: ProfileSettings) -> None:
        self._settings = buckets
        self._found: dict[str, list[_Shape]] = {}
        for record in records:
            origin, definition = record.own.lifted, record.own.definition
            if origin is None:
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
        """Return the possible shapes of launches of lifted kernels; empty for other kernels."""
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
        """Match by the operator's largest tensor; a signature holds its upper edges."""
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


def same_launches(one: LiftedFrom | None, other: LiftedFrom | None) -> bool:
    """Whether two definitions describe the same launches, one with more observations."""
    told = {"kernel", "source_digest", "floats", "constants", "options", "dtypes"}
    if one is None or other is None:
        return False
    return one.model_dump(include=told) == other.model_dump(include=told)


def observed_digest(records: Sequence[Mapping[str, Any]], bounds: Mapping[str, Any]) -> Digest:
    """Return a digest of the distinct launches and messages, without counts."""
    told = sorted(
        json.dumps(
            {n: v for n, v in record.items() if n not in _GROWING}, sort_keys=True, default=str
        )
        for record in records
    )
    return digest_of([told, bounds] if bounds else told)
