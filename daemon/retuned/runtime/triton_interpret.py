"""Triton's interpreter, made to multiply bfloat16 matrices.

Where there is no GPU, Triton kernels run in its interpreter (``TRITON_INTERPRET=1``): that is how
they are tested. It keeps bfloat16 numbers as their bits, and its ``tl.dot`` multiplies the bits.
"""

from __future__ import annotations

from typing import Any

_MARK = "_retuned_widens"


def mend_interpreter() -> None:
    """Let the interpreter's dot widen bfloat16 operands to float32, which is exact; idempotent."""
    from triton.runtime import interpreter

    builder = interpreter.InterpreterBuilder
    if getattr(builder, _MARK, False):
        return
    original = builder.create_dot

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:  # noqa: ANN401 - Triton's own
        return original(self, _widened(interpreter, a), _widened(interpreter, b), *rest)

    builder.create_dot = create_dot
    setattr(builder, _MARK, True)


def _widened(interpreter: Any, operand: Any) -> Any:  # noqa: ANN401 - a TensorHandle
    language = interpreter.tl
    if operand.dtype.scalar != language.bfloat16:
        return operand
    data = (operand.data.astype("uint32") << 16).view("float32")
    return interpreter.TensorHandle(data, language.float32)
