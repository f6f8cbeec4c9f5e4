"""Launch rules of a lifted kernel's artifact: which launches it takes, and how they are read.

Most variants of a lifted kernel are other parameters of the server's own code: a launch keeps its
arguments, and only constexprs, options and the grid change. A recognised kernel may also have the
catalog's source. Then all of a launch must equal the validated one, except real numbers, which are
passed on. See `retuned.runtime.intercept.rules` for the block.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from retuned.catalog.user.records import LiftedFrom, OwnDefinition
from retuned.contract import AxisConst, Solution

_NAME = re.compile(r"\b[A-Za-z_][A-Za-z0-9_]*\b")
_GRID = "grid:"
_PARAM = "param:"
_MARKED = "@"
"""Prefix of a constexpr that is not a plain value; the live code gets it from its launch."""


def launch_data_of(own: OwnDefinition, solution: Solution) -> dict[str, Any]:
    origin = own.lifted
    if origin is None:
        return {}
    live = _is_live(own, solution)
    serves = "" if live else _serves(own, solution)
    if not live and not serves:
        return {}
    definition = own.definition
    numbers = {n: a.value for n, a in definition.axes.items() if isinstance(a, AxisConst)}
    block: dict[str, Any] = {
        "kernel": origin.kernel,
        "source_digest": origin.source_digest,
        "code": "live" if live else "artifact",
        "axes": {axis: _shown(origin, axis) for axis in definition.variable_axes},
        "dtypes": dict(origin.dtypes),
        "constexprs": {n: v for n, v in origin.constants.items() if not _is_marked(v)},
        "stores": {
            origin.tensors[name]: "write" if spec.updates is None else "update"
            for name, spec in definition.outputs.items()
        },
    }
    grid = [_over_launch(origin, rule, numbers) for rule in solution.grid]
    if live:
        return {"intercept": block, "grid": grid}
    # a launch must not differ from the validated one
    block |= {"ints": dict(origin.ints), "numels": dict(origin.numels)}
    return {"intercept": block, "grid": grid, "entry": serves}


def _serves(own: OwnDefinition, solution: Solution) -> str:
    """Return the function that gets a launch's own arguments, of a variant with other source."""
    return next(
        (
            variant.serves
            for variant in own.variants
            if (variant.entry, variant.sources) == (solution.entry, solution.sources)
        ),
        "",
    )


def _is_live(own: OwnDefinition, solution: Solution) -> bool:
    return any(
        variant.incumbent is not None
        and (variant.entry, variant.sources) == (solution.entry, solution.sources)
        for variant in own.variants
    )


def _shown(origin: LiftedFrom, axis: str) -> str:
    source = origin.axes[axis]
    if source.startswith(_GRID):
        return f"grid_{source.removeprefix(_GRID)}"
    return source.removeprefix(_PARAM)


def _over_launch(origin: LiftedFrom, rule: str, numbers: Mapping[str, int]) -> str:
    def named(match: re.Match[str]) -> str:
        name = match.group()
        if name in origin.axes:
            return _shown(origin, name)
        return str(numbers[name]) if name in numbers else name

    return _NAME.sub(named, rule)


def _is_marked(value: object) -> bool:
    return isinstance(value, str) and value.startswith(_MARKED)
