"""Validation of a user's own definition beyond the form of its fields; it executes nothing.

A pure part checks that an input's bounds fit each other and its element type.
"""

from __future__ import annotations

import keyword
import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from retuned.catalog.user.entries import first_point, solution_of, spaces_of
from retuned.catalog.user.expressions import BadExpression, parse_expression
from retuned.catalog.user.inputs import FAMILIES, WHOLE
from retuned.catalog.user.records import (
    MOST_POINTS,
    Distribution,
    InputRecipe,
    OwnDefinition,
    OwnVariant,
    Params,
)
from retuned.contract import AxisConst, AxisVar, DType, Language, TensorSpec
from retuned.errors import CandidateError, UsageError
from retuned.lab.languages import cpu_cpp, triton_contract
from retuned.lab.number_formats import NUMPY, is_float, limits_of
from retuned.lab.reference.check import ReferenceRefused, check_reference
from retuned.lab.subject import numpy_dtype
from retuned.lab.toolchain import measured
from retuned.runtime.core.grid import parse_expression as bound_of
from retuned.runtime.schema import Refused

_LARGEST_EXACT = 2**53
"""Integers are made in float64, which represents all of them up to this one."""
_BOUNDED = (Distribution.UNIFORM, Distribution.INTEGERS)
_NAMES = ("mean", "scale", "low", "high", "value")


def range_of(dtype: DType) -> tuple[int | float, int | float]:
    """Return the least and the largest finite number of an element type.

    Examples
    --------
    >>> range_of(DType.INT8), range_of(DType.BOOL), range_of(DType.FLOAT8_E4M3FN)
    ((-128, 127), (0, 1), (-448.0, 448.0))
    """
    found: np.dtype[Any] = NUMPY[dtype]
    if is_float(found):
        largest = limits_of(found).largest
        return -largest, largest
    if dtype is DType.BOOL:
        return 0, 1
    info = np.iinfo(found)
    return int(info.min), int(info.max)


def bound_problems(
    made: InputRecipe, spec: TensorSpec, *, axes: Mapping[str, AxisConst | AxisVar]
) -> Iterator[str]:
    low, high = made.low or 0.0, 1.0 if made.high is None else made.high
    if made.like in _BOUNDED and low > high:
        default = "; high is 1 by default" if made.high is None else ""
        default = "; low is 0 by default" if made.low is None else default
        yield f"low {low:g} is above high {high:g}{default}"
    least, largest = range_of(spec.dtype)
    said = {name: getattr(made, name) for name in _NAMES}
    if made.like in _BOUNDED:
        said |= {"low": low, "high": high}
    for name, number in said.items():
        if number is None:
            continue
        if not least <= number <= largest:
            yield f"{name} {number:g} is beyond {spec.dtype}, which holds {least:g} to {largest:g}"
        elif made.like is Distribution.INTEGERS and abs(number) > _LARGEST_EXACT:
            yield f"{name} {number:g} is beyond {_LARGEST_EXACT}, up to which integers are made"
    value = float(made.value or 0.0)
    if made.like is Distribution.CONSTANT and not (
        is_float(NUMPY[spec.dtype]) or value.is_integer()
    ):
        yield f"value {value:g} is not an integer, and {spec.dtype} holds only integers"
    if made.like is Distribution.PERMUTATION and spec.shape:
        yield from _permuted(spec, axes, largest)


def _permuted(
    spec: TensorSpec, axes: Mapping[str, AxisConst | AxisVar], largest: float
) -> Iterator[str]:
    """Compare with the range of the last axis' indices: the type must distinguish all of them."""
    axis = axes.get(spec.shape[-1])
    dtype = NUMPY[spec.dtype]
    most = min(largest, 2.0 / limits_of(dtype).eps) if is_float(dtype) else largest
    if isinstance(axis, AxisConst) and axis.value - 1 > most:
        yield (
            f"{spec.dtype} cannot represent all integers up to {axis.value - 1}; use a wider type"
        )


LONGEST = 2**24
"""Longest constant axis: a longer one is a mistake or an attack."""
_EXACT = re.compile(r"[A-Z][A-Z0-9_]{0,31}")
_CPP = frozenset({Language.CPU_CPP, Language.GPU_CPP})


@dataclass(frozen=True, slots=True)
class Fault:
    """One problem."""

    place: str
    message: str


def faults(own: OwnDefinition) -> Iterator[Fault]:
    """Yield every problem of a definition; empty means that it can be used."""
    found = [*_names(own), *_reference(own), *_inputs(own), *_formulas(own), *_traces(own)]
    found += _incumbents(own)
    for number, variant in enumerate(own.variants):
        found += _points(own, variant, f"variants.{number}")
    yield from found
    if not found:  # these build solutions, which needs all of the above
        for number, variant in enumerate(own.variants):
            yield from _sources(own, variant, f"variants.{number}")


def _names(own: OwnDefinition) -> Iterator[Fault]:
    definition = own.definition
    for side in ("axes", "inputs", "outputs"):
        for name in getattr(definition, side):
            if not name.isidentifier() or keyword.iskeyword(name) or "__" in name:
                yield Fault(
                    f"definition.{side}.{name}", f"'{name}' is not a name in Python; rename it"
                )
    tensors = {*definition.inputs, *definition.outputs}
    for name in sorted(tensors & definition.axes.keys()):
        yield Fault(f"definition.axes.{name}", f"'{name}' is an axis and a tensor; rename one")
    for name, length in definition.axes.items():
        if isinstance(length, AxisConst) and not 1 <= length.value <= LONGEST:
            text = f"a length from 1 to {LONGEST}, not {length.value}"
            yield Fault(f"definition.axes.{name}", text)
    used = {axis for spec in definition.inputs.values() for axis in spec.shape}
    for axis in definition.variable_axes:
        if axis not in used:
            text = f"no input has the axis '{axis}', so a launch does not show its length"
            yield Fault(f"definition.axes.{axis}", text)
    for side in ("inputs", "outputs"):
        for name, spec in getattr(definition, side).items():
            try:
                numpy_dtype(spec)
            except UsageError as error:
                yield Fault(f"definition.{side}.{name}.dtype", str(error))


def _reference(own: OwnDefinition) -> Iterator[Fault]:
    place = "definition.reference"
    if own.judged_by_incumbent:
        return
    try:
        checked = check_reference(own.definition.reference)
    except ReferenceRefused as error:
        yield Fault(place, str(error))
        return
    inputs = set(own.definition.inputs)
    missing = sorted(inputs - set(checked.parameters))
    if missing and not checked.any_keyword:
        yield Fault(place, f"`run` takes no {', '.join(missing)}; name every input")
    surplus = sorted(set(checked.parameters) - inputs - checked.optional)
    if surplus:
        yield Fault(place, f"`run` takes {', '.join(surplus)}, which are not inputs")


def _inputs(own: OwnDefinition) -> Iterator[Fault]:
    for name, spec in own.definition.inputs.items():
        made = own.made.get(name, InputRecipe())
        place = f"made.{name}"
        if spec.dtype in WHOLE and made.like in (
            Distribution.NORMAL,
            Distribution.UNIFORM,
            Distribution.POSITIVE,
        ):
            text = f"{spec.dtype} holds whole numbers: write `{{like: integers, low: 0, high: 9}}`"
            yield Fault(place, text)
        else:
            for problem in bound_problems(made, spec, axes=own.definition.axes):
                yield Fault(place, problem)
        if made.like is Distribution.PERMUTATION and not spec.shape:
            yield Fault(place, "a scalar has no axis to permute")
        yield from _values(own, name)
    for name in sorted(own.made.keys() - own.definition.inputs.keys()):
        yield Fault(f"made.{name}", f"input '{name}' does not exist")
    for family in own.families:
        if family not in FAMILIES:
            yield Fault("families", f"no family '{family[:40]}'; there are {', '.join(FAMILIES)}")
    if own.families[0] != "randn":
        yield Fault(
            "families", "the first is 'randn': the numbers as this file defines them, for timing"
        )


def _values(own: OwnDefinition, name: str) -> Iterator[Fault]:
    rule = own.definition.inputs[name].values
    for bound in () if rule is None else (rule.low, rule.high):
        if isinstance(bound, str):
            try:
                bound_of(bound, own.definition.axes)
            except Refused as error:
                yield Fault(f"definition.inputs.{name}.values", error.detail)


def _formulas(own: OwnDefinition) -> Iterator[Fault]:
    axes = list(own.definition.axes)
    for place, text in (("where", own.where), ("flops", own.flops)):
        yield from _formula(text, axes, place)


def _formula(text: str, names: Collection[str], place: str) -> Iterator[Fault]:
    if text:
        try:
            parse_expression(text, names)
        except BadExpression as error:
            yield Fault(place, f"'{text[:80]}' {error}")


def _traces(own: OwnDefinition) -> Iterator[Fault]:
    traces, axes = own.traces, own.definition.axes
    if len(traces.shapes) != len(traces.dtypes):
        yield Fault("traces", f"{len(traces.shapes)} shapes and {len(traces.dtypes)} dtypes")
    seen = {axis for shape in traces.shapes for axis in shape}
    unknown = sorted(seen - axes.keys())
    if unknown:
        yield Fault("traces.shapes", f"names unknown axes {', '.join(unknown)}")
    hidden = [axis for axis in own.definition.variable_axes if axis not in seen]
    if hidden:
        text = f"shows no {', '.join(hidden)}, so a launch could not be recognised"
        yield Fault("traces.shapes", text)


def _incumbents(own: OwnDefinition) -> Iterator[Fault]:
    for number, variant in enumerate(own.variants):
        if variant.language not in measured():
            text = f"is not measured by this version; it has {', '.join(measured())}"
            yield Fault(f"variants.{number}.language", text)
    for language in own.languages:
        count = sum(v.incumbent is not None for v in own.variants if v.language is language)
        if count != 1:
            text = (
                f"{count} variants in {language} have an `incumbent`; give it to the one that runs "
                "today: the others are measured against it"
            )
            yield Fault("variants", text)
    names = Counter((variant.structure, variant.language) for variant in own.variants)
    for (structure, language), count in names.items():
        if count > 1:
            yield Fault("variants", f"{count} variants in {language} are called '{structure}'")


def _points(own: OwnDefinition, variant: OwnVariant, place: str) -> Iterator[Fault]:
    names = [*variant.params, *_constants(own)]
    yield from _formula(variant.valid, names, f"{place}.valid")
    yield from _formula(variant.scratch_bytes, names, f"{place}.scratch_bytes")
    for name in sorted(variant.params.keys() & own.definition.axes.keys()):
        yield Fault(f"{place}.params.{name}", f"'{name}' is an axis already")
    for name, choices in variant.params.items():
        if len(set(choices)) != len(choices):
            yield Fault(f"{place}.params.{name}", "a choice is written twice")
        if variant.language in _CPP and not _EXACT.fullmatch(name):
            yield Fault(f"{place}.params.{name}", "becomes a macro: capitals, as in BLOCK_M")
    count = math.prod(len(choices) for choices in variant.params.values())
    if count > MOST_POINTS:
        text = f"{count} points are more than a search tries ({MOST_POINTS}); leave choices out"
        yield Fault(f"{place}.params", text)
    given = [("incumbent", variant.incumbent)] if variant.incumbent is not None else []
    given += [(f"starts.{number}", point) for number, point in enumerate(variant.starts)]
    for where, point in given:
        yield from _point(variant, point, f"{place}.{where}")
    for name in variant.layouts:
        spec = own.definition.inputs.get(name)
        if spec is None or not spec.constant:
            text = f"'{name}' is not a constant input; only weights are repacked"
            yield Fault(f"{place}.layouts.{name}", text)
    grid = variant.language is not Language.CPU_CPP
    if grid != bool(variant.grid):
        text = "needs a `grid`, such as `cdiv(M, ROWS)`" if grid else "takes no `grid` on a CPU"
        yield Fault(f"{place}.grid", text)


def _point(variant: OwnVariant, point: Params | None, place: str) -> Iterator[Fault]:
    point = point or {}
    if point.keys() != variant.params.keys():
        wanted = ", ".join(variant.params) or "no parameters"
        yield Fault(place, f"names {', '.join(point) or 'nothing'}; a point has {wanted}")
        return
    for name, value in point.items():
        if value not in variant.params[name]:
            choices = ", ".join(map(str, variant.params[name]))
            yield Fault(f"{place}.{name}", f"{value} is not one of the choices {choices}")


def _sources(own: OwnDefinition, variant: OwnVariant, place: str) -> Iterator[Fault]:
    (space,) = [s for s in spaces_of(own, variant.language) if s.name == variant.structure]
    definition = own.definition
    points = [("incumbent", variant.incumbent)] if variant.incumbent is not None else []
    points += [(f"starts.{number}", point) for number, point in enumerate(variant.starts)]
    try:
        for where, point in points:
            if point is not None and not space.constraints(point, definition):
                yield Fault(f"{place}.{where}", f"is ruled out by `valid: {variant.valid}`")
                return
        first = variant.incumbent if variant.incumbent is not None else first_point(own, space)
        if first is None:
            yield Fault(f"{place}.valid", "rules out every point")
            return
        solution = solution_of(own, space, first)
        if variant.language is Language.TRITON:
            triton_contract.check_contract(solution, definition)
        elif variant.language is Language.CPU_CPP:  # others meet theirs at gate G1
            cpu_cpp.check_contract(solution)
    except BadExpression as error:
        yield Fault(f"{place}.valid", f"{error} at a point")
    except CandidateError as error:
        yield Fault(place, f"{error.detail}")
    except UsageError as error:
        yield Fault(place, str(error))


def _constants(own: OwnDefinition) -> list[str]:
    return [n for n, axis in own.definition.axes.items() if isinstance(axis, AxisConst)]
