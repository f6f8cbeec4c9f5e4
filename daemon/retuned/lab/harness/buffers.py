"""Buffers of a timed shape: several sets of inputs and outputs, shared by all sides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from retuned.contract import Definition
from retuned.lab.harness.arena import PAGE, Arena, Region
from retuned.lab.harness.run import POISON_MIXED
from retuned.lab.harness.variant import AS_IS, Variant, packed
from retuned.lab.number_formats import is_float
from retuned.lab.subject import Array, numpy_dtype, shape_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """One shape's buffers in the arena."""

    axes: Mapping[str, int]
    lengths: tuple[int, ...]
    regions: tuple[Region, ...]
    inputs: tuple[dict[tuple[str, str], Region], ...]
    """Per set, by input and layout."""
    outputs: tuple[dict[str, Region], ...]
    spare: dict[str, Region]
    """Outputs for the incumbent, used when a timed output is checked."""
    scratch: tuple[tuple[Region, ...], ...]
    """Per side, per part."""
    model: tuple[dict[str, Array], ...]
    """Expected contents of the inputs: the parent's own copy, per set."""


def place(
    definition: Definition,
    sides: Sequence[Variant],
    arena: Arena,
    *,
    axes: Mapping[str, int],
    sets: Sequence[Mapping[str, Array]],
) -> Placed:
    """Lay out all sets for all sides; sides with one layout share one copy.

    Raises
    ------
    ContractViolated
        If a layout does not fit.
    """
    arena.reset()
    lengths = definition.lengths(axes)
    inputs, outputs, regions = [], [], []
    for given in sets:
        wanted = {
            (name, layout): packed(given[name], layout)
            for side in sides
            for name in definition.inputs
            for layout in (side.layouts.get(name, AS_IS),)
        }
        # The parent's swaps go to the plain copy, which every non-constant input has.
        placed = {key: arena.place(array.nbytes) for key, array in wanted.items()}
        for key, region in placed.items():
            arena.view(region, wanted[key].dtype, wanted[key].shape)[...] = wanted[key]
        inputs.append(placed)
        outputs.append(place_outputs(definition, arena, lengths))
        regions += [*placed.values(), *outputs[-1].values()]
    spare = place_outputs(definition, arena, lengths)
    scratch = tuple(
        tuple(arena.place(size) for size in side.scratch_sizes(lengths)) for side in sides
    )
    regions += [*spare.values(), *(region for group in scratch for region in group)]
    arena.fill_zones(regions, POISON_MIXED)
    return Placed(
        axes=axes,
        lengths=tuple(lengths.values()),
        regions=tuple(regions),
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        spare=spare,
        scratch=scratch,
        model=tuple({name: array.copy() for name, array in given.items()} for given in sets),
    )


def mutable_inputs(definition: Definition, inputs: Mapping[str, Array]) -> list[tuple[str, int]]:
    """Return the inputs whose elements may be permuted: real numbers that are not weights.

    Integers may be indices or lengths, which must keep their places.
    """
    return [
        (name, inputs[name].size)
        for name, spec in definition.inputs.items()
        if not spec.constant and is_float(numpy_dtype(spec))
    ]


def duel_bytes(
    definition: Definition, axes: Mapping[str, int], sides: Sequence[Variant], *, sets: int
) -> int:
    lengths = definition.lengths(axes)
    copies = max(1, len({tuple(sorted(side.layouts.items())) for side in sides}))
    one = 0
    for spec in (*definition.inputs.values(), *definition.outputs.values()):
        size = int(np.prod(shape_of(spec, lengths))) * numpy_dtype(spec).itemsize
        one += (size + 4 * PAGE) * (copies if spec.constant else 1)
    scratch = sum(
        size + 4 * PAGE for side in sides for size in (side.scratch_sizes(lengths) or [0])
    )
    return (sets + 1) * one + scratch


def spans(regions: Iterable[Region]) -> list[list[int]]:
    return [[region.start, region.end - region.start] for region in regions]


def tensors_of(definition: Definition, side: Variant, placed: Placed, index: int) -> list[int]:
    inputs = placed.inputs[index]
    starts = [inputs[(n, side.layouts.get(n, AS_IS))].start for n in definition.inputs]
    return starts + [region.start for region in placed.outputs[index].values()]


def updated_of(definition: Definition, placed: Placed) -> list[list[list[int]]]:
    """Return, per set, source, destination and bytes of outputs that are updated in place."""
    return [
        [
            [inputs[(before, AS_IS)].start, outputs[after].start, size]
            for after, before in definition.updated.items()
            for size in (outputs[after].end - outputs[after].start,)
        ]
        for inputs, outputs in zip(placed.inputs, placed.outputs, strict=True)
    ]


def place_outputs(
    definition: Definition, arena: Arena, lengths: dict[str, int]
) -> dict[str, Region]:
    return {
        name: arena.place(int(np.prod(shape_of(spec, lengths))) * numpy_dtype(spec).itemsize)
        for name, spec in definition.outputs.items()
    }


def read_outputs(
    arena: Arena, definition: Definition, regions: Mapping[str, Region], lengths: dict[str, int]
) -> dict[str, Array]:
    return {
        name: arena.view(regions[name], numpy_dtype(spec), shape_of(spec, lengths)).copy()
        for name, spec in definition.outputs.items()
    }
