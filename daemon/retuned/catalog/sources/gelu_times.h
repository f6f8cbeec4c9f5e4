// gelu(gate) * up, gelu in its tanh form; what differs between the structures is EXP, the exponential of
// x <= 0.
#ifndef RETUNED_GELU_TIMES_H
#define RETUNED_GELU_TIMES_H
#include "vec.h"

namespace {

// g (1 + tanh u) / 2 is g / (1 + e^-2u), with u = sqrt(2 / pi) (g + 0.044715 g^3). The exponential only
// ever sees -|2u|: no overflow, and full precision on both sides of zero.
INLINE vf gelu_times(vf g, vf up) {
  const vf twice = g * (g * g * splat(0.0713548162726f) + splat(1.59576912160573f));
  const vf e = EXP(as_float(bits(twice) | INT32_MIN));
  const vf one = splat(1.0f);
  return g * ((twice < vf{} ? e : one) / (one + e)) * up;
}

}  // namespace
#define GATE gelu_times
#include "gated_rows.h"
#endif
