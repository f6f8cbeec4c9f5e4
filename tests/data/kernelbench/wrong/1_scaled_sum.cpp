// Reads a file: no kernel does.
#include <cstdio>

extern "C" void kernel(void* const* tensors, const int64_t*, void*, int64_t, int64_t) {
  fopen("/etc/passwd", "r");
}
