// topk_gating, structure rounds: the largest logit and its first place, K times over a copy of the row from
// which it is then struck out. UNROLL chains, each with its own maximum and place per lane.
#include "topk_weights.h"

namespace {

constexpr int STEPS = UNROLL;

INLINE vi places() {
  int32_t at[LANES];
  for (int i = 0; i < LANES; ++i) at[i] = i;
  vi v;
  std::memcpy(&v, at, sizeof v);
  return v;
}

// The first place of the largest number; `width` is a multiple of UNROLL vectors.
INLINE int32_t first_of_largest(const float* row, int64_t width) {
  vf top[UNROLL];
  vi at[UNROLL], now = places();
#pragma GCC unroll STEPS
  for (int u = 0; u < UNROLL; ++u) {
    top[u] = splat(GONE);
    at[u] = now;
  }
  for (int64_t i = 0; i < width; i += UNROLL * LANES) {
#pragma GCC unroll STEPS
    for (int u = 0; u < UNROLL; ++u) {
      const vf v = load(row + i + u * LANES);
      const vi more = v > top[u];
      top[u] = more ? v : top[u];
      at[u] = more ? now : at[u];
      now += LANES;
    }
  }
  float most = GONE;
  int32_t first = 0;
  for (int u = 0; u < UNROLL; ++u)
    for (int l = 0; l < LANES; ++l)
      if (top[u][l] > most || (top[u][l] == most && at[u][l] < first)) {
        most = top[u][l];
        first = at[u][l];
      }
  return first;
}

}  // namespace

extern "C" void topk_gating_rounds(void* const* tensors, const int64_t* axes, void* scratch,
                                   int64_t part, int64_t parts) {
  const float* logits = static_cast<const float*>(tensors[0]);
  float* weights = static_cast<float*>(tensors[1]);
  int32_t* ids = static_cast<int32_t*>(tensors[2]);
  float* row = static_cast<float*>(scratch);
  const int64_t M = axes[0], E = axes[1], K = axes[2], end = share(M, 1, part + 1, parts);
  const int64_t width = (E + UNROLL * LANES - 1) / (UNROLL * LANES) * (UNROLL * LANES);
  for (int64_t m = share(M, 1, part, parts); m < end; ++m) {
    float chosen[MOST];
    for (int64_t i = 0; i < E; ++i) row[i] = raised(logits[m * E + i]);
    for (int64_t i = E; i < width; ++i) row[i] = GONE;
    for (int64_t k = 0; k < K; ++k) {
      const int32_t at = first_of_largest(row, width);
      ids[m * K + k] = at;
      chosen[k] = row[at];
      row[at] = GONE;
    }
    weigh(chosen, weights + m * K, K);
  }
}
