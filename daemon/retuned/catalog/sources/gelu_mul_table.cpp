// gelu_mul, structure table: the exponential comes from a table of fractional powers of two that lives in
// one register, and a polynomial of degree 3 to 5.
#define EXP exp_table
#include "gelu_times.h"

extern "C" void gelu_mul_table(void* const* tensors, const int64_t* axes, void*, int64_t part,
                               int64_t parts) {
  gated_rows(tensors, axes, part, parts);
}
