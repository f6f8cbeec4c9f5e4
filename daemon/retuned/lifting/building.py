"""Definition, incumbent and space of one lifted kernel at one choice of its constexprs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from pydantic import ValidationError

from retuned.catalog.own import (
    LiftedFrom,
    OwnDefinition,
    OwnTraces,
    OwnVariant,
    faults,
)
from retuned.catalog.own.making import ORDINARY_FAMILIES
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
from retuned.lifting.choices import choices_of
from retuned.lifting.flow import Flow
from retuned.lifting.reaching import Point, held_axes, lengths_of, made_of, spec_of, where_of
from retuned.lifting.refusing import NotLifted
from retuned.lifting.roles import Roles, is_whole
from retuned.lifting.shapes import Axes
from retuned.lifting.source import Source
from retuned.lifting.wrapping import literal, scalar, whole, wrap

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
    """Put a definition together.

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
    """Return what the entry passes for each parameter of the live kernel."""
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
    """Whole numbers alone have one family."""
    real = any(not is_whole(dtypes[name]) for name in roles.inputs)
    return ORDINARY_FAMILIES if real else ORDINARY_FAMILIES[:1]


def _with_constants(rule: str, constants: Mapping[str, int], tiles: Sequence[str]) -> str:
    """Write constexprs that are no choice as their number."""
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
