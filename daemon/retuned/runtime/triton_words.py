"""Names that device code of a Triton variant may use.

Lists of what is allowed, never of what is forbidden: Triton resolves an attribute chain on Python
objects while it compiles and calls whatever it finds there, so that ``tl.core.os.system(...)``
would run on the host.
"""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


LANGUAGE = _words(
    """
    abs add arange argmax argmin associative_scan assume atomic_add atomic_and atomic_cas atomic_max
    atomic_min atomic_or atomic_xchg atomic_xor bfloat16 broadcast broadcast_to cast cat cdiv ceil
    clamp constexpr cos cumprod cumsum debug_barrier div_rn dot dot_scaled erf exp exp2 expand_dims
    fdiv flip float16 float32 float64 float8e4b8 float8e4nv float8e5 float8e5b16 floor fma full
    gather histogram int1 int16 int32 int64 int8 interleave join load log log2 make_block_ptr max
    advance max_constancy max_contiguous maximum min minimum multiple_of num_programs permute
    pointer_type program_id range ravel reduce reshape rsqrt sigmoid sin softmax sort split sqrt
    sqrt_rn squeeze static_assert static_range store sub mul sum swizzle2d trans uint16 uint32
    uint64 uint8 umulhi unsqueeze view where xor_sum zeros zeros_like
    """
)
"""Names of ``triton.language``."""

MATH = _words(
    "abs ceil cos div_rn erf exp exp2 fdiv floor fma log log2 rsqrt sin sqrt sqrt_rn umulhi"
)
"""Names of ``triton.language.math``."""

LIBDEVICE = _words(
    """
    abs acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh div_rn erf erfc exp exp2
    expm1 fast_cosf fast_dividef fast_expf fast_log10f fast_log2f fast_logf fast_powf fast_sinf
    fast_tanf fast_tanhf floor fma fmod hypot log log10 log1p log2 nearbyint pow rint round rsqrt
    sin sinh sqrt sqrt_rn tan tanh trunc
    """
)
"""Names of ``triton.language.extra.libdevice``: numbers in, a number out, nothing else touched."""

HOST = frozenset(("cdiv", "next_power_of_2"))
"""Names of ``triton``: compile-time arithmetic."""

VALUES = _words(
    """
    T abs advance argmax argmin associative_scan atomic_add atomic_and atomic_cas atomic_max
    atomic_min atomic_or atomic_xchg atomic_xor broadcast_to cast cdiv ceil cos cumprod cumsum
    dtype element_ty erf exp exp2 expand_dims fdiv flip floor fma gather is_floating is_int log
    log2 logical_and logical_or max maximum min minimum permute primitive_bitwidth ravel reduce
    reshape rsqrt shape sigmoid sin softmax sort split sqrt sqrt_rn store sum to trans view where
    xor_sum
    """
)
"""Attributes of tensors, types and other values."""

BUILTINS = frozenset(("range", "min", "max", "float", "int", "bool", "len", "abs"))
"""Python names that Triton gives a meaning to."""

DECORATOR = ("triton", "jit")
"""The one decorator."""
