// ---
// shapes: [{M: 1}, {M: 64}]
// ---
// A candidate for `retuned validate candidate.cpp --definition scale_bias.yaml`: four rows at a time, and
// rows that are left over by fours are written out.
#include <cstdint>

extern "C" void kernel(void* const* tensors, const int64_t* axes, void*, int64_t part,
                       int64_t parts) {
  const float* x = (const float*)tensors[0];
  const float* residual = (const float*)tensors[1];
  const float* scale = (const float*)tensors[2];
  const float* bias = (const float*)tensors[3];
  float* y = (float*)tensors[4];
  const int64_t M = axes[0], H = axes[1], last = M * (part + 1) / parts;
  for (int64_t m = M * part / parts; m < last; m += 4) {
    const int64_t rows = last - m < 4 ? last - m : 4;
    for (int64_t r = m; r < m + rows; ++r)
#pragma omp simd
      for (int64_t h = 0; h < H; ++h) y[r * H + h] = x[r * H + h] + residual[r * H + h] * scale[h] + bias[h];
  }
}
