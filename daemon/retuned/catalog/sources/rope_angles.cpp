// rope, structure angles: a vector of cosines and sines of a token stays in registers while all of its heads
// are turned by it.
#include "vec.h"

namespace {

constexpr int STEPS = UNROLL;

INLINE void turn(const float* in, float* out, int64_t heads, int64_t D, vf c, vf s) {
#pragma GCC unroll STEPS
  for (int64_t h = 0; h < heads; ++h) {
    const vf a = load(in + h * D), b = load(in + h * D + D / 2);
    store(out + h * D, a * c - b * s);
    store(out + h * D + D / 2, b * c + a * s);
  }
}

INLINE void turn_part(const float* in, float* out, int64_t heads, int64_t D, vf c, vf s, int64_t n) {
  for (int64_t h = 0; h < heads; ++h) {
    const vf a = load_part(in + h * D, n), b = load_part(in + h * D + D / 2, n);
    store_part(out + h * D, a * c - b * s, n);
    store_part(out + h * D + D / 2, b * c + a * s, n);
  }
}

}  // namespace

extern "C" void rope_angles(void* const* tensors, const int64_t* axes, void*, int64_t part,
                            int64_t parts) {
  const int64_t* positions = static_cast<const int64_t*>(tensors[0]);
  const float* q = static_cast<const float*>(tensors[1]);
  const float* k = static_cast<const float*>(tensors[2]);
  const float* cache = static_cast<const float*>(tensors[3]);
  float* q_out = static_cast<float*>(tensors[4]);
  float* k_out = static_cast<float*>(tensors[5]);
  const int64_t M = axes[0], Q = axes[2], K = axes[3], D = axes[4], half = D / 2;
  const int64_t end = share(M, 1, part + 1, parts);
  for (int64_t m = share(M, 1, part, parts); m < end; ++m) {
    const float *cosine = cache + positions[m] * D, *sine = cosine + half;
    const float *from_q = q + m * Q * D, *from_k = k + m * K * D;
    float *to_q = q_out + m * Q * D, *to_k = k_out + m * K * D;
    int64_t i = 0;
    for (; i + LANES <= half; i += LANES) {
      const vf c = load(cosine + i), s = load(sine + i);
      turn(from_q + i, to_q + i, Q, D, c, s);
      turn(from_k + i, to_k + i, K, D, c, s);
    }
    if (i < half) {
      const int64_t n = half - i;
      const vf c = load_part(cosine + i, n), s = load_part(sine + i, n);
      turn_part(from_q + i, to_q + i, Q, D, c, s, n);
      turn_part(from_k + i, to_k + i, K, D, c, s, n);
    }
  }
}
