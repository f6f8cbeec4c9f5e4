"""Which parameters of a lifted kernel are worth trying: its tiles, warps and stages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from retuned.catalog.own.records import MOST_POINTS
from retuned.lifting.flow import Flow
from retuned.runtime.triton_bind import LAUNCH_OPTIONS

_WARPS = (1, 2, 4, 8, 16)
_STAGES = (1, 2, 3, 4, 5)
_AROUND = (0.25, 0.5, 1.0, 2.0, 4.0)
_LEAST, _LEAST_OF_DOTS, _LARGEST = 16, 16, 8192
_GROUPS = (1, 2, 4, 8, 16)
_MOST_ELEMENTS = 1 << 20
"""Largest block that Triton compiles."""
_MOST_EACH = 512
"""Most elements of one block that a thread holds before it spills in any event."""
_DEFAULTS = {"num_warps": 4, "num_stages": 3}

Choices = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The space of one lifted kernel."""

    params: Choices
    """Values of each parameter."""
    incumbent: Mapping[str, int]
    """The point that runs."""
    valid: str
    """Relation between them; see `OwnVariant.valid`."""


def choices_of(
    flow: Flow,
    *,
    constants: Mapping[str, int],
    options: Mapping[str, int],
    fixed: frozenset[str],
) -> Choice:
    """Return what may be tried.

    Parameters
    ----------
    flow
        Of the source.
    constants
        Whole constexprs as they are launched today.
    options
        Launch options as they are today.
    fixed
        Constexprs that lengths depend on.
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
    """Leave out what is furthest from today until a search can look at every point."""
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
    """Bound the largest block, and what a thread holds of it; what runs today is always valid."""
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
