// rmsnorm, structure rows: one row at a time, a sum of squares in UNROLL chains, then a second pass that
// scales. The row stays in the first cache between the passes.
#include "vec.h"

namespace {

constexpr int STEPS = UNROLL;
constexpr float EPSILON = 1e-6f;

INLINE float scale_of(const float* x, int64_t H) {
  vf acc[UNROLL] = {};
  int64_t i = 0;
  for (; i + UNROLL * LANES <= H; i += UNROLL * LANES) {
#pragma GCC unroll STEPS
    for (int u = 0; u < UNROLL; ++u) {
      const vf v = load(x + i + u * LANES);
      acc[u] += v * v;
    }
  }
  for (; i < H; i += LANES) {
    const vf v = i + LANES <= H ? load(x + i) : load_part(x + i, H - i);
    acc[0] += v * v;
  }
#pragma GCC unroll STEPS
  for (int u = 1; u < UNROLL; ++u) acc[0] += acc[u];
  return 1.0f / std::sqrt(sum(acc[0]) / static_cast<float>(H) + EPSILON);
}

}  // namespace

extern "C" void rmsnorm_rows(void* const* tensors, const int64_t* axes, void*, int64_t part,
                             int64_t parts) {
  const float* x = static_cast<const float*>(tensors[0]);
  const float* weight = static_cast<const float*>(tensors[1]);
  float* y = static_cast<float*>(tensors[2]);
  const int64_t M = axes[0], H = axes[1], end = share(M, 1, part + 1, parts);
  for (int64_t m = share(M, 1, part, parts); m < end; ++m) {
    const float* row = x + m * H;
    float* out = y + m * H;
    const float scale = scale_of(row, H);
    int64_t i = 0;
#pragma GCC unroll STEPS
    for (; i + LANES <= H; i += LANES) store(out + i, load(row + i) * splat(scale) * load(weight + i));
    for (; i < H; ++i) out[i] = row[i] * scale * weight[i];
  }
}
