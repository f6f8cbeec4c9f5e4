"""On a machine with a GPU problems run there, confined, and Triton is timed beside eager."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.expect import raises_naming

from retuned.cli.validate import read_candidate
from retuned_bench.kernelbench.problem import open_problem
from retuned_bench.kernelbench.problem_files import discover
from retuned_bench.kernelbench.process import ProblemRefused
from retuned_bench.kernelbench.run import BenchSettings, KernelBench

DATA = Path(__file__).resolve().parents[1] / "data" / "kernelbench"

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", ["level1/2_row_mean", "level1/3_softmax"])
def test_a_triton_kernel_is_timed_beside_eager_on_the_gpu(tmp_path: Path, name: str) -> None:
    (problem,) = [each for each in discover(DATA / "problems") if each.id == name]
    path = DATA / "solutions" / f"{name}.py"
    bench = KernelBench(
        lambda _problem, definition: read_candidate(path, definition=definition)[0],
        settings=BenchSettings(folder=tmp_path, seconds=1.0),
    )
    ((outcome, _),) = bench.run([problem], known={})
    assert outcome.correct, outcome.detail
    assert outcome.device == "cuda"
    assert outcome.eager is not None
    assert outcome.eager.speedup.upper < 100.0
    assert outcome.eager.candidate_us < outcome.eager.baseline_us * 2.0


@pytest.mark.parametrize("name", ["network", "writes_a_file", "fork_bomb", "starts_a_program"])
def test_the_walls_stand_where_a_driver_is_used(name: str) -> None:
    text = (DATA / "hostile" / f"{name}.py").read_text(encoding="utf-8")
    with raises_naming(ProblemRefused, "PermissionError"):
        open_problem(name, text, device="cuda")
