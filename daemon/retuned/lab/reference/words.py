"""Names that a reference may use: enough for formulas, without access to the outside.

These are allow-lists. Standard library only, because the child imports them too.
"""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


NUMPY = _words(
    """
    abs absolute add all allclose amax amin any arange arccos arccosh arcsin arcsinh arctan arctan2
    arctanh argmax argmin argpartition argsort around array asarray atleast_1d atleast_2d average
    bincount bitwise_and bitwise_or bitwise_xor bool_ broadcast_to cbrt ceil choose clip
    column_stack concatenate conj convolve copy copysign cos cosh count_nonzero cross cumprod cumsum
    diag diagonal diff digitize divide dot dtype e einsum empty empty_like equal errstate exp exp2
    expand_dims expm1 eye fabs finfo flatnonzero flip float16 float32 float64 floor floor_divide
    fmax fmin fmod frexp full full_like gcd greater greater_equal heaviside histogram hstack hypot
    identity iinfo inf inner int16 int32 int64 int8 interp intp invert isclose isfinite isinf isnan
    isneginf isposinf kron ldexp left_shift less less_equal lexsort linalg linspace log log10 log1p
    log2 logaddexp logaddexp2 logical_and logical_not logical_or logical_xor logspace matmul max
    maximum mean median meshgrid min minimum mod moveaxis multiply nan nan_to_num nanmax nanmean
    nanmin nansum ndarray negative newaxis nextafter nonzero not_equal ones ones_like outer pad
    partition percentile pi power prod ptp put_along_axis quantile ravel reciprocal remainder repeat
    reshape right_shift rint roll rot90 round searchsorted select sign signbit sin sinc sinh sort
    split sqrt square squeeze stack std subtract sum swapaxes take take_along_axis tan tanh
    tensordot tile trace transpose tri tril triu true_divide trunc uint16 uint32 uint64 uint8 unique
    unravel_index var vdot vstack where zeros zeros_like
    """
)

LINALG = _words("cholesky det eig eigh eigvalsh inv lstsq norm pinv qr slogdet solve svd")

MATH = _words(
    """
    acos acosh asin asinh atan atan2 atanh ceil comb copysign cos cosh e erf erfc exp expm1 fabs
    factorial floor fmod frexp gamma gcd hypot inf isclose isfinite isinf isnan isqrt ldexp lgamma
    log log10 log1p log2 nan pi pow prod sin sinh sqrt tan tanh tau trunc
    """
)

ARRAY = _words(
    """
    T all any argmax argmin argsort astype at bits clip conj copy cumprod cumsum diagonal dot dtype
    eps flatten imag item items keys max maxexp mean min minexp mT ndim nonzero prod ptp ravel real
    repeat reshape resolution round searchsorted shape size smallest_normal smallest_subnormal sort
    squeeze std sum swapaxes take tiny trace transpose values var append get
    """
)
"""Attributes of arrays, number types, lists and dicts."""

BUILTINS = _words(
    """
    abs all any bool dict divmod enumerate float int len list max min pow range reversed round slice
    sorted sum tuple zip
    """
)
