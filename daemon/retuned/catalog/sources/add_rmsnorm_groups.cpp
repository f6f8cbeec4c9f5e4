// add_rmsnorm, structure row-groups: ROWS rows together, so that their square roots and divisions overlap
// and each vector of the weight is loaded once for all of them.
#include "vec.h"

namespace {

constexpr int GROUP = ROWS;
constexpr float EPSILON = 1e-6f;

template <int R>
INLINE void group(const float* x, const float* residual, const float* weight, float* y, float* summed,
                  int64_t H) {
  vf acc[R] = {};
  int64_t i = 0;
#pragma GCC unroll 2
  for (; i + LANES <= H; i += LANES) {
#pragma GCC unroll GROUP
    for (int r = 0; r < R; ++r) {
      const vf v = load(x + r * H + i) + load(residual + r * H + i);
      store(summed + r * H + i, v);
      acc[r] += v * v;
    }
  }
  const int64_t whole = i;
  float scale[R];
#pragma GCC unroll GROUP
  for (int r = 0; r < R; ++r) {
    float total = sum(acc[r]);
    for (i = whole; i < H; ++i) {
      const float v = x[r * H + i] + residual[r * H + i];
      summed[r * H + i] = v;
      total += v * v;
    }
    scale[r] = 1.0f / std::sqrt(total / static_cast<float>(H) + EPSILON);
  }
#pragma GCC unroll 2
  for (i = 0; i < whole; i += LANES) {
    const vf w = load(weight + i);
#pragma GCC unroll GROUP
    for (int r = 0; r < R; ++r) store(y + r * H + i, load(summed + r * H + i) * splat(scale[r]) * w);
  }
  for (; i < H; ++i)
    for (int r = 0; r < R; ++r) y[r * H + i] = summed[r * H + i] * scale[r] * weight[i];
}

}  // namespace

extern "C" void add_rmsnorm_groups(void* const* tensors, const int64_t* axes, void*, int64_t part,
                                   int64_t parts) {
  const float* x = static_cast<const float*>(tensors[0]);
  const float* residual = static_cast<const float*>(tensors[1]);
  const float* weight = static_cast<const float*>(tensors[2]);
  float* y = static_cast<float*>(tensors[3]);
  float* summed = static_cast<float*>(tensors[4]);
  const int64_t M = axes[0], H = axes[1], end = share(M, ROWS, part + 1, parts);
  int64_t m = share(M, ROWS, part, parts);
  for (; m + ROWS <= end; m += ROWS)
    group<ROWS>(x + m * H, residual + m * H, weight, y + m * H, summed + m * H, H);
  for (; m < end; ++m) group<1>(x + m * H, residual + m * H, weight, y + m * H, summed + m * H, H);
}
