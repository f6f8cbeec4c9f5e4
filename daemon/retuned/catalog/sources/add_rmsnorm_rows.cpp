// add_rmsnorm, structure rows: one row at a time. The sum is written and squared in UNROLL chains, then
// read back, from the first cache, and scaled.
#include "vec.h"

namespace {

constexpr int STEPS = UNROLL;
constexpr float EPSILON = 1e-6f;

INLINE float add(const float* x, const float* residual, float* summed, int64_t H) {
  vf acc[UNROLL] = {};
  int64_t i = 0;
  for (; i + UNROLL * LANES <= H; i += UNROLL * LANES) {
#pragma GCC unroll STEPS
    for (int u = 0; u < UNROLL; ++u) {
      const int64_t at = i + u * LANES;
      const vf v = load(x + at) + load(residual + at);
      store(summed + at, v);
      acc[u] += v * v;
    }
  }
  for (; i < H; i += LANES) {
    const int64_t n = H - i < LANES ? H - i : LANES;
    const vf v = load_part(x + i, n) + load_part(residual + i, n);
    store_part(summed + i, v, n);
    acc[0] += v * v;
  }
#pragma GCC unroll STEPS
  for (int u = 1; u < UNROLL; ++u) acc[0] += acc[u];
  return 1.0f / std::sqrt(sum(acc[0]) / static_cast<float>(H) + EPSILON);
}

}  // namespace

extern "C" void add_rmsnorm_rows(void* const* tensors, const int64_t* axes, void*, int64_t part,
                                 int64_t parts) {
  const float* x = static_cast<const float*>(tensors[0]);
  const float* residual = static_cast<const float*>(tensors[1]);
  const float* weight = static_cast<const float*>(tensors[2]);
  float* y = static_cast<float*>(tensors[3]);
  float* summed = static_cast<float*>(tensors[4]);
  const int64_t M = axes[0], H = axes[1], end = share(M, 1, part + 1, parts);
  for (int64_t m = share(M, 1, part, parts); m < end; ++m) {
    const float* row = summed + m * H;
    float* out = y + m * H;
    const float scale = add(x + m * H, residual + m * H, summed + m * H, H);
    int64_t i = 0;
#pragma GCC unroll STEPS
    for (; i + LANES <= H; i += LANES) store(out + i, load(row + i) * splat(scale) * load(weight + i));
    for (; i < H; ++i) out[i] = row[i] * scale * weight[i];
  }
}
