// Root mean square normalisation: a block a row, read twice; the second time it is in the cache.
#include "retuned_device.h"

extern "C" __global__ void __launch_bounds__(BLOCK_X)
rmsnorm_block(const TYPE* __restrict__ x, const TYPE* __restrict__ weight, TYPE* __restrict__ y,
              index_t M, index_t H) {
  __shared__ float room[WARPS_PER_BLOCK];
  const TYPE* from = x + block_x() * H;
  TYPE* to = y + block_x() * H;
  const index_t vectors = H % VEC == 0 ? H / VEC : 0;  // else rows do not begin where vectors may
  float squares = 0.0f;
  for (index_t at = thread_x(); at < vectors; at += BLOCK_X) {
    const vec<TYPE, VEC> held = load_vec<VEC>(from + at * VEC);
#pragma unroll
    for (int e = 0; e < VEC; e++) {
      const float value = to_float(held.at[e]);
      squares = fmaf(value, value, squares);
    }
  }
  for (index_t at = vectors * VEC + thread_x(); at < H; at += BLOCK_X) {
    const float value = to_float(from[at]);
    squares = fmaf(value, value, squares);
  }
  const float scale = 1.0f / sqrtf(block_sum(squares, room) / (float)H + 1e-6f);
  for (index_t at = thread_x(); at < vectors; at += BLOCK_X) {
    vec<TYPE, VEC> held = load_vec<VEC>(from + at * VEC);
    const vec<TYPE, VEC> gain = load_vec<VEC>(weight + at * VEC);
#pragma unroll
    for (int e = 0; e < VEC; e++)
      held.at[e] = from_float<TYPE>(to_float(held.at[e]) * scale * to_float(gain.at[e]));
    store_vec(to + at * VEC, held);
  }
  for (index_t at = vectors * VEC + thread_x(); at < H; at += BLOCK_X)
    to[at] = from_float<TYPE>(to_float(from[at]) * scale * to_float(weight[at]));
}
