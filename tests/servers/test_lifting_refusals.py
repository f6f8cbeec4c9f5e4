"""Kernels of pinned vLLM wheels that lifting refuses by their source, and some that it lifts.

A number of refusals may fall; it must not rise for a reason that was found to be false.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from benchmarks.lifting_survey import Row, rows_of, texts_of
from tests.lifting.asking import Server
from tests.servers.wheels import PINNED, unpacked

from retuned.catalog.user import entry_of
from retuned.contract import Language
from retuned.lifting.lift import Lifted, Outcome, lift_all

pytestmark = [pytest.mark.index, pytest.mark.slow]

Array = npt.NDArray[Any]

PROGRAM = Path(__file__).parents[1] / "lifting" / "vllm_serving.py"
VERSIONS = pytest.mark.parametrize("version", ["vllm-0.26.0", "vllm-0.33.0"])
FALSE = {"pointer-stored": 0, "parameter-annotated": 0, "flow-too-deep": 0}
"""Reason -> the largest number of kernels that it may refuse: none stores an address."""
BOUNDS = {
    "vllm-0.26.0": {**FALSE, "source-outside-contract": 19, "extern-function": 13},
    "vllm-0.33.0": {**FALSE, "source-outside-contract": 46, "extern-function": 56},
}
LIFTABLE = {"vllm-0.26.0": (83, 225), "vllm-0.33.0": (155, 430)}
"""Least number of kernels that nothing refuses, and of those with the ones that need bounds."""


@functools.cache
def rows(version: str) -> tuple[Row, ...]:
    found, helpers = rows_of(unpacked(PINNED[version]) / "vllm")
    assert helpers > 50
    return tuple(found)


@VERSIONS
def test_false_reasons_refuse_no_more_kernels_than_they_did(version: str) -> None:
    counts = Counter(row.code for row in rows(version))
    above = {code: counts[code] for code, most in BOUNDS[version].items() if counts[code] > most}
    assert above == {}, [row for row in rows(version) if row.code in above]
    plain, bounded = LIFTABLE[version]
    assert counts["accepted"] >= plain
    assert counts["accepted"] + counts["index-bounds-unknown"] >= bounded


@VERSIONS
@pytest.mark.parametrize(
    ("kernel", "code"),
    [
        ("kv_cache_scatter_kernel", "pointer-of-pointers"),
        ("kv_cache_gather_kernel", "pointer-of-pointers"),
        ("_swap_blocks_kernel", "pointer-of-pointers"),
        ("_lora_expand_kernel", "pointer-of-pointers"),
        ("_eplb_map_and_record_i32_kernel", "atomic-output"),
        ("_post_update_kernel", "in-place-index"),
        ("_swiglu", "extern-function"),
    ],
)
def test_true_reasons_still_refuse(version: str, kernel: str, code: str) -> None:
    assert [row.code for row in rows(version) if row.kernel == kernel] == [code]


OUTPUTS = {
    "_rmsnorm_nw_kernel": {"out_ptr"},
    "_gemma_rmsnorm_kernel": {"out_ptr"},
    "_swiglu_oai_kernel": {"out_ptr"},
    "_per_token_group_quant_int8": {"y_q_ptr", "y_s_ptr"},
    "_layer_norm_fwd_1pass_kernel": {"Y", "Rstd"},
    "merge_attn_states_kernel": {"output", "output_lse"},
}
"""Kernel of vLLM 0.26 that was refused -> the pointers that it writes."""

IN_VLLM = (
    "float8_info = 1.0\n",
    "import torch\nfloat8_info = torch.finfo(torch.float8_e4m3fn)\n",
)
"""A stand-in of the survey, and what vLLM computes."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    pytest.importorskip("triton", reason="Triton is not installed")
    kernels = pytest.importorskip("tests.lifting.vllm_serving", reason="PyTorch is not installed")
    folder = tmp_path_factory.mktemp("server")
    package = unpacked(PINNED["vllm-0.26.0"]) / "vllm"
    for name, text in texts_of(package, kernels.KERNELS.values()).items():
        path = folder / f"{name.partition(':')[2]}.py"
        path.write_text(text.replace(*IN_VLLM))
    found = Server(folder, program=PROGRAM)
    yield found
    found.close()


@pytest.fixture(scope="module")
def outcome(server: Server) -> Outcome:
    return lift_all(server.said["records"])


def named(outcome: Outcome, kernel: str) -> Lifted:
    (one,) = [
        each
        for each in outcome.lifted
        if each.own.lifted and each.own.lifted.kernel.endswith(f":{kernel}")
    ]
    return one


def test_kernels_that_were_refused_are_lifted_with_the_outputs_that_they_write(
    outcome: Outcome,
) -> None:
    assert [(each.kernel, each.reason, each.detail) for each in outcome.kept] == []
    found = {kernel: set(named(outcome, kernel).own.definition.outputs) for kernel in OUTPUTS}
    assert found == OUTPUTS


@pytest.mark.parametrize("kernel", OUTPUTS)
def test_a_variant_takes_over_launches_of_vllms_kernels(
    server: Server, outcome: Outcome, tmp_path: Path, kernel: str
) -> None:
    one = named(outcome, kernel)
    said, sample = server.swap(one, tmp_path, params={"num_warps": 2}, every=2, more=3)
    assert said["same"]
    assert sample["swapped_launches"] >= 4, sample
    assert sample["shadow_checks"] >= 1, sample
    assert sample["shadow_mismatches"] == sample["shadow_nonfinite"] == 0, sample


def rms(x: Array) -> Array:
    wide = x.astype(np.float64)
    found: Array = wide / np.sqrt((wide * wide).mean(-1, keepdims=True) + 1e-6)
    return found


def gated(pair: Array) -> Array:
    gate, up = np.moveaxis(pair.astype(np.float64).reshape(len(pair), 2, -1), 1, 0)
    gate, up = np.minimum(gate, 7.0), np.clip(up, -7.0, 7.0)
    found: Array = gate / (1 + np.exp(-1.7 * gate)) * (up + 1.0)
    return found


def quantized(y: Array) -> dict[str, Array]:
    scales = np.maximum(np.abs(y).max(-1), 1e-10) / 127.0
    return {"y_q_ptr": np.trunc(y / scales[:, None]), "y_s_ptr": scales}


def merged(inputs: Mapping[str, Array]) -> dict[str, Array]:
    given = {name: array.astype(np.float64) for name, array in inputs.items()}
    tokens = given["prefix_output"].size // (4 * 16)
    before, after = (given[n].reshape(4, tokens).T for n in ("prefix_lse", "suffix_lse"))
    one, other = (given[n].reshape(tokens, 4, 16) for n in ("prefix_output", "suffix_output"))
    sums = np.logaddexp(before, after)
    share = np.exp(before - sums)[..., None]
    return {"output": one * share + other * (1 - share), "output_lse": sums.T}


COMPUTES: dict[str, Callable[[Mapping[str, Array]], dict[str, Array]]] = {
    "_rmsnorm_nw_kernel": lambda i: {"out_ptr": rms(i["x_ptr"])},
    "_gemma_rmsnorm_kernel": lambda i: {"out_ptr": rms(i["x_ptr"]) * (1.0 + i["w_ptr"])},
    "_swiglu_oai_kernel": lambda i: {"out_ptr": gated(i["g_ptr"])},
    "_per_token_group_quant_int8": lambda i: quantized(i["y_ptr"]),
    "_layer_norm_fwd_1pass_kernel": lambda i: {
        "Y": rms(i["X"]) * i["W"],
        "Rstd": 1 / np.sqrt((i["X"].astype(np.float64) ** 2).mean(-1) + 1e-6),
    },
    "merge_attn_states_kernel": merged,
}
"""What the kernels of vLLM say, computed by NumPy."""


@pytest.mark.parametrize("kernel", OUTPUTS)
def test_a_lifted_text_computes_what_vllms_kernel_says(outcome: Outcome, kernel: str) -> None:
    one = named(outcome, kernel)
    entry = entry_of(one.own, Language.TRITON)
    axes = dict(one.workloads[0].axes)
    inputs = entry.inputs(axes, seed=3, family="randn")
    answer = entry.reference(inputs, axes)
    wanted = COMPUTES[kernel](inputs)
    assert answer.keys() == wanted.keys()
    for name, array in wanted.items():
        found = answer[name].astype(np.float64).ravel()
        np.testing.assert_allclose(found, array.astype(np.float64).ravel(), rtol=2e-3, atol=2e-3)
