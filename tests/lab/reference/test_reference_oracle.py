"""A reference runs in a process that has given up everything else, and is killed if it must be."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from retuned.contract import AxisConst, AxisVar, Definition, DType, TensorSpec
from retuned.errors import HarnessError
from retuned.lab.reference import oracle as oracle_module
from retuned.lab.reference.oracle import Oracle, ReferenceLimits
from retuned.lab.subject import Array

X = np.arange(6, dtype=np.float32).reshape(2, 3)
MASK = np.array([1, 0, 1], dtype=np.int8)


def definition(reference: str) -> Definition:
    floats = TensorSpec(shape=("M", "H"), dtype=DType.FLOAT32)
    return Definition(
        name="scaled_h3",
        op_type="scaled",
        axes={"M": AxisVar(), "H": AxisConst(value=3)},
        inputs={"x": floats, "mask": TensorSpec(shape=("H",), dtype=DType.INT8)},
        outputs={"y": floats, "total": TensorSpec(shape=(), dtype=DType.FLOAT32)},
        reference=reference,
    )


@pytest.fixture
def run() -> Iterator[object]:
    """Compute once with a reference, and end its process."""
    opened: list[Oracle] = []

    def compute(reference: str, **limits: object) -> dict[str, Array]:
        made = Oracle(definition(reference), limits=ReferenceLimits(**limits))  # type: ignore[arg-type]
        opened.append(made)
        return made.compute(x=X, mask=MASK)

    yield compute
    for each in opened:
        each.close()


def test_floats_are_float64_whole_numbers_stay_and_several_calls_share_a_process() -> None:
    text = (
        "import numpy as np\n"
        "def run(x, mask):\n"
        "    assert_float = 1.0 if x.dtype == np.float64 and mask.dtype == np.int8 else 0.0\n"
        "    return {'y': x * mask + 1e-12, 'total': np.sum(x) * assert_float}\n"
    )
    made = Oracle(definition(text))
    try:
        for rows in (2, 5, 0):
            x = np.ones((rows, 3), dtype=np.float32)
            found = made.compute(x=x, mask=MASK)
            assert found["y"].dtype == np.float64
            assert found["y"].shape == (rows, 3)
            assert found["total"].tolist() == [3.0 * rows]
            np.testing.assert_array_equal(found["y"], x.astype(np.float64) * MASK + 1e-12)
        if sys.platform == "linux" and os.uname().machine == "x86_64":
            assert made.confined
    finally:
        made.close()


def test_a_tuple_in_order_of_the_outputs_will_do(run: object) -> None:
    found = run("def run(x, mask): return x + 1, 7")  # type: ignore[operator]
    np.testing.assert_array_equal(found["y"], X + 1.0)
    assert found["total"].tolist() == [7.0]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("def run(x, mask): return {'y': x}", "returns no 'total'"),
        ("def run(x, mask): return {'y': x, 'total': 1, 'z': 2}", r"returns \['z'\]"),
        ("def run(x, mask): return {'y': x[0], 'total': 1}", "shape"),
        ("def run(x, mask): return {'y': 'text', 'total': 1}", "no number"),
        ("def run(x, mask):\n    return {'y': x @ x, 'total': 1}", "line 2: ValueError"),
        ("A = 1 // 0\ndef run(x, mask): return x", "cannot be run: line 1: ZeroDivisionError"),
        ("def run(x, mask): return nothing", "NameError"),
        ("def run(x, mask): return run(x, mask)", "RecursionError"),
        ("def run(x, mask): return None", "fails"),
    ],
)
def test_what_goes_wrong_is_told_with_the_line_and_blames_the_reference(
    run: object, text: str, says: str
) -> None:
    with pytest.raises(HarnessError, match=f"the reference of scaled_h3 .*{says}"):
        run(text)  # type: ignore[operator]


def test_a_loop_without_end_is_killed_in_time(run: object) -> None:
    begin = time.monotonic()
    with pytest.raises(HarnessError, match="takes too long"):
        run("def run(x, mask):\n    while True:\n        pass", call_s=1.0)  # type: ignore[operator]
    assert time.monotonic() - begin < 60.0


def test_memory_beyond_the_limit_is_refused(run: object) -> None:
    text = "import numpy as np\ndef run(x, mask): return {'y': np.ones(2**30), 'total': 1}"
    with pytest.raises(HarnessError, match="memory"):
        run(text, memory_bytes=2**26)  # type: ignore[operator]


def test_a_call_after_a_failure_starts_another_process() -> None:
    text = "def run(x, mask):\n    return (x, 1 // (1 - min(1, int(x.sum()))))"
    made = Oracle(definition(text))
    try:
        with pytest.raises(HarnessError, match="ZeroDivisionError"):
            made.compute(x=X, mask=MASK)
        found = made.compute(x=0 * X, mask=MASK)
        assert found["total"].tolist() == [1.0]
    finally:
        made.close()


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="system calls are filtered on x86-64")
@pytest.mark.parametrize(
    "body",
    [
        "open('/etc/hostname').read()",
        "__import__('os').getuid()",
        "__import__('os').system('true')",
        "__import__('socket').socket()",
        "__import__('os').kill(__import__('os').getppid(), 9)",
    ],
)
def test_should_the_check_ever_fail_the_process_itself_has_nothing_left(
    run: object, body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same child without its check: the second wall stands by itself."""
    text = oracle_module._PROGRAM.read_text()
    check = "from retuned.lab.reference.check import builtins, check_reference"
    assert check in text
    open_door = (
        "import ast, os, socket, types\n"
        "    import builtins as python\n"
        "    builtins = lambda: vars(python)\n"
        "    check_reference = lambda t: types.SimpleNamespace(tree=ast.parse(t), modules={})"
    )
    program = tmp_path / "child.py"
    program.write_text(text.replace(check, open_door))
    monkeypatch.setattr(oracle_module, "_PROGRAM", program)
    assert run("def run(x, mask): return (x, 1)")["total"] == 1.0  # type: ignore[operator]
    with pytest.raises(HarnessError, match="ended its process by signal 31"):
        run(f"def run(x, mask):\n    {body}\n    return (x, 1)")  # type: ignore[operator]
