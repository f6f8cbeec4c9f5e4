"""topk_gating: the experts of a token, and their weights.

The weights are the softmax over all experts, divided by the sum of the chosen ones: that is the
softmax over the chosen logits. Logits are numbers or minus infinity (a masked expert), at least K
of a row finite. NaN and plus infinity are outside the definition, because their order is not agreed
on.

Of equal logits the lowest index is chosen first, as in servers. The judge compares indices one by
one, so inputs keep the logits of a row apart. If two differ by a rounding, a kernel that chooses
among float32 weights is as correct as one that chooses among logits, and they disagree. Equal
logits are safe, because equal inputs give equal results: the family ``ties`` consists of them, with
zeros of both signs. For the same reason no family has chosen weights that underflow.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from retuned.catalog import inputs
from retuned.catalog.entry import (
    Array,
    Cost,
    KernelEntry,
    Params,
    Reference,
    Space,
    constant,
    reference_text,
)
from retuned.catalog.family import THREADS, VECTORS, Family, fixed, floats, variable
from retuned.catalog.number_formats import FLOAT32, implemented
from retuned.catalog.references import topk_gating as reference
from retuned.catalog.triton import gating
from retuned.contract import Definition, DType, TensorSpec
from retuned.errors import UsageError

MOST_CHOSEN = 32
"""Maximum of experts per token; lists of the chosen have this length in the sources."""
MOST_EXPERTS = 4096
_FAMILIES = ("randn", "flat", "peaked", "mean-1000", "outlier", "zeros-rows", "ties", "masked")
_PADDING = 64
"""Length of a row's copy, a multiple of the widest block of any variant."""
_PARAMS: dict[str, tuple[int | str, ...]] = {
    "UNROLL": (1, 2, 4),
    "VEC": VECTORS,
    "THREADS": THREADS,
}
_STARTS: tuple[Params, ...] = (
    {"UNROLL": 2, "VEC": 64, "THREADS": 1},
    {"UNROLL": 4, "VEC": 32, "THREADS": 1},
)


def _scratch(_params: Params, definition: Definition) -> int:
    return 4 * -(-constant(definition, "E") // _PADDING) * _PADDING


ROUNDS = Space(
    name="rounds",
    sources=("topk_gating_rounds.cpp", "topk_weights.h", "vec.h"),
    entry="topk_gating_rounds",
    params=_PARAMS,
    starts=lambda _axes: _STARTS,
    rank=lambda _axes: 1,
    scratch_bytes=_scratch,
)
INSERT = Space(
    name="insert",
    sources=("topk_gating_insert.cpp", "topk_weights.h", "vec.h"),
    entry="topk_gating_insert",
    params=_PARAMS,
    starts=lambda _axes: _STARTS,
    rank=lambda _axes: 0,
)


def _make(lengths: dict[str, int], rng: np.random.Generator, family: str) -> dict[str, Array]:
    shape, chosen = (lengths["M"], lengths["E"]), lengths["K"]
    if family == "ties":
        whole = rng.integers(-2, 3, shape) * rng.choice([-1.0, 1.0], shape)
        return {"logits": whole.astype(np.float32)}
    logits = _apart(rng.standard_normal(shape))
    if family == "flat":
        logits /= 32.0
    elif family == "peaked":
        logits *= 6.0
    elif family == "mean-1000":
        logits += 1000.0
    elif family == "outlier":
        logits[:, rng.integers(shape[1])] += 30.0
    elif family == "zeros-rows":
        logits[int(rng.integers(2)) :: 2] = 0.0
    elif family == "masked":
        _mask(rng, logits, chosen)
    return {"logits": logits.astype(np.float32)}


def _apart(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Separate the numbers of each row by at least 2 / E; order is kept."""
    order = np.argsort(values, axis=1)
    steps = 2.0 * np.arange(values.shape[1]) / values.shape[1]
    spread = np.empty_like(values)
    np.put_along_axis(spread, order, np.take_along_axis(values, order, axis=1) + steps, axis=1)
    return spread


def _mask(rng: np.random.Generator, logits: npt.NDArray[np.float64], chosen: int) -> None:
    experts = logits.shape[1]
    for row in logits:
        count = int(rng.integers(0, experts - chosen + 1))
        row[rng.choice(experts, size=count, replace=False)] = -np.inf


@cache
def _compute(chosen: int) -> Reference:
    def compute(logits: inputs.Floats) -> dict[str, Array]:
        return dict(reference.run(logits, chosen))

    return compute


def _cost(lengths: dict[str, int]) -> Cost:
    rows, experts, chosen = lengths["M"], lengths["E"], lengths["K"]
    return Cost(
        flops=float(rows * experts + 4 * rows * chosen),
        read_bytes=4.0 * rows * experts,
        write_bytes=8.0 * rows * chosen,
    )


def _fits(lengths: dict[str, int]) -> bool:
    return 1 <= lengths["K"] <= min(lengths["E"], MOST_CHOSEN) and lengths["E"] <= MOST_EXPERTS


def _build(name: str, constants: dict[str, int]) -> KernelEntry:
    experts, chosen = constants["E"], constants["K"]
    if not _fits(constants):
        raise UsageError(
            f"{name}: up to {MOST_CHOSEN} of up to {MOST_EXPERTS} experts can be chosen, and no "
            f"more than there are; the name says {chosen} of {experts}"
        )
    definition = Definition(
        name=name,
        op_type="topk_gating",
        description=(
            "the K largest of E logits of each row: weights[M,K] = their softmax, largest first; "
            "ids[M,K] = their places, of equals the lowest first"
        ),
        axes={"M": variable("tokens in the step"), "E": fixed(experts), "K": fixed(chosen)},
        inputs={"logits": floats("M", "E")},
        outputs={
            "weights": floats("M", "K"),
            "ids": TensorSpec(shape=("M", "K"), dtype=DType.INT32),
        },
        reference=reference_text("topk_gating").replace("CHOSEN = 8", f"CHOSEN = {chosen}"),
    )
    spaces, incumbent = implemented(
        FLOAT32,
        definition,
        cpp=(ROUNDS, INSERT),
        incumbent=_STARTS[0],
        triton=gating.topk_gating,
    )
    return KernelEntry(
        definition=definition,
        families=_FAMILIES,
        spaces=spaces,
        incumbent=incumbent,
        make=_make,
        compute=_compute(chosen),
        cost=_cost,
    )


FAMILY = Family(
    op_type="topk_gating",
    template="topk_gating_e{E}_k{K}",
    description="softmax over experts, the K best of them, renormalised",
    # The operator is given its outputs, as servers' are: how many are chosen shows nowhere else.
    shapes=(("M", "E"), ("M", "K"), ("M", "K")),
    dtypes=("float32", "float32", "int32"),
    build=_build,
    settle=lambda lengths: lengths if _fits(lengths) else None,
)
