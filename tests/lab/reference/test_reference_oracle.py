"""A reference runs in a process that has given up everything else, and is killed if it must be."""

from __future__ import annotations

import json
import os
import re
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.expect import raises_code

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
            assert made.confined_by is not None
            assert "seccomp" in made.confined_by
    finally:
        made.close()


def test_a_tuple_in_order_of_the_outputs_will_do(run: object) -> None:
    found = run("def run(x, mask): return x + 1, 7")  # type: ignore[operator]
    np.testing.assert_array_equal(found["y"], X + 1.0)
    assert found["total"].tolist() == [7.0]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("def run(x, mask): return {'y': x}", "'total'"),
        ("def run(x, mask): return {'y': x, 'total': 1, 'z': 2}", "['z']"),
        ("def run(x, mask): return {'y': x[0], 'total': 1}", "shape (3,), expected (2, 3)"),
        ("def run(x, mask): return {'y': 'text', 'total': 1}", "'y' is <U4"),
        ("def run(x, mask):\n    return {'y': x @ x, 'total': 1}", "line 2: ValueError"),
        ("A = 1 // 0\ndef run(x, mask): return x", "line 1: ZeroDivisionError"),
        ("def run(x, mask): return nothing", "NameError"),
        ("def run(x, mask): return run(x, mask)", "RecursionError"),
        ("def run(x, mask): return None", "ValueError"),
    ],
)
def test_what_goes_wrong_is_told_with_the_line_and_blames_the_reference(
    run: object, text: str, names: str
) -> None:
    with raises_code(HarnessError, "reference-failed", "scaled_h3", names):
        run(text)  # type: ignore[operator]


def test_a_loop_without_end_is_killed_in_time(run: object) -> None:
    begin = time.monotonic()
    with raises_code(HarnessError, "reference-failed", "scaled_h3", "loop"):
        run("def run(x, mask):\n    while True:\n        pass", call_s=1.0)  # type: ignore[operator]
    assert time.monotonic() - begin < 60.0


def test_memory_beyond_the_limit_is_refused(run: object) -> None:
    text = "import numpy as np\ndef run(x, mask): return {'y': np.ones(2**30), 'total': 1}"
    with raises_code(HarnessError, "reference-failed", "scaled_h3", "memory"):
        run(text, memory_bytes=2**26)  # type: ignore[operator]


def test_a_call_after_a_failure_starts_another_process() -> None:
    text = "def run(x, mask):\n    return (x, 1 // (1 - min(1, int(x.sum()))))"
    made = Oracle(definition(text))
    try:
        with raises_code(HarnessError, "reference-failed", "line 2", "ZeroDivisionError"):
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
    with raises_code(HarnessError, "reference-failed", "signal 31"):
        run(f"def run(x, mask):\n    {body}\n    return (x, 1)")  # type: ignore[operator]


def pretending(
    answer: object, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, walls: object = None
) -> Oracle:
    """An oracle whose child says that it is confined, and then answers this to every call."""
    walls = {"system_calls": True, "files": 1} if walls is None else walls
    lines = [json.dumps({"ready": True, "walls": walls})]
    lines.append(answer if isinstance(answer, str) else json.dumps(answer))
    program = tmp_path / "child.py"
    program.write_text(
        "import os\n"
        f"first, then = {[line + chr(10) for line in lines]!r}\n"
        "os.write(1, first.encode())\n"
        "while os.read(0, 1 << 16):\n"
        "    os.write(1, then.encode())\n"
    )
    monkeypatch.setattr(oracle_module, "_PROGRAM", program)
    return Oracle(definition("def run(x, mask): return (x, 1)"))


FLOATS = ["<f8", "<f8"]


@pytest.mark.parametrize(
    ("answer", "names"),
    [
        ({"shapes": [[2**40], []], "dtypes": FLOATS}, "'y' with shape "),
        ({"shapes": [[2, 3, 2**30], [1]], "dtypes": FLOATS}, "'y' with shape "),
        ({"shapes": [[3, 2], [1]], "dtypes": FLOATS}, "'y' with shape "),
        ({"shapes": [[-2, -3], []], "dtypes": FLOATS}, "'y' with shape "),
        ({"shapes": [[2.0, 3.0], []], "dtypes": FLOATS}, "'y'"),
        ({"shapes": [[True, 3], []], "dtypes": FLOATS}, "'y'"),
        ({"shapes": ["2,3", []], "dtypes": FLOATS}, "'y'"),
        ({"shapes": [[2, 3]], "dtypes": FLOATS}, "what it returns"),
        ({"shapes": [[2, 3], [], []], "dtypes": FLOATS}, "what it returns"),
        ({"shapes": None, "dtypes": FLOATS}, "what it returns"),
        ({"shapes": [[2, 3], []], "dtypes": ["<f8", "<f4"]}, "expected <f8"),
        ({"shapes": [[2, 3], []], "dtypes": "\x1b[31m" * 900}, "expected <f8"),
        ({"shapes": [[2, 3], []]}, "expected <f8"),
        ({}, "what it returns"),
        ([], "an object"),
        ('{"shapes": NaN', "invalid JSON"),
        ("[" * 60_000, "invalid JSON"),
        ("1" * 70_000, "without end"),
    ],
)
def test_what_a_child_claims_is_compared_before_room_is_made_for_it(
    answer: object, names: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A child that got past its walls lies about sizes: nothing is allocated for a lie."""

    def no_room(*_: object) -> Array:
        raise AssertionError("room was made")

    monkeypatch.setattr(oracle_module._Process, "_array", no_room)
    made = pretending(answer, monkeypatch, tmp_path)
    with raises_code(HarnessError, "reference-failed", names) as caught:
        made.compute(x=X, mask=MASK)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 600
    made.close()


def test_outputs_larger_than_any_machine_are_refused_before_inputs_are_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(oracle_module, "MOST_OUTPUT_BYTES", 8 * 6)
    made = Oracle(definition("def run(x, mask): return (x, 1)"))
    with raises_code(HarnessError, "reference-failed", "48 bytes"):
        made.compute(x=X, mask=MASK)
    made.close()


def bare_child(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The child of a machine that has neither seccomp nor Landlock."""
    text = oracle_module._PROGRAM.read_text()
    call = re.search(r"walls = sandbox\.confine\(.*\)\n", text)
    assert call is not None
    program = tmp_path / "child.py"
    program.write_text(
        text.replace(call[0], "walls = sandbox.Walls(system_calls=False, files=0)\n")
    )
    monkeypatch.setattr(oracle_module, "_PROGRAM", program)


def test_where_nothing_confines_a_reference_it_is_not_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bare_child(monkeypatch, tmp_path)
    # The constant would fail if anything of the text were executed.
    made = Oracle(definition("A = 1 // 0\ndef run(x, mask): return (x, 1)"))
    with raises_code(HarnessError, "reference-unconfined", "allow_unconfined_references"):
        made.compute(x=X, mask=MASK)
    assert made.confined_by is None


def test_it_runs_unconfined_where_its_owner_says_so_and_that_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bare_child(monkeypatch, tmp_path)
    made = Oracle(definition("def run(x, mask): return (x, 1)"), allow_unconfined=True)
    try:
        assert made.compute(x=X, mask=MASK)["total"] == 1.0
        assert made.confined_by == ()
    finally:
        made.close()


@pytest.mark.parametrize(
    "walls",
    [
        {"system_calls": False, "files": 0},
        {"system_calls": "yes", "files": True},
        {"system_calls": 1, "files": -1},
        {},
    ],
)
def test_a_child_that_forgets_to_refuse_is_refused_by_its_parent(
    walls: object, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = pretending({}, monkeypatch, tmp_path, walls)
    with raises_code(HarnessError, "reference-unconfined", "seccomp", "Landlock"):
        made.compute(x=X, mask=MASK)


def test_a_child_is_heard_whose_pipes_have_numbers_past_a_thousand(run: object) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1200:
        pytest.skip("this process may not have so many files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1040)]
    try:
        assert run("def run(x, mask): return (x, 1)")["total"] == 1.0  # type: ignore[operator]
    finally:
        for number in held:
            os.close(number)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
