// layernorm, structure passes: mean, then the squares of the deviations, then the output; three reads of a
// row that stays in the first cache. UNROLL chains in the sums.
#include "vec.h"

namespace {

constexpr int STEPS = UNROLL;
constexpr float EPSILON = 1e-5f;

// The sum over a row of (x - mean)^2, or of x where SQUARED is 0.
template <int SQUARED>
INLINE float reduce(const float* x, float mean, int64_t H) {
  vf acc[UNROLL] = {};
  const vf shift = splat(mean);
  int64_t i = 0;
  for (; i + UNROLL * LANES <= H; i += UNROLL * LANES) {
#pragma GCC unroll STEPS
    for (int u = 0; u < UNROLL; ++u) {
      const vf v = load(x + i + u * LANES);
      acc[u] += SQUARED ? (v - shift) * (v - shift) : v;
    }
  }
  for (; i + LANES <= H; i += LANES) {
    const vf v = load(x + i);
    acc[0] += SQUARED ? (v - shift) * (v - shift) : v;
  }
#pragma GCC unroll STEPS
  for (int u = 1; u < UNROLL; ++u) acc[0] += acc[u];
  float total = sum(acc[0]);
  for (; i < H; ++i) total += SQUARED ? (x[i] - mean) * (x[i] - mean) : x[i];
  return total;
}

}  // namespace

extern "C" void layernorm_passes(void* const* tensors, const int64_t* axes, void*, int64_t part,
                                 int64_t parts) {
  const float* x = static_cast<const float*>(tensors[0]);
  const float* weight = static_cast<const float*>(tensors[1]);
  const float* bias = static_cast<const float*>(tensors[2]);
  float* y = static_cast<float*>(tensors[3]);
  const int64_t M = axes[0], H = axes[1], end = share(M, 1, part + 1, parts);
  const float length = static_cast<float>(H);
  for (int64_t m = share(M, 1, part, parts); m < end; ++m) {
    const float* row = x + m * H;
    float* out = y + m * H;
    const float mean = reduce<0>(row, 0.0f, H) / length;
    const float scale = 1.0f / std::sqrt(reduce<1>(row, mean, H) / length + EPSILON);
    int64_t i = 0;
#pragma GCC unroll STEPS
    for (; i + LANES <= H; i += LANES)
      store(out + i, (load(row + i) - splat(mean)) * splat(scale) * load(weight + i) + load(bias + i));
    for (; i < H; ++i) out[i] = (row[i] - mean) * scale * weight[i] + bias[i];
  }
}
