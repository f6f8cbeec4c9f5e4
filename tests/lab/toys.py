"""A small subject of the tests' own: a float32 linear, with honest sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from retuned.contract import (
    AxisConst,
    AxisVar,
    Definition,
    DType,
    Language,
    Solution,
    SourceFile,
    TensorSpec,
)

Array = npt.NDArray[Any]

HEAD = """#include <cmath>
#include <cstdint>
#include <cstring>
static inline int64_t share(int64_t n, int64_t part, int64_t parts) { return n * part / parts; }
"""
SIGNATURE = (
    'extern "C" void kernel(void* const* tensors, const int64_t* axes, void* scratch,\n'
    "                       int64_t part, int64_t parts)"
)
LINEAR_VARIABLES = """
  const float* x = (const float*)tensors[0];
  const float* w = (const float*)tensors[1];
  float* y = (float*)tensors[2];
  const int64_t M = axes[0], N = axes[1], K = axes[2];
"""
LINEAR_ROW_DOTS = (
    HEAD
    + SIGNATURE
    + "{"
    + LINEAR_VARIABLES
    + """
  for (int64_t m = share(M, part, parts); m < share(M, part + 1, parts); ++m)
    for (int64_t n = 0; n < N; ++n) {
      float sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t k = 0; k < K; ++k) sum += x[m * K + k] * w[n * K + k];
      y[m * N + n] = sum;
    }
}
"""
)
LINEAR_TRANSPOSED = (
    HEAD
    + SIGNATURE
    + "{"
    + LINEAR_VARIABLES
    + """
  for (int64_t m = share(M, part, parts); m < share(M, part + 1, parts); ++m) {
    float* out = y + m * N;
    for (int64_t n = 0; n < N; ++n) out[n] = 0;
    for (int64_t k = 0; k < K; ++k) {
      const float a = x[m * K + k];
      const float* b = w + k * N;
#pragma omp simd
      for (int64_t n = 0; n < N; ++n) out[n] += a * b[n];
    }
  }
}
"""
)
LINEAR_SCALAR = (
    HEAD
    + SIGNATURE
    + "{"
    + LINEAR_VARIABLES
    + """
  for (int64_t m = share(M, part, parts); m < share(M, part + 1, parts); ++m)
    for (int64_t n = 0; n < N; ++n) {
      float sum = 0;
      for (int64_t k = 0; k < K; ++k) sum += x[m * K + k] * w[n * K + k];
      y[m * N + n] = sum;
    }
}
"""
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """y = x @ w.T in float32."""

    outputs: int = 96
    depth: int = 128
    families: tuple[str, ...] = ("randn", "exact-integer", "outlier", "randn-large", "planted-nan")

    @property
    def definition(self) -> Definition:
        return Definition(
            name="linear_test",
            op_type="linear",
            axes={
                "M": AxisVar(),
                "N": AxisConst(value=self.outputs),
                "K": AxisConst(value=self.depth),
            },
            inputs={
                "x": TensorSpec(shape=("M", "K"), dtype=DType.FLOAT32),
                "w": TensorSpec(shape=("N", "K"), dtype=DType.FLOAT32, constant=True),
            },
            outputs={"y": TensorSpec(shape=("M", "N"), dtype=DType.FLOAT32)},
            reference="def run(x, w):\n    return {'y': x @ w.T}\n",
        )

    def reference(self, inputs: dict[str, Array], axes: Mapping[str, int]) -> dict[str, Array]:
        with np.errstate(invalid="ignore", over="ignore"):
            return {"y": inputs["x"].astype(np.float64) @ inputs["w"].astype(np.float64).T}

    def inputs(self, axes: Mapping[str, int], *, seed: int, family: str) -> dict[str, Array]:
        random = np.random.default_rng(seed)
        shape, weight = (axes["M"], self.depth), (self.outputs, self.depth)
        x: Array = random.standard_normal(shape)
        w: Array = random.standard_normal(weight)
        if family == "exact-integer":
            x, w = random.integers(-8, 9, shape) * 1.0, random.integers(-8, 9, weight) * 1.0
        elif family == "outlier":
            x[:, random.integers(0, self.depth)] *= 100.0
        elif family == "randn-large":
            x *= 1e3
        elif family == "planted-nan":
            x[random.integers(0, axes["M"]), random.integers(0, self.depth)] = np.nan
        return {"x": x.astype(np.float32), "w": w.astype(np.float32)}


def linear(
    body: str,
    *,
    name: str = "candidate",
    layouts: dict[str, str] | None = None,
    params: dict[str, int | str] | None = None,
    scratch_bytes: int = 0,
) -> Solution:
    """A solution for `Linear` from a whole source text."""
    return Solution(
        name=name,
        definition="linear_test",
        language=Language.CPU_CPP,
        entry="kernel",
        sources=(SourceFile(path="kernel.cpp", content=body),),
        structure="test",
        layouts=layouts or {},
        params=params or {},
        scratch_bytes=scratch_bytes,
    )
