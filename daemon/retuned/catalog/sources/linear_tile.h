// The register tile that both panel structures multiply with: R rows of x times a panel of P columns.
#ifndef RETUNED_LINEAR_TILE_H
#define RETUNED_LINEAR_TILE_H
#include "vec.h"

namespace {

constexpr int WIDTH = P / LANES;
static_assert(P % LANES == 0, "a panel is whole vectors");

INLINE vf column(const float* b) { return load(b); }
INLINE vf column(const int8_t* b) { return widen(b); }

// out[R][P] (+)= x[R][depth] @ b[depth][P]. Few rows take several k at once, so that enough independent
// chains of additions are in flight.
template <int R, typename B>
INLINE void tile(const float* x, int64_t stride, const B* b, int64_t depth, vf out[][WIDTH]) {
  constexpr int CHAINS = R * WIDTH >= 8 ? 1 : R * WIDTH >= 4 ? 2 : 4;
  vf acc[CHAINS][R][WIDTH] = {};
  int64_t k = 0;
#pragma GCC unroll 2
  for (; k + CHAINS <= depth; k += CHAINS) {
#pragma GCC unroll 4
    for (int c = 0; c < CHAINS; ++c) {
      vf v[WIDTH];
#pragma GCC unroll 16
      for (int j = 0; j < WIDTH; ++j) v[j] = column(b + (k + c) * P + j * LANES);
#pragma GCC unroll 16
      for (int i = 0; i < R; ++i) {
        const vf u = splat(x[i * stride + k + c]);
#pragma GCC unroll 16
        for (int j = 0; j < WIDTH; ++j) acc[c][i][j] += u * v[j];
      }
    }
  }
  for (; k < depth; ++k)
    for (int i = 0; i < R; ++i)
      for (int j = 0; j < WIDTH; ++j)
        acc[0][i][j] += splat(x[i * stride + k]) * column(b + k * P + j * LANES);
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 16
    for (int j = 0; j < WIDTH; ++j) {
      vf s = acc[0][i][j];
#pragma GCC unroll 4
      for (int c = 1; c < CHAINS; ++c) s += acc[c][i][j];
      out[i][j] += s;
    }
}

// A long chain of float additions loses digits: sums run over CHUNK products each and are added up.
template <int R, typename B>
INLINE void chunked(const float* x, int64_t stride, const B* b, int64_t depth, vf out[][WIDTH]) {
  for (int64_t k = 0; k < depth; k += CHUNK)
    tile<R>(x + k, stride, b + k * P, depth - k < CHUNK ? depth - k : CHUNK, out);
}

template <int R, typename B>
__attribute__((noinline)) void rows(const float* x, const B* b, const float* scale, float* y, int64_t N,
                                    int64_t K, int64_t columns) {
  vf out[R][WIDTH] = {};
  chunked<R>(x, K, b, K, out);
  if (columns == P) {
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i)
#pragma GCC unroll 16
      for (int j = 0; j < WIDTH; ++j)
        store(y + i * N + j * LANES, out[i][j] * load(scale + j * LANES));
    return;
  }
  for (int i = 0; i < R; ++i)
    for (int64_t c = 0; c < columns; ++c) y[i * N + c] = out[i][c / LANES][c % LANES] * scale[c];
}

// What is left after whole tiles: fewer rows, one instance each.
template <int R, typename B>
INLINE void rest(int64_t left, const float* x, const B* b, const float* scale, float* y, int64_t N,
                 int64_t K, int64_t columns) {
  if constexpr (R > 0) {
    if (left == R)
      rows<R>(x, b, scale, y, N, K, columns);
    else
      rest<R - 1>(left, x, b, scale, y, N, K, columns);
  }
}

template <typename B>
INLINE void panel_times(const float* x, const B* b, const float* scale, float* y, int64_t M, int64_t N,
                        int64_t K, int64_t columns) {
  int64_t m = 0;
  for (; m + TILE <= M; m += TILE) rows<TILE>(x + m * K, b, scale, y + m * N, N, K, columns);
  rest<TILE - 1>(M - m, x + m * K, b, scale, y + m * N, N, K, columns);
}

}  // namespace
#endif
