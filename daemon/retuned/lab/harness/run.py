"""Runs a variant once on given inputs, with red zones, and returns its outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np

from retuned.contract import Definition
from retuned.errors import CandidateError
from retuned.lab.harness.arena import PAGE, Arena, Region
from retuned.lab.harness.processes import ChildLimits, ChildProgram
from retuned.lab.harness.variant import AS_IS, Variant, packed
from retuned.lab.harness.worker import CPU_PROGRAM, Worker
from retuned.lab.subject import Array, numpy_dtype, shape_of

POISON_ONES, POISON_MIXED = 0xFF, 0x5A
"""Two fills: NaN in every float but float8_e4m3fnuz and -1 in every integer; ordinary numbers."""

SCRATCH_ZONE_BYTES = 64 * 1024
_ZONE_MAX_BYTES = 4 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Fill:
    """Memory contents around a run."""

    value: int = POISON_ONES
    """Byte in red zones, outputs and scratch before the launch; an output that is updated in place
    holds its input instead.
    """
    fenced: bool = False
    left: bool = False
    """Keep the scratch of the previous launch if its lengths were the same; a server does not clear
    scratch either.
    """


class Runner:
    """One child with one variant; it returns outputs and raises named faults.

    `arena` must not be used by another child while this one runs. `limits` of None uses the
    program's limits.
    """

    def __init__(
        self,
        definition: Definition,
        variant: Variant,
        *,
        arena: Arena,
        cores: Sequence[int] = (),
        program: ChildProgram = CPU_PROGRAM,
        limits: ChildLimits | None = None,
    ) -> None:
        self._definition = definition
        self._variant = variant
        self._arena = arena
        self._program = program
        library = variant.as_library(definition)
        self._worker = Worker([library], arena, cores=cores, program=program, limits=limits)

    def __enter__(self) -> Runner:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._worker.close()

    @property
    def memory_check(self) -> str:
        return self._program.memory_check

    @property
    def has_scratch(self) -> bool:
        return bool(self._variant.workspaces or self._variant.scratch_bytes)

    @property
    def confined(self) -> bool:
        return bool(self._worker.ready.get("confined"))

    def run(
        self,
        inputs: Mapping[str, Array],
        axes: Mapping[str, int],
        *,
        fill: Fill | None = None,
        timeout_s: float,
    ) -> dict[str, Array]:
        """Launch once and return copies of the outputs.

        Raises
        ------
        CandidateError
            With reason ``out-of-bounds`` or ``input-modified``, or as `Worker.command` raises.
        """
        fill = fill or Fill()
        lengths = self._definition.lengths(axes)
        given = self._place_inputs(inputs, fill)
        outputs = self._place_outputs(lengths, fill)
        scratch = [
            self._arena.place(size, zone_bytes=self._scratch_zone(), fenced=fill.fenced)
            for size in self._variant.scratch_sizes(lengths)
        ]
        regions = [region for region, _ in given.values()]
        regions += [*outputs.values(), *scratch]
        self._arena.fill([*outputs.values(), *(() if fill.left else scratch)], fill.value)
        put_back(self._arena, self._definition, outputs, {n: given[n][1] for n in given})
        self._arena.fill_zones(regions, fill.value)
        command: dict[str, Any] = {
            "op": "run",
            "kernel": 0,
            "tensors": [r.start for r, _ in given.values()] + [r.start for r in outputs.values()],
            "lengths": list(lengths.values()),
            "scratch": [region.start for region in scratch],
            "fences": [
                [region.fence, region.high - region.fence]
                for region in regions
                if fill.fenced and self._program.fences
            ],
        }
        self._worker.prepare(0, command["lengths"])
        self._worker.push(self._arena.used_bytes)
        self._worker.command(command, timeout_s=timeout_s)
        self._worker.pull(self._arena.used_bytes)
        self._check(given, regions, fill)
        return {
            name: self._arena.view(outputs[name], numpy_dtype(spec), shape_of(spec, lengths)).copy()
            for name, spec in self._definition.outputs.items()
        }

    def _place_inputs(
        self, inputs: Mapping[str, Array], fill: Fill
    ) -> dict[str, tuple[Region, Array]]:
        self._arena.reset()
        given = {}
        for name in self._definition.inputs:
            array = packed(inputs[name], self._variant.layouts.get(name, AS_IS))
            region = self._arena.place(
                array.nbytes,
                zone_bytes=_zone_bytes(array.shape, array.itemsize, self._program.zone_rows),
                fenced=fill.fenced,
            )
            self._arena.view(region, array.dtype, array.shape)[...] = array
            given[name] = (region, array)
        return given

    def _place_outputs(self, lengths: dict[str, int], fill: Fill) -> dict[str, Region]:
        placed = {}
        for name, spec in self._definition.outputs.items():
            shape, item = shape_of(spec, lengths), numpy_dtype(spec).itemsize
            size = int(np.prod(shape)) * item
            zone = _zone_bytes(shape, item, self._program.zone_rows)
            placed[name] = self._arena.place(size, zone_bytes=zone, fenced=fill.fenced)
        return placed

    def _scratch_zone(self) -> int:
        return SCRATCH_ZONE_BYTES if self._variant.workspaces else PAGE

    def _check(
        self, given: Mapping[str, tuple[Region, Array]], regions: Sequence[Region], fill: Fill
    ) -> None:
        if not self._arena.zones_intact(regions, fill.value):
            raise CandidateError("out-of-bounds", detail="wrote outside its tensors")
        for name, (region, array) in given.items():
            now = self._arena.view(region, array.dtype, array.shape)
            if now.tobytes() != array.tobytes():
                raise CandidateError("input-modified", detail=f"input '{name}' changed")


def put_back(
    arena: Arena, definition: Definition, regions: Mapping[str, Region], given: Mapping[str, Array]
) -> None:
    for after, before in definition.updated.items():
        array = given[before]
        arena.view(regions[after], array.dtype, array.shape)[...] = array


def arena_bytes(
    definition: Definition,
    axes: Mapping[str, int],
    *,
    scratch_bytes: int,
    parts: int,
    zone_rows: int = 1,
    named: Sequence[int] = (),
) -> int:
    """Bytes that one run needs, red zones of at least `zone_rows` rows included.

    `scratch_bytes` is the size of unnamed workspace per part; `named` holds the sizes of named
    scratch.
    """
    lengths = definition.lengths(axes)
    total = 0
    for spec in (*definition.inputs.values(), *definition.outputs.values()):
        shape, item = shape_of(spec, lengths), numpy_dtype(spec).itemsize
        longest = (max(shape),)  # repacking may make any axis the innermost
        total += int(np.prod(shape)) * item + 2 * _zone_bytes(longest, item, zone_rows) + 4 * PAGE
    total += sum(size + 2 * SCRATCH_ZONE_BYTES + 4 * PAGE for size in named)
    return total + parts * (scratch_bytes + 4 * PAGE)


def _zone_bytes(shape: Sequence[int], item: int, rows: int) -> int:
    """Return the width of a red zone: `zone_rows` rows, at least a page, with an upper bound."""
    row = shape[-1] * item if shape else 0
    return max(PAGE, row, min(rows * row, _ZONE_MAX_BYTES))
