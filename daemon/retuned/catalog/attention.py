"""attention: the newest positions of one sequence over its cached keys."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from retuned.catalog import inputs
from retuned.catalog.entry import (
    Array,
    Cost,
    KernelEntry,
    Params,
    Space,
    build_solution,
    constant,
    reference_text,
)
from retuned.catalog.family import THREADS, VECTORS, Family, fixed, floats, variable
from retuned.catalog.references import attention as reference
from retuned.contract import Definition
from retuned.errors import UsageError

HEAD_STEP = 16
"""Head sizes are multiples of this, so that every vector width divides them."""
MAX_ACCUMULATORS = 32
"""A register tile with more vectors than this spills on every machine."""


def _many(axes: Mapping[str, int]) -> bool:
    return axes["T"] >= 4


def _tile_fits(params: Params, definition: Definition) -> bool:
    lanes = int(params["VEC"]) // 4
    return int(params["TILE"]) * (constant(definition, "D") // lanes) <= MAX_ACCUMULATORS


def _two_pass(head: int) -> Space:
    return Space(
        name="two-pass",
        sources=("attention_two_pass.cpp", "vec.h"),
        entry="attention_two_pass",
        params={
            "HEAD": (head,),
            "KEYS": (256, 1024, 4096),
            "CHAINS": (1, 2, 4),
            "VEC": VECTORS,
            "THREADS": THREADS,
        },
        starts=lambda _axes: (
            {"HEAD": head, "KEYS": 1024, "CHAINS": 2, "VEC": 32, "THREADS": 1},
            {"HEAD": head, "KEYS": 256, "CHAINS": 2, "VEC": 64, "THREADS": 1},
        ),
        rank=lambda axes: 1 if _many(axes) else 0,
        scratch_bytes=lambda params, _definition: 4 * int(params["KEYS"]),
    )


def _online(head: int) -> Space:
    return Space(
        name="online",
        sources=("attention_online.cpp", "vec.h"),
        entry="attention_online",
        params={
            "HEAD": (head,),
            "KEYS": (32, 64, 128),
            "QUERIES": (32, 64, 128),
            "TILE": (2, 4, 6, 8),
            "VEC": VECTORS,
            "THREADS": THREADS,
        },
        starts=lambda _axes: (
            {"HEAD": head, "KEYS": 64, "QUERIES": 64, "TILE": 6, "VEC": 64, "THREADS": 1},
            {"HEAD": head, "KEYS": 32, "QUERIES": 128, "TILE": 8, "VEC": 64, "THREADS": 1},
            {"HEAD": head, "KEYS": 32, "QUERIES": 64, "TILE": 4, "VEC": 32, "THREADS": 1},
        ),
        rank=lambda axes: 0 if _many(axes) else 1,
        valid=_tile_fits,
        scratch_bytes=_online_scratch,
    )


def _online_scratch(params: Params, _definition: Definition) -> int:
    """Bytes for a transposed block of keys, a tile's scores, maximum and sum of each query."""
    keys, queries = int(params["KEYS"]), int(params["QUERIES"])
    return 4 * (int(params["HEAD"]) * keys + int(params["TILE"]) * keys + 2 * queries)


def _make(lengths: dict[str, int], rng: np.random.Generator, family: str) -> dict[str, Array]:
    new, total = lengths["T"], lengths["S"]
    if new > total:
        raise UsageError(f"attention needs S >= T, got T={new}, S={total}")
    heads = (lengths["H"], lengths["D"])
    shapes = {"q": (new, *heads), "k": (total, *heads), "v": (total, *heads)}
    if family in inputs.PLANTED:
        made = {n: inputs.activations(rng, shape, "randn") for n, shape in shapes.items()}
        inputs.planted(rng, made[str(rng.choice(sorted(made)))], inputs.PLANTED[family])
        return dict(made)
    made = {name: inputs.activations(rng, shape, "randn") for name, shape in shapes.items()}
    if family == "logits-60":
        # Integers of deviation 7.8 give logits of deviation 60 where D is 64.
        _whole(rng, made, spread=13, outlier=1)
    elif family == "outlier":
        _whole(rng, made, spread=3, outlier=32)
        made["q"] /= np.float32(8.0)
    elif family == "randn-large":
        made["v"] *= np.float32(1e3)
    else:
        made = {name: inputs.activations(rng, shape, family) for name, shape in shapes.items()}
    return dict(made)


def _whole(
    rng: np.random.Generator, made: dict[str, inputs.Floats], *, spread: int, outlier: int
) -> None:
    """Integers for queries and keys, with one channel of the keys `outlier` times larger.

    A rounded logit of 100 moves its weight by 1e-5, so with other numbers these families would
    measure chance. With integers every order of summation is exact.
    """
    for name in ("q", "k"):
        made[name] = rng.integers(-spread, spread + 1, made[name].shape).astype(np.float32)
    made["k"][..., int(rng.integers(made["k"].shape[-1]))] *= np.float32(outlier)


def _cost(lengths: dict[str, int]) -> Cost:
    new, total = lengths["T"], lengths["S"]
    width = float(lengths["H"] * lengths["D"])
    pairs = new * (total - new) + new * (new + 1) / 2
    return Cost(
        flops=4.0 * width * pairs,
        read_bytes=4.0 * width * (new + 2 * total),
        write_bytes=4.0 * width * new,
    )


def _settle(lengths: dict[str, int]) -> dict[str, int] | None:
    if lengths["D"] % HEAD_STEP:
        return None
    # T and S may each have been rounded up to a bucket.
    return {**lengths, "S": max(lengths["S"], lengths["T"])}


def _build(name: str, constants: dict[str, int]) -> KernelEntry:
    head = constants["D"]
    if head % HEAD_STEP:
        raise UsageError(f"{name}: the head size must be a multiple of {HEAD_STEP}, got {head}")
    definition = Definition(
        name=name,
        op_type="attention",
        description="causal attention of the last T of S positions, scaled by D^-1/2",
        axes={
            "T": variable("new positions"),
            "S": variable("positions in the cache, the new ones included; at least T"),
            "H": fixed(constants["H"]),
            "D": fixed(head),
        },
        inputs={"q": floats("T", "H", "D"), "k": floats("S", "H", "D"), "v": floats("S", "H", "D")},
        outputs={"out": floats("T", "H", "D")},
        reference=reference_text("attention"),
    )
    incumbent: Params = {"HEAD": head, "KEYS": 1024, "CHAINS": 2, "VEC": 32, "THREADS": 1}
    two_pass = _two_pass(head)
    return KernelEntry(
        definition=definition,
        families=(*inputs.COMMON, "logits-60"),
        spaces=(two_pass, _online(head)),
        incumbent=build_solution(definition, two_pass, incumbent),
        make=_make,
        compute=reference.run,
        cost=_cost,
    )


FAMILY = Family(
    op_type="attention",
    template="attention_h{H}_d{D}",
    description="causal attention of one sequence over its cached keys",
    shapes=(("T", "H", "D"), ("S", "H", "D"), ("S", "H", "D")),
    dtypes=("float32", "float32", "float32"),
    build=_build,
    settle=_settle,
)
