// attention, structure online: blocks of QUERIES queries stream over blocks of KEYS keys with a running
// maximum and sum per query. Each block of keys is transposed once into scratch, so that scores are
// register tiles of TILE queries by keys without sums across lanes; unscaled results live in the output.
#include "vec.h"

namespace {

constexpr int WIDTH = HEAD / LANES;
constexpr int COLUMNS = KEYS / LANES;
constexpr int SPAN = COLUMNS < 64 / TILE / 2 ? COLUMNS : COLUMNS % 4 == 0 && TILE <= 6 ? 4 : 2;
constexpr int CHAIN = 32;
static_assert(COLUMNS % SPAN == 0, "keys come in whole tiles");

struct Block {
  const float* q;       // first query of the block, this head
  const float* v;       // first value of the block of keys, this head
  float* out;
  const float* keys;    // [HEAD][KEYS], transposed
  float* p;             // [TILE][KEYS]
  float* top;           // per query of the block
  float* total;
  int64_t stride, n;    // elements from one position to the next; keys in this block
  int64_t seen;         // keys of this block that query 0 sees; may be negative
};

INLINE f4 load4(const float* p) {
  f4 v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// keys[d][s] = k[s][d], four by four; columns beyond n are zero.
void transpose(const float* k, int64_t stride, int64_t n, float* keys) {
  for (int64_t s = 0; s < KEYS; s += 4) {
    if (s + 4 > n) {
      for (int64_t j = s; j < s + 4; ++j)
        for (int64_t d = 0; d < HEAD; ++d) keys[d * KEYS + j] = j < n ? k[j * stride + d] : 0.0f;
      continue;
    }
    for (int64_t d = 0; d < HEAD; d += 4) {
      const float* from = k + s * stride + d;
      const f4 a = load4(from), b = load4(from + stride);
      const f4 c = load4(from + 2 * stride), e = load4(from + 3 * stride);
      const f4 ab0 = mix4(a, b, i4{0, 4, 1, 5});
      const f4 ab1 = mix4(a, b, i4{2, 6, 3, 7});
      const f4 ce0 = mix4(c, e, i4{0, 4, 1, 5});
      const f4 ce1 = mix4(c, e, i4{2, 6, 3, 7});
      const f4 rows[4] = {mix4(ab0, ce0, i4{0, 1, 4, 5}),
                          mix4(ab0, ce0, i4{2, 3, 6, 7}),
                          mix4(ab1, ce1, i4{0, 1, 4, 5}),
                          mix4(ab1, ce1, i4{2, 3, 6, 7})};
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) std::memcpy(keys + (d + i) * KEYS + s, &rows[i], sizeof rows[i]);
    }
  }
}

// A long chain of float additions loses digits: scores and weighed values are summed CHAIN products at a
// time, and the sums added up.
template <int R>
INLINE void scores(const Block& block, int64_t row) {
  const float* q = block.q + row * block.stride;
  const vf scale = splat(1.0f / std::sqrt(static_cast<float>(HEAD)));
  for (int c = 0; c < COLUMNS; c += SPAN) {
    for (int64_t first = 0; first < HEAD; first += CHAIN) {
      const int64_t last = HEAD - first < CHAIN ? HEAD : first + CHAIN;
      vf acc[R][SPAN] = {};
      for (int64_t d = first; d < last; ++d) {
        vf key[SPAN];
#pragma GCC unroll 16
        for (int j = 0; j < SPAN; ++j) key[j] = load(block.keys + d * KEYS + (c + j) * LANES);
#pragma GCC unroll 16
        for (int i = 0; i < R; ++i) {
          const vf u = splat(q[i * block.stride + d]);
#pragma GCC unroll 16
          for (int j = 0; j < SPAN; ++j) acc[i][j] += u * key[j];
        }
      }
#pragma GCC unroll 16
      for (int i = 0; i < R; ++i)
#pragma GCC unroll 16
        for (int j = 0; j < SPAN; ++j) {
          float* to = block.p + i * KEYS + (c + j) * LANES;
          const vf so_far = first == 0 ? acc[i][j] : load(to) + acc[i][j];
          store(to, last == HEAD ? so_far * scale : so_far);
        }
    }
  }
}

INLINE int64_t visible(const Block& block, int64_t row) {
  const int64_t seen = block.seen + row;
  return seen < 0 ? 0 : seen < block.n ? seen : block.n;
}

// Scores of one query become weights; returns the correction of what was summed before.
INLINE float weigh(float* p, int64_t seen, float& top, float& total) {
  for (int64_t s = seen; s < KEYS; ++s) p[s] = -__builtin_inff();
  vf most = splat(top);
#pragma GCC unroll 4
  for (int c = 0; c < COLUMNS; ++c) most = larger(load(p + c * LANES), most);
  const float next = largest(most);
  vf added = {};
#pragma GCC unroll 4
  for (int c = 0; c < COLUMNS; ++c) {
    const vf e = exp_nonpositive(load(p + c * LANES) - splat(next));
    store(p + c * LANES, e);
    added += e;
  }
  const float correction = exp_nonpositive(splat(top - next))[0];
  total = total * correction + sum(added);
  top = next;
  return correction;
}

// out = out * correction + weights @ values, for keys that all R queries see.
template <int R>
INLINE void mix(const Block& block, int64_t row, int64_t begin, int64_t end, const float* correction) {
  vf acc[R][WIDTH] = {};
  for (int64_t s = begin; s < end; ++s) {
    vf value[WIDTH];
#pragma GCC unroll 16
    for (int j = 0; j < WIDTH; ++j) value[j] = load(block.v + s * block.stride + j * LANES);
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
      const vf weight = splat(block.p[i * KEYS + s]);
#pragma GCC unroll 16
      for (int j = 0; j < WIDTH; ++j) acc[i][j] += weight * value[j];
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < WIDTH; ++j) {
      float* to = block.out + (row + i) * block.stride + j * LANES;
      store(to, load(to) * splat(begin == 0 ? correction[i] : 1.0f) + acc[i][j]);
    }
  }
}

template <int R>
__attribute__((noinline)) void attend(const Block& block, int64_t row) {
  if (visible(block, row + R - 1) == 0) return;
  scores<R>(block, row);
  float correction[R];
  for (int i = 0; i < R; ++i)
    correction[i] = weigh(block.p + i * KEYS, visible(block, row + i), block.top[row + i],
                          block.total[row + i]);
  const int64_t common = visible(block, row);
  int64_t s = 0;
  do {
    mix<R>(block, row, s, common - s < CHAIN ? common : s + CHAIN, correction);
    s += CHAIN;
  } while (s < common);
  // On the diagonal later queries see more keys; a hidden value is never touched, it may be NaN.
  for (int i = 1; i < R; ++i) {
    float* out = block.out + (row + i) * block.stride;
    for (int64_t s = common; s < visible(block, row + i); ++s) {
      const vf weight = splat(block.p[i * KEYS + s]);
      const float* value = block.v + s * block.stride;
#pragma GCC unroll 16
      for (int j = 0; j < WIDTH; ++j)
        store(out + j * LANES, load(out + j * LANES) + weight * load(value + j * LANES));
    }
  }
}

template <int R>
INLINE void rest(int64_t left, const Block& block, int64_t row) {
  if constexpr (R > 0) {
    if (left == R)
      attend<R>(block, row);
    else
      rest<R - 1>(left, block, row);
  }
}

INLINE void finish(const Block& block, int64_t queries) {
  for (int64_t i = 0; i < queries; ++i) {
    const vf scale = splat(1.0f / block.total[i]);
    float* out = block.out + i * block.stride;
    for (int j = 0; j < WIDTH; ++j) store(out + j * LANES, load(out + j * LANES) * scale);
  }
}

}  // namespace

extern "C" void attention_online(void* const* tensors, const int64_t* axes, void* scratch, int64_t part,
                                 int64_t parts) {
  const float* q = static_cast<const float*>(tensors[0]);
  const float* k = static_cast<const float*>(tensors[1]);
  const float* v = static_cast<const float*>(tensors[2]);
  float* out = static_cast<float*>(tensors[3]);
  float* keys = static_cast<float*>(scratch);
  float* p = keys + HEAD * KEYS;
  float* top = p + TILE * KEYS;
  float* total = top + QUERIES;
  const int64_t T = axes[0], S = axes[1], H = axes[2], stride = H * HEAD;
  const int64_t end = share(H, 1, part + 1, parts);
  for (int64_t h = share(H, 1, part, parts); h < end; ++h) {
    for (int64_t t = 0; t < T; t += QUERIES) {
      const int64_t queries = T - t < QUERIES ? T - t : QUERIES, at = t * stride + h * HEAD;
      const int64_t last = S - T + t + queries;  // keys that the block's last query sees
      Block block = {q + at, nullptr, out + at, keys, p, top, total, stride, 0, 0};
      for (int64_t i = 0; i < queries; ++i) {
        top[i] = LOWEST;
        total[i] = 0.0f;
        std::memset(out + at + i * stride, 0, HEAD * sizeof(float));
      }
      for (int64_t s = 0; s < last; s += KEYS) {
        block.n = last - s < KEYS ? last - s : KEYS;
        block.seen = S - T + t + 1 - s;
        block.v = v + s * stride + h * HEAD;
        transpose(k + s * stride + h * HEAD, stride, block.n, keys);
        int64_t row = 0;
        for (; row + TILE <= queries; row += TILE) attend<TILE>(block, row);
        rest<TILE - 1>(queries - row, block, row);
      }
      finish(block, queries);
    }
  }
}
