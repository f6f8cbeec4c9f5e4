// Vectors of VEC bytes through GCC's vector extensions: any x86-64 and aarch64, narrower units in halves.
#ifndef RETUNED_VEC_H
#define RETUNED_VEC_H
#include <cmath>
#include <cstdint>
#include <cstring>
#if defined(__SSE4_1__)
#include <immintrin.h>
#endif
#ifndef VEC
#define VEC 32
#endif

namespace {

constexpr float LOWEST = -3.402823466e38f;
constexpr int LANES = VEC / 4;
static_assert(LANES == 4 || LANES == 8 || LANES == 16, "VEC is 16, 32 or 64 bytes");
typedef float vf __attribute__((vector_size(VEC)));
typedef int32_t vi __attribute__((vector_size(VEC)));
typedef int8_t vb __attribute__((vector_size(LANES)));
typedef float f4 __attribute__((vector_size(16)));
typedef int32_t i4 __attribute__((vector_size(16)));

#define INLINE inline __attribute__((always_inline))

INLINE vf load(const float* p) {
  vf v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

INLINE void store(float* p, vf v) { std::memcpy(p, &v, sizeof v); }

INLINE vf splat(float x) { return x - vf{}; }

// The first n < LANES elements, the rest zero; reads nothing beyond them.
INLINE vf load_part(const float* p, int64_t n) {
  float t[LANES] = {};
  for (int64_t i = 0; i < n; ++i) t[i] = p[i];
  return load(t);
}

INLINE void store_part(float* p, vf v, int64_t n) {
  float t[LANES];
  store(t, v);
  for (int64_t i = 0; i < n; ++i) p[i] = t[i];
}

INLINE int64_t eight(const int8_t* p) {
  int64_t i;
  std::memcpy(&i, p, sizeof i);
  return i;
}

INLINE int32_t four(const int8_t* p) {
  int32_t i;
  std::memcpy(&i, p, sizeof i);
  return i;
}

// LANES signed bytes as floats. GCC 12 takes a vector conversion from bytes apart lane by lane, hence the
// instruction by name where there is one, and by way of 16 bits where there is none.
INLINE vf widen(const int8_t* p) {
  vi wide;
#if VEC == 64 && defined(__AVX512F__)
  __m128i b;
  std::memcpy(&b, p, sizeof b);
  const __m512i i = _mm512_cvtepi8_epi32(b);
  std::memcpy(&wide, &i, sizeof wide);
#elif VEC >= 32 && defined(__AVX2__)
  __m256i i[VEC / 32];
  for (int h = 0; h < VEC / 32; ++h) i[h] = _mm256_cvtepi8_epi32(_mm_cvtsi64_si128(eight(p + 8 * h)));
  std::memcpy(&wide, i, sizeof wide);
#elif defined(__SSE4_1__)
  __m128i i[VEC / 16];
  for (int h = 0; h < VEC / 16; ++h) i[h] = _mm_cvtepi8_epi32(_mm_cvtsi32_si128(four(p + 4 * h)));
  std::memcpy(&wide, i, sizeof wide);
#else
  typedef int16_t vs __attribute__((vector_size(2 * LANES)));
  vb b;
  std::memcpy(&b, p, sizeof b);
  wide = __builtin_convertvector(__builtin_convertvector(b, vs), vi);
#endif
  return __builtin_convertvector(wide, vf);
}

INLINE vf widen_part(const int8_t* p, int64_t n) {
  int8_t t[LANES] = {};
  for (int64_t i = 0; i < n; ++i) t[i] = p[i];
  return widen(t);
}

INLINE vi bits(vf v) {
  vi i;
  std::memcpy(&i, &v, sizeof i);
  return i;
}

INLINE vf as_float(vi i) {
  vf v;
  std::memcpy(&v, &i, sizeof v);
  return v;
}

// The larger of each lane, a pass over NaN in `a`: what uses a maximum must meet the NaN again later.
INLINE vf larger(vf a, vf b) { return a > b ? a : b; }

// The largest lane; lanes that hold NaN may be passed over, so the caller must add them up later.
INLINE float largest(vf v) {
  float t[LANES];
  store(t, v);
  float m = t[0];
  for (int i = 1; i < LANES; ++i) m = t[i] > m ? t[i] : m;
  return m;
}

// exp(x) for x <= 0: relative error below 2e-7, exactly 0 below -87.3, NaN stays NaN.
INLINE vf exp_nonpositive(vf x) {
  const vf magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  vf t = x * splat(1.44269504088896341f) + magic;
  vi n = bits(t) - bits(magic);
  vf k = t - magic;
  vf r = x - k * splat(0.693145751953125f);
  r = r - k * splat(1.42860682030941723e-6f);
  vf p = splat(1.9875691500e-4f);
  p = p * r + splat(1.3981999507e-3f);
  p = p * r + splat(8.3334519073e-3f);
  p = p * r + splat(4.1665795894e-2f);
  p = p * r + splat(1.6666665459e-1f);
  p = p * r + splat(5.0000001201e-1f);
  p = p * (r * r) + r + splat(1.0f);
  vf e = p * as_float((n + 127) << 23);
  return x < splat(-87.3f) ? vf{} : e;
}

// exp(x) for x <= 0 from a table of LANES fractions of a power of two and a short polynomial.
INLINE vf exp_table(vf x) {
  constexpr float table16[16] = {
      1.0f,          1.0442737824f, 1.0905077327f, 1.1387886348f, 1.1892071150f, 1.2418578121f,
      1.2968395547f, 1.3542555469f, 1.4142135624f, 1.4768261459f, 1.5422108254f, 1.6104903319f,
      1.6817928305f, 1.7562521604f, 1.8340080864f, 1.9152065614f};
  float t16[LANES];
  for (int i = 0; i < LANES; ++i) t16[i] = table16[i * (16 / LANES)];
  const vf table = load(t16);
  const vf magic = splat(12582912.0f);
  constexpr int shift = LANES == 16 ? 4 : LANES == 8 ? 3 : 2;
  vf t = x * splat(1.44269504088896341f * LANES) + magic;
  vi n = bits(t) - bits(magic);
  vf k = t - magic;
  vf r = x - k * splat(0.693145751953125f / LANES);
  r = r - k * splat(1.42860682030941723e-6f / LANES);
  // |r| <= ln2 / (2 LANES): the fewer entries, the longer the polynomial.
  vf p = splat(1.0f / 6.0f);
  if constexpr (LANES == 8) p = splat(1.0f / 24.0f) * r + p;
  if constexpr (LANES == 4) p = (splat(1.0f / 120.0f) * r + splat(1.0f / 24.0f)) * r + p;
  p = p * r + splat(0.5f);
  p = p * (r * r) + r;
  vf base = __builtin_shuffle(table, n & (LANES - 1));
  base = as_float(bits(base) + ((n >> shift) << 23));
  return x < splat(-87.3f) ? vf{} : base * p + base;
}

INLINE f4 fold(vf v) {
  float t[LANES];
  store(t, v);
  f4 a;
  std::memcpy(&a, t, sizeof a);
  for (int i = 4; i < LANES; i += 4) {
    f4 b;
    std::memcpy(&b, t + i, sizeof b);
    a += b;
  }
  return a;
}

INLINE float sum(vf v) {
  const f4 a = fold(v);
  return (a[0] + a[2]) + (a[1] + a[3]);
}

// Elements of two vectors by index, 4 to 7 from the second.
INLINE f4 mix4(f4 a, f4 b, i4 places) { return __builtin_shuffle(a, b, places); }

// The sums of four vectors, side by side.
INLINE f4 sums(vf v0, vf v1, vf v2, vf v3) {
  const f4 a = fold(v0), b = fold(v1), c = fold(v2), d = fold(v3);
  const f4 ab = mix4(a, b, i4{0, 4, 1, 5}) + mix4(a, b, i4{2, 6, 3, 7});
  const f4 cd = mix4(c, d, i4{0, 4, 1, 5}) + mix4(c, d, i4{2, 6, 3, 7});
  return mix4(ab, cd, i4{0, 1, 4, 5}) + mix4(ab, cd, i4{2, 3, 6, 7});
}

// Share `part` of `parts` of `count` things, in whole steps.
INLINE int64_t share(int64_t count, int64_t step, int64_t part, int64_t parts) {
  const int64_t steps = (count + step - 1) / step;
  const int64_t edge = steps * part / parts * step;
  return edge < count ? edge : count;
}

}  // namespace
#endif
