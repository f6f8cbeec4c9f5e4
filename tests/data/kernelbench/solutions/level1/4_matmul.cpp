#include <cstdint>

extern "C" void kernel(void* const* tensors, const int64_t*, void*, int64_t part, int64_t parts) {
  const float* left = (const float*)tensors[0];
  const float* right = (const float*)tensors[1];
  float* out = (float*)tensors[2];
  for (int64_t m = 48 * part / parts; m < 48 * (part + 1) / parts; ++m) {
    float sums[96] = {};
    for (int64_t k = 0; k < 256; ++k) {
      const float value = left[m * 256 + k];
#pragma omp simd
      for (int64_t n = 0; n < 96; ++n) sums[n] += value * right[k * 96 + n];
    }
    for (int64_t n = 0; n < 96; ++n) out[m * 96 + n] = sums[n];
  }
}
