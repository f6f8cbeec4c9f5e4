"""Search for a configuration in a declared space. Pure.

A space of at most 32 configurations is tried whole. A larger one starts with values that won
elsewhere, then moves from the best so far: first one parameter to a neighbouring value, then two.
It stops at 15 % of the space.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

WHOLE = 32
MAX_SPACE = 400
_SHARE = 0.15
_LEAST = 5
Config = Mapping[str, Any]

STARTS: Mapping[str, Sequence[Config]] = {
    "attention-prefill": (
        {"BLOCK_M": 64, "TILE_SIZE": 64, "num_warps": 4, "num_stages": 2},
        {"BLOCK_M": 128, "TILE_SIZE": 64, "num_warps": 8, "num_stages": 2},
        {"BLOCK_M": 64, "TILE_SIZE": 32, "num_warps": 4, "num_stages": 2},
        {"BLOCK_M": 16, "TILE_SIZE": 128, "num_warps": 4, "num_stages": 2},
    ),
    "attention-decode": (
        {"TILE_SIZE": 64, "num_warps": 4, "num_stages": 3, "segments": 4},
        {"TILE_SIZE": 128, "num_warps": 4, "num_stages": 3, "segments": 0},
        {"TILE_SIZE": 64, "num_warps": 2, "num_stages": 2, "segments": 64},
        {"TILE_SIZE": 64, "num_warps": 4, "num_stages": 3, "segments": 32},
        {"TILE_SIZE": 64, "num_warps": 4, "num_stages": 2, "segments": 16},
    ),
}
"""Configurations that won on an H200 (vLLM 0.26), by kind of launch."""
_ATTENTION: Mapping[str, Mapping[str, Sequence[int]]] = {
    "attention-prefill": {
        "BLOCK_M": (16, 32, 64, 128),
        "TILE_SIZE": (16, 32, 64, 128),
        "num_warps": (4, 8),
        "num_stages": (2, 3),
    },
    "attention-decode": {
        "TILE_SIZE": (16, 32, 64, 128),
        "num_warps": (2, 4, 8),
        "num_stages": (2, 3, 4),
        "segments": (0, 4, 8, 16, 32, 64),
    },
}


def key_of(config: Config) -> str:
    """Return a text that is the same for equal configurations."""
    return json.dumps(config, sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Declared configurations, and where to begin."""

    configs: tuple[Config, ...] = field(hash=False)
    starts: tuple[Config, ...] = field(default=(), hash=False)

    @property
    def budget(self) -> int:
        """Most evaluations."""
        size = len(self.configs)
        return size if size <= WHOLE else max(_LEAST, math.floor(_SHARE * size))


def space_of(
    report: Mapping[str, Any], *, axes: Mapping[str, int], in_force: Config | None
) -> Space:
    """Return the space of a tunable at one size class.

    Parameters
    ----------
    report
        The tunable, as the server's runtime reports it.
    in_force
        What the server launches there; its neighbours are in the space of experts.
    """
    family = report["family"]
    if family == "autotune":
        return Space(configs=tuple(report["space"]["configs"]))
    if family == "attention":
        kind = "attention-decode" if axes.get("decode") else "attention-prefill"
        per_kv = report["geometry"]["query_heads"] // report["geometry"]["kv_heads"]
        fits = [
            each
            for each in _product(_ATTENTION[kind])
            if "BLOCK_M" not in each or each["BLOCK_M"] % per_kv == 0
        ]
        return Space(configs=tuple(fits), starts=tuple(STARTS[kind]))
    return _experts(report, tokens=axes["tokens"], in_force=in_force or {})


def _experts(report: Mapping[str, Any], *, tokens: int, in_force: Config) -> Space:
    """Return rows for experts: blocks of rows that suit the tokens of one expert."""
    geometry = report["geometry"]
    each = max(1, tokens * geometry["top_k"] // geometry["E"])
    near = sorted((16, 32, 64, 128), key=lambda m: abs(math.log2(m / max(each, 8))))[:2]
    block = geometry.get("block_shape") or []
    depths = [k for k in (64, 128, 256) if not block or k <= min(block)]
    values: dict[str, Sequence[int]] = {
        "BLOCK_SIZE_M": sorted({*near, in_force.get("BLOCK_SIZE_M", near[0])}),
        "BLOCK_SIZE_N": (64, 128, 256),
        "BLOCK_SIZE_K": depths,
        "GROUP_SIZE_M": (1, 16),
        "num_warps": (4, 8),
        "num_stages": (2, 3, 4, 5),
    }
    configs = list(_product(values))
    if len(configs) > MAX_SPACE:  # three block heights and no block shape
        configs = [each for each in configs if each["num_stages"] > min(values["num_stages"])]
    wide = {"BLOCK_SIZE_K": depths[-1], "num_stages": 3, "num_warps": 4}
    starts = [
        {**wide, "BLOCK_SIZE_M": m, "BLOCK_SIZE_N": n, "GROUP_SIZE_M": g}
        for m in near
        for n, g in ((128, 1), (64, 1), (128, 16))
    ]
    return Space(configs=tuple(configs), starts=tuple(starts))


def _product(values: Mapping[str, Sequence[int]]) -> Iterator[dict[str, int]]:
    for chosen in itertools.product(*values.values()):
        yield dict(zip(values, chosen, strict=True))


def proposals(space: Space, tried: Mapping[str, float]) -> Config | None:
    """Return the next configuration to try; None where the search ends.

    Parameters
    ----------
    tried
        Microseconds by `key_of`; infinite for one that failed.
    """
    open_ones = {key_of(each): each for each in space.configs if key_of(each) not in tried}
    if not open_ones or len(tried) >= space.budget:
        return None
    if len(space.configs) <= WHOLE:
        return next(iter(open_ones.values()))
    for each in space.starts:
        if key_of(each) in open_ones:
            return open_ones[key_of(each)]
    known = {key_of(each): each for each in space.configs}
    if any(isinstance(each, Mapping) for each in space.configs[0].values()):
        return next(iter(open_ones.values()))  # an autotuner's own list has no neighbours
    names = space.configs[0]
    values = {name: sorted({each[name] for each in space.configs}) for name in names}
    ranked = sorted((us, key) for key, us in tried.items() if key in known and us < math.inf)
    for distance in (1, 2, 3):
        for _, key in ranked[: 2 if distance == 1 else 1]:
            near = [
                other
                for other in open_ones.values()
                if _distance(known[key], other, values) == distance
            ]
            if near:
                return min(near, key=lambda each: (_unlike(each, ranked, known), key_of(each)))
    return next(iter(open_ones.values()))


def _distance(one: Config, other: Config, values: Mapping[str, Sequence[int]]) -> int:
    """Return how many steps lie between two configurations, over all parameters."""
    return sum(
        abs(ordered.index(one[name]) - ordered.index(other[name]))
        for name, ordered in values.items()
        if one[name] != other[name]
    )


def _unlike(
    config: Config, ranked: Sequence[tuple[float, str]], known: Mapping[str, Config]
) -> float:
    """Return the mean time of tried configurations that share a value, over the best: a guess."""
    best = ranked[0][0]
    guesses = []
    for name, value in config.items():
        times = [us for us, key in ranked if known[key].get(name) == value]
        guesses.append(min(times) / best if times else 1.0)
    return sum(guesses)
