// Forgets the row's peak: wrong as soon as numbers are large.
#include <cmath>
#include <cstdint>

extern "C" void kernel(void* const* tensors, const int64_t*, void*, int64_t part, int64_t parts) {
  const float* x = (const float*)tensors[0];
  float* out = (float*)tensors[1];
  for (int64_t m = 48 * part / parts; m < 48 * (part + 1) / parts; ++m) {
    float sum = 0.0f;
    for (int64_t n = 0; n < 700; ++n) sum += out[m * 700 + n] = std::exp(x[m * 700 + n]);
    for (int64_t n = 0; n < 700; ++n) out[m * 700 + n] /= sum;
  }
}
