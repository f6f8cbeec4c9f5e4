// GATE(gate, up) over rows of x, whose first half are the gates; defined by the including file.
#ifndef RETUNED_GATED_ROWS_H
#define RETUNED_GATED_ROWS_H
#include "vec.h"

namespace {

constexpr int STEPS = UNROLL;

INLINE void gated_rows(void* const* tensors, const int64_t* axes, int64_t part, int64_t parts) {
  const float* x = static_cast<const float*>(tensors[0]);
  float* y = static_cast<float*>(tensors[1]);
  const int64_t M = axes[0], I = axes[1];
  const bool by_rows = M >= parts;  // few rows are split along their length instead
  const int64_t first = by_rows ? share(M, 1, part, parts) : 0;
  const int64_t last = by_rows ? share(M, 1, part + 1, parts) : M;
  const int64_t begin = by_rows ? 0 : share(I, LANES, part, parts);
  const int64_t end = by_rows ? I : share(I, LANES, part + 1, parts);
  for (int64_t m = first; m < last; ++m) {
    const float *gate = x + m * 2 * I, *up = gate + I;
    float* out = y + m * I;
    int64_t i = begin;
#pragma GCC unroll STEPS
    for (; i + LANES <= end; i += LANES) store(out + i, GATE(load(gate + i), load(up + i)));
    if (i < end) {
      const int64_t n = end - i;
      store_part(out + i, GATE(load_part(gate + i, n), load_part(up + i, n)), n);
    }
  }
}

}  // namespace
#endif
