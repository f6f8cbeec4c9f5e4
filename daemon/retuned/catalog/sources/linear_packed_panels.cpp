// linear_w8, structure packed-panels: weights arrive as int8 panels (N / P, K, P), so that loads are
// contiguous. Widened in registers inside the tile (STAGE 0: no scratch, one pass over the weights), or
// once per panel into scratch (STAGE 1: K x P floats) where many rows of x share it.
#include "linear_tile.h"

extern "C" void linear_packed_panels(void* const* tensors, const int64_t* axes, void* scratch,
                                     int64_t part, int64_t parts) {
  const float* x = static_cast<const float*>(tensors[0]);
  const int8_t* w = static_cast<const int8_t*>(tensors[1]);
  const float* scale = static_cast<const float*>(tensors[2]);
  float* y = static_cast<float*>(tensors[3]);
  const int64_t M = axes[0], N = axes[1], K = axes[2], end = share(N, P, part + 1, parts);
  for (int64_t n = share(N, P, part, parts); n < end; n += P) {
    const int8_t* packed = w + n * K;
#if STAGE
    float* panel = static_cast<float*>(scratch);
    for (int64_t i = 0; i < K * P; i += LANES) store(panel + i, widen(packed + i));
    panel_times(x, panel, scale + n, y + n, M, N, K, P);
#else
    panel_times(x, packed, scale + n, y + n, M, N, K, P);
#endif
  }
}
