"""Launches at both ends of a size class: a rule is for sizes that the search did not run. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from retuned.runtime.tunables.records import bucket

LOW, HIGH = "low", "high"
Recipe = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Edge:
    """A launch at one end of a size class."""

    end: str
    """``low`` or ``high``."""
    recipe: Recipe


def ends_of(axis: str, value: int) -> tuple[int, int]:
    """Return the least and the greatest value of a size class on one axis.

    Examples
    --------
    >>> ends_of("tokens", 100), ends_of("tokens", 1), ends_of("decode", 1)
    ((65, 128), (1, 1), (1, 1))
    """
    if axis == "decode" or value <= 1:
        return value, value
    upper = bucket(value)
    return upper // 2 + 1, upper


def edges_of(recipe: Recipe, recorded: Sequence[Recipe] = ()) -> list[Edge]:
    """Return launches at both ends of a recipe's size class, as far as they can be had.

    Calls of attention and of experts are made for any size. A launch of an autotuned kernel cannot:
    its ends are the smallest and the largest launch that the server described.

    Parameters
    ----------
    recorded
        Further launches that the server described, each with its ``edge``.
    """
    family = recipe.get("family")
    if family in ("attention", "moe"):
        made = (_at(recipe, end) for end in (LOW, HIGH))
        return [each for each in made if each.recipe["axes"] != recipe["axes"]]
    same = {name: bucket(value) for name, value in recipe["axes"].items()}
    return [
        Edge(str(each["edge"]), each)
        for each in recorded
        if each.get("edge") in (LOW, HIGH)
        and {name: bucket(value) for name, value in each["axes"].items()} == same
    ]


def _at(recipe: Recipe, end: str) -> Edge:
    place = 0 if end == LOW else 1
    axes = {name: ends_of(name, value)[place] for name, value in recipe["axes"].items()}
    call = dict(recipe["call"])
    if recipe["family"] == "moe":
        call["tokens"] = axes["tokens"]
    else:
        if axes["decode"]:
            axes["rows"] = axes["sequences"]  # one row for each sequence
        axes["rows"] = max(axes["rows"], axes["sequences"])
        axes["longest"] = max(axes["longest"], -(-axes["rows"] // max(1, axes["sequences"])))
        call["lengths"] = []
    return Edge(end, {**recipe, "axes": axes, "call": call})


def narrowed(axes: Mapping[str, int], bad: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Return the ranges of a rule without the ends at which its configuration lost.

    Examples
    --------
    >>> narrowed({"tokens": 100}, []), narrowed({"tokens": 100}, ["high"])
    ({'tokens': (65, 128)}, {'tokens': (65, 100)})
    """
    ranges = {name: ends_of(name, value) for name, value in axes.items()}
    return {
        name: (axes[name] if LOW in bad else low, axes[name] if HIGH in bad else high)
        for name, (low, high) in ranges.items()
    }
