"""Kernels against eager PyTorch: right, wrong and slow ones, and what is kept of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from tests.expect import raises_code

from retuned.cli.validate import read_candidate
from retuned.contract import Solution
from retuned.errors import UnreadableInput
from retuned.lab.generators.fixed import GivenGenerator
from retuned.lab.generators.inputs import GeneratorInput
from retuned.lab.subject import Array
from retuned.ports import Generator
from retuned_bench.kernelbench import run as running
from retuned_bench.kernelbench.improve import Search
from retuned_bench.kernelbench.problem import Described, EagerModel
from retuned_bench.kernelbench.problem_files import ProblemFile, discover
from retuned_bench.kernelbench.process import ProblemProcess, ProblemRefused
from retuned_bench.kernelbench.run import BenchSettings, KernelBench, Outcome, read_outcomes

DATA = Path(__file__).resolve().parents[1] / "data" / "kernelbench"
CORE = min(os.sched_getaffinity(0))
Try = Callable[..., Outcome]


def problem(name: str) -> ProblemFile:
    (found,) = [each for each in discover(DATA / "problems") if each.id.endswith(name)]
    return found


def solution(path: str) -> Callable[[str, str], Solution | None]:
    return lambda _problem, name: read_candidate(DATA / path, definition=name)[0]


@pytest.fixture
def attempt(tmp_path: Path) -> Try:
    def run(name: str, path: str, *, seconds: float = 0.2, search: Search | None = None) -> Outcome:
        settings = BenchSettings(folder=tmp_path, seconds=seconds, cores=[CORE], search=search)
        bench = KernelBench(solution(path), settings=settings)
        ((outcome, old),) = bench.run([problem(name)], known={})
        assert not old
        return outcome

    return run


@pytest.mark.parametrize(
    "name", ["level1/2_row_mean", "level1/10_row_peak", "level2/1_lookup_linear"]
)
def test_a_right_kernel_is_correct_and_timed(attempt: Try, name: str) -> None:
    outcome = attempt(name, f"solutions/{name}.cpp")
    assert outcome.status == "measured", outcome.detail
    assert outcome.compiled
    assert outcome.correct
    assert outcome.timed
    assert outcome.eager is not None
    assert outcome.eager.blocks >= 5
    assert outcome.eager.baseline_us > 0.0
    interval = outcome.eager.speedup
    assert interval.lower <= interval.point <= interval.upper
    assert outcome.compile is None


@pytest.mark.parametrize(
    ("name", "reason", "gate", "compiled"),
    [
        ("1_scaled_sum", "contract-violated", "G1", False),
        ("2_row_mean", "compile-failed", "G2", False),
        ("3_softmax", "nan-mismatch", "G4", True),
        ("5_layer_norm", "wrong-output", "G4", True),
    ],
)
def test_a_wrong_kernel_is_named_with_its_reason(
    attempt: Try, name: str, reason: str, gate: str, compiled: bool
) -> None:
    outcome = attempt(f"level1/{name}", f"wrong/{name}.cpp")
    assert (outcome.status, outcome.reason, outcome.gate) == ("failed", reason, gate)
    assert outcome.compiled is compiled
    assert not outcome.correct
    assert outcome.eager is None


def test_a_slow_kernel_is_correct_and_slower(attempt: Try) -> None:
    outcome = attempt("level1/4_matmul", "slow/4_matmul.cpp")
    assert outcome.correct
    assert outcome.eager is not None
    assert outcome.eager.speedup.upper < 0.5


def test_a_triton_kernel_is_right_or_wrong_without_a_gpu_and_has_no_time(attempt: Try) -> None:
    outcome = attempt("level1/2_row_mean", "solutions/level1/2_row_mean.py")
    assert outcome.correct, outcome.detail
    assert outcome.timed is (outcome.device == "cuda")
    assert (outcome.eager is not None) is outcome.timed


def test_a_model_that_draws_random_numbers_is_no_fault_of_a_kernel(attempt: Try) -> None:
    outcome = attempt("level2/2_dropout", "solutions/level1/2_row_mean.cpp")
    assert (outcome.status, outcome.reason) == ("unsupported", "draws-random-numbers")


def test_a_generator_starts_from_the_solution_and_its_winner_is_measured(attempt: Try) -> None:
    better = read_candidate(
        DATA / "solutions/level1/4_matmul.cpp", definition="kernelbench.level1.4_matmul"
    )[0]

    def make(_occasion: GeneratorInput) -> Generator:
        return GivenGenerator([better])

    search = Search(makers={"given": make}, seconds=1_000.0, candidates=1)
    outcome = attempt("level1/4_matmul", "slow/4_matmul.cpp", search=search)
    assert outcome.correct, outcome.detail
    assert outcome.generator is not None
    kept = Solution.model_validate(outcome.generator.pop("found"))
    assert (kept.digest, kept.sources) == (better.digest, better.sources)
    assert outcome.generator == {
        "names": ["given"], "candidates": 1, "verdicts": {"faster": 1},
    }  # fmt: skip
    assert outcome.solution == better.digest


def test_a_generator_with_a_wrong_start_is_not_asked(attempt: Try) -> None:
    def make(_occasion: GeneratorInput) -> Generator:
        raise AssertionError("it was asked")

    search = Search(makers={"given": make}, seconds=1_000.0, candidates=1)
    outcome = attempt("level1/5_layer_norm", "wrong/5_layer_norm.cpp", search=search)
    assert outcome.reason == "wrong-output"


def test_a_finished_problem_is_not_run_again_unless_its_kernel_changes(tmp_path: Path) -> None:
    settings = BenchSettings(folder=tmp_path, seconds=0.0, cores=[CORE])
    one = [problem("level1/2_row_mean")]
    bench = KernelBench(solution("solutions/level1/2_row_mean.cpp"), settings=settings)
    ((outcome, _),) = bench.run(one, known={})
    file = tmp_path / "out.jsonl"
    file.write_text(outcome.model_dump_json() + "\n" + outcome.model_dump_json()[:40] + "\n")
    known = read_outcomes(file)
    assert list(bench.run(one, known=known)) == [(outcome, True)]
    failed = {outcome.key: outcome.model_copy(update={"status": "error"})}
    assert [old for _, old in bench.run(one, known=failed)] == [False]
    changed = KernelBench(solution("wrong/2_row_mean.cpp"), settings=settings)
    ((other, old),) = changed.run(one, known=known)
    assert not old
    assert other.reason == "compile-failed"


def test_a_file_that_holds_no_outcomes_is_refused_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("hello\n")
    with raises_code(UnreadableInput, "bad-outcome", "line 1", "--out"):
        read_outcomes(file)
    assert read_outcomes(tmp_path / "absent") == {}


def compiled_outcome(folder: Path) -> Outcome:
    settings = BenchSettings(folder=folder, seconds=0.2, cores=[CORE], compiles=True)
    bench = KernelBench(solution("solutions/level1/2_row_mean.cpp"), settings=settings)
    ((outcome, _),) = bench.run([problem("level1/2_row_mean")], known={})
    return outcome


def test_a_model_that_does_not_compile_leaves_the_time_beside_eager(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_words: object, **_more: object) -> EagerModel:
        raise ProblemRefused("fails", "no compiler")

    monkeypatch.setattr(running, "open_compiled", refuse)
    outcome = compiled_outcome(tmp_path)
    assert outcome.eager is not None
    assert outcome.compile is None
    assert outcome.compile_problem == "fails: no compiler"


def test_a_compiled_model_is_timed_in_the_same_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    placed = []

    class Model(EagerModel):
        def place(self, sets: Sequence[Mapping[str, Array]], *, compiles: bool = False) -> None:
            placed.append(compiles)
            super().place(sets)

    def opened(text: str, described: Described, **_more: object) -> EagerModel:
        process = ProblemProcess(text, cores=[CORE])
        process.call("describe", seed=1)
        return Model(process, described)

    monkeypatch.setattr(running, "open_compiled", opened)
    outcome = compiled_outcome(tmp_path)
    assert placed == [True]
    assert outcome.eager is not None
    assert outcome.compile is not None
    assert outcome.compile.blocks == outcome.eager.blocks
    assert outcome.compile.candidate_us == outcome.eager.candidate_us
