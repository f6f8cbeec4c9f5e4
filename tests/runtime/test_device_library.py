"""Functions of device libraries: allowed by name, and computed where there is no device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.expect import raises_code

from retuned.runtime.schema import Refused
from retuned.runtime.triton.contract import LIBDEVICE, check_source

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from triton.language.extra import libdevice  # noqa: E402
from triton.runtime import interpreter  # noqa: E402

from retuned.runtime.triton.interpret import mend_interpreter  # noqa: E402

mend_interpreter()
mend_interpreter()  # again changes nothing

tl: Any = interpreter.tl
HEADER = "import triton\nimport triton.language as tl\n"
LIBRARY = "from triton.language.extra import libdevice\n"
BODY = """

@triton.jit
def kernel(x, y):
    tl.store(y, {expression})
"""
SAME = {
    "acos": "acos", "asin": "asin", "atan": "atan", "ceil": "ceil", "cos": "cos", "erf": "erf",
    "erfc": "erfc", "exp": "exp", "expm1": "expm1", "fast_expf": "exp", "floor": "floor",
    "log1p": "log1p", "nearbyint": "round", "rsqrt": "rsqrt", "sinh": "sinh", "sqrt_rn": "sqrt",
    "tanh": "tanh", "trunc": "trunc",
}  # fmt: skip


def block(values: Any, kind: Any = None) -> Any:
    data = np.asarray(values)
    kind = (
        kind or {"float32": tl.float32, "float64": tl.float64, "int32": tl.int32}[str(data.dtype)]
    )
    handle = interpreter.TensorHandle(data, kind)
    return tl.tensor(handle, tl.block_type(kind, list(data.shape)))


def source(expression: str, imports: str = LIBRARY) -> str:
    return HEADER + imports + BODY.format(expression=expression)


def test_every_allowed_name_is_triton_s_and_computes() -> None:
    values = block(np.array([0.25, 0.5], np.float32))
    for name in sorted(LIBDEVICE):
        arguments = {"fma": 3}.get(name, 2 if name in TWO else 1)
        found = getattr(libdevice, name)(*[values] * arguments)
        assert found.handle.data.dtype == np.float32, name
        assert found.type == values.type, name


TWO = frozenset(
    "atan2 copysign div_rn fast_dividef fast_powf fmod hypot pow".split()  # noqa: SIM905
)


@pytest.mark.parametrize("name", SAME)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_functions_compute_what_pytorch_does(name: str, dtype: Any) -> None:
    values = np.linspace(-0.9, 0.9, 64).astype(dtype)
    found = getattr(libdevice, name)(block(values)).handle.data
    wanted = getattr(torch, SAME[name])(torch.from_numpy(values)).numpy()
    assert found.dtype == dtype
    np.testing.assert_allclose(found, wanted, rtol=4 * np.finfo(dtype).eps, equal_nan=True)


def test_halves_are_rounded_away_from_zero() -> None:
    values = np.array([-2.5, -0.5, 1.5, 0.49999997], np.float32)
    assert libdevice.round(block(values)).handle.data.tolist() == [-3.0, -1.0, 2.0, 0.0]


def test_narrow_numbers_are_refused_as_a_compiler_refuses_them() -> None:
    with pytest.raises(TypeError, match="float32 and float64"):
        libdevice.tanh(block(np.array([1, 2], np.int32)))


def test_functions_keep_the_name_and_home_that_they_are_known_by() -> None:
    assert libdevice.tanh.__module__ == "triton.language.extra.libdevice"
    assert libdevice.tanh.__name__ == "tanh"


def test_a_source_may_use_them() -> None:
    check_source(source("libdevice.tanh(tl.load(x))"), entry="kernel")


@pytest.mark.parametrize(
    ("expression", "imports"),
    [
        ("libdevice.tanh(tl.load(x))", ""),
        ("libdevice.byte_perm(tl.load(x), 1, 2)", LIBRARY),
        ("libdevice.core.os", LIBRARY),
        ("libdevice.__dict__", LIBRARY),
        ("libdevice", LIBRARY),
        ("tl.load(x)", "from triton.language.extra import libdevice as tl\n"),
        ("tl.load(x)", "from triton.language.extra import cuda\n"),
        ("tl.load(x)", "from triton.language.extra.cuda import libdevice\n"),
        ("tl.load(x)", "from os import system\n"),
        ("tl.load(x)", "from . import libdevice\n"),
        ("tl.load(x)", "from triton.language.extra import libdevice, cuda\n"),
        ("tl.load(x)", LIBRARY + "libdevice = 3\n"),
    ],
)
def test_no_other_import_and_no_other_name_comes_with_them(expression: str, imports: str) -> None:
    with raises_code(Refused, "contract-violated"):
        check_source(source(expression, imports), entry="kernel")


def test_real_arguments_of_an_interpreted_launch_have_a_type() -> None:
    argument = interpreter._implicit_cvt(1e-6)
    assert argument.dtype == tl.float32
    assert argument.handle.data.tolist() == [float(np.float32(1e-6))]
