"""What a reference may hold: formulas pass, everything that reaches outside is refused."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.expect import raises_naming

from retuned import catalog
from retuned.lab.reference.check import MAX_CHARS, ReferenceRefused, builtins, check_reference

NAMES = (
    "add_rmsnorm_h64",
    "attention_h2_d16",
    "gelu_mul_i64",
    "layernorm_h64",
    "linear_w8_n32_k64",
    "rmsnorm_h64",
    "rope_q4_k2_d64",
    "silu_mul_i64",
    "softmax_n64",
    "topk_gating_e64_k6",
)
RMSNORM = """import numpy as np

EPSILON = 1e-6


def _mean(x):
    return np.mean(x * x, axis=-1, keepdims=True)


def run(x, weight):
    \"\"\"A docstring.\"\"\"
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64)
        rows = [wide[i] for i in range(len(wide)) if i >= 0]
        return {"y": np.stack(rows) / np.sqrt(_mean(wide) + EPSILON) * weight}
"""


def test_formulas_pass_and_keep_the_names_of_their_inputs() -> None:
    checked = check_reference(RMSNORM)
    assert checked.parameters == ("x", "weight")
    assert checked.modules == {"np": "numpy"}
    assert not checked.any_keyword
    more = check_reference("def run(x, y=1, *, z, eps=2, **rest): return x")
    assert more.parameters == ("x", "y", "z", "eps")
    assert more.optional == {"y", "eps"}
    assert more.any_keyword


@pytest.mark.parametrize("name", NAMES)
def test_the_catalogs_references_pass_too(name: str) -> None:
    check_reference(catalog.get(name).definition.reference)


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("import os\ndef run(x): return x", 1, "imports 'os'"),
        ("from os import path\ndef run(x): return x", 1, "import numpy as np"),
        ("import numpy as np\ndef run(x): return np.load('/etc/passwd')", 2, ".load"),
        ("import numpy as np\ndef run(x): return np.lib", 2, ".lib"),
        ("import numpy as np\ndef run(x): return np.ctypeslib", 2, ".ctypeslib"),
        ("import numpy as np\ndef run(x):\n    n = np\n    return n.fromfile('a')", 4, ".fromfile"),
        ("import numpy as np\ndef run(x): return np.linalg.lapack_lite", 2, ".lapack_lite"),
        ("def run(x): return x.tofile('/tmp/a')", 1, ".tofile"),
        ("def run(x): return x.__class__", 1, ".__class__"),
        ("def run(x): return '{0.__class__}'.format(x)", 1, ".format"),
        ("def run(x): return f'{x.__class__}'", 1, "JoinedStr"),
        ("def run(x): return __import__('os')", 1, "__import__"),
        ("def run(x):\n    import os\n    return x", 2, "Import"),
        ("class A: pass\ndef run(x): return x", 1, "more than define"),
        ("print(1)\ndef run(x): return x", 1, "more than define"),
        ("def run(x):\n    class A: pass\n    return x", 2, "ClassDef"),
        ("def run(x):\n    global y\n    return x", 2, "Global"),
        ("def run(x):\n    try:\n        return x\n    except Exception:\n        pass", 2, "Try"),
        ("def run(x):\n    with open('a') as f:\n        return x", 2, "np.errstate"),
        ("import numpy as np\ndef run(x):\n    np.pi = 3\n    return x", 3, "assigns"),
        ("import numpy as np\ndef run(np): return np", 2, "another meaning"),
        ("@staticmethod\ndef run(x): return x", 2, "decorates"),
        ("def run(x):\n    yield x", 2, "Yield"),
        ("async def run(x): return x", 1, "more than define"),
        ("def run(x) return x", 1, "is not valid Python"),
        ("def run(x, /): return x", 1, "by position only"),
        ("def walk(x): return x", None, "no `def run"),
        ("def run(x): return x\ndef run(x): return x", None, "more than one"),
        ("", None, "no `def run"),
    ],
)
def test_what_a_formula_does_not_need_is_refused_with_its_line(
    text: str, line: int | None, says: str
) -> None:
    with pytest.raises(ReferenceRefused) as caught:
        check_reference(text)
    assert says in str(caught.value)
    assert caught.value.line == line


@pytest.mark.parametrize("called", ["__builtins__", "run", "len"])
def test_a_module_takes_no_name_that_means_something_else(called: str) -> None:
    with raises_naming(ReferenceRefused, "line 1", f"a module '{called}'"):
        check_reference(f"import numpy as {called}\ndef run(x):\n    return {{'y': x}}\n")


@pytest.mark.parametrize(
    "text",
    [
        "x" * (MAX_CHARS + 1),
        "def run(x): return " + "(" * 5_000 + "x" + ")" * 5_000,
        "def run(x): return " + "-" * 20_000 + "x",
        "def run(x): return x" + ".T" * 30_000,
        "def run(x): return [" + "1," * 30_000 + "]",
        "def run(x): return x\0",
    ],
    ids=["long", "parentheses", "signs", "attributes", "list", "nul"],
)
def test_texts_made_to_exhaust_a_reader_are_refused(text: str) -> None:
    with pytest.raises(ReferenceRefused):
        check_reference(text)


@given(st.text(max_size=200))
def test_any_text_is_refused_or_checked_and_never_more(text: str) -> None:
    with suppress(ReferenceRefused):
        check_reference(text)


def test_pythons_own_functions_hold_none_that_finds_others() -> None:
    assert not {"getattr", "eval", "exec", "open", "__import__", "type", "vars"} & builtins().keys()
