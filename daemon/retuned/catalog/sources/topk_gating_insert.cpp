// topk_gating, structure insert: one pass over the row with a sorted list of the best K so far. A block of
// UNROLL vectors is looked into only if one of its logits beats the last of the list.
#include "topk_weights.h"

namespace {

constexpr int STEPS = UNROLL;

struct List {
  float top[MOST];
  int32_t at[MOST];
};

// An equal logit stays behind those before it: of equals, the lowest place is chosen first.
INLINE void insert(List& list, int64_t K, float logit, int32_t place) {
  if (!(logit > list.top[K - 1])) return;
  int64_t k = K - 1;
  for (; k > 0 && logit > list.top[k - 1]; --k) {
    list.top[k] = list.top[k - 1];
    list.at[k] = list.at[k - 1];
  }
  list.top[k] = logit;
  list.at[k] = place;
}

}  // namespace

extern "C" void topk_gating_insert(void* const* tensors, const int64_t* axes, void*, int64_t part,
                                   int64_t parts) {
  const float* logits = static_cast<const float*>(tensors[0]);
  float* weights = static_cast<float*>(tensors[1]);
  int32_t* ids = static_cast<int32_t*>(tensors[2]);
  const int64_t M = axes[0], E = axes[1], K = axes[2], end = share(M, 1, part + 1, parts);
  for (int64_t m = share(M, 1, part, parts); m < end; ++m) {
    const float* row = logits + m * E;
    List list;
    for (int64_t k = 0; k < K; ++k) {
      list.top[k] = GONE;
      list.at[k] = 0;
    }
    int64_t i = 0;
    for (; i + UNROLL * LANES <= E; i += UNROLL * LANES) {
      vf most = load(row + i);
#pragma GCC unroll STEPS
      for (int u = 1; u < UNROLL; ++u) most = larger(load(row + i + u * LANES), most);
      if (!(raised(largest(most)) > list.top[K - 1])) continue;
      for (int64_t j = i; j < i + UNROLL * LANES; ++j)
        insert(list, K, raised(row[j]), static_cast<int32_t>(j));
    }
    for (; i < E; ++i) insert(list, K, raised(row[i]), static_cast<int32_t>(i));
    weigh(list.top, weights + m * K, K);
    for (int64_t k = 0; k < K; ++k) ids[m * K + k] = list.at[k];
  }
}
