#include <cstdint>

extern "C" void kernel(void* const* tensors, const int64_t*, void*, int64_t part, int64_t parts) {
  const int64_t* ids = (const int64_t*)tensors[0];
  const float* table = (const float*)tensors[1];
  const float* weight = (const float*)tensors[2];
  const float* bias = (const float*)tensors[3];
  float* out = (float*)tensors[4];
  for (int64_t m = 40 * part / parts; m < 40 * (part + 1) / parts; ++m) {
    const float* row = table + ids[m] * 64;
    for (int64_t n = 0; n < 32; ++n) {
      float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
      for (int64_t k = 0; k < 64; ++k) sum += row[k] * weight[n * 64 + k];
      out[m * 32 + n] = sum + bias[n] > 0.0f ? sum + bias[n] : 0.0f;
    }
  }
}
