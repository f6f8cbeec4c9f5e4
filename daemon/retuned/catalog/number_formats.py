"""Number formats of the row-wise families: float32 everywhere, and 16 bits wide on GPUs.

A family is written once, for float32. Its inputs are made in float32 and rounded, its reference
widens to float64, and its Triton sources compute in float32. Only names, element types and bytes
differ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from retuned.catalog.entry import Array, Cost, Params, Space, build_solution
from retuned.catalog.triton.space import fitting
from retuned.contract import Definition, DType, Language, Solution, TensorSpec
from retuned.lab.subject import numpy_dtype

Make = Callable[[dict[str, int], np.random.Generator, str], dict[str, Array]]
Triton = Callable[[Definition], tuple[tuple[Space, ...], Params]]
"""Returns the Triton spaces of a definition, and the incumbent's point in the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberFormat:
    """A number format and its mark in names."""

    dtype: DType
    mark: str
    """In names, after the operator: ``_bf16``; float32 has none."""
    size_bytes: int
    languages: tuple[Language, ...]

    def tensor(self, *shape: str, weight: bool = False) -> TensorSpec:
        return TensorSpec(shape=shape, dtype=self.dtype, constant=weight)


FLOAT32 = NumberFormat(
    dtype=DType.FLOAT32,
    mark="",
    size_bytes=4,
    languages=(Language.CPU_CPP, Language.TRITON),
)
BFLOAT16 = NumberFormat(
    dtype=DType.BFLOAT16, mark="_bf16", size_bytes=2, languages=(Language.TRITON,)
)
FLOAT16 = NumberFormat(
    dtype=DType.FLOAT16, mark="_fp16", size_bytes=2, languages=(Language.TRITON,)
)
FORMS = (FLOAT32, BFLOAT16, FLOAT16)


@cache
def rounding(form: NumberFormat, make: Make) -> Make:
    """Return a maker whose float32 tensors come in another format; the same one on every call."""
    if form is FLOAT32:
        return make
    target = numpy_dtype(form.tensor())

    def rounded(lengths: dict[str, int], rng: np.random.Generator, family: str) -> dict[str, Array]:
        made = make(lengths, rng, family)
        with np.errstate(over="ignore"):
            return {
                name: array.astype(target) if array.dtype == np.float32 else array
                for name, array in made.items()
            }

    return rounded


@cache
def costing(
    form: NumberFormat, cost: Callable[[dict[str, int], float], Cost]
) -> Callable[[dict[str, int]], Cost]:
    def at(lengths: dict[str, int]) -> Cost:
        return cost(lengths, float(form.size_bytes))

    return at


def implemented(
    form: NumberFormat,
    definition: Definition,
    *,
    cpp: tuple[Space, ...],
    incumbent: Params,
    triton: Triton,
) -> tuple[tuple[Space, ...], Solution]:
    """Return spaces and incumbent in a format's first language.

    `cpp` and `triton` are the structures per language; the first of `cpp` is the incumbent's,
    `incumbent` is its point.
    """
    if form.languages[0] is Language.CPU_CPP:
        return cpp, build_solution(definition, cpp[0], incumbent)
    spaces, point = triton(definition)
    fitted = tuple(fitting(space, definition) for space in spaces)
    return fitted, build_solution(definition, spaces[0], point)
