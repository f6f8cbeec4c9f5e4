// layernorm, structure shifted: one pass sums what is left of each element, and its square, after a value
// from the row's start has been taken off; a second pass writes. Sums of squares around zero would lose all
// digits in rows far from zero; around a value of the row itself they keep them.
#include "vec.h"

namespace {

constexpr int STEPS = UNROLL;
constexpr float EPSILON = 1e-5f;

// The mean of up to LANES first elements: one odd element alone must not decide.
INLINE float pivot_of(const float* x, int64_t H) {
  const int64_t n = H < LANES ? H : LANES;
  return sum(load_part(x, n)) / static_cast<float>(n);
}

INLINE void row(const float* x, const float* weight, const float* bias, float* y, int64_t H) {
  const float pivot = pivot_of(x, H);
  vf first[UNROLL] = {}, second[UNROLL] = {};
  int64_t i = 0;
  for (; i + UNROLL * LANES <= H; i += UNROLL * LANES) {
#pragma GCC unroll STEPS
    for (int u = 0; u < UNROLL; ++u) {
      const vf v = load(x + i + u * LANES) - splat(pivot);
      first[u] += v;
      second[u] += v * v;
    }
  }
#pragma GCC unroll STEPS
  for (int u = 1; u < UNROLL; ++u) {
    first[0] += first[u];
    second[0] += second[u];
  }
  float total = sum(first[0]), squares = sum(second[0]);
  for (; i < H; ++i) {
    const float v = x[i] - pivot;
    total += v;
    squares += v * v;
  }
  const float length = static_cast<float>(H), mean = total / length;
  const float left = squares / length - mean * mean, variance = left < 0.0f ? 0.0f : left;
  const float scale = 1.0f / std::sqrt(variance + EPSILON);
  i = 0;
#pragma GCC unroll STEPS
  for (; i + LANES <= H; i += LANES) {
    const vf v = load(x + i) - splat(pivot) - splat(mean);
    store(y + i, v * splat(scale) * load(weight + i) + load(bias + i));
  }
  for (; i < H; ++i) y[i] = (x[i] - pivot - mean) * scale * weight[i] + bias[i];
}

}  // namespace

extern "C" void layernorm_shifted(void* const* tensors, const int64_t* axes, void*, int64_t part,
                                  int64_t parts) {
  const float* x = static_cast<const float*>(tensors[0]);
  const float* weight = static_cast<const float*>(tensors[1]);
  const float* bias = static_cast<const float*>(tensors[2]);
  float* y = static_cast<float*>(tensors[3]);
  const int64_t M = axes[0], H = axes[1], end = share(M, 1, part + 1, parts);
  for (int64_t m = share(M, 1, part, parts); m < end; ++m) row(x + m * H, weight, bias, y + m * H, H);
}
