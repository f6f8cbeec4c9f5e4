"""Recognition of lifted kernels by their outputs, and the catalog's structures for them.

A kernel's name is not used. The file of a fitted variant is the catalog's text and two entries,
which call the same function. The lab launches the entry with the definition's arguments. The server
launches the entry that gets the live launch's real numbers. The definition gets the pattern's
float64 reference, so new source is judged by the correct result and not by the incumbent's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np

from retuned.catalog.entry import source_text
from retuned.catalog.triton.space import next_pow2
from retuned.catalog.user import OwnDefinition, OwnVariant, faults
from retuned.contract import (
    AxisConst,
    DType,
    Language,
    SourceFile,
    TensorSpec,
    TrustClass,
    digest_of,
)
from retuned.lab.reference.incumbent import JUDGED_BY_INCUMBENT
from retuned.lifting.lift import Lifted
from retuned.lifting.patterns import PATTERNS, Arrays, Pattern, Shape, Wide
from retuned.lifting.records import NotLifted

FAMILIES = ("randn", "randn-small", "randn-large")
ROWS = (1, 3)
ROUNDINGS = 2.0
"""Allowed error in units in the last place of a row's size.

A product or two may be rounded to the narrow type in between.
"""


@dataclass(frozen=True, slots=True)
class _Format:
    """Precision of an element type."""

    unit: float
    least: float
    largest: float


_FORMATS: Mapping[DType, _Format] = {
    # the unit of sums over a row in another order
    DType.FLOAT32: _Format(2.0**-20, 2.0**-149, float(np.finfo(np.float32).max)),
    DType.FLOAT16: _Format(2.0**-10, 2.0**-24, 65504.0),
    DType.BFLOAT16: _Format(2.0**-7, 2.0**-133, 3.3895e38),
}
_MOST_FLOATS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Roles of the arguments."""

    pattern: Pattern
    tensors: Mapping[str, str]
    numbers: Mapping[str, str]
    lengths: Mapping[str, int]
    variable: str

    def values(self, floats: Mapping[str, float]) -> dict[str, float]:
        usual = {role: default or 0.0 for role, default in self.pattern.numbers.items()}
        return usual | {role: floats[name] for role, name in self.numbers.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledLaunch:
    """Inputs and outputs of one launch of a live kernel, by tensor of the definition."""

    inputs: Arrays
    outputs: Arrays


def assignments(own: OwnDefinition) -> Iterator[Assignment]:
    """Yield every assignment that shapes and element types allow; empty if not lifted."""
    definition, origin = own.definition, own.lifted
    if origin is None or definition.updated or len(definition.variable_axes) != 1:
        return
    if len(origin.floats) > _MOST_FLOATS:
        return
    (variable,) = definition.variable_axes
    constants = {n: a.value for n, a in definition.axes.items() if isinstance(a, AxisConst)}
    for pattern in PATTERNS:
        for numbers in _numbers(pattern, tuple(origin.floats)):
            for tensors in _tensors(pattern, own):
                lengths = _lengths(pattern, own, tensors, variable, constants)
                if lengths is not None:
                    yield Assignment(
                        pattern=pattern,
                        tensors=tensors,
                        numbers=numbers,
                        lengths=lengths,
                        variable=variable,
                    )


def recognise(own: OwnDefinition, draws: Sequence[SampledLaunch]) -> Assignment | None:
    """Return the pattern of a kernel; None if no pattern, or more than one, matches.

    `draws` holds sampled launches: every family at every number of rows.
    """
    assert own.lifted is not None, "only what was lifted has answers"
    if not draws:
        return None
    floats = own.lifted.floats
    fitting = [
        each
        for each in assignments(own)
        if all(off_by(own, each, draw, floats) <= ROUNDINGS for draw in draws)
    ]
    return fitting[0] if len(fitting) == 1 else None


def off_by(
    own: OwnDefinition, each: Assignment, draw: SampledLaunch, floats: Mapping[str, float]
) -> float:
    """Return the largest difference of any output, in roundings; infinite where NaNs differ."""
    arrays = {role: draw.inputs[each.tensors[role]] for role in each.pattern.inputs}
    expected = each.pattern.compute(arrays, each.values(floats))
    worst = 0.0
    for role in each.pattern.outputs:
        if role in each.tensors:
            name = each.tensors[role]
            kept = _FORMATS[own.definition.outputs[name].dtype]
            worst = max(worst, _off(draw.outputs[name], expected[role], kept))
    return worst


def _off(found: Wide, expected: Wide, kept: _Format) -> float:
    if found.shape != expected.shape or not np.array_equal(np.isnan(found), np.isnan(expected)):
        return float("inf")
    known = ~np.isnan(expected)
    one, other = _held(found[known], kept), _held(expected[known], kept)
    apart = one != other  # infinities of one sign are the same
    one, other = one[apart], other[apart]
    size = np.abs(other)
    finite = np.abs(expected[np.isfinite(expected)])
    finite = np.minimum(finite, kept.largest)
    usual = float(np.sqrt(np.mean(np.square(finite)))) if finite.size else 0.0
    with np.errstate(all="ignore"):
        ratios = np.abs(one - other) / ((size + usual) * kept.unit + kept.least)
    return float(np.max(ratios, initial=0.0)) if np.all(np.isfinite(ratios)) else float("inf")


def _held(values: Wide, kept: _Format) -> Wide:
    """Convert numbers at or beyond a type's range to infinities."""
    beyond = np.abs(values) > kept.largest * (1.0 - ROUNDINGS * kept.unit)
    return np.where(beyond, np.copysign(np.inf, values), values)


def _numbers(pattern: Pattern, floats: tuple[str, ...]) -> Iterator[dict[str, str]]:
    needed = {role for role, default in pattern.numbers.items() if default is None}
    for roles in permutations(pattern.numbers, len(floats)):
        if needed <= set(roles):
            yield dict(zip(roles, floats, strict=True))


def _tensors(pattern: Pattern, own: OwnDefinition) -> Iterator[dict[str, str]]:
    inputs, outputs = own.definition.inputs, own.definition.outputs
    roles = [r for r in pattern.outputs if r not in pattern.optional]
    optional = [r for r in pattern.outputs if r in pattern.optional]
    if len(inputs) != len(pattern.inputs):
        return
    spare = len(outputs) - len(roles)
    if spare not in (0, len(optional)):
        return
    places = {name: place for place, name in enumerate(inputs)}
    for given in permutations(inputs):
        order = dict(zip(pattern.inputs, given, strict=True))
        alike = [places[order[role]] for role in pattern.alike]
        if alike != sorted(alike):
            continue
        for left in permutations(outputs):
            yield {
                **dict(zip(pattern.inputs, given, strict=True)),
                **dict(zip([*roles, *optional[:spare]], left, strict=True)),
            }


def _lengths(
    pattern: Pattern,
    own: OwnDefinition,
    tensors: Mapping[str, str],
    variable: str,
    constants: Mapping[str, int],
) -> dict[str, int] | None:
    specs: dict[str, TensorSpec] = {**own.definition.inputs, **own.definition.outputs}
    first = specs[tensors[next(iter(pattern.inputs))]].dtype
    if specs[tensors[next(iter(pattern.outputs))]].dtype is not first:
        return None
    found: dict[str, int] = {}
    for role, symbols in (*pattern.inputs.items(), *pattern.outputs.items()):
        if role not in tensors:
            continue
        shape = specs[tensors[role]].shape
        if len(shape) != len(symbols) or specs[tensors[role]].dtype not in _FORMATS:
            return None
        for axis, symbol in zip(shape, symbols, strict=True):
            if (symbol == "M") != (axis == variable):
                return None
            if symbol == "M":
                continue
            factor, _, name = symbol.rpartition("*")
            length, rest = divmod(constants[axis], int(factor or 1))
            if rest or found.setdefault(name, length) != length:
                return None
    return found


ENTRY, SERVES = "fitted", "fitted_to_a_launch"
"""Entries that the lab and a server launch."""
RECOGNISED = "recognised"
"""Tag of a definition with a recognised kernel; the pattern's name is another tag."""
_BLOCKS = (128, 256, 512, 1024, 2048, 4096, 8192)
_WHOLE = 32_768
_LEAST_BLOCK = 16
_WARPS = (1, 2, 4, 8, 16)
_MOST_STEPS = 256
"""Maximum of blocks of a row that is read in parts."""


def fitted(lifted: Lifted, found: Assignment) -> Lifted:
    """Return a lifted kernel with its pattern's reference and structures.

    Raises
    ------
    NotLifted
        ``definition-invalid`` if the catalog's source and the kernel's arguments do not fit.
    """
    own = lifted.own
    definition, origin = own.definition, own.lifted
    assert origin is not None, "only what was lifted is recognised"
    reference = _reference(found, origin.floats)
    variants = tuple(
        variant
        for shape in found.pattern.shapes
        if (variant := _variant(found, shape, origin.floats)) is not None
    )
    told = [definition.name, reference, [each.model_dump(mode="json") for each in variants]]
    name = f"{definition.name[:110]}_{digest_of(told).removeprefix('sha256:')[:10]}"
    tags = [tag for tag in definition.tags if tag != JUDGED_BY_INCUMBENT]
    made = own.model_copy(
        update={
            "definition": definition.model_copy(
                update={
                    "name": name,
                    "reference": reference,
                    "description": f"lifted from a running server; computes {found.pattern.name}",
                    "tags": (*tags, RECOGNISED, found.pattern.name),
                }
            ),
            "variants": (*own.variants, *variants),
        }
    )
    for fault in faults(made):
        raise NotLifted("definition-invalid", detail=f"{fault.place}: {fault.message}")
    workloads = tuple(each.model_copy(update={"definition": name}) for each in lifted.workloads)
    return replace(lifted, own=made, workloads=workloads)


def _reference(found: Assignment, floats: Mapping[str, float]) -> str:
    pattern = found.pattern
    said = {f"{role}": name for role, name in found.tensors.items()}
    numbers = {role: repr(value) for role, value in found.values(floats).items()}
    returned = ", ".join(
        f"{found.tensors[role]!r}: {text}"
        for role, text in pattern.returns.items()
        if role in found.tensors
    )
    return pattern.reference.format(**said, **numbers, returns=f"{{{returned}}}")


def _variant(found: Assignment, shape: Shape, floats: Mapping[str, float]) -> OwnVariant | None:
    length = found.lengths[found.pattern.row]
    width = max(_LEAST_BLOCK, next_pow2(length))
    if shape.whole and width > _WHOLE:
        return None
    parts = tuple(b for b in _BLOCKS if b <= width and length <= b * _MOST_STEPS)
    blocks = (width,) if shape.whole or not parts else parts
    lengths = {name: str(value) for name, value in found.lengths.items()}
    return OwnVariant(
        structure=shape.structure,
        language=Language.TRITON,
        entry=ENTRY,
        serves=SERVES,
        sources=(SourceFile(path="kernel.py", content=_text(found, shape, floats)),),
        params={"BLOCK": blocks, "num_warps": _WARPS},
        starts=({"BLOCK": blocks[len(blocks) // 2], "num_warps": 4},),
        valid="BLOCK <= num_warps * 4096 and BLOCK >= num_warps * 16",
        grid=(shape.grid.format(M=found.variable, **lengths),),
        trust=TrustClass.GENERATED,
    )


def _text(found: Assignment, shape: Shape, floats: Mapping[str, float]) -> str:
    tensors = list(dict.fromkeys(found.tensors.values()))
    numbers = list(found.numbers.values())
    values = found.values(floats)
    constants = {role: f"tl.full((), {value!r}, tl.float32)" for role, value in values.items()}
    handed = constants | {
        role: f"tl.full((), {name}, tl.float32)" for role, name in found.numbers.items()
    }
    return (
        f"{source_text(found.pattern.source)}\n\n"
        f"@triton.jit\ndef {ENTRY}({', '.join(tensors)}, BLOCK: tl.constexpr):\n"
        f"    {shape.function}({_passed(found, constants)})\n\n\n"
        f"@triton.jit\ndef {SERVES}({', '.join([*tensors, *numbers])}, BLOCK: tl.constexpr):\n"
        f"    {shape.function}({_passed(found, handed)})\n"
    )


def _passed(found: Assignment, numbers: Mapping[str, str]) -> str:
    pattern = found.pattern
    first = found.tensors[next(iter(pattern.outputs))]
    parts = []
    for argument in pattern.arguments:
        role, plus, more = argument.partition(" + ")
        factor, _, symbol = argument.rpartition("*")
        if argument == "LEAVES":
            leaves = all(each in found.tensors for each in pattern.optional)
            parts.append(str(leaves))
        elif role in numbers:
            parts.append(numbers[role])
        elif symbol in found.lengths:
            parts.append(str(int(factor or 1) * found.lengths[symbol]))
        else:  # in place of an absent output another is passed; it is not written
            name = found.tensors.get(role, first)
            parts.append(f"{name}{plus}{more.format(**found.lengths)}")
    return ", ".join([*parts, "BLOCK"])
