"""Problems are strangers' programs: what is no problem is refused with its reason, and kept in."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.expect import raises_code, raises_naming

from retuned.contract import AxisConst, DType
from retuned.errors import HarnessError, UnreadableInput, UsageError
from retuned.lab.subject import make_inputs
from retuned_bench.kernelbench.problem import FAMILIES, ProblemSubject, open_problem
from retuned_bench.kernelbench.problem_files import discover
from retuned_bench.kernelbench.process import ProblemLimits, ProblemRefused

DATA = Path(__file__).resolve().parents[1] / "data" / "kernelbench"
LIMITS = ProblemLimits(start_s=200.0, call_s=200.0, memory_bytes=2**30)
CORE = min(os.sched_getaffinity(0))
MARK = Path("/tmp/retuned-kernelbench-was-here")
REASONS = {
    "network": ("fails", "PermissionError"),
    "huge_memory": ("out-of-memory", "memory"),
    "writes_a_file": ("fails", "PermissionError"),
    "reads_a_file": ("fails", "PermissionError"),
    "fork_bomb": ("fails", "PermissionError"),
    "starts_a_program": ("fails", "PermissionError"),
    "speaks_out_of_turn": ("bad-answer", ""),
    "dies": ("crashed", "status 0"),
    "no_model": ("not-a-problem", "Model"),
    "wrong_signature": ("wrong-signature", "forward"),
    "nan_output": ("nan-output", ""),
    "constant_output": ("constant-output", ""),
    "changes_state": ("changes-state", "norm.running_mean"),
    "counts_calls": ("hidden-state", ""),
    "hidden_weight": ("hidden-state", "not registered"),
    "changes_inputs": ("changes-inputs", ""),
    "no_double": ("no-double", "float64"),
    "returns_a_dict": ("unsupported-output", "dict"),
    "text_input": ("unsupported-input", "str"),
}


def text_of(name: str, folder: str = "problems/level1") -> str:
    return (DATA / folder / f"{name}.py").read_text(encoding="utf-8")


def opened(name: str, folder: str = "problems/level1") -> ProblemSubject:
    return open_problem(name, text_of(name, folder), device="cpu", cores=[CORE], limits=LIMITS)


@pytest.fixture(scope="module")
def lookup() -> Iterator[ProblemSubject]:
    subject = opened("1_lookup_linear", "problems/level2")
    yield subject
    subject.eager.close()


@pytest.fixture(scope="module")
def scaled() -> Iterator[ProblemSubject]:
    subject = opened("1_scaled_sum")
    yield subject
    subject.eager.close()


@pytest.mark.parametrize("name", REASONS)
def test_a_problem_that_cannot_be_used_is_refused_with_its_reason(name: str) -> None:
    code, words = REASONS[name]
    with pytest.raises(ProblemRefused) as refused:
        opened(name, "hostile")
    assert refused.value.code == code
    assert words in refused.value.detail
    assert not MARK.exists()


def test_a_problem_that_never_ends_is_killed() -> None:
    limits = ProblemLimits(call_s=0.5)
    opened("3_softmax").eager.close()  # what forks children is there now
    with raises_code(ProblemRefused, "timed-out"):
        open_problem("x", text_of("loop_at_import", "hostile"), device="cpu", limits=limits)


SPEAKS = """
import os
line = {line}
while line:
    line = line[os.write(11, line) :]
time.sleep(1000)
"""
"""A program that says something itself where its answers are read."""


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"[" * 200_000 + b"\n", "bad-answer"),
        (b'{"arrays": [{"dtype": "int8", "shape": [Infinity]}]}\n', "bad-answer"),
        (b'{"arrays": [{"dtype": "int8", "shape": [-1]}]}\n', "bad-answer"),
        (b'{"arrays": [{"dtype": "int8", "shape": [0, 1' + b"0" * 30 + b"]}]}\n", "bad-answer"),
        (
            b'{"arrays": [{"dtype": "int8", "shape": [%s]}]}\n' % b", ".join([b"9" * 4000] * 16),
            "bad-answer",
        ),
        (
            b'{"arrays": [%s]}\n'
            % b", ".join([b'{"dtype": "float64", "shape": [1099511627776, 1099511627776]}'] * 16),
            "too-large",
        ),
        (
            # each alone would do
            b'{"arrays": [%s]}\n' % b", ".join([b'{"dtype": "int8", "shape": [1048576]}'] * 8),
            "too-large",
        ),
    ],
    ids=["deep", "infinite", "negative", "empty and long", "wide", "huge", "many"],
)
def test_a_problem_that_answers_in_our_programs_place_is_refused(line: bytes, code: str) -> None:
    limits = ProblemLimits(start_s=200.0, call_s=200.0, memory_bytes=2**30, tensor_bytes=4 << 20)
    with pytest.raises(ProblemRefused) as refused:
        open_problem("x", SPEAKS.format(line=line), device="cpu", cores=[CORE], limits=limits)
    assert refused.value.code == code
    assert len(refused.value.detail) < 500


def test_every_hostile_problem_has_a_test() -> None:
    names = {path.stem for path in (DATA / "hostile").glob("*.py")}
    assert names == REASONS.keys() | {"loop_at_import"}


def test_numbers_inputs_and_weights_become_tensors_of_constant_shape(
    scaled: ProblemSubject, lookup: ProblemSubject
) -> None:
    definition = scaled.definition
    assert list(definition.inputs) == ["a", "b", "factor"]
    assert definition.inputs["factor"].shape == ()
    assert definition.inputs["factor"].dtype is DType.FLOAT32
    assert definition.variable_axes == ()
    assert definition.axes == {"n64": AxisConst(value=64), "n512": AxisConst(value=512)}
    inputs = lookup.definition.inputs
    assert list(inputs) == ["ids", "table_weight", "linear_weight", "linear_bias"]
    assert inputs["ids"].dtype is DType.INT64
    assert [name for name, spec in inputs.items() if spec.constant] == list(inputs)[1:]


def test_a_seed_makes_the_same_inputs_again_and_another_one_others(
    lookup: ProblemSubject,
) -> None:
    one, again, other = (make_inputs(lookup, {}, seed=seed, family="given") for seed in (1, 1, 2))
    assert all(one[name].tobytes() == again[name].tobytes() for name in one)
    assert all(one[name].tobytes() != other[name].tobytes() for name in one)


def test_weights_are_what_the_model_is_given(lookup: ProblemSubject) -> None:
    inputs = make_inputs(lookup, {}, seed=3, family="weights")
    row = inputs["table_weight"].astype(np.float64)[inputs["ids"]]
    want = np.maximum(
        row @ inputs["linear_weight"].astype(np.float64).T + inputs["linear_bias"], 0.0
    )
    exact = lookup.reference(inputs, {})["out"]
    eager = lookup.eager.run(inputs, {}, timeout_s=200.0)["out"]
    assert exact.dtype == np.float64
    np.testing.assert_allclose(exact, want, rtol=1e-12, atol=1e-12)
    assert eager.dtype == np.float32
    assert 0.0 < np.abs(eager - want).max() < 1e-5


def test_a_number_is_passed_as_a_number(scaled: ProblemSubject) -> None:
    inputs = make_inputs(scaled, {}, seed=3, family="given")
    assert inputs["factor"].shape == (1,)
    changed = {**inputs, "factor": np.array([2.0], dtype=np.float32)}
    want = inputs["a"].astype(np.float64) * 2.0 + np.tanh(inputs["b"].astype(np.float64))
    np.testing.assert_allclose(scaled.reference(changed, {})["out"], want, rtol=1e-12)


def test_families_change_inputs_of_both_signs_and_move_weights() -> None:
    subject = opened("5_layer_norm")
    try:
        made = {f: make_inputs(subject, {}, seed=5, family=f) for f in FAMILIES}
    finally:
        subject.eager.close()
    assert np.abs(made["small"]["x"]).max() < 0.1
    assert np.abs(made["outlier"]["x"]).max() > 50.0
    assert (made["given"]["norm_weight"] == 1.0).all()
    assert not made["given"]["norm_bias"].any()
    assert made["weights"]["norm_weight"].std() > 0.01
    assert made["weights"]["norm_bias"].std() > 0.01


def test_two_outputs_keep_their_order_and_types() -> None:
    subject = opened("10_row_peak")
    try:
        inputs = make_inputs(subject, {}, seed=1, family="given")
        exact = subject.reference(inputs, {})
    finally:
        subject.eager.close()
    assert [str(spec.dtype) for spec in subject.definition.outputs.values()] == ["float32", "int64"]
    assert (exact["out1"] == inputs["x"].argmax(axis=1)).all()


def test_a_model_that_dies_later_says_nothing_about_a_kernel() -> None:
    subject = opened("3_softmax")
    subject.eager.close()
    with raises_naming(HarnessError, "model", "crashed"):
        subject.eager.run({"x": np.ones((48, 700), dtype=np.float32)}, {}, timeout_s=5.0)


def test_a_folder_is_read_in_the_order_in_which_people_count(tmp_path: Path) -> None:
    for name in ("level1/10_b.py", "level1/9_a.py", "level2/1_c.py", "level1/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x = 1\n", encoding="utf-8")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "hook.py").write_text("", encoding="utf-8")
    (tmp_path / "level1" / "link.py").symlink_to("/etc/passwd")
    assert [p.id for p in discover(tmp_path)] == ["level1/9_a", "level1/10_b", "level2/1_c"]


def test_a_folder_without_problems_or_with_one_that_is_no_text_is_refused(tmp_path: Path) -> None:
    with raises_naming(UsageError, str(tmp_path), ".py"):
        discover(tmp_path)
    with raises_code(UnreadableInput, "folder-missing", "--problems") as missing:
        discover(tmp_path / "none")
    assert (missing.value.code, missing.value.exit_code) == ("folder-missing", 3)
    assert missing.value.where == str(tmp_path / "none")
    (tmp_path / "1_x.py").write_bytes(b"\xff\xfe")
    with raises_code(UnreadableInput, "unreadable", "1_x"):
        discover(tmp_path)


@pytest.mark.parametrize(
    "times", [None, [1, 2], [0, 1, 1], [1, 1, 10**15], ["1", 1, 1], [1, 1, True]]
)
def test_times_that_cannot_be_are_no_times(
    scaled: ProblemSubject, monkeypatch: pytest.MonkeyPatch, times: object
) -> None:
    """Three groups were asked for, and they ended before this process's clock said so."""
    sets = [make_inputs(scaled, {}, seed=1, family="given")]
    scaled.eager.place(sets)
    monkeypatch.setattr(scaled.eager, "_calls", 3)
    monkeypatch.setattr(scaled.eager, "_group", 1)
    assert scaled.eager.batch_us() > 0.0
    process = scaled.eager._process
    monkeypatch.setattr(process, "call", lambda *_words, **_more: ({"ns": times}, []))
    with raises_naming(HarnessError, "times"):
        scaled.eager.batch_us()
