// What both structures of topk_gating end with: the softmax over the chosen logits.
#ifndef RETUNED_TOPK_WEIGHTS_H
#define RETUNED_TOPK_WEIGHTS_H
#include "vec.h"

namespace {

constexpr int MOST = 32;  // experts a token may go to
constexpr float GONE = -__builtin_inff();

// The larger of a logit and the lowest finite number: below every logit there must be room for GONE.
INLINE float raised(float logit) { return logit > LOWEST ? logit : LOWEST; }

// The whole softmax divided by the sum of its chosen parts is the softmax over the chosen alone.
INLINE void weigh(const float* chosen, float* weights, int64_t K) {
  float parts[MOST];
  const vf shift = splat(chosen[0]);
  for (int64_t i = 0; i < K; i += LANES) {
    const int64_t n = K - i < LANES ? K - i : LANES;
    store_part(parts + i, exp_nonpositive(load_part(chosen + i, n) - shift), n);
  }
  float total = 0.0f;
  for (int64_t i = 0; i < K; ++i) total += parts[i];
  for (int64_t i = 0; i < K; ++i) weights[i] = parts[i] / total;
}

}  // namespace
#endif
