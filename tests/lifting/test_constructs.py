"""Constructs of vLLM's kernels that lifting once refused: lifted, and computing what they did."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.lifting.asking import Server

from retuned.catalog.user import entry_of
from retuned.contract import Language
from retuned.lab.languages.triton import audit_solution
from retuned.lifting.lift import Lifted, Outcome, lift_all

pytest.importorskip("triton", reason="Triton is not installed")
pytest.importorskip("torch", reason="PyTorch is not installed")

PROGRAM = Path(__file__).with_name("constructs_serving.py")
KERNELS = {
    "output_type_kernel": {"out_ptr"},
    "pointer_type_kernel": {"c_ptr"},
    "annotated_kernel": {"out_ptr"},
    "shifted_kernel": {"out_ptr"},
    "dependent_kernel": {"out_ptr"},
    "statistics_kernel": {"max_ptr", "out_ptr"},
    "cache_type_kernel": {"out_ptr"},
}
"""Kernel -> the pointers that it writes."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    found = Server(tmp_path_factory.mktemp("server"), program=PROGRAM)
    yield found
    found.close()


@pytest.fixture(scope="module")
def outcome(server: Server) -> Outcome:
    return lift_all(server.said["records"])


def named(outcome: Outcome, kernel: str) -> Lifted:
    (one,) = [e for e in outcome.lifted if e.own.definition.op_type == f"lifted_{kernel}"]
    return one


def test_each_is_lifted_with_the_outputs_that_it_writes(outcome: Outcome) -> None:
    assert [(each.kernel, each.reason, each.detail) for each in outcome.kept] == []
    found = {kernel: set(named(outcome, kernel).own.definition.outputs) for kernel in KERNELS}
    assert found == KERNELS


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_lifted_kernel_computes_in_the_server_what_the_original_computes(
    server: Server, outcome: Outcome, tmp_path: Path, kernel: str
) -> None:
    one = named(outcome, kernel)
    said, sample = server.swap(one, tmp_path, params={"num_warps": 2}, every=2, more=3)
    assert said["same"]
    assert sample["swapped_launches"] == 4, sample
    assert sample["shadow_checks"] >= 1, sample
    assert sample["shadow_mismatches"] == sample["shadow_nonfinite"] == 0, sample


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_lifted_kernel_compiles_for_a_gpu(outcome: Outcome, kernel: str) -> None:
    one = named(outcome, kernel)
    entry = entry_of(one.own, Language.TRITON)
    candidate = entry.solution("lifted", {**entry.incumbent.params, "num_warps": 8})
    shapes = [one.workloads[-1].axes]
    reports = audit_solution(candidate, entry.definition, arch="sm_90", shapes=shapes)
    assert reports
    assert [problem for report in reports for problem in report.problems] == []
