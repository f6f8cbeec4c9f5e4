"""Entries of users' own definitions, with the same interface as the catalog's.

Code that reads entries (search, judge, loop, commands) treats both alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from itertools import islice, product

from retuned.catalog.entry import Cost, KernelEntry, Params, Space, build_solution
from retuned.catalog.user.expressions import BadExpression, Expression, parse_expression
from retuned.catalog.user.inputs import make_own
from retuned.catalog.user.launch_rules import launch_data_of
from retuned.catalog.user.records import OwnDefinition, OwnVariant
from retuned.contract import AxisConst, Definition, Language, Solution, TensorSpec
from retuned.errors import UsageError
from retuned.lab.reference.incumbent import IncumbentOracle
from retuned.lab.reference.oracle import Oracle
from retuned.lab.subject import numpy_dtype, shape_of

MOST_SCRATCH_BYTES = 2**30
AUTHOR = "definition file"


def entry_of(
    own: OwnDefinition, language: Language, *, allow_unconfined: bool = False
) -> KernelEntry:
    """Return the entry of a valid definition in one language.

    `allow_unconfined` allows its reference to run where neither seccomp nor Landlock confines it.

    Raises
    ------
    UsageError
        If it has no kernels in that language.
    """
    spaces = spaces_of(own, language)
    found = [v for v in own.variants if v.language is language and v.incumbent is not None]
    if not found:
        known = ", ".join(own.languages)
        raise UsageError(f"{own.name} has no kernels in {language}; its file has {known}")
    (first,) = [space for space in spaces if space.name == found[0].structure]
    assert found[0].incumbent is not None, "it was looked for"
    incumbent = solution_of(own, first, found[0].incumbent)
    oracle: Oracle | IncumbentOracle = Oracle(own.definition, allow_unconfined=allow_unconfined)
    if own.judged_by_incumbent:
        oracle = IncumbentOracle(own.definition, incumbent)
    return KernelEntry(
        definition=own.definition,
        families=own.families,
        spaces=spaces,
        incumbent=incumbent,
        make=partial(make_own, own),
        compute=oracle.compute,
        cost=partial(_cost, own),
        launching=partial(launch_data_of, own),
        confinement=lambda: oracle.confined_by,
    )


def spaces_of(own: OwnDefinition, language: Language) -> tuple[Space, ...]:
    chosen = [variant for variant in own.variants if variant.language is language]
    return tuple(_space(own, variant, rank) for rank, variant in enumerate(chosen))


def solution_of(own: OwnDefinition, space: Space, point: Params) -> Solution:
    """Return the variant at a point.

    Raises
    ------
    UsageError
        If the point is not in the space.
    """
    return build_solution(own.definition, space, point)


def first_point(own: OwnDefinition, space: Space) -> Params | None:
    every = (
        dict(zip(space.params, values, strict=True)) for values in product(*space.params.values())
    )
    possible = (point for point in every if space.constraints(point, own.definition))
    return next(islice(possible, 1), None)


def _space(own: OwnDefinition, variant: OwnVariant, rank: int) -> Space:
    starts = tuple(dict(point) for point in (*variant.starts, variant.incumbent) if point)
    constants = _constants(own.definition)
    names = [*variant.params, *constants]
    return Space(
        name=variant.structure,
        sources=tuple(source.path for source in variant.sources),
        texts={source.path: source.content for source in variant.sources},
        entry=variant.entry,
        params=dict(variant.params),
        starts=lambda _axes: starts,
        rank=lambda _axes: rank,
        valid=_valid(parse_expression(variant.valid or "1", names), constants),
        layouts=lambda _params: dict(variant.layouts),
        scratch_bytes=_scratch(parse_expression(variant.scratch_bytes, names), constants),
        language=variant.language,
        grid=variant.grid,
        author=AUTHOR,
        trust=variant.trust,
    )


def _constants(definition: Definition) -> dict[str, int]:
    return {n: axis.value for n, axis in definition.axes.items() if isinstance(axis, AxisConst)}


def _valid(
    expression: Expression, constants: Mapping[str, int]
) -> Callable[[Params, Definition], bool]:
    def valid(params: Params, _definition: Definition) -> bool:
        try:
            return bool(expression({**constants, **params}))
        except (
            BadExpression
        ):  # such as a division by a choice that is zero: a point that cannot be built
            return False

    return valid


def _scratch(
    expression: Expression, constants: Mapping[str, int]
) -> Callable[[Params, Definition], int]:
    def scratch_bytes(params: Params, definition: Definition) -> int:
        try:
            found = expression.number({**constants, **params})
        except BadExpression as error:
            raise UsageError(f"{definition.name}: scratch_bytes {error}") from error
        if not 0 <= found <= MOST_SCRATCH_BYTES:
            raise UsageError(f"{definition.name}: scratch_bytes is {found} at {dict(params)}")
        return found

    return scratch_bytes


def _cost(own: OwnDefinition, lengths: dict[str, int]) -> Cost:
    definition = own.definition
    try:
        flops = float(parse_expression(own.flops, definition.axes).number(lengths))
    except BadExpression as error:
        raise UsageError(f"{definition.name}: flops {error}") from error
    return Cost(
        flops=flops,
        read_bytes=_bytes(definition.inputs, lengths),
        write_bytes=_bytes(definition.outputs, lengths),
    )


def _bytes(tensors: Mapping[str, TensorSpec], lengths: Mapping[str, int]) -> float:
    sizes = (
        math.prod(shape_of(spec, lengths)) * numpy_dtype(spec).itemsize for spec in tensors.values()
    )
    return float(sum(sizes))
