// One row after the other, as one writes it first.
#include <cstdint>

extern "C" void scale_bias_plain(void* const* tensors, const int64_t* axes, void*, int64_t part,
                                 int64_t parts) {
  const float* x = (const float*)tensors[0];
  const float* residual = (const float*)tensors[1];
  const float* scale = (const float*)tensors[2];
  const float* bias = (const float*)tensors[3];
  float* y = (float*)tensors[4];
  const int64_t M = axes[0], H = axes[1];
  for (int64_t m = M * part / parts; m < M * (part + 1) / parts; ++m)
    for (int64_t h = 0; h < H; ++h) y[m * H + h] = x[m * H + h] + residual[m * H + h] * scale[h] + bias[h];
}
