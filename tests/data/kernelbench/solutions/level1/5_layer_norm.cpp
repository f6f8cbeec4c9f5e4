#include <cmath>
#include <cstdint>

extern "C" void kernel(void* const* tensors, const int64_t*, void*, int64_t part, int64_t parts) {
  const float* x = (const float*)tensors[0];
  const float* scale = (const float*)tensors[1];
  const float* shift = (const float*)tensors[2];
  float* out = (float*)tensors[3];
  for (int64_t m = 64 * part / parts; m < 64 * (part + 1) / parts; ++m) {
    const float* row = x + m * 384;
    float sum = 0.0f, squares = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t n = 0; n < 384; ++n) sum += row[n];
    const float mean = sum / 384.0f;
#pragma omp simd reduction(+ : squares)
    for (int64_t n = 0; n < 384; ++n) squares += (row[n] - mean) * (row[n] - mean);
    const float over = 1.0f / std::sqrt(squares / 384.0f + 1e-5f);
#pragma omp simd
    for (int64_t n = 0; n < 384; ++n) out[m * 384 + n] = (row[n] - mean) * over * scale[n] + shift[n];
  }
}
