"""rope: rotary positions of queries and keys, pairing the halves of a head.

As in servers, positions are 64-bit integers, and cosines and sines are read from a table with a row
per position, the cosines of all pairs before the sines.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from retuned.catalog import inputs
from retuned.catalog.entry import Array, Cost, KernelEntry, Params, Space, reference_text
from retuned.catalog.family import THREADS, VECTORS, Family, fixed, variable, whole
from retuned.catalog.number_formats import FORMS, NumberFormat, costing, implemented, rounding
from retuned.catalog.references import rope as reference
from retuned.catalog.triton import rope
from retuned.contract import Definition, DType, TensorSpec
from retuned.errors import UsageError

_EXACT = "exact-integer"
_MOST_HEADS, _LONGEST_HEAD = 1024, 1024
_BASES = (1e4, 5e5, 1e6)
"""Longest wavelengths that models are trained with, over 2 pi."""
_PARAMS: dict[str, tuple[int | str, ...]] = {
    "UNROLL": (1, 2, 4),
    "VEC": VECTORS,
    "THREADS": THREADS,
}
_STARTS: tuple[Params, ...] = (
    {"UNROLL": 2, "VEC": 64, "THREADS": 1},
    {"UNROLL": 2, "VEC": 32, "THREADS": 1},
)
HEADS = Space(
    name="heads",
    sources=("rope_heads.cpp", "vec.h"),
    entry="rope_heads",
    params=_PARAMS,
    starts=lambda _axes: _STARTS,
    rank=lambda _axes: 1,
)
ANGLES = Space(
    name="angles",
    sources=("rope_angles.cpp", "vec.h"),
    entry="rope_angles",
    params=_PARAMS,
    starts=lambda _axes: _STARTS,
    rank=lambda _axes: 0,
)


def _make(lengths: dict[str, int], rng: np.random.Generator, family: str) -> dict[str, Array]:
    rows, total, width = lengths["M"], lengths["P"], lengths["D"]
    ordinary = "randn" if family in inputs.PLANTED else family
    q, k = (
        inputs.activations(rng, (rows, lengths[heads], width), ordinary) for heads in ("Q", "K")
    )
    if family in inputs.PLANTED:
        inputs.planted(rng, (q, k)[int(rng.integers(2))], inputs.PLANTED[family])
    positions = rng.integers(0, total, rows)
    if rows:
        positions[int(rng.integers(rows))] = total - 1
    if family == _EXACT:
        # Halves and whole numbers: no product and no sum of two rounds, in any format.
        cache = (rng.integers(-2, 3, (total, width)) / 2.0).astype(np.float32)
    else:
        cache = _cache(rng, total, width)
    return {"positions": positions, "q": q, "k": k, "cache": cache}


def _cache(rng: np.random.Generator, total: int, width: int) -> inputs.Floats:
    """Cosines and sines of a varying base and scale, which a kernel cannot recompute."""
    base, scale = float(rng.choice(_BASES)), rng.uniform(0.9, 1.4)
    wave = base ** (-2.0 * np.arange(width // 2) / width)
    angles = np.arange(total)[:, None] * wave
    return (scale * np.concatenate([np.cos(angles), np.sin(angles)], axis=1)).astype(np.float32)


def _cost(lengths: dict[str, int], size_bytes: float) -> Cost:
    rows, heads = float(lengths["M"]), lengths["Q"] + lengths["K"]
    turned = rows * heads * lengths["D"]
    angles = min(rows, lengths["P"]) * lengths["D"]
    return Cost(
        flops=3.0 * turned,
        read_bytes=size_bytes * (turned + angles) + 8.0 * rows,
        write_bytes=size_bytes * turned,
    )


def _fits(lengths: dict[str, int]) -> bool:
    heads = max(lengths["Q"], lengths["K"])
    return heads <= _MOST_HEADS and lengths["D"] <= _LONGEST_HEAD and lengths["D"] % 2 == 0


def _build(form: NumberFormat, name: str, constants: dict[str, int]) -> KernelEntry:
    if not _fits(constants):
        raise UsageError(
            f"{name}: heads are of even length up to {_LONGEST_HEAD} and at most {_MOST_HEADS}, "
            f"got {constants}"
        )
    definition = Definition(
        name=name,
        op_type="rope",
        description=(
            "for each head: low' = low cos - high sin, high' = high cos + low sin, where low and "
            "high are its halves; cos and sin are the halves of cache[positions]"
        ),
        axes={
            "M": variable("tokens in the step"),
            "P": variable("positions in the table"),
            "Q": fixed(constants["Q"]),
            "K": fixed(constants["K"]),
            "D": fixed(constants["D"]),
        },
        inputs={
            "positions": TensorSpec(shape=("M",), dtype=DType.INT64, values=whole("P - 1")),
            "q": form.tensor("M", "Q", "D"),
            "k": form.tensor("M", "K", "D"),
            "cache": form.tensor("P", "D", weight=True),
        },
        outputs={"q_out": form.tensor("M", "Q", "D"), "k_out": form.tensor("M", "K", "D")},
        reference=reference_text("rope"),
    )
    spaces, incumbent = implemented(
        form,
        definition,
        cpp=(HEADS, ANGLES),
        incumbent=_STARTS[0],
        triton=rope.rope,
    )
    return KernelEntry(
        definition=definition,
        families=(*inputs.COMMON, _EXACT),
        spaces=spaces,
        incumbent=incumbent,
        make=rounding(form, _make),
        compute=reference.run,
        cost=costing(form, _cost),
    )


def _family(form: NumberFormat) -> Family:
    return Family(
        op_type="rope",
        template=f"rope{form.mark}_q{{Q}}_k{{K}}_d{{D}}",
        description=f"rotary positions of Q query and K key heads of length D, {form.dtype}",
        shapes=(("M",), ("M", "Q", "D"), ("M", "K", "D"), ("P", "D")),
        dtypes=("int64", *(form.dtype.value,) * 3),
        build=partial(_build, form),
        languages=form.languages,
        settle=lambda lengths: lengths if _fits(lengths) else None,
    )


FAMILIES = tuple(_family(form) for form in FORMS)
