// softmax, structure online: one pass keeps a maximum and a sum per lane, corrected once per UNROLL
// vectors; a second pass writes. Two exponentials per element, y is written once and never read.
#include "vec.h"

namespace {

constexpr int STEPS = UNROLL;

INLINE void row(const float* x, float* y, int64_t N) {
  vf top = splat(LOWEST), total = {};
  const int64_t whole = N / (UNROLL * LANES) * (UNROLL * LANES);
  for (int64_t i = 0; i < whole; i += UNROLL * LANES) {
    vf v[UNROLL], next = top, block = {};
#pragma GCC unroll STEPS
    for (int u = 0; u < UNROLL; ++u) {
      v[u] = load(x + i + u * LANES);
      next = larger(v[u], next);
    }
#pragma GCC unroll STEPS
    for (int u = 0; u < UNROLL; ++u) block += EXP(v[u] - next);
    total = total * EXP(top - next) + block;
    top = next;
  }
  float most = largest(top);
  for (int64_t i = whole; i < N; ++i) most = x[i] > most ? x[i] : most;
  const vf shift = splat(most);
  float all = sum(total * EXP(top - shift));
  for (int64_t i = whole; i < N; i += LANES) {
    const int64_t n = N - i < LANES ? N - i : LANES;
    const vf e = EXP(load_part(x + i, n) - shift);
    for (int64_t j = 0; j < n; ++j) all += e[j];
  }
  const vf scale = splat(1.0f / all);
  int64_t i = 0;
#pragma GCC unroll STEPS
  for (; i + LANES <= N; i += LANES) store(y + i, EXP(load(x + i) - shift) * scale);
  if (i < N) store_part(y + i, EXP(load_part(x + i, N - i) - shift) * scale, N - i);
}

}  // namespace

extern "C" void softmax_online(void* const* tensors, const int64_t* axes, void*, int64_t part,
                               int64_t parts) {
  const float* x = static_cast<const float*>(tensors[0]);
  float* y = static_cast<float*>(tensors[1]);
  const int64_t M = axes[0], N = axes[1], end = share(M, 1, part + 1, parts);
  for (int64_t m = share(M, 1, part, parts); m < end; ++m) row(x + m * N, y + m * N, N);
}
