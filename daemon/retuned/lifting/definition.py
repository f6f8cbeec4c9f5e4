"""Definition, incumbent and space of one lifted kernel at one choice of its constexprs.

The space holds the parameters worth trying: tiles, warps and stages. The entry that the lab
launches calls the live kernel with arguments derived from the definition.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from pydantic import ValidationError

from retuned.catalog.user import LiftedFrom, OwnDefinition, OwnTraces, OwnVariant, faults
from retuned.catalog.user.inputs import ORDINARY_FAMILIES
from retuned.catalog.user.records import MOST_POINTS
from retuned.contract import (
    AxisConst,
    AxisVar,
    Definition,
    DType,
    Language,
    SourceFile,
    TensorSpec,
    digest_of,
)
from retuned.lab.reference.incumbent import JUDGED_BY_INCUMBENT
from retuned.lifting.data_flow import Flow
from retuned.lifting.dialect import TYPES
from retuned.lifting.ranges import Point, held_axes, lengths_of, made_of, spec_of, where_of
from retuned.lifting.records import MARK, NotLifted
from retuned.lifting.roles import Roles, is_whole
from retuned.lifting.shapes import Axes
from retuned.lifting.source import Source
from retuned.runtime.triton.bind import LAUNCH_OPTIONS

_WARPS = (1, 2, 4, 8, 16)
_STAGES = (1, 2, 3, 4, 5)
_AROUND = (0.25, 0.5, 1.0, 2.0, 4.0)
_LEAST, _LEAST_OF_DOTS, _LARGEST = 16, 16, 8192
_GROUPS = (1, 2, 4, 8, 16)
_MOST_ELEMENTS = 1 << 20
"""Largest block that Triton compiles."""
_MOST_EACH = 512
"""Maximum of one block's elements per thread; beyond, the thread certainly spills."""
_DEFAULTS = {"num_warps": 4, "num_stages": 3}

Choices = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The space of one lifted kernel."""

    params: Choices
    incumbent: Mapping[str, int]
    """The point in production."""
    valid: str
    """Relation between them; see `OwnVariant.valid`."""


def choices_of(
    flow: Flow,
    *,
    constants: Mapping[str, int],
    options: Mapping[str, int],
    fixed: frozenset[str],
) -> Choice:
    """Return the space to search.

    `constants` and `options` are integer constexprs and launch options as launched today. `fixed`
    are constexprs that lengths depend on.
    """
    moving = set().union(*flow.moved.values()) | flow.steps
    params: dict[str, tuple[int, ...]] = {}
    for name, value in constants.items():
        if name in fixed:
            continue
        if name in flow.ranges and name in moving and _is_power(value):
            params[name] = _around(value, least=_LEAST_OF_DOTS if flow.dots else _LEAST)
        elif name not in flow.ranges and "GROUP" in name.upper() and name in moving and value > 0:
            params[name] = tuple(sorted({*_GROUPS, value}))
    today = {name: int(options.get(name, default)) for name, default in _DEFAULTS.items()}
    params["num_warps"] = tuple(sorted({*_WARPS, today["num_warps"]}))
    stages = _STAGES if flow.loops else ()
    params["num_stages"] = tuple(sorted({*stages, today["num_stages"]}))
    for name in LAUNCH_OPTIONS:
        if name in options and name not in params:
            params[name] = (int(options[name]),)
    params = _cut(params, {**constants, **today})
    point = {name: {**constants, **options, **today}[name] for name in params}
    return Choice(params=params, incumbent=point, valid=_valid(params, point, flow, constants))


def _is_power(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0


def _around(value: int, *, least: int) -> tuple[int, ...]:
    found = {int(value * factor) for factor in _AROUND}
    return tuple(sorted({n for n in found if least <= n <= _LARGEST} | {value}))


def _cut(
    params: Mapping[str, tuple[int, ...]], today: Mapping[str, int]
) -> dict[str, tuple[int, ...]]:
    """Drop the values furthest from today's until a search can try every point."""
    found = dict(params)
    while prod(len(values) for values in found.values()) > MOST_POINTS:
        longest = max(found, key=lambda name: len(found[name]))
        if len(found[longest]) <= 1:
            break
        base = today.get(longest, found[longest][0])
        worst = max(found[longest], key=lambda value: abs(value - base))
        found[longest] = tuple(value for value in found[longest] if value != worst)
    return found


def _valid(
    params: Choices, point: Mapping[str, int], flow: Flow, constants: Mapping[str, int]
) -> str:
    """Bound the largest block and its elements per thread; today's point is always valid."""
    tiles = [name for name in params if name in flow.ranges]
    if not tiles:
        return ""
    others = [constants[n] for n in flow.ranges if n in constants and n not in params]
    rest = 1 if flow.dots else min(prod(others), _MOST_ELEMENTS)
    largest = tiles[:2] if flow.dots else tiles
    elements = " * ".join([*largest, *([str(rest)] if rest > 1 else [])])
    now = prod(point[name] for name in largest) * rest
    most, each = max(_MOST_ELEMENTS, now), max(_MOST_EACH, -(-now // (32 * point["num_warps"])))
    return f"{elements} <= {most} and {elements} <= {32 * each} * num_warps"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrapped:
    """A file within the contract."""

    text: str
    entry: str


def wrap(
    source: Source,
    *,
    tensors: Sequence[str],
    axes: Sequence[str],
    choices: Sequence[str],
    arguments: Mapping[str, str],
) -> Wrapped:
    """Return the kernel's file with an entry whose parameters the definition names.

    `tensors` are inputs, then outputs. `choices` are the constexprs to search. `arguments` holds an
    expression for each parameter of the kernel.
    """
    taken = {*source.functions, *source.constants, *tensors, *axes, *choices, *source.parameters}
    entry = "lifted"
    while entry in taken:
        entry += "_x"
    parameters = [*tensors, *axes, *(f"{name}: tl.constexpr" for name in choices)]
    clashes = sorted({*tensors, *axes, *choices} & {*source.functions, *source.constants})
    if clashes:
        detail = f"'{clashes[0]}' is an argument and a name of the source"
        raise NotLifted("names-clash", detail=detail)
    passed = ", ".join(arguments[name] for name in source.parameters)
    text = (
        f"{source.text}\n\n@triton.jit\ndef {entry}({', '.join(parameters)}):\n"
        f"    {source.entry}({passed})\n"
    )
    return Wrapped(text=text, entry=entry)


def literal(value: object, *, what: str) -> str:
    """Return a constexpr as source text.

    Raises
    ------
    NotLifted
        ``argument-unknown`` if it is not a plain value.
    """
    if isinstance(value, str) and value.startswith(MARK):
        name = value.removeprefix(MARK)
        if name not in TYPES:
            raise NotLifted("argument-unknown", detail=f"'{what}' is the type {name[:40]}")
        return f"tl.{TYPES[name]}"
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    raise NotLifted("argument-unknown", detail=f"'{what}' is not a plain value")


def scalar(text: str, dtype: str) -> str:
    """Return a number with its type in a launch.

    A bare number takes the type of the other operand. Then the lab would not compute the same as
    the server.

    Examples
    --------
    >>> scalar("1e-06", "float32")
    'tl.full((), 1e-06, tl.float32)'
    """
    return f"tl.full((), {text}, tl.{dtype})"


def _typed(text: str, dtype: str, *, plain: bool) -> str:
    """Return a whole number with the type that the kernel annotates."""
    return scalar(text, dtype) if plain else f"tl.cast({text}, tl.{dtype})"


def whole(factors: Sequence[str | int], *, divisible: Mapping[str, bool]) -> str:
    """Return an integer argument as a product of axes.

    Examples
    --------
    >>> whole(("H", 2), divisible={"H": True})
    'H // 16 * 16 * 2'
    >>> whole((1,), divisible={})
    '1'
    """
    parts: list[str] = []
    for factor in sorted(factors, key=lambda each: isinstance(each, int)):
        text = str(factor)
        divided = isinstance(factor, str) and divisible.get(factor, False)
        inner = f"{text} // 16 * 16" if divided else text
        parts.append(f"({inner})" if divided and parts else inner)
    return " * ".join(parts)


LIFTED = "lifted"
"""Tag of every lifted definition."""
STRUCTURE = "lifted"
"""Structure of the live kernel's own source."""


def build(
    source: Source,
    flow: Flow,
    roles: Roles,
    axes: Axes,
    *,
    grid: Sequence[str],
    point: Point,
    dtypes: Mapping[str, DType],
    bounds: Mapping[str, tuple[int, int | str]],
    reference: str = "",
) -> OwnDefinition:
    """Build a lifted definition.

    Raises
    ------
    NotLifted
        ``axis-not-in-inputs``, ``names-clash``, ``argument-unknown``, ``definition-invalid``.
    """
    lengths = lengths_of(axes, point)
    choice = choices_of(flow, constants=point.constants, options=point.options, fixed=axes.fixed)
    tiles = [name for name in choice.params if name in point.constants]
    arguments = _arguments(source, roles, axes, point, dtypes, tiles)
    needed = sorted(
        {f for factors in axes.ints.values() for f in factors if isinstance(f, str)},
        key=list(lengths).index,
    )
    wrapped = wrap(
        source,
        tensors=[*roles.inputs, *roles.outputs],
        axes=needed,
        choices=tiles,
        arguments=arguments,
    )
    rules = tuple(_with_constants(rule, point.constants, tiles) for rule in grid)
    definition = _definition(source, roles, axes, lengths, point, dtypes, bounds, reference)
    variant = OwnVariant(
        structure=STRUCTURE,
        language=Language.TRITON,
        entry=wrapped.entry,
        sources=(SourceFile(path="kernel.py", content=wrapped.text),),
        params={name: tuple(values) for name, values in choice.params.items()},
        incumbent=dict(choice.incumbent),
        valid=choice.valid,
        grid=rules,
    )
    return _checked(definition, variant, lengths, source, roles, axes, grid, point, dtypes, bounds)


def _checked(
    definition: Definition,
    variant: OwnVariant,
    lengths: Mapping[str, AxisConst | AxisVar],
    source: Source,
    roles: Roles,
    axes: Axes,
    grid: Sequence[str],
    point: Point,
    dtypes: Mapping[str, DType],
    bounds: Mapping[str, tuple[int, int | str]],
) -> OwnDefinition:
    try:
        own = OwnDefinition(
            definition=definition,
            made={n: made_of(dtypes[n], spec) for n, spec in definition.inputs.items()},
            families=_families(roles, dtypes),
            where=where_of(axes, lengths, point, held=held_axes(definition, axes, bounds)),
            traces=OwnTraces(
                op=f"retuned::{definition.op_type}",
                shapes=tuple(spec.shape for spec in definition.inputs.values()),
                dtypes=tuple(str(spec.dtype) for spec in definition.inputs.values()),
            ),
            variants=(variant,),
            lifted=_origin(definition, source, roles, axes, grid, point, dtypes),
        )
    except ValidationError as error:
        told = error.errors()[0]
        detail = f"{'.'.join(map(str, told['loc']))}: {told['msg']}"
        raise NotLifted("definition-invalid", detail=detail) from error
    for fault in faults(own):
        raise NotLifted("definition-invalid", detail=f"{fault.place}: {fault.message}")
    return own


def _arguments(
    source: Source,
    roles: Roles,
    axes: Axes,
    point: Point,
    dtypes: Mapping[str, DType],
    tiles: Sequence[str],
) -> dict[str, str]:
    divisible = {axis: all(row[axis] % 16 == 0 for row in point.rows) for axis in axes.lengths}
    passed = roles.passed
    found: dict[str, str] = {}
    for param in point.observations[0].params:
        name = param.name
        if param.kind == "pointer":
            same = [passed[other] for other in passed if dtypes[other] == dtypes[name]]
            found[name] = passed[name] if name in passed else same[0]
        elif param.kind == "int":
            text = whole(axes.ints[name], divisible=divisible)
            plain = all(isinstance(factor, int) for factor in axes.ints[name])
            # Triton compiles a live 1 in; other numbers have a type in the live kernel.
            if name in source.types:
                found[name] = _typed(text, source.types[name], plain=plain)
            else:
                found[name] = scalar(text, "int32") if plain and text != "1" else text
        elif param.kind == "float":
            found[name] = scalar(literal(param.value, what=name), "float32")
        elif name in tiles:
            found[name] = name
        else:
            found[name] = literal(param.value, what=name)
    return {name: found[name] for name in source.parameters}


def _definition(
    source: Source,
    roles: Roles,
    axes: Axes,
    lengths: Mapping[str, AxisConst | AxisVar],
    point: Point,
    dtypes: Mapping[str, DType],
    bounds: Mapping[str, tuple[int, int | str]],
    reference: str,
) -> Definition:
    name = re.sub(r"[^a-zA-Z0-9]+", "_", source.entry).strip("_")[:60] or "kernel"
    seen = {axis for pointer in roles.inputs for axis in axes.shapes[pointer]}
    for axis, length in lengths.items():
        if isinstance(length, AxisVar) and axis not in seen:
            raise NotLifted("axis-not-in-inputs", detail=f"no input has the length '{axis}'")
    oracle = () if reference.strip() else (JUDGED_BY_INCUMBENT,)
    said = "its own outputs are the oracle" if oracle else "judged by a reference that was given"
    body = {
        "op_type": f"lifted_{name}",
        "description": f"lifted from a running server; {said}",
        "axes": {axis: length.model_dump() for axis, length in lengths.items()},
        "inputs": {
            pointer: spec_of(pointer, axes, dtypes, bounds, point).model_dump(mode="json")
            for pointer in roles.inputs
        },
        "outputs": {
            name: TensorSpec(
                shape=axes.shapes[roles.pointer(name)],
                dtype=dtypes[roles.pointer(name)],
                updates=roles.updated.get(name),
            ).model_dump(mode="json")
            for name in roles.outputs
        },
        "reference": reference,
        "tags": [LIFTED, *oracle],
    }
    told = [body, source.text, dict(point.constants), dict(point.options), repr(point.others)]
    floats = {n: p.value for n, p in point.observations[0].of_kind("float").items()}
    digest = digest_of([*told, floats]).removeprefix("sha256:")[:10]
    try:
        return Definition.model_validate({"name": f"lifted_{name}_{digest}", **body})
    except ValidationError as error:
        told_first = error.errors()[0]
        detail = f"{'.'.join(map(str, told_first['loc']))}: {told_first['msg']}"
        raise NotLifted("definition-invalid", detail=detail) from error


def _families(roles: Roles, dtypes: Mapping[str, DType]) -> tuple[str, ...]:
    real = any(not is_whole(dtypes[name]) for name in roles.inputs)
    return ORDINARY_FAMILIES if real else ORDINARY_FAMILIES[:1]


def _with_constants(rule: str, constants: Mapping[str, int], tiles: Sequence[str]) -> str:
    for name, value in constants.items():
        if name not in tiles:
            rule = re.sub(rf"\b{re.escape(name)}\b", str(value), rule)
    return rule


def _origin(
    definition: Definition,
    source: Source,
    roles: Roles,
    axes: Axes,
    grid: Sequence[str],
    point: Point,
    dtypes: Mapping[str, DType],
) -> LiftedFrom:
    first = point.observations[0]
    constants = {p.name: p.value for p in first.params if p.kind == "constexpr"}
    return LiftedFrom(
        kernel=first.kernel,
        source_digest=first.source_digest,
        parameters=tuple(source.parameters),
        tensors={n: roles.pointer(n) for n in (*definition.inputs, *definition.outputs)},
        axes={name: axes.sources[name] for name in definition.variable_axes},
        ints={name: whole(factors, divisible={}) for name, factors in axes.ints.items()},
        numels={name: " * ".join(shape) or "1" for name, shape in axes.shapes.items()},
        floats={n: float(p.value) for n, p in first.of_kind("float").items()},  # type: ignore[arg-type]
        constants=constants,
        options=dict(point.options),
        grid=tuple(grid),
        dtypes={name: str(dtype) for name, dtype in dtypes.items()},
    )
