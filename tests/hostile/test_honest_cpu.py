"""Honest variants must pass every gate before timing: a refusal here is a false alarm."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from retuned.contract import Solution
from retuned.stages.verdict import Reason, Status, Verdict

LINEAR = "linear_w8_n48_k96"
START = """#include <cmath>
#include <cstdint>
#include <cstring>
#include <immintrin.h>
template <typename T> static inline T least(T a, T b) { return a < b ? a : b; }
extern "C" void kernel(void* const* tensors, const int64_t* axes, void* scratch, int64_t part,
                       int64_t parts) {
  const float* x = static_cast<const float*>(tensors[0]);
  const int8_t* w = static_cast<const int8_t*>(tensors[1]);
  const float* scale = static_cast<const float*>(tensors[2]);
  float* y = static_cast<float*>(tensors[3]);
  const int64_t M = axes[0], N = axes[1], K = axes[2];
  const int64_t from = M * part / parts, to = M * (part + 1) / parts;
"""
EACH = """
  for (int64_t m = from; m < to; ++m)
    for (int64_t n = 0; n < N; ++n) {
      const float* a = x + m * K;
      const int8_t* b = w + n * K;
      %s
      y[m * N + n] = sum * scale[n];
    }
}
"""
HONEST: dict[str, tuple[str, dict[str, object]]] = {
    "one after the other": (
        EACH % "float sum = 0; for (int64_t k = 0; k < K; ++k) sum += a[k] * b[k];",
        {},
    ),
    "backwards": (EACH % "float sum = 0; for (int64_t k = K; k-- > 0;) sum += a[k] * b[k];", {}),
    "in vectors": (
        EACH % "float sum = 0;\n#pragma omp simd reduction(+ : sum)\n"
        "for (int64_t k = 0; k < K; ++k) sum += a[k] * b[k];",
        {},
    ),
    "even before odd": (
        EACH % "float sum = 0; for (int64_t k = 0; k < K; k += 2) sum += a[k] * b[k];"
        " for (int64_t k = 1; k < K; k += 2) sum += a[k] * b[k];",
        {},
    ),
    "in four chains": (
        EACH % "float s[4] = {}; for (int64_t k = 0; k < K; ++k) s[k % 4] += a[k] * b[k];"
        " float sum = (s[0] + s[1]) + (s[2] + s[3]);",
        {},
    ),
    "in double": (
        EACH % "double sum = 0; for (int64_t k = 0; k < K; ++k) sum += (double)a[k] * b[k];",
        {},
    ),
    "in chunks": (
        EACH % "float sum = 0; for (int64_t c = 0; c < K; c += 32) { float s = 0;"
        " for (int64_t k = c; k < least(c + 32, K); ++k) s += a[k] * b[k]; sum += s; }",
        {},
    ),
    "with the scale inside": (
        EACH.replace("sum * scale[n]", "sum")
        % "float sum = 0; for (int64_t k = 0; k < K; ++k) sum += a[k] * (b[k] * scale[n]);",
        {},
    ),
    "from transposed weights": (
        EACH % "float sum = 0; for (int64_t k = 0; k < K; ++k) sum += a[k] * w[k * N + n];",
        {"layouts": {"wq": "transposed"}},
    ),
    "from panels of sixteen": (
        EACH % "float sum = 0; const int8_t* p = w + n / 16 * K * 16 + n % 16;"
        " for (int64_t k = 0; k < K; ++k) sum += a[k] * p[k * 16];",
        {"layouts": {"wq": "panels-16"}},
    ),
    "through its scratch": (
        EACH % "float* t = (float*)scratch; for (int64_t k = 0; k < K; ++k) t[k] = a[k] * b[k];"
        " float sum = 0; for (int64_t k = 0; k < K; ++k) sum += t[k];",
        {"scratch_bytes": 96 * 4},
    ),
    "on two threads": (
        EACH % "float sum = 0; for (int64_t k = 0; k < K; ++k) sum += a[k] * b[k];",
        {"params": {"THREADS": 2}},
    ),
}


@pytest.mark.parametrize("sentence", HONEST)
def test_an_honest_variant_is_never_called_wrong(
    sentence: str,
    candidate: Callable[..., Solution],
    judged: Callable[..., Verdict],
) -> None:
    body, more = HONEST[sentence]
    verdict = judged(candidate(START + body, definition=LINEAR, **more))
    assert verdict.gate in {"G5", "G6"}, verdict.detail
    assert verdict.reason in {
        Reason.FASTER,
        Reason.SLOWER,
        Reason.NOT_FASTER_ENOUGH,
        Reason.WITHIN_NOISE,
        Reason.LOST_SEARCH,
    }, verdict.detail


def test_a_faster_variant_is_promoted_over_a_slow_incumbent(
    candidate: Callable[..., Solution], judged: Callable[..., Verdict]
) -> None:
    # three serial chains: slow enough that a busy machine cannot hide it
    slow = EACH % (
        "float s[3] = {}; for (int64_t k = K; k-- > 0;) s[0] += a[k] * b[k];"
        " for (int64_t k = 0; k < K; ++k) s[1] += a[k] * b[k];"
        " for (int64_t k = K; k-- > 0;) s[2] += b[k] * a[k];"
        " float sum = (s[0] + s[1] + s[2]) / 3;"
    )
    fast, _ = HONEST["in vectors"]
    incumbent = candidate(START + slow, definition=LINEAR)
    verdict = judged(candidate(START + fast, definition=LINEAR), incumbent=incumbent)
    assert verdict.status is Status.PROMOTE, verdict.detail
    assert verdict.speedup is not None
    assert verdict.noise_floor_ratio is not None
    assert verdict.speedup.lower > max(1.0, verdict.noise_floor_ratio)
    assert verdict.evidence is not None


@pytest.mark.parametrize("extra", [0, 2], ids=["a clone", "two per cent slower"])
def test_a_clone_or_a_small_regression_is_not_promoted(
    extra: int, candidate: Callable[..., Solution], judged: Callable[..., Verdict]
) -> None:
    body, _ = HONEST["in chunks"]
    # a part of what it computes, computed twice: a compiler cannot know that nobody reads it
    again = (
        f"\n  for (int64_t i = 0; i < M * N * {extra} / 100; ++i) {{ float s = 0;"
        " for (int64_t k = 0; k < K; ++k) s += x[i / N * K + k] * w[i % N * K + k]; y[i] = s; }"
    )
    slower = body.replace("\n  for (int64_t m = from;", f"{again}\n  for (int64_t m = from;", 1)
    incumbent = candidate(START + body, definition=LINEAR)
    verdict = judged(candidate(START + slower, definition=LINEAR), incumbent=incumbent)
    assert verdict.status is not Status.PROMOTE, verdict.detail
