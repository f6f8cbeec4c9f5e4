// linear_w8, structure row-dots: each output is one dot of an x row and an int8 weight row, widened in
// registers. ROWS weight rows go together so that chains of additions overlap; XROWS rows of x share each
// widened vector. Weights are asked for AHEAD groups of rows early: a row is a stream too short for the
// processor's own prefetcher. Needs no scratch and no other layout.
#include "vec.h"

namespace {

constexpr int STEPS = UNROLL;

template <int R, int X>
INLINE void dots(const float* x, const int8_t* w, const float* scale, float* y, int64_t N, int64_t K) {
  vf acc[R][X] = {};
  int64_t k = 0;
#pragma GCC unroll STEPS
  for (; k + LANES <= K; k += LANES) {
    vf v[X];
#pragma GCC unroll 8
    for (int i = 0; i < X; ++i) v[i] = load(x + i * K + k);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const vf u = widen(w + r * K + k);
      if constexpr (AHEAD > 0) __builtin_prefetch(w + (r + AHEAD * R) * K + k);
#pragma GCC unroll 8
      for (int i = 0; i < X; ++i) acc[r][i] += v[i] * u;
    }
  }
  if (k < K) {
    for (int r = 0; r < R; ++r) {
      const vf u = widen_part(w + r * K + k, K - k);
      for (int i = 0; i < X; ++i) acc[r][i] += load_part(x + i * K + k, K - k) * u;
    }
  }
  for (int i = 0; i < X; ++i)
    for (int r = 0; r < R; ++r) y[i * N + r] = sum(acc[r][i]) * scale[r];
}

template <int R>
INLINE void rows(const float* x, const int8_t* w, const float* scale, float* y, int64_t M, int64_t N,
                 int64_t K) {
  int64_t m = 0;
  for (; m + XROWS <= M; m += XROWS) dots<R, XROWS>(x + m * K, w, scale, y + m * N, N, K);
  for (; m < M; ++m) dots<R, 1>(x + m * K, w, scale, y + m * N, N, K);
}

}  // namespace

extern "C" void linear_row_dots(void* const* tensors, const int64_t* axes, void*, int64_t part,
                                int64_t parts) {
  const float* x = static_cast<const float*>(tensors[0]);
  const int8_t* w = static_cast<const int8_t*>(tensors[1]);
  const float* scale = static_cast<const float*>(tensors[2]);
  float* y = static_cast<float*>(tensors[3]);
  const int64_t M = axes[0], N = axes[1], K = axes[2];
  int64_t n = share(N, ROWS, part, parts);
  const int64_t end = share(N, ROWS, part + 1, parts);
  for (; n + ROWS <= end; n += ROWS) rows<ROWS>(x, w + n * K, scale + n, y + n, M, N, K);
  for (; n < end; ++n) rows<1>(x, w + n * K, scale + n, y + n, M, N, K);
}
