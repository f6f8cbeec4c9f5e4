// attention, structure two-pass: one query at a time. Scores of up to KEYS keys go to scratch, then their
// exponentials weigh the values. Reads keys and values once per query: right for one new token. Longer
// histories are taken KEYS at a time and merged.
#include "vec.h"

namespace {

constexpr int WIDTH = HEAD / LANES;
constexpr int GROUP = 4;

struct Query {
  vf sum[WIDTH];
  float top, total;
};

INLINE float dot(const vf* q, const float* k) {
  vf acc = {};
#pragma GCC unroll 16
  for (int j = 0; j < WIDTH; ++j) acc += q[j] * load(k + j * LANES);
  return sum(acc);
}

INLINE void scores(const vf* q, const float* k, int64_t stride, float* p, int64_t n) {
  int64_t s = 0;
#pragma GCC unroll 2
  for (; s + GROUP <= n; s += GROUP) {
    vf acc[GROUP] = {};
#pragma GCC unroll 16
    for (int j = 0; j < WIDTH; ++j) {
#pragma GCC unroll 4
      for (int g = 0; g < GROUP; ++g) acc[g] += q[j] * load(k + (s + g) * stride + j * LANES);
    }
    const f4 four = sums(acc[0], acc[1], acc[2], acc[3]);
    std::memcpy(p + s, &four, sizeof four);
  }
  for (; s < n; ++s) p[s] = dot(q, k + s * stride);
}

// p becomes exp(p - most); returns the sum.
INLINE float weights(float* p, int64_t n, float most) {
  vf total = {};
  int64_t s = 0;
  for (; s + LANES <= n; s += LANES) {
    const vf e = exp_nonpositive(load(p + s) - splat(most));
    store(p + s, e);
    total += e;
  }
  float all = sum(total);
  if (s < n) {
    const vf e = exp_nonpositive(load_part(p + s, n - s) - splat(most));
    store_part(p + s, e, n - s);
    for (int64_t j = 0; j < n - s; ++j) all += e[j];
  }
  return all;
}

INLINE float most_of(const float* p, int64_t n, float most) {
  vf top = splat(most);
  int64_t s = 0;
  for (; s + LANES <= n; s += LANES) top = larger(load(p + s), top);
  most = largest(top);
  for (; s < n; ++s) most = p[s] > most ? p[s] : most;
  return most;
}

INLINE void take(Query& state, const vf* q, const float* k, const float* v, int64_t stride, float* p,
                 int64_t n) {
  scores(q, k, stride, p, n);
  const float most = most_of(p, n, state.top);
  const vf correction = exp_nonpositive(splat(state.top - most));
  state.total = state.total * correction[0] + weights(p, n, most);
  state.top = most;
  vf acc[CHAINS][WIDTH] = {};
#pragma GCC unroll 16
  for (int j = 0; j < WIDTH; ++j) acc[0][j] = state.sum[j] * correction;
  int64_t s = 0;
  for (; s + CHAINS <= n; s += CHAINS) {
#pragma GCC unroll 4
    for (int c = 0; c < CHAINS; ++c) {
      const vf weight = splat(p[s + c]);
#pragma GCC unroll 16
      for (int j = 0; j < WIDTH; ++j) acc[c][j] += weight * load(v + (s + c) * stride + j * LANES);
    }
  }
  for (; s < n; ++s)
    for (int j = 0; j < WIDTH; ++j) acc[0][j] += splat(p[s]) * load(v + s * stride + j * LANES);
#pragma GCC unroll 16
  for (int j = 0; j < WIDTH; ++j) {
    vf all = acc[0][j];
    for (int c = 1; c < CHAINS; ++c) all += acc[c][j];
    state.sum[j] = all;
  }
}

}  // namespace

extern "C" void attention_two_pass(void* const* tensors, const int64_t* axes, void* scratch, int64_t part,
                                   int64_t parts) {
  const float* q = static_cast<const float*>(tensors[0]);
  const float* k = static_cast<const float*>(tensors[1]);
  const float* v = static_cast<const float*>(tensors[2]);
  float* out = static_cast<float*>(tensors[3]);
  float* p = static_cast<float*>(scratch);
  const int64_t T = axes[0], S = axes[1], H = axes[2], stride = H * HEAD;
  const int64_t end = share(H, 1, part + 1, parts);
  for (int64_t h = share(H, 1, part, parts); h < end; ++h) {
    for (int64_t t = 0; t < T; ++t) {
      const int64_t at = t * stride + h * HEAD, seen = S - T + t + 1;
      vf query[WIDTH];
      Query state = {{}, LOWEST, 0.0f};
      for (int j = 0; j < WIDTH; ++j)
        query[j] = load(q + at + j * LANES) * splat(1.0f / std::sqrt(static_cast<float>(HEAD)));
      for (int64_t s = 0; s < seen; s += KEYS)
        take(state, query, k + s * stride + h * HEAD, v + s * stride + h * HEAD, stride, p,
             seen - s < KEYS ? seen - s : KEYS);
      const vf scale = splat(1.0f / state.total);
      for (int j = 0; j < WIDTH; ++j) store(out + at + j * LANES, state.sum[j] * scale);
    }
  }
}
