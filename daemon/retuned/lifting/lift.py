"""Lifts observed launches of a live kernel to definitions that the lab tunes as they are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from retuned.catalog.user import OwnDefinition
from retuned.contract import Workload
from retuned.lifting.data_flow import Flow, flow_of
from retuned.lifting.definition import build
from retuned.lifting.grids import Hints, rule_of
from retuned.lifting.group import Group, groups_of, launch_of, options_of, other_constants
from retuned.lifting.ranges import Point
from retuned.lifting.records import (
    MAX_OBSERVATIONS,
    MORE,
    NotLifted,
    Observation,
    harmless,
    read_observations,
)
from retuned.lifting.roles import Roles, roles_of
from retuned.lifting.shapes import Axes, axes_of
from retuned.lifting.source import Source, read_source

MOST_GROUPS = 256
MOST_POINTS = 8
"""Maximum of definitions per kernel: one per choice of constexprs, the most frequent first."""
_SETTLED_BY_PARTS = frozenset(
    (MORE, "shape-unknown", "strides-not-contiguous", "int-unexplained", "grid-unknown")
)
_LOOKED_UP = re.compile(r"\[\s*[\"'](\w{1,100})[\"']\s*\]")

Bounds = Mapping[str, tuple[int, int | str]]
"""Least and largest number of an input, inclusive; the largest may be an axis expression."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifted:
    """One definition, with the launches that it was lifted from."""

    own: OwnDefinition
    """Definition, space, incumbent and binding of launches."""
    workloads: tuple[Workload, ...]
    grids: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedKernel:
    """A kernel, or some of its launches, that was not lifted."""

    kernel: str
    """``module:qualname``, sanitized."""
    source_digest: str
    """Of the live source, sanitized."""
    reason: str
    detail: str
    launches: int


@dataclass(slots=True)
class Outcome:
    lifted: list[Lifted] = field(default_factory=list)
    kept: list[SkippedKernel] = field(default_factory=list)


def lift_all(
    raw: Iterable[object],
    *,
    bounds: Mapping[str, Bounds] | None = None,
    references: Mapping[str, str] | None = None,
) -> Outcome:
    """Lift all suitable kernels; an error in one kernel does not affect others.

    `raw` holds the runtime's untrusted records. `bounds` gives, by kernel, bounds of inputs whose
    numbers are indices. `references` gives, by kernel, a float64 reference from a user, which
    becomes the oracle.
    """
    outcome = Outcome()
    by_source: dict[tuple[str, str], list[Observation]] = {}
    for record in raw:
        try:
            (each,) = read_observations([record])
        except NotLifted as error:
            named = record.get("kernel", "") if isinstance(record, Mapping) else ""
            outcome.kept.append(_kept(str(named)[:400], "", error, 1))
            continue
        by_source.setdefault((each.kernel, each.source_digest), []).append(each)
    groups = 0
    for (kernel, digest), observations in by_source.items():
        observations.sort(key=lambda each: -each.count)
        given = _Given((bounds or {}).get(kernel, {}), (references or {}).get(kernel, ""))
        for group in groups_of(observations[:MAX_OBSERVATIONS]):
            groups += 1
            try:
                if groups > MOST_GROUPS:
                    detail = f"there are more than {MOST_GROUPS} kinds of launches"
                    raise NotLifted("too-many-kernels", detail=detail)
                outcome.lifted += lift(group, bounds=given.bounds, reference=given.reference)
            except NotLifted as error:
                found, told = _by_parts(group, error, given)
                outcome.lifted += found
                outcome.kept += [_kept(kernel, digest, each, part.count) for each, part in told]
    return outcome


@dataclass(frozen=True, slots=True)
class _Given:
    """User-provided bounds and reference of a kernel."""

    bounds: Bounds
    reference: str


def _by_parts(
    group: Group, error: NotLifted, given: _Given
) -> tuple[list[Lifted], list[tuple[NotLifted, Group]]]:
    """Lift each choice of constexprs separately if all together have no explanation.

    A compiled-in length differs between choices and not within one. If no part can be lifted, the
    reason for all of them is reported.
    """
    found: list[Lifted] = []
    told: list[tuple[NotLifted, Group]] = []
    for part in _parts(group) if error.code in _SETTLED_BY_PARTS else ():
        try:
            found += lift(part, bounds=given.bounds, reference=given.reference)
        except NotLifted as problem:
            told.append((problem, part))
    return (found, told) if found else ([], [(error, group)])


def _parts(group: Group) -> tuple[Group, ...]:
    try:
        parts = group.parts()
    except NotLifted:  # options that a variant must not have: report the first reason
        return ()
    return parts[:MOST_POINTS] if len(parts) > 1 else ()


def _kept(kernel: str, digest: str, error: NotLifted, launches: int) -> SkippedKernel:
    return SkippedKernel(
        kernel=harmless(kernel),
        source_digest=harmless(digest),
        reason=str(error.code),
        detail=error.message,
        launches=launches,
    )


def lift(group: Group, *, bounds: Bounds | None = None, reference: str = "") -> tuple[Lifted, ...]:
    """Return the definitions of one group of launches: one per choice of constexprs.

    Raises
    ------
    NotLifted
        With the reason; see `source`, `data_flow`, `roles`, `shapes`, `grids` and `definition`.
    """
    first = group.first
    for param in first.params:
        if param.kind == "other":
            raise NotLifted("argument-unknown", detail=f"'{param.name}' is not a plain value")
    if any(p.aligned16 is False for o in group.observations for p in o.params):
        raise NotLifted("pointer-unaligned", detail="a tensor does not begin at 16 bytes")
    source = _source(first)
    _check_parameters(source, first)
    flow = _flow(source, first)
    taken = {*source.parameters, *source.functions, *source.constants}
    roles = roles_of(flow, group.dtypes, bounded=frozenset(bounds or {}), taken=taken)
    axes = axes_of(group.launches, ranges=flow.ranges)
    grid = grid_rules(group, axes, flow)
    found = []
    for observations in list(group.points().values())[:MOST_POINTS]:
        point = Point(
            observations=observations,
            rows=tuple(_rows(group, axes, observations)),
            options=options_of(observations[0]),
            constants=dict(launch_of(observations[0]).constants),
            others=other_constants(observations[0]),
        )
        found.append(_built(group, source, flow, roles, axes, grid, point, bounds, reference))
    return tuple(found)


def _built(
    group: Group,
    source: Source,
    flow: Flow,
    roles: Roles,
    axes: Axes,
    grid: Sequence[str],
    point: Point,
    bounds: Bounds | None,
    reference: str,
) -> Lifted:
    own = build(
        source,
        flow,
        roles,
        axes,
        grid=grid,
        point=point,
        dtypes=group.dtypes,
        bounds=bounds or {},
        reference=reference,
    )
    merged: dict[tuple[int, ...], tuple[int, tuple[int, int, int]]] = {}
    names = own.definition.variable_axes
    for row, each in zip(point.rows, point.observations, strict=True):
        key = tuple(row[name] for name in names)
        before = merged.get(key, (0, each.grid))[0]
        merged[key] = (before + each.count, each.grid)
    return Lifted(
        own=own,
        workloads=tuple(
            Workload(definition=own.name, axes=dict(zip(names, key, strict=True)), weight=count)
            for key, (count, _) in merged.items()
        ),
        grids=tuple(programs for _, programs in merged.values()),
    )


def _rows(
    group: Group, axes: Axes, observations: Sequence[Observation]
) -> Iterable[dict[str, int]]:
    at = {id(each): place for place, each in enumerate(group.observations)}
    for each in observations:
        yield {name: column[at[id(each)]] for name, column in axes.lengths.items()}


def _source(first: Observation) -> Source:
    if first.source is None:
        told = ", ".join(first.unresolved[:4]) or "none was found"
        raise NotLifted("source-missing", detail=told)
    fixed = {
        param.name: param.value
        for param in first.of_kind("constexpr").values()
        if type(param.value) is not int  # whole numbers may differ within a group
    }
    return read_source(first.source, entry=first.entry, fixed=fixed)


def _check_parameters(source: Source, first: Observation) -> None:
    seen = {param.name: param.kind for param in first.params}
    written = source.parameters
    if list(seen) != list(written):
        detail = "the launch's parameters are not those of the source"
        raise NotLifted("observation-invalid", detail=detail)
    for name, constant in written.items():
        if constant and seen[name] != "constexpr":
            detail = f"'{name}' is a constexpr in the source and {seen[name]} in the launch"
            raise NotLifted("observation-invalid", detail=detail)
    for name in source.types:
        if seen[name] != "int":
            detail = f"'{name}' is annotated as a whole number and {seen[name]} in the launch"
            raise NotLifted("parameter-annotated", detail=detail)


def _flow(source: Source, first: Observation) -> Flow:
    constants = {p.name: p.value for p in first.params if p.kind == "constexpr"}
    return flow_of(source, pointers=frozenset(first.of_kind("pointer")), constants=constants)


def grid_rules(group: Group, axes: Axes, flow: Flow) -> tuple[str, ...]:
    """Return the rule of each dimension of the grid, verified on every launch.

    Raises
    ------
    NotLifted
        As `rule_of`.
    """
    launches = group.launches
    rows = [
        {**launch.constants, **{n: column[at] for n, column in axes.lengths.items()}}
        for at, launch in enumerate(launches)
    ]
    text = group.first.grid_source
    named = frozenset(_LOOKED_UP.findall(text)) if text else None
    found = []
    for dimension in range(3):
        tiles = {
            name
            for name in flow.moved.get(dimension, set()) & flow.ranges
            if name in launches[0].constants
            and name not in axes.fixed
            and all(launch.constants[name] > 0 for launch in launches)
        }
        hints = Hints(
            placed=dimension in flow.placed,
            tiles=frozenset(tiles),
            plain=frozenset(n for n in flow.plain.get(dimension, set()) if 2 <= n <= 2**20),
            pairs=_pairs(flow, axes),
            named=named & tiles if named else None,
        )
        programs = [launch.grid[dimension] for launch in launches]
        found.append(str(rule_of(rows, programs, axes=list(axes.lengths), hints=hints)))
    while len(found) > 1 and found[-1] == "1":
        found.pop()
    return tuple(found)


def _pairs(flow: Flow, axes: Axes) -> frozenset[tuple[str, str]]:
    found = set()
    for name, tile in flow.pairs:
        factors = axes.ints.get(name, (name,))
        found |= {(factor, tile) for factor in factors if isinstance(factor, str)}
    return frozenset(found)
