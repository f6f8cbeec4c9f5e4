// Follows a device source: runs its entry, ENTRY, over a grid.
#include <utility>

template <class... Args, size_t... I>
static void emulated_apply(void (*entry)(Args...), void** arguments, std::index_sequence<I...>) {
  entry(*(Args*)arguments[I]...);
}
template <class... Args>
static void emulated_unpack(void (*entry)(Args...), void** arguments) {
  emulated_apply(entry, arguments, std::index_sequence_for<Args...>());
}
static void emulated_call(void** arguments) { emulated_unpack(&ENTRY, arguments); }

extern "C" const char* emulated_name() {
#define TEXT(x) #x
#define TEXT_OF(x) TEXT(x)
  return TEXT_OF(ENTRY);
}

extern "C" int emulated_launch(const unsigned* grid, const unsigned* block, unsigned shared_bytes,
                               void** arguments) {
  using namespace emulated;
  gridDim = {grid[0], grid[1], grid[2]};
  blockDim = {block[0], block[1], block[2]};
  threads = block[0] * block[1] * block[2];
  if (!stacks) stacks = (char*)malloc((size_t)MOST * STACK);
  dynamic_shared = (unsigned char*)realloc(dynamic_shared, shared_bytes + 16);
  call = emulated_call;
  emulated::arguments = arguments;
  for (unsigned z = 0; z < grid[2]; z++)
    for (unsigned y = 0; y < grid[1]; y++)
      for (unsigned x = 0; x < grid[0]; x++) {
        blockIdx = {x, y, z};
        const int code = run_block();
        if (code) return code;
      }
  return 0;
}
