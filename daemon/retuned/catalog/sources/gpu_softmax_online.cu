// Softmax: a block a row, read twice; every thread keeps the maximum and the sum of what it saw.
#include "retuned_device.h"

// Adds one number to a sum of exponentials relative to the largest number so far.
__device__ __forceinline__ void take(float value, float& most, float& sum) {
  if (value > most) {
    sum = sum * expf(most - value) + 1.0f;
    most = value;
  } else if (value > -infinity()) {
    sum += expf(value - most);
  }
}

extern "C" __global__ void __launch_bounds__(BLOCK_X)
softmax_online(const TYPE* __restrict__ x, TYPE* __restrict__ y, index_t M, index_t N) {
  __shared__ float room[WARPS_PER_BLOCK];
  const TYPE* from = x + block_x() * N;
  TYPE* to = y + block_x() * N;
  const index_t vectors = N % VEC == 0 ? N / VEC : 0;  // else rows do not begin where vectors may
  float own = -infinity(), sum = 0.0f;
  for (index_t at = thread_x(); at < vectors; at += BLOCK_X) {
    const vec<TYPE, VEC> held = load_vec<VEC>(from + at * VEC);
#pragma unroll
    for (int e = 0; e < VEC; e++) take(to_float(held.at[e]), own, sum);
  }
  for (index_t at = vectors * VEC + thread_x(); at < N; at += BLOCK_X)
    take(to_float(from[at]), own, sum);
  const float most = block_max(own, room);
  const float share = own > -infinity() ? sum * expf(own - most) : 0.0f;
  const float scale = 1.0f / block_sum(share, room);
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
