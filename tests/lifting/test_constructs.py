"""Constructs of vLLM's kernels that lifting once refused: lifted, and computing what they did."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tests.lifting.asking import Server

from retuned.catalog.user import entry_of
from retuned.contract import Language
from retuned.lab.languages.triton import audit_solution
from retuned.lifting.lift import Lifted, Outcome, lift_all

pytest.importorskip("triton", reason="Triton is not installed")
pytest.importorskip("torch", reason="PyTorch is not installed")

Array = npt.NDArray[Any]
Inputs = Mapping[str, Array]

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
def test_a_variant_takes_over_the_servers_launches(
    server: Server, outcome: Outcome, tmp_path: Path, kernel: str
) -> None:
    one = named(outcome, kernel)
    said, sample = server.swap(one, tmp_path, params={"num_warps": 2}, every=2, more=3)
    assert said["same"]
    assert sample["swapped_launches"] == 4, sample
    assert sample["shadow_checks"] >= 1, sample
    assert sample["shadow_mismatches"] == sample["shadow_nonfinite"] == 0, sample


def decoded(codes: Array) -> Array:
    bits = (63 << 24) + ((codes & 7).astype(np.int32) << 22)
    return bits.astype(np.int32).view(np.float32) * np.float32(2**-24)


COMPUTES: dict[str, Callable[[Inputs], dict[str, Array]]] = {
    "output_type_kernel": lambda i: {"out_ptr": i["x_ptr"] * np.float32(0.3)},
    "pointer_type_kernel": lambda i: {"c_ptr": i["a_ptr"] * i["a_ptr"]},
    "annotated_kernel": lambda i: {"out_ptr": np.exp(i["x_ptr"])},
    "shifted_kernel": lambda i: {"out_ptr": decoded(i["x_ptr"])},
    "dependent_kernel": lambda i: {"out_ptr": i["x_ptr"] * 8},
    "statistics_kernel": lambda i: {
        "max_ptr": i["x_ptr"].max(-1),
        "out_ptr": np.exp(i["x_ptr"] - i["x_ptr"].max(-1, keepdims=True)),
    },
    "cache_type_kernel": lambda i: {"out_ptr": i["k_ptr"].astype(np.float32) + 1},
}
"""What the original's text says, computed by NumPy."""


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_lifted_text_computes_what_the_original_says(outcome: Outcome, kernel: str) -> None:
    one = named(outcome, kernel)
    entry = entry_of(one.own, Language.TRITON)
    axes = dict(one.workloads[0].axes)
    inputs = entry.inputs(axes, seed=3, family="randn")
    answer = entry.reference(inputs, axes)
    wanted = COMPUTES[kernel](inputs)
    assert answer.keys() == wanted.keys()
    for name, array in wanted.items():
        found = answer[name].astype(np.float64).reshape(array.shape)
        np.testing.assert_allclose(found, array.astype(np.float64), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_lifted_kernel_compiles_for_a_gpu(outcome: Outcome, kernel: str) -> None:
    one = named(outcome, kernel)
    entry = entry_of(one.own, Language.TRITON)
    candidate = entry.solution("lifted", {**entry.incumbent.params, "num_warps": 8})
    shapes = [one.workloads[-1].axes]
    reports = audit_solution(candidate, entry.definition, arch="sm_90", shapes=shapes)
    assert reports
    assert [problem for report in reports for problem in report.problems] == []
