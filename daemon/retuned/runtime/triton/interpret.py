"""Interpreter of Triton, corrected to compute with bfloat16 and 8-bit floats as GPUs do.

Without a GPU, Triton kernels run in its interpreter (``TRITON_INTERPRET=1``); tests use it. The
interpreter stores such numbers as bits, and its ``tl.dot`` multiplies the bits of bfloat16. Its
casts truncate bfloat16 instead of rounding, carry wrongly where an 8-bit float rounds up to the
next power of two, and convert NaN to a number. With this module casts round to nearest, ties to
even. Numbers out of range become the largest 8-bit float, as in NVIDIA's conversion, and NaN stays
NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from retuned.runtime.triton.libdevice import mend_libdevice

_MARK = "_retuned_rounds"
_FLOAT8 = {"fp8e4nv": (7, 0x7F), "fp8e4b8": (8, 0x80)}
"""Bias of the exponent and bits of NaN; four bits for the exponent, three for the fraction."""
_FRACTION_BITS = 3

Module = Any
"""NumPy, or Triton's interpreter, which imports it: nothing is imported before it is needed."""
Numbers = Any
Handle = Any
"""A `TensorHandle`: a NumPy array and Triton's type of its elements."""


def mend_interpreter() -> None:
    """Correct the interpreter's casts and dot, and make device libraries compute; idempotent."""
    from triton.runtime import interpreter

    mend_libdevice(interpreter)
    builder = interpreter.InterpreterBuilder
    if getattr(builder, _MARK, False):
        return
    interpreter._implicit_cvt = _arguments(interpreter)
    dot, cast, convert = builder.create_dot, builder.cast_impl, builder.create_fp_to_fp

    def create_dot(self: Any, a: Handle, b: Handle, *rest: Any) -> Handle:  # noqa: ANN401
        return dot(self, _plain(interpreter, a), _plain(interpreter, b), *rest)

    def cast_impl(self: Any, src: Handle, dst_type: Any) -> Handle:  # noqa: ANN401
        mended = _cast(interpreter, src, dst_type.scalar)
        return cast(self, src, dst_type) if mended is None else mended

    def create_fp_to_fp(self: Any, src: Handle, dst_type: Any, rounding: Any) -> Handle:  # noqa: ANN401
        nearest = rounding is None or rounding == interpreter._ir.ROUNDING_MODE.RTNE
        mended = _cast(interpreter, src, dst_type.scalar) if nearest else None
        return convert(self, src, dst_type, rounding) if mended is None else mended

    builder.create_dot, builder.cast_impl = create_dot, cast_impl
    builder.create_fp_to_fp = create_fp_to_fp
    setattr(builder, _MARK, True)


def _arguments(interpreter: Module) -> Callable[[Any], Any]:
    """Return a function that converts a launch's argument to a value of the kernel.

    A float becomes a float32, as in compiled kernels, instead of a Python number: the kernel may
    read its type, and the type determines results of additions.
    """
    stock = interpreter._implicit_cvt

    def convert(argument: Any) -> Any:  # noqa: ANN401 - a launch's argument
        if type(argument) is not float:
            return stock(argument)
        kind = interpreter.tl.float32
        with interpreter.np.errstate(over="ignore"):
            number = interpreter.np.array([argument], dtype=interpreter.np.float32)
        return interpreter.tl.tensor(interpreter.TensorHandle(number, kind), kind)

    return convert


def _cast(interpreter: Module, src: Handle, wanted: Any) -> Handle | None:  # noqa: ANN401 - a type
    """Return the converted handle; None if neither type is stored as bits."""
    plain = _plain(interpreter, src)
    if _is_bits(wanted):
        values = plain.data.astype("float32")
        return interpreter.TensorHandle(_encoded(interpreter.np, values, wanted.name), wanted)
    if plain is src:
        return None
    return interpreter.TensorHandle(plain.data.astype(interpreter._get_np_dtype(wanted)), wanted)


def _plain(interpreter: Module, operand: Handle) -> Handle:
    """Return the same numbers in float32, which is exact, if they are stored as bits."""
    kind = operand.dtype.scalar
    if not _is_bits(kind):
        return operand
    data = _decoded(interpreter.np, interpreter.np.asarray(operand.data), kind.name)
    return interpreter.TensorHandle(data, interpreter.tl.float32)


def _is_bits(kind: Any) -> bool:  # noqa: ANN401 - Triton's type of elements
    return kind.name == "bf16" or kind.name in _FLOAT8


def _decoded(np: Module, bits: Numbers, name: str) -> Numbers:
    if name == "bf16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    bias, nan = _FLOAT8[name]
    special = (bits & 0x7F) == nan if nan == 0x7F else bits == nan
    values = np.where(bits & 0x80, np.float32(-1), np.float32(1)) * _table(np, bias)[bits & 0x7F]
    return np.where(special, np.float32("nan"), values)


def _encoded(np: Module, values: Numbers, name: str) -> Numbers:
    # Two dimensions: for an array without dimensions NumPy warns of overflow.
    flat = np.ascontiguousarray(values).reshape(1, -1)
    if name == "bf16":
        wide = flat.view(np.uint32)
        nearest = (wide + np.uint32(0x7FFF) + ((wide >> 16) & np.uint32(1))) >> 16
        bits = np.where(np.isnan(flat), (wide >> 16) | np.uint32(0x40), nearest).astype(np.uint16)
    else:
        bits = _float8(np, flat, name)
    return bits.reshape(np.shape(values))


def _float8(np: Module, values: Numbers, name: str) -> Numbers:
    bias, nan = _FLOAT8[name]
    table = _table(np, bias)
    finite = table[:-1] if nan == 0x7F else table
    size = np.minimum(np.abs(np.where(np.isnan(values), 0, values)), finite[-1])
    exponent = np.maximum(np.frexp(size)[1] - 1, 1 - bias) - _FRACTION_BITS
    nearest = np.minimum(np.ldexp(np.rint(np.ldexp(size, -exponent)), exponent), finite[-1])
    bits = np.searchsorted(finite, nearest).astype(np.uint8)
    # The type that uses the code of minus zero for NaN has no minus zero.
    negative = np.signbit(values) & ((nan == 0x7F) | (bits > 0))
    signed = np.where(negative, bits | np.uint8(0x80), bits)
    return np.where(np.isnan(values), np.uint8(nan), signed).astype(np.uint8)


def _table(np: Module, bias: int) -> Numbers:
    """Return the numbers of the 128 codes without a sign; the last code may be NaN instead."""
    codes = np.arange(128)
    exponent, fraction = codes >> _FRACTION_BITS, codes & 7
    whole = np.where(exponent > 0, fraction + 8, fraction).astype(np.float32)
    return np.ldexp(whole, np.maximum(exponent, 1) - bias - _FRACTION_BITS).astype(np.float32)
