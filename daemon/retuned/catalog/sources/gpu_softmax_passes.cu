// Softmax: a block a row, read three times; for its maximum, for the sum, and to write.
#include "retuned_device.h"

extern "C" __global__ void __launch_bounds__(BLOCK_X)
softmax_passes(const TYPE* __restrict__ x, TYPE* __restrict__ y, index_t M, index_t N) {
  __shared__ float room[WARPS_PER_BLOCK];
  const TYPE* from = x + block_x() * N;
  TYPE* to = y + block_x() * N;
  const index_t vectors = N % VEC == 0 ? N / VEC : 0;  // else rows do not begin where vectors may
  float most = -infinity();
  for (index_t at = thread_x(); at < vectors; at += BLOCK_X) {
    const vec<TYPE, VEC> held = load_vec<VEC>(from + at * VEC);
#pragma unroll
    for (int e = 0; e < VEC; e++) most = fmaxf(most, to_float(held.at[e]));
  }
  for (index_t at = vectors * VEC + thread_x(); at < N; at += BLOCK_X)
    most = fmaxf(most, to_float(from[at]));
  most = block_max(most, room);
  float sum = 0.0f;
  for (index_t at = thread_x(); at < vectors; at += BLOCK_X) {
    const vec<TYPE, VEC> held = load_vec<VEC>(from + at * VEC);
#pragma unroll
    for (int e = 0; e < VEC; e++) sum += expf(to_float(held.at[e]) - most);
  }
  for (index_t at = vectors * VEC + thread_x(); at < N; at += BLOCK_X)
    sum += expf(to_float(from[at]) - most);
  const float scale = 1.0f / block_sum(sum, room);
  for (index_t at = thread_x(); at < vectors; at += BLOCK_X) {
    vec<TYPE, VEC> held = load_vec<VEC>(from + at * VEC);
#pragma unroll
    for (int e = 0; e < VEC; e++)
      held.at[e] = from_float<TYPE>(expf(to_float(held.at[e]) - most) * scale);
    store_vec(to + at * VEC, held);
  }
  for (index_t at = vectors * VEC + thread_x(); at < N; at += BLOCK_X)
    to[at] = from_float<TYPE>(expf(to_float(from[at]) - most) * scale);
}
