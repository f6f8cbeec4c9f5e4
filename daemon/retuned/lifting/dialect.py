"""Spelling of untrusted Triton source in the contract's names: modules, functions, types."""

from __future__ import annotations

from retuned.runtime.triton.contract import LANGUAGE, LIBDEVICE, MATH

_HOMES = (
    "triton.language",
    "triton.language.core",
    "triton.language.math",
    "triton.language.standard",
)
DEVICE_LIBRARY = "libdevice"
"""The contract's name for the vendors' device libraries."""
TYPES = {
    "fp64": "float64",
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp8e4nv": "float8e4nv",
    "fp8e4b8": "float8e4b8",
    **{name: name for name in ("int1", "int8", "int16", "int32", "int64")},
    **{name: name for name in ("uint8", "uint16", "uint32", "uint64")},
}
"""Element types as Triton prints them, and their names in its language."""
FORBIDDEN = {
    "inline_asm_elementwise": "inline-asm",
    "device_print": "device-print",
    "device_assert": "device-print",
    "print": "device-print",
    "breakpoint": "device-print",
    "make_tensor_descriptor": "tensor-descriptor",
    "load_tensor_descriptor": "tensor-descriptor",
    "store_tensor_descriptor": "tensor-descriptor",
    "tensor_descriptor": "tensor-descriptor",
    "pointer_type": "pointer-of-pointers",
    "extern_elementwise": "extern-function",
}
"""Names that cannot be lifted, with the reason."""
TYPE_FACTS = frozenset(("dtype", "element_ty", "primitive_bitwidth", "shape"))
"""Attributes that Triton derives from a type: they contain no address and no loaded number."""
ATOMICS = frozenset(name for name in LANGUAGE if name.startswith("atomic_"))
"""Functions that change memory shared with other programs."""


def module_of(dotted: str) -> str | None:
    """Return the contract's name of a Triton module; None if the contract excludes it.

    Examples
    --------
    >>> module_of("triton.language"), module_of("triton.language.extra.cuda.libdevice")
    ('tl', 'libdevice')
    """
    if dotted == "triton":
        return "triton"
    if dotted in _HOMES:
        return "tl"
    if dotted.startswith("triton.language.") and dotted.endswith("." + DEVICE_LIBRARY):
        return DEVICE_LIBRARY
    return None


def function_of(module: str, name: str) -> str | None:
    """Return the contract's name of a function of a module; None if it has none.

    `module` is a result of `module_of`.
    """
    if module == DEVICE_LIBRARY:
        return name if name in LIBDEVICE else None
    return name if name in LANGUAGE or name in MATH else None
