// rope, structure heads: one head of one token after another; cosines and sines are read again for each.
#include "vec.h"

namespace {

constexpr int STEPS = UNROLL;

INLINE void turn(const float* in, float* out, const float* cosine, int64_t half) {
  const float* sine = cosine + half;
  int64_t i = 0;
#pragma GCC unroll STEPS
  for (; i + LANES <= half; i += LANES) {
    const vf a = load(in + i), b = load(in + half + i), c = load(cosine + i), s = load(sine + i);
    store(out + i, a * c - b * s);
    store(out + half + i, b * c + a * s);
  }
  if (i < half) {
    const int64_t n = half - i;
    const vf a = load_part(in + i, n), b = load_part(in + half + i, n);
    const vf c = load_part(cosine + i, n), s = load_part(sine + i, n);
    store_part(out + i, a * c - b * s, n);
    store_part(out + half + i, b * c + a * s, n);
  }
}

}  // namespace

extern "C" void rope_heads(void* const* tensors, const int64_t* axes, void*, int64_t part,
                           int64_t parts) {
  const int64_t* positions = static_cast<const int64_t*>(tensors[0]);
  const float* q = static_cast<const float*>(tensors[1]);
  const float* k = static_cast<const float*>(tensors[2]);
  const float* cache = static_cast<const float*>(tensors[3]);
  float* q_out = static_cast<float*>(tensors[4]);
  float* k_out = static_cast<float*>(tensors[5]);
  const int64_t M = axes[0], Q = axes[2], K = axes[3], D = axes[4], heads = Q + K;
  const int64_t end = share(M * heads, 1, part + 1, parts);
  for (int64_t t = share(M * heads, 1, part, parts); t < end; ++t) {
    const int64_t m = t / heads, head = t % heads;
    const float* angles = cache + positions[m] * D;
    if (head < Q)
      turn(q + (m * Q + head) * D, q_out + (m * Q + head) * D, angles, D / 2);
    else
      turn(k + (m * K + head - Q) * D, k_out + (m * K + head - Q) * D, angles, D / 2);
  }
}
