"""What an artifact of a lifted kernel says to the runtime: whose launches, and how they are read.

Variants of a lifted kernel are other parameters of the server's own code: a launch keeps its own
arguments, and only constexprs, options and the grid are the variant's. See
`retuned.runtime.intercept.rules` for the block.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from retuned.catalog.own.records import LiftedFrom, OwnDefinition
from retuned.contract import AxisConst, Solution

_NAME = re.compile(r"\b[A-Za-z_][A-Za-z0-9_]*\b")
_GRID = "grid:"
_PARAM = "param:"
_MARKED = "@"
"""Begins a constexpr that is no plain value; the server's own code gets it from its launch."""


def launch_data_of(own: OwnDefinition, solution: Solution) -> dict[str, Any]:
    """Return fields of ``artifact.json``; nothing where the definition was not lifted.

    Parameters
    ----------
    own
        The definition.
    solution
        One of its variants.
    """
    origin = own.lifted
    if origin is None or not _is_live(own, solution):
        return {}
    definition = own.definition
    numbers = {n: a.value for n, a in definition.axes.items() if isinstance(a, AxisConst)}
    return {
        "intercept": {
            "kernel": origin.kernel,
            "source_digest": origin.source_digest,
            "code": "live",
            "axes": {axis: _shown(origin, axis) for axis in definition.variable_axes},
            "dtypes": dict(origin.dtypes),
            "constexprs": {n: v for n, v in origin.constants.items() if not _is_marked(v)},
            "stores": {
                origin.tensors[name]: "write" if spec.updates is None else "update"
                for name, spec in definition.outputs.items()
            },
        },
        "grid": [_over_launch(origin, rule, numbers) for rule in solution.grid],
    }


def _is_live(own: OwnDefinition, solution: Solution) -> bool:
    """Whether a variant is the server's own code with other parameters."""
    return any(
        variant.incumbent is not None
        and (variant.entry, variant.sources) == (solution.entry, solution.sources)
        for variant in own.variants
    )


def _shown(origin: LiftedFrom, axis: str) -> str:
    """Return what of a launch is the length of a variable axis."""
    source = origin.axes[axis]
    if source.startswith(_GRID):
        return f"grid_{source.removeprefix(_GRID)}"
    return source.removeprefix(_PARAM)


def _over_launch(origin: LiftedFrom, rule: str, numbers: Mapping[str, int]) -> str:
    """Write a rule over axes as one over a launch."""

    def named(match: re.Match[str]) -> str:
        name = match.group()
        if name in origin.axes:
            return _shown(origin, name)
        return str(numbers[name]) if name in numbers else name

    return _NAME.sub(named, rule)


def _is_marked(value: object) -> bool:
    return isinstance(value, str) and value.startswith(_MARKED)
