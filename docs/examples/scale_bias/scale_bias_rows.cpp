// ROWS rows at a time: scale and bias are loaded once for all of them.
#include <cstdint>

extern "C" void scale_bias_rows(void* const* tensors, const int64_t* axes, void*, int64_t part,
                                int64_t parts) {
  const float* x = (const float*)tensors[0];
  const float* residual = (const float*)tensors[1];
  const float* scale = (const float*)tensors[2];
  const float* bias = (const float*)tensors[3];
  float* y = (float*)tensors[4];
  const int64_t M = axes[0], H = axes[1], last = M * (part + 1) / parts;
  int64_t m = M * part / parts;
  for (; m + ROWS <= last; m += ROWS) {
    const float *xs = x + m * H, *rs = residual + m * H;
    float* ys = y + m * H;
#pragma omp simd
    for (int64_t h = 0; h < H; ++h) {
      const float s = scale[h], b = bias[h];
      for (int r = 0; r < ROWS; ++r) ys[r * H + h] = xs[r * H + h] + rs[r * H + h] * s + b;
    }
  }
  for (; m < last; ++m) {
#pragma omp simd
    for (int64_t h = 0; h < H; ++h) y[m * H + h] = x[m * H + h] + residual[m * H + h] * scale[h] + bias[h];
  }
}
