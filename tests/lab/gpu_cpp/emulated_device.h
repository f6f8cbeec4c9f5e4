// What a device source finds when g++ compiles it for this processor: CUDA's words, and threads of a
// block as fibers that take turns. Included before the source; slow, and the same arithmetic.
#pragma once
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <initializer_list>

#define __CUDACC__ 1
#define __global__
#define __device__
#define __shared__ static
#define __launch_bounds__(...)
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(n) __attribute__((aligned(n)))

struct Dim { unsigned x, y, z; };
static Dim threadIdx, blockIdx, blockDim, gridDim;

namespace emulated {
enum { MOST = 1024, STACK = 48 << 10, WARP = 32 };
struct Barrier { int arrived, live, generation; };
static Barrier block_barrier, warp_barriers[MOST / WARP];
static ucontext_t scheduler, fibers[MOST];
static bool finished[MOST];
static unsigned slots[2][MOST], exchanges[MOST];
static int current, threads, moved;
static char* stacks;
static unsigned char* dynamic_shared;
static void (*call)(void**);
static void** arguments;

inline void yield() { swapcontext(&fibers[current], &scheduler); }

inline void release_if_complete(Barrier& barrier) {
  if (barrier.arrived && barrier.arrived == barrier.live) {
    barrier.arrived = 0;
    barrier.generation++;
    moved = 1;
  }
}

inline void wait(Barrier& barrier) {
  const int generation = barrier.generation;
  barrier.arrived++;
  release_if_complete(barrier);
  while (barrier.generation == generation) yield();
}

inline unsigned exchange(unsigned value, int from) {
  const int me = current, base = me / WARP * WARP;
  unsigned* slot = slots[exchanges[me]++ & 1];
  slot[me] = value;
  wait(warp_barriers[me / WARP]);
  return slot[base + (from & (WARP - 1))];
}

inline void body() {
  call(arguments);
  finished[current] = true;
  moved = 1;
  for (Barrier* barrier : {&block_barrier, &warp_barriers[current / WARP]}) {
    barrier->live--;
    release_if_complete(*barrier);
  }
  yield();
}

// Runs one block; returns 719 if its threads wait for each other for ever.
inline int run_block() {
  block_barrier = {0, threads, 0};
  for (int thread = 0; thread < threads; thread++) {
    Barrier& mine = warp_barriers[thread / WARP];
    if (thread % WARP == 0) mine = {0, 0, 0};
    mine.live++;
    finished[thread] = false;
    exchanges[thread] = 0;
    getcontext(&fibers[thread]);
    fibers[thread].uc_stack.ss_sp = stacks + (size_t)thread * STACK;
    fibers[thread].uc_stack.ss_size = STACK;
    fibers[thread].uc_link = &scheduler;
    makecontext(&fibers[thread], body, 0);
  }
  for (int left = threads, started = 0; left > 0; started = 1) {
    moved = !started;
    for (current = 0; current < threads; current++) {
      if (finished[current]) continue;
      threadIdx = {(unsigned)current % blockDim.x, (unsigned)current / blockDim.x % blockDim.y,
                   (unsigned)current / (blockDim.x * blockDim.y)};
      swapcontext(&scheduler, &fibers[current]);
      left -= finished[current];
    }
    if (!moved) return 719;
  }
  return 0;
}
}  // namespace emulated

static inline void __syncthreads() { emulated::wait(emulated::block_barrier); }
static inline unsigned __shfl_sync(unsigned, unsigned value, int from) {
  return emulated::exchange(value, from);
}
static inline float __uint_as_float(unsigned bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}
static inline unsigned __float_as_uint(float value) {
  unsigned bits;
  memcpy(&bits, &value, 4);
  return bits;
}
