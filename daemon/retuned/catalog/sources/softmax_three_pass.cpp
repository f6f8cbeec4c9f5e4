// softmax, structure three-pass: maximum; exponentials into y and their sum; scale y. One exponential per
// element, two passes over y.
#include "vec.h"

namespace {

constexpr int STEPS = UNROLL;

INLINE void row(const float* x, float* y, int64_t N) {
  vf top[UNROLL], total[UNROLL] = {};
#pragma GCC unroll STEPS
  for (int u = 0; u < UNROLL; ++u) top[u] = splat(LOWEST);
  const int64_t whole = N / (UNROLL * LANES) * (UNROLL * LANES);
  for (int64_t i = 0; i < whole; i += UNROLL * LANES) {
#pragma GCC unroll STEPS
    for (int u = 0; u < UNROLL; ++u) top[u] = larger(load(x + i + u * LANES), top[u]);
  }
#pragma GCC unroll STEPS
  for (int u = 1; u < UNROLL; ++u) top[0] = larger(top[u], top[0]);
  float most = largest(top[0]);
  for (int64_t i = whole; i < N; ++i) most = x[i] > most ? x[i] : most;

  const vf shift = splat(most);
  for (int64_t i = 0; i < whole; i += UNROLL * LANES) {
#pragma GCC unroll STEPS
    for (int u = 0; u < UNROLL; ++u) {
      const vf e = EXP(load(x + i + u * LANES) - shift);
      store(y + i + u * LANES, e);
      total[u] += e;
    }
  }
#pragma GCC unroll STEPS
  for (int u = 1; u < UNROLL; ++u) total[0] += total[u];
  float all = sum(total[0]);
  for (int64_t i = whole; i < N; i += LANES) {
    const int64_t n = N - i < LANES ? N - i : LANES;
    const vf e = EXP(load_part(x + i, n) - shift);
    store_part(y + i, e, n);
    for (int64_t j = 0; j < n; ++j) all += e[j];
  }
  const float scale = 1.0f / all;
  for (int64_t i = 0; i < whole; i += LANES) store(y + i, load(y + i) * splat(scale));
  for (int64_t i = whole; i < N; ++i) y[i] *= scale;
}

}  // namespace

extern "C" void softmax_three_pass(void* const* tensors, const int64_t* axes, void*, int64_t part,
                                   int64_t parts) {
  const float* x = static_cast<const float*>(tensors[0]);
  float* y = static_cast<float*>(tensors[1]);
  const int64_t M = axes[0], N = axes[1], end = share(M, 1, part + 1, parts);
  for (int64_t m = share(M, 1, part, parts); m < end; ++m) row(x + m * N, y + m * N, N);
}
