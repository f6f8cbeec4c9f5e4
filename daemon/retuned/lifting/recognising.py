"""Whether a lifted kernel computes what the catalog knows: by what it gives, never by its name.

Shapes and element types say which argument could have which role; the live kernel's own answers on
drawn inputs say whether it does. Only where exactly one assignment explains every output of every
draw within rounding is the kernel recognised. The draws are small, ordinary and large, so that what
is added to a mean of squares shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from retuned.catalog.own import OwnDefinition
from retuned.contract import AxisConst, DType, TensorSpec
from retuned.lifting.pattern import Arrays, Pattern, Wide
from retuned.lifting.patterns import PATTERNS

FAMILIES = ("randn", "randn-small", "randn-large")
"""Families of inputs that a kernel is asked with."""
ROWS = (1, 3)
"""Lengths of the variable axis that it is asked with."""
ROUNDINGS = 2.0
"""Units in the last place, of values of a row's size, that an output may be off: a product or two
may be rounded to the narrow type on the way."""


@dataclass(frozen=True, slots=True)
class _Format:
    """What an element type can hold."""

    unit: float
    """Relative distance of neighbours."""
    least: float
    """Smallest number above zero."""
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
    """Which argument has which role."""

    pattern: Pattern
    """What is computed."""
    tensors: Mapping[str, str]
    """Role -> tensor of the definition."""
    numbers: Mapping[str, str]
    """Role -> real argument of the live kernel."""
    lengths: Mapping[str, int]
    """Symbol -> length, of constant axes."""
    variable: str
    """Axis of the rows."""

    def values(self, floats: Mapping[str, float]) -> dict[str, float]:
        """Return every number of the pattern."""
        usual = {role: default or 0.0 for role, default in self.pattern.numbers.items()}
        return usual | {role: floats[name] for role, name in self.numbers.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledLaunch:
    """Inputs that a live kernel was given, and what it gave."""

    inputs: Arrays
    """By tensor of the definition."""
    outputs: Arrays
    """By tensor of the definition."""


def assignments(own: OwnDefinition) -> Iterator[Assignment]:
    """Yield every assignment that shapes and element types allow; none for what is not lifted."""
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
    """Return what a kernel computes; None where nothing, or more than one thing, explains it.

    Parameters
    ----------
    own
        Lifted.
    draws
        What it gave: every family at every number of rows.
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
    """Return numbers as a type holds them that are near or beyond its end: as infinite."""
    beyond = np.abs(values) > kept.largest * (1.0 - ROUNDINGS * kept.unit)
    return np.where(beyond, np.copysign(np.inf, values), values)


def _numbers(pattern: Pattern, floats: tuple[str, ...]) -> Iterator[dict[str, str]]:
    """Yield every way to give each real argument a role; one without a role is no match."""
    needed = {role for role, default in pattern.numbers.items() if default is None}
    for roles in permutations(pattern.numbers, len(floats)):
        if needed <= set(roles):
            yield dict(zip(roles, floats, strict=True))


def _tensors(pattern: Pattern, own: OwnDefinition) -> Iterator[dict[str, str]]:
    """Yield every way to give each tensor a role."""
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
    """Return the lengths of a pattern's symbols where the tensors' shapes and types fit."""
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
