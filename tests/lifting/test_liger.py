"""Liger's own kernels, from the package index: what of them is lifted, and why the rest is not.

The table in ``docs/lifting.md`` says the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.lifting.asking import Server
from tests.runtime.ways_in.real_servers import sources

from retuned.catalog.user import entry_of
from retuned.contract import Language
from retuned.lab.examiner import Examiner
from retuned.lab.languages.triton import audit_solution
from retuned.lab.resources import LabResources, LabSettings
from retuned.lifting.lift import Bounds, Lifted, Outcome, lift_all
from retuned.lifting.recognition import RECOGNISED
from retuned.lifting.sampled_outputs import with_structures

pytest.importorskip("triton", reason="Triton is not installed")
pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("packaging", reason="Liger imports it")
pytestmark = [pytest.mark.index, pytest.mark.slow, pytest.mark.timeout(900)]

PROGRAM = Path(__file__).with_name("liger_serving.py")
VOCABULARY = 40
INFERENCE = (
    "rms_norm:_rms_norm_forward_kernel",
    "fused_add_rms_norm:_fused_add_rms_norm_forward_kernel",
    "layer_norm:_layer_norm_forward_kernel",
    "swiglu:_swiglu_forward_kernel",
    "swiglu:_swiglu_fused_gate_up_forward_kernel",
    "geglu:_geglu_tanh_forward_kernel",
    "softmax:_softmax_single_block_forward_kernel",
    "rope:_triton_rope",
)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    found = Server(sources("liger-kernel"), program=PROGRAM)
    yield found
    found.close()


@pytest.fixture(scope="module")
def outcome(server: Server) -> Outcome:
    return lift_all(server.said["records"])


def named(outcome: Outcome, name: str) -> Lifted:
    found = [e for e in outcome.lifted if e.own.lifted and e.own.lifted.kernel.endswith(name)]
    return found[0]


def passes_the_lab(one: Lifted, folder: Path) -> None:
    """Compile it for both vendors, and let the lab check it under the interpreter."""
    one = replace(one, own=one.own.model_copy(update={"families": ("randn",)}))
    entry = entry_of(one.own, Language.TRITON)
    candidate = entry.solution("lifted", {**entry.incumbent.params, "num_warps": 8})
    for arch in ("sm_90", "gfx942"):
        shapes = [one.workloads[-1].axes]
        reports = audit_solution(candidate, entry.definition, arch=arch, shapes=shapes)
        assert [problem for report in reports for problem in report.problems] == []
    settings = LabSettings(search_s=0.1, search_blocks=3, launch_timeout_s=60.0)
    small = [each for each in one.workloads if 5 in each.axes.values()]
    bay = LabResources(entry, small, incumbent=entry.incumbent, folder=folder, settings=settings)
    try:
        examiner = Examiner(bay)
        variant, checks = examiner.admit(candidate)
        assert variant is not None, checks
        checks = (*checks, *examiner.correct(variant))
        assert [check for check in checks if check.reason is not None] == []
    finally:
        bay.close()


def test_every_kernel_of_an_inference_is_lifted(outcome: Outcome) -> None:
    assert {each.kernel.rpartition(".")[2]: each.reason for each in outcome.kept} == {
        "cross_entropy:liger_cross_entropy_kernel": "index-bounds-unknown",
        "embedding:embedding_forward_kernel": "index-bounds-unknown",
    }
    origins = [each.own.lifted for each in outcome.lifted if each.own.lifted]
    kernels = {origin.kernel.rpartition(".")[2] for origin in origins}
    assert kernels == {
        *INFERENCE,
        "rms_norm:_block_rms_norm_forward_kernel",
        "swiglu:_swiglu_forward_kernel_tiled",
    }


BOUNDS: dict[str, Bounds] = {
    "liger_kernel.ops.cross_entropy:liger_cross_entropy_kernel": {"Y_ptr": (0, "n_cols - 1")},
    "liger_kernel.ops.experimental.embedding:embedding_forward_kernel": {
        "indices_ptr": (0, VOCABULARY - 1)
    },
}


def test_with_bounds_the_rest_is_lifted_too(server: Server) -> None:
    outcome = lift_all(server.said["records"], bounds=BOUNDS)
    assert outcome.kept == []
    loss = named(outcome, "liger_cross_entropy_kernel").own.definition
    assert loss.updated == {"X_ptr_out": "X_ptr"}, "the gradient lies where the logits were"


@pytest.mark.parametrize("kernel", [name.rpartition(".")[2] for name in BOUNDS])
def test_what_was_lifted_with_bounds_passes_the_lab(
    server: Server, tmp_path: Path, kernel: str
) -> None:
    records = server.said["records"]
    for record in records:  # as on AMD's devices, for which a machine without a GPU compiles
        record["options"]["num_warps"] = min(16, record["options"].get("num_warps", 4))
    passes_the_lab(named(lift_all(records, bounds=BOUNDS), kernel), tmp_path)


def test_rotary_embeddings_are_changed_in_place(outcome: Outcome) -> None:
    definition = named(outcome, "rope:_triton_rope").own.definition
    assert definition.updated == {"q_ptr_out": "q_ptr", "k_ptr_out": "k_ptr"}
    assert definition.outputs["k_ptr_out"].shape == ("sl", "k_row_stride")


def test_each_choice_that_liger_compiles_in_is_a_definition(outcome: Outcome) -> None:
    kernel = "rms_norm:_rms_norm_forward_kernel"
    found = [e.own.lifted for e in outcome.lifted if e.own.lifted]
    modes = {each.constants["casting_mode"] for each in found if each.kernel.endswith(kernel)}
    assert modes == {0, 1}


def test_tiles_of_columns_are_told_from_rows(outcome: Outcome) -> None:
    (variant,) = named(outcome, "_swiglu_forward_kernel_tiled").own.variants
    assert variant.grid == ("rows", "cdiv(n_cols, BLOCK_SIZE)")


@pytest.mark.parametrize("kernel", INFERENCE)
def test_a_lifted_kernel_passes_every_check_of_the_lab_and_compiles_for_both_vendors(
    outcome: Outcome, tmp_path: Path, kernel: str
) -> None:
    passes_the_lab(named(outcome, kernel), tmp_path)


@pytest.mark.parametrize("kernel", INFERENCE)
def test_a_variant_takes_over_ligers_launches(
    server: Server, outcome: Outcome, tmp_path: Path, kernel: str
) -> None:
    said, sample = server.swap(
        named(outcome, kernel), tmp_path, params={"num_warps": 2}, every=2, more=3
    )
    assert said["same"]
    assert sample["swapped_launches"] == 4, sample
    assert sample["shadow_checks"] >= 1, sample
    assert sample["shadow_mismatches"] == sample["shadow_nonfinite"] == 0, sample


COMPUTES = {
    "_rms_norm_forward_kernel": "rmsnorm",
    "_block_rms_norm_forward_kernel": "rmsnorm",
    "_swiglu_forward_kernel": "silu_mul",
    "_swiglu_forward_kernel_tiled": "silu_mul",
    "_swiglu_fused_gate_up_forward_kernel": "silu_mul_packed",
    "_geglu_tanh_forward_kernel": "gelu_mul",
    "_softmax_single_block_forward_kernel": "softmax",
    "_layer_norm_forward_kernel": "layernorm",
    "_fused_add_rms_norm_forward_kernel": "add_rmsnorm",
}


def test_what_liger_normalises_and_gates_is_recognised_and_no_other_kernel_is(
    outcome: Outcome,
) -> None:
    """GEGLU has SwiGLU's shapes and types; they are told apart by what they give."""
    found: dict[str, set[str]] = {}
    for one in outcome.lifted:
        assert one.own.lifted is not None
        tags = with_structures(one).own.definition.tags
        computes = tags[-1] if RECOGNISED in tags else ""
        found.setdefault(one.own.lifted.kernel.rpartition(":")[2], set()).add(computes)
    assert {kernel: found.pop(kernel) for kernel in COMPUTES} == {
        kernel: {computes} for kernel, computes in COMPUTES.items()
    }
    assert set().union(*found.values()) == {""}
