// Root mean square normalisation: a block a row, held in registers between its two uses. The row is
// made of whole vectors, at most EACH for every thread.
#include "retuned_device.h"

extern "C" __global__ void __launch_bounds__(BLOCK_X)
rmsnorm_held(const TYPE* __restrict__ x, const TYPE* __restrict__ weight, TYPE* __restrict__ y,
             index_t M, index_t H) {
  __shared__ float room[WARPS_PER_BLOCK];
  const TYPE* from = x + block_x() * H;
  TYPE* to = y + block_x() * H;
  vec<TYPE, VEC> held[EACH];
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < EACH; i++) {
    const index_t at = (index_t)(i * BLOCK_X + thread_x()) * VEC;
    if (at < H) {
      held[i] = load_vec<VEC>(from + at);
#pragma unroll
      for (int e = 0; e < VEC; e++) {
        const float value = to_float(held[i].at[e]);
        squares = fmaf(value, value, squares);
      }
    }
  }
  const float scale = 1.0f / sqrtf(block_sum(squares, room) / (float)H + 1e-6f);
#pragma unroll
  for (int i = 0; i < EACH; i++) {
    const index_t at = (index_t)(i * BLOCK_X + thread_x()) * VEC;
    if (at < H) {
      const vec<TYPE, VEC> gain = load_vec<VEC>(weight + at);
#pragma unroll
      for (int e = 0; e < VEC; e++)
        held[i].at[e] = from_float<TYPE>(to_float(held[i].at[e]) * scale * to_float(gain.at[e]));
      store_vec(to + at, held[i]);
    }
  }
}
