// One device source for NVIDIA and AMD GPUs. Included by every GPU C++ variant; nothing else is.
//
// A block has BLOCK_X * BLOCK_Y * BLOCK_Z threads, known when the source is compiled. Conversions
// between number formats round to nearest even, most by integer arithmetic, so that both vendors
// give the same bits. Nothing here is fast and loose: no approximate division, root or exponential.
#ifndef RETUNED_DEVICE_H
#define RETUNED_DEVICE_H

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define RETUNED_NVIDIA 1
#define RETUNED_AMD 0
#else
#define RETUNED_NVIDIA 0
#define RETUNED_AMD 1
#endif

#ifndef BLOCK_Y
#define BLOCK_Y 1
#endif
#ifndef BLOCK_Z
#define BLOCK_Z 1
#endif

#if RETUNED_AMD && !defined(__HIPCC_RTC__)  // clang alone, without the vendor's headers
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#define __launch_bounds__(...) __attribute__((launch_bounds(__VA_ARGS__)))
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(n) __attribute__((aligned(n)))
#define RETUNED_MATH(name) \
  __device__ __forceinline__ float name(float x) { return __builtin_##name(x); }
RETUNED_MATH(fabsf) RETUNED_MATH(sqrtf) RETUNED_MATH(expf) RETUNED_MATH(exp2f)
RETUNED_MATH(logf) RETUNED_MATH(log2f) RETUNED_MATH(floorf) RETUNED_MATH(ceilf)
RETUNED_MATH(truncf) RETUNED_MATH(rintf)
#undef RETUNED_MATH
__device__ __forceinline__ float fmaxf(float a, float b) { return __builtin_fmaxf(a, b); }
__device__ __forceinline__ float fminf(float a, float b) { return __builtin_fminf(a, b); }
__device__ __forceinline__ float fmaf(float a, float b, float c) {
  return __builtin_fmaf(a, b, c);
}
#endif

#define RETUNED_FN __device__ __forceinline__

// --- types ------------------------------------------------------------------------------------

typedef long long index_t;  // lengths and places: tensors may have more than 2^31 elements
typedef signed char i8;
typedef unsigned char u8;
typedef int i32;
struct bf16 { unsigned short bits; };
struct fp16 { unsigned short bits; };
struct fp8_e4m3fn { unsigned char bits; };
struct fp8_e4m3fnuz { unsigned char bits; };

// --- where a thread is --------------------------------------------------------------------------

// Macros, because a constant of the file would be a variable of the compiled object.
#define THREADS_PER_BLOCK (BLOCK_X * BLOCK_Y * BLOCK_Z)
#if RETUNED_NVIDIA || !defined(__GFX9__)
#define WARP_SIZE 32
#else
#define WARP_SIZE 64
#endif
#define LANES (THREADS_PER_BLOCK < WARP_SIZE ? THREADS_PER_BLOCK : WARP_SIZE)
#define WARPS_PER_BLOCK (THREADS_PER_BLOCK / LANES)
static_assert(THREADS_PER_BLOCK % LANES == 0, "a block is made of whole warps");

#if RETUNED_NVIDIA
RETUNED_FN int thread_x() { return threadIdx.x; }
RETUNED_FN int thread_y() { return threadIdx.y; }
RETUNED_FN int thread_z() { return threadIdx.z; }
RETUNED_FN index_t block_x() { return blockIdx.x; }
RETUNED_FN index_t block_y() { return blockIdx.y; }
RETUNED_FN index_t block_z() { return blockIdx.z; }
RETUNED_FN index_t blocks_x() { return gridDim.x; }
RETUNED_FN void sync() { __syncthreads(); }
RETUNED_FN float float_of_bits(unsigned bits) { return __uint_as_float(bits); }
RETUNED_FN unsigned bits_of_float(float value) { return __float_as_uint(value); }
#else
RETUNED_FN int thread_x() { return __builtin_amdgcn_workitem_id_x(); }
RETUNED_FN int thread_y() { return __builtin_amdgcn_workitem_id_y(); }
RETUNED_FN int thread_z() { return __builtin_amdgcn_workitem_id_z(); }
RETUNED_FN index_t block_x() { return __builtin_amdgcn_workgroup_id_x(); }
RETUNED_FN index_t block_y() { return __builtin_amdgcn_workgroup_id_y(); }
RETUNED_FN index_t block_z() { return __builtin_amdgcn_workgroup_id_z(); }
RETUNED_FN index_t blocks_x() { return __builtin_amdgcn_grid_size_x() / BLOCK_X; }
RETUNED_FN void sync() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
#ifndef __HIPCC_RTC__
RETUNED_FN void __syncthreads() { sync(); }
#endif
RETUNED_FN float float_of_bits(unsigned bits) { return __builtin_bit_cast(float, bits); }
RETUNED_FN unsigned bits_of_float(float value) { return __builtin_bit_cast(unsigned, value); }
#endif

RETUNED_FN int flat_thread() {
  return thread_x() + BLOCK_X * (thread_y() + BLOCK_Y * thread_z());
}
RETUNED_FN int lane() { return flat_thread() % LANES; }
RETUNED_FN int warp() { return flat_thread() / LANES; }
RETUNED_FN float infinity() { return float_of_bits(0x7f800000u); }

// --- between threads ----------------------------------------------------------------------------

// What the lane `from` of this warp holds; all lanes take part.
RETUNED_FN unsigned shuffle(unsigned value, int from) {
#if RETUNED_NVIDIA
  return __shfl_sync(0xffffffffu, value, from);
#else
  return __builtin_amdgcn_ds_bpermute(from << 2, value);
#endif
}
RETUNED_FN int shuffle(int value, int from) { return (int)shuffle((unsigned)value, from); }
RETUNED_FN float shuffle(float value, int from) {
  return float_of_bits(shuffle(bits_of_float(value), from));
}
template <class Kind>
RETUNED_FN Kind shuffle_xor(Kind value, int mask) { return shuffle(value, lane() ^ mask); }

// Sum and maximum of a warp, the same in all its lanes; always added in the same order.
RETUNED_FN float warp_sum(float value) {
  for (int mask = LANES / 2; mask > 0; mask /= 2) value += shuffle_xor(value, mask);
  return value;
}
RETUNED_FN float warp_max(float value) {
  for (int mask = LANES / 2; mask > 0; mask /= 2)
    value = fmaxf(value, shuffle_xor(value, mask));
  return value;
}

// The same of a block. `room` is WARPS_PER_BLOCK numbers of shared memory; all threads take part.
RETUNED_FN float block_sum(float value, float* room) {
  value = warp_sum(value);
  if (WARPS_PER_BLOCK == 1) return value;
  sync();  // another thread may still read the shared memory
  if (lane() == 0) room[warp()] = value;
  sync();
  float total = room[0];
  for (int each = 1; each < WARPS_PER_BLOCK; each++) total += room[each];
  return total;
}
RETUNED_FN float block_max(float value, float* room) {
  value = warp_max(value);
  if (WARPS_PER_BLOCK == 1) return value;
  sync();
  if (lane() == 0) room[warp()] = value;
  sync();
  float most = room[0];
  for (int each = 1; each < WARPS_PER_BLOCK; each++) most = fmaxf(most, room[each]);
  return most;
}

// --- several elements at once -------------------------------------------------------------------

// `Count` elements in one access; the address must be a multiple of its size, 16 bytes at most.
template <class Kind, int Count>
struct __align__(sizeof(Kind) * Count) vec {
  static_assert(sizeof(Kind) * Count <= 16, "a thread moves at most 16 bytes at once");
  Kind at[Count];
};
template <int Count, class Kind>
RETUNED_FN vec<Kind, Count> load_vec(const Kind* from) {
  return *reinterpret_cast<const vec<Kind, Count>*>(from);
}
template <int Count, class Kind>
RETUNED_FN void store_vec(Kind* to, const vec<Kind, Count>& value) {
  *reinterpret_cast<vec<Kind, Count>*>(to) = value;
}

// --- number formats -----------------------------------------------------------------------------

RETUNED_FN float to_float(float value) { return value; }
RETUNED_FN float to_float(bf16 value) { return float_of_bits((unsigned)value.bits << 16); }
#if RETUNED_AMD  // clang has the type; NVRTC without headers has not
RETUNED_FN float to_float(fp16 value) {
  return (float)__builtin_bit_cast(_Float16, value.bits);
}
#else
RETUNED_FN float to_float(fp16 value) {
  unsigned sign = (value.bits & 0x8000u) << 16, rest = value.bits & 0x7fffu;
  if (rest >= 0x7c00u) return float_of_bits(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
  // exponents of the two formats differ by 112; multiplying makes subnormals right as well
  return float_of_bits(sign | bits_of_float(float_of_bits(rest << 13) * float_of_bits(0x77800000u)));
}
#endif
RETUNED_FN float to_float(fp8_e4m3fn value) {
  unsigned sign = (value.bits & 0x80u) << 24, rest = value.bits & 0x7fu;
  if (rest == 0x7fu) return float_of_bits(sign | 0x7fc00000u);
  float size = rest < 8 ? (float)rest * float_of_bits(0x3b000000u)  // 2^-9
                        : float_of_bits((rest << 20) + 0x3c000000u);
  return float_of_bits(sign | bits_of_float(size));
}
RETUNED_FN float to_float(fp8_e4m3fnuz value) {
  unsigned sign = (value.bits & 0x80u) << 24, rest = value.bits & 0x7fu;
  if (value.bits == 0x80u) return float_of_bits(0x7fc00000u);
  float size = rest < 8 ? (float)rest * float_of_bits(0x3a800000u)  // 2^-10
                        : float_of_bits((rest << 20) + 0x3b800000u);
  return float_of_bits(sign | bits_of_float(size));
}

// Rounds the magnitude to `kept` bits of mantissa; `least` is the exponent field of the smallest
// normal number, below which the places are fixed. Returns exponent and mantissa counted from there.
RETUNED_FN unsigned retuned_rounded(unsigned magnitude, int kept, int least) {
  int exponent = (int)(magnitude >> 23);
  unsigned mantissa = (magnitude & 0x7fffffu) | (exponent ? 0x800000u : 0u);
  int below = least - (exponent ? exponent : 1);
  int drop = 23 - kept + (below > 0 ? below : 0);
  if (drop > 25) return 0;
  unsigned half = 1u << (drop - 1), odd = mantissa >> drop & 1u;
  unsigned rounded = (mantissa + half - 1u + odd) >> drop;
  return below > 0 ? rounded : rounded + ((unsigned)(exponent - least) << kept);
}
template <class Kind>
RETUNED_FN Kind from_float(float value);
template <>
RETUNED_FN float from_float<float>(float value) { return value; }
template <>
RETUNED_FN bf16 from_float<bf16>(float value) {
  unsigned bits = bits_of_float(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return bf16{(unsigned short)(bits >> 16 | 0x40u)};
  return bf16{(unsigned short)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16)};
}
#if RETUNED_AMD
template <>
RETUNED_FN fp16 from_float<fp16>(float value) {
  return fp16{__builtin_bit_cast(unsigned short, (_Float16)value)};
}
#else
template <>
RETUNED_FN fp16 from_float<fp16>(float value) {
  unsigned bits = bits_of_float(value), sign = bits >> 16 & 0x8000u;
  bits &= 0x7fffffffu;
  if (bits > 0x7f800000u) return fp16{(unsigned short)(sign | 0x7e00u)};
  unsigned made = bits >= 0x47800000u ? 0x7c00u : retuned_rounded(bits, 10, 113);
  return fp16{(unsigned short)(sign | (made > 0x7c00u ? 0x7c00u : made))};
}
#endif
// Values too large for 8 bits become NaN, as in PyTorch's conversion.
template <>
RETUNED_FN fp8_e4m3fn from_float<fp8_e4m3fn>(float value) {
  unsigned bits = bits_of_float(value), sign = bits >> 24 & 0x80u;
  bits &= 0x7fffffffu;
  unsigned made = bits > 0x43f00000u ? 0x7fu : retuned_rounded(bits, 3, 121);  // 480
  return fp8_e4m3fn{(unsigned char)(sign | (made > 0x7fu ? 0x7fu : made))};
}
template <>
RETUNED_FN fp8_e4m3fnuz from_float<fp8_e4m3fnuz>(float value) {
  unsigned bits = bits_of_float(value), sign = bits >> 24 & 0x80u;
  bits &= 0x7fffffffu;
  unsigned made = bits > 0x43800000u ? 0x80u : retuned_rounded(bits, 3, 120);  // 256
  if (made > 0x7fu) return fp8_e4m3fnuz{(unsigned char)0x80u};
  return fp8_e4m3fnuz{(unsigned char)(made ? sign | made : 0u)};
}

#endif
