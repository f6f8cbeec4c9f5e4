"""The static contract of Triton sources, attacked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retuned.runtime.schema import Refused
from retuned.runtime.triton.contract import MAX_SOURCE_CHARS, Parameter, check_source

HEAD = '"""A kernel."""\n\nimport triton\nimport triton.language as tl\n\n'
KERNEL = """@triton.jit
def k(x, out, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < N, other=0.0)
    tl.store(out + at, value.to(tl.float32) * 2.0, mask=at < N)
"""


def body(line: str) -> str:
    """Return a file whose kernel has one more line, the twelfth."""
    return HEAD + KERNEL + f"    {line}\n"


def refused(text: str, entry: str = "k") -> Refused:
    with pytest.raises(Refused) as found:
        check_source(text, entry=entry)
    assert found.value.reason == "contract-violated"
    return found.value


def test_an_ordinary_kernel_is_accepted_and_its_parameters_are_read() -> None:
    constants = 'EPS = tl.constexpr(1e-6)\nMODE = "ieee"\nLOW = -3\n\n\n'
    helper = "@triton.jit\ndef twice(x):\n    return x * 2.0\n\n\n"
    found = check_source(HEAD + constants + helper + KERNEL, entry="k")
    assert found.functions == ("twice", "k")
    assert found.parameters == (
        Parameter("x", False),
        Parameter("out", False),
        Parameter("N", False),
        Parameter("BLOCK", True),
    )


@pytest.mark.parametrize(
    "line",
    [
        "acc = tl.zeros((BLOCK, 16), dtype=tl.float32)",
        "acc = tl.dot(value[:, None], value[None, :], input_precision='ieee')",
        "for i in range(0, N, BLOCK):\n        at += BLOCK",
        "for i in tl.static_range(4):\n        at = at + i if i > 2 else at",
        "while N > 4:\n        N -= 1",
        "big = tl.where((at < N) & (at > 0), tl.math.exp2(value), -float('inf'))",
        "best = tl.max(value, axis=0)",
        "n: tl.constexpr = BLOCK * 2",
        "n = triton.next_power_of_2(BLOCK)",
        "a, b = at, value.T",
        "'''a string — with any letters — is a comment'''",
    ],
)
def test_what_kernels_need_is_accepted(line: str) -> None:
    check_source(body(line), entry="k")


@pytest.mark.parametrize(
    "line",
    [
        "print(1)",
        "N **= 1000000000",
        "N <<= 100000000000",
        "n = 1 << 100000000000",
        "word = 'a'",
        "word: tl.constexpr = 'a'",
        "word: tl.constexpr = 'a' if N > 1 else 'b'",
        "exec('1')",
        "eval('1')",
        "open('f')",
        "getattr(tl, 'core')",
        "__import__('os')",
        "__builtins__",
        "x.__class__",
        "x._data",
        "tl.core.os.system('true')",
        "tl.extra.cuda.libdevice.exp(value)",
        "tl.inline_asm_elementwise('', '', [], tl.int32, True, 1)",
        "tl.device_print('x', value)",
        "tl.device_assert(True)",
        "tl.static_print('x')",
        "tl.math.core.os",
        "tl.math",
        "t = tl",
        "t = triton",
        "triton.runtime.jit",
        "triton.language.core",
        "m = tl.math",
        "tl.load = 3",
        "x.shape = 3",
        "x[0] = 3",
        "tl = x",
        "range = x",
        "k = 3",
        "k2 = lambda: 1",
        "s = f'{x}'",
        "s = '{0.handle}'.format(x)",
        "s = [i for i in range(3)]",
        "(n := 3)",
        "n = 2 ** 2 ** 40",
        "d = {1: 2}",
        "d = {1}",
        "b = b'bytes'",
        "b = ...",
        "c = 3j",
        "c = 'a' * 1000000000",
        "import os",
        "from os import system",
        "global N",
        "del N",
        "assert N",
        "raise N",
        "yield N",
        "await N",
        "with x: pass",
        "try:\n        pass\n    except ValueError:\n        pass",
        "def inner(): pass",
        "class Inner: pass",
        "match N:\n        case 1: pass",
        "tl.load(*x)",
        "tl.load(**x)",
        "tl.load(x, _semantic=None)",
        "f = x\n    f(1)",
        "(tl.load if N else tl.store)(x)",
        "x.handle",
        "unknown + 1",
        "n: (lambda: 1) = 3",
        "a__b = 1",
        "for tl in range(3):\n        pass",
        "ｘ = 1",  # noqa: RUF001 - a full-width letter that Python reads as x
        "tl.ｌoad(x)",  # noqa: RUF001
    ],
)
def test_what_could_reach_the_host_is_refused_with_its_line(line: str) -> None:
    problem = refused(body(line))
    assert "Triton source" in problem.detail


@pytest.mark.parametrize(
    "module",
    [
        "import os\n",
        "import triton as t\n",
        "import triton, os\n",
        "from triton import jit\n",
        "from triton.language import *\n",
        "import triton.language as lang\n",
        "import triton.language\n",
        "import triton.runtime as tl\n",
        "X = [i for i in range(3)]\n",
        "X = tl\n",
        "X = tl.float32\n",
        "X = tl.constexpr(tl)\n",
        "X = tl.constexpr(value=1)\n",
        "X = triton.constexpr(1)\n",
        "X = 1 + 1\n",
        "X = f'{1}'\n",
        "X = (y := 1)\n",
        "X = Y = 1\n",
        "X, Y = 1, 2\n",
        "X: tl.constexpr = 1\n",
        "tl.load = 1\n",
        "tl = 1\n",
        "triton = 1\n",
        "__all__ = 'k'\n",
        "range = 1\n",
        "k = 1\n",
        "class C: pass\n",
        "def plain(): pass\n",
        "async def plain(): pass\n",
        "if 1:\n    X = 1\n",
        "'text in the middle'\n",
        "print('x')\n",
        "del triton\n",
        "for X in range(3): pass\n",
        "@triton.jit()\ndef f(): pass\n",
        "@triton.autotune\ndef f(): pass\n",
        "@triton.jit\n@triton.jit\ndef f(): pass\n",
        "@print\n@triton.jit\ndef f(): pass\n",
        "@(lambda f: f)\ndef f(): pass\n",
        "@triton.jit\ndef f(x=print()): pass\n",
        "@triton.jit\ndef f(x=[1]): pass\n",
        "@triton.jit\ndef f(x: print()): pass\n",
        "@triton.jit\ndef f(x: 'tl.constexpr'): pass\n",
        "@triton.jit\ndef f() -> print(): pass\n",
        "@triton.jit\ndef f(*a): pass\n",
        "@triton.jit\ndef f(**a): pass\n",
        "@triton.jit\ndef f(*, a): pass\n",
        "@triton.jit\ndef f(a, /): pass\n",
        "@triton.jit\ndef f(tl): pass\n",
        "@triton.jit\ndef f(k): pass\n",
        "@triton.jit\ndef __f__(): pass\n",
        "@triton.jit\ndef k(): pass\n",
        "@triton.jit\ndef max(): pass\n",
        "@triton.jit\nasync def f(): pass\n",
        "@triton.jit\nclass C: pass\n",
    ],
)
def test_nothing_else_stands_outside_of_kernels(module: str) -> None:
    refused(HEAD + module + KERNEL)


@pytest.mark.parametrize(
    "text",
    [
        "# -*- coding: utf-7 -*-\n" + HEAD + KERNEL,
        '"""A kernel."""  # vim: set fileencoding=rot13 :\n' + HEAD[16:] + KERNEL,
        HEAD + KERNEL.replace("\n", "\r"),
        HEAD + KERNEL + "\x0c",
        HEAD + "# \u202e hidden\n" + KERNEL,
        HEAD + "X = 1\x00\n" + KERNEL,
        HEAD + "# \u2028import os\n" + KERNEL,
        "\ufeff" + HEAD + KERNEL,
        HEAD + KERNEL + "    y = " + "(" * 5000 + ")" * 5000 + "\n",
        HEAD + KERNEL + "    y = " + "-" * 90_000 + "1\n",
        HEAD + KERNEL + "    y = 1" + "0" * 5000 + "\n",
        "#" * (MAX_SOURCE_CHARS + 1),
        "",
        "not python at all",
        HEAD + '"""unterminated',
    ],
)
def test_text_that_others_would_read_differently_is_refused(text: str) -> None:
    refused(text)


HIDDEN = """@triton.jit
def \\
k(x):
    '''
def k(x):
    tl.core.os.system("true")
# '''
"""


@pytest.mark.parametrize(
    "function",
    [
        HIDDEN,
        HIDDEN.replace("def \\\nk", "def  k"),
        HIDDEN.replace("def \\\nk", "def\tk"),
        HIDDEN.replace("def \\\nk(", "def k\\\n("),
        KERNEL.replace("@triton.jit", "@(triton.jit)"),
        KERNEL.replace("@triton.jit", "@triton \\\n.jit"),
    ],
)
def test_what_triton_compiles_is_what_was_checked(function: str) -> None:
    """Triton looks for the function's first line by its text, not in the syntax tree."""
    assert "must begin" in refused(HEAD + function).detail


def test_the_refusal_names_the_line() -> None:
    assert "line 11" in refused(body("x.__class__")).detail


def test_a_comment_may_follow_the_decorator() -> None:
    check_source(HEAD + KERNEL.replace("@triton.jit", "@triton.jit  # fast"), entry="k")


def test_an_entry_that_is_not_there_is_refused() -> None:
    assert "'other'" in refused(HEAD + KERNEL, entry="other").detail


def test_imports_must_come_before_what_uses_them() -> None:
    refused(KERNEL + HEAD)


@given(st.text(max_size=300))
def test_no_text_raises_anything_but_a_refusal(text: str) -> None:
    refused(text)


NAMES = st.sampled_from(
    ["x", "N", "tl", "triton", "k", "BLOCK", "__builtins__", "print", "os", "getattr", "value"]
)
ATTRIBUTES = st.sampled_from(
    [
        "load",
        "core",
        "__class__",
        "_x",
        "os",
        "system",
        "language",
        "math",
        "runtime",
        "extra",
        "to",
    ]
)
EXPRESSIONS = st.recursive(
    NAMES,
    lambda inner: st.one_of(
        st.builds("{}.{}".format, inner, ATTRIBUTES),
        st.builds("{}({})".format, inner, inner),
        st.builds("{}[{}]".format, inner, inner),
        st.builds("({} if {} else {})".format, inner, inner, inner),
    ),
    max_leaves=6,
)


@given(EXPRESSIONS)
def test_no_chain_of_names_reaches_a_forbidden_one(expression: str) -> None:
    try:
        check_source(body(expression), entry="k")
    except Refused:
        return
    for forbidden in ("__", "core", "os", "system", "extra", "runtime", "print", "getattr", "._"):
        assert forbidden not in expression
