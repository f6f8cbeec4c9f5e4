// Does not compile.
#include <cstdint>

extern "C" void kernel(void* const* tensors, const int64_t*, void*, int64_t part, int64_t parts) {
  this is no statement;
}
