"""A lab in small over the catalog's linear layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from retuned import catalog
from retuned.contract import Language, Solution, SourceFile
from retuned.lab.subject import KernelUnderTest

LINEAR = "linear_w8_n32_k64"
SOURCE = """#include <cstdint>
extern "C" void kernel(void* const* tensors, const int64_t* axes, void* scratch, int64_t part,
                       int64_t parts) {
  const float* x = (const float*)tensors[0];
  const int8_t* w = (const int8_t*)tensors[1];
  const float* scale = (const float*)tensors[2];
  float* y = (float*)tensors[3];
  const int64_t M = axes[0], N = axes[1], K = axes[2];
  for (int64_t m = M * part / parts; m < M * (part + 1) / parts; ++m)
    for (int64_t n = 0; n < N; ++n) {
      float sum = 0;
      for (int64_t k = 0; k < K; ++k) sum += x[m * K + k] * (float)w[n * K + k];
      y[m * N + n] = sum * scale[n];
    }
}
"""


@pytest.fixture(scope="session")
def subject() -> KernelUnderTest:
    return catalog.get(LINEAR)


@pytest.fixture(scope="session")
def make() -> Callable[..., Solution]:
    """Make a variant of an honest linear layer; text may be replaced in its source."""

    def build(old: str = "", new: str = "", **more: Any) -> Solution:
        assert old in SOURCE
        body = {
            "name": "variant",
            "definition": LINEAR,
            "language": Language.CPU_CPP,
            "entry": "kernel",
            "sources": (SourceFile(path="kernel.cpp", content=SOURCE.replace(old, new)),),
            "structure": "plain",
        }
        return Solution.model_validate({**body, **more})

    return build
