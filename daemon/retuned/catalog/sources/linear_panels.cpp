// linear_w8, structure panels: a panel of P weight rows is widened and transposed once into scratch
// (K x P floats), then all rows of x are multiplied with it in register tiles of TILE x P. Pays the
// widening once per panel instead of once per row of x.
#include "linear_tile.h"

namespace {

typedef int8_t b16 __attribute__((vector_size(16)));

INLINE b16 low(b16 a, b16 b) {
  return __builtin_shuffle(a, b, b16{0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23});
}
INLINE b16 high(b16 a, b16 b) {
  return __builtin_shuffle(a, b, b16{8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31});
}

// 16 rows of 16 bytes become 16 columns: four rounds of interleaving row i with row i + 8.
INLINE void transpose16(const int8_t* w, int64_t stride, float* out) {
  b16 a[16], b[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) std::memcpy(&a[i], w + i * stride, 16);
#pragma GCC unroll 4
  for (int round = 0; round < 4; ++round) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      b[2 * i] = low(a[i], a[i + 8]);
      b[2 * i + 1] = high(a[i], a[i + 8]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) a[i] = b[i];
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    int8_t bytes[16];
    std::memcpy(bytes, &a[i], 16);
#pragma GCC unroll 4
    for (int j = 0; j < 16; j += LANES) store(out + i * P + j, widen(bytes + j));
  }
}

void widen_panel(const int8_t* w, float* out, int64_t columns, int64_t K) {
  const int64_t whole_k = K / 16 * 16, whole_n = columns / 16 * 16;
  for (int64_t n = 0; n < whole_n; n += 16)
    for (int64_t k = 0; k < whole_k; k += 16) transpose16(w + n * K + k, K, out + k * P + n);
  for (int64_t n = 0; n < P; ++n)
    for (int64_t k = n < whole_n ? whole_k : 0; k < K; ++k)
      out[k * P + n] = n < columns ? static_cast<float>(w[n * K + k]) : 0.0f;
}

}  // namespace

extern "C" void linear_panels(void* const* tensors, const int64_t* axes, void* scratch, int64_t part,
                              int64_t parts) {
  const float* x = static_cast<const float*>(tensors[0]);
  const int8_t* w = static_cast<const int8_t*>(tensors[1]);
  const float* scale = static_cast<const float*>(tensors[2]);
  float* y = static_cast<float*>(tensors[3]);
  float* panel = static_cast<float*>(scratch);
  const int64_t M = axes[0], N = axes[1], K = axes[2], end = share(N, P, part + 1, parts);
  for (int64_t n = share(N, P, part, parts); n < end; n += P) {
    const int64_t columns = N - n < P ? N - n : P;
    widen_panel(w + n * K, panel, columns, K);
    panel_times(x, panel, scale + n, y + n, M, N, K, columns);
  }
}
