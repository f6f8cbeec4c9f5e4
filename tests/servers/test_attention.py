"""Triton attention of vLLM: what the adapter rewrites is there, and means what it takes it for."""

from __future__ import annotations

import ast

import pytest
import torch
from tests.servers import attention
from tests.servers.sources import (
    class_of,
    function,
    importers,
    keywords,
    launches,
    parameters,
    parsed,
)
from tests.servers.wheels import Wheel, unpacked, versions

pytestmark = [
    pytest.mark.index,
    # rows that pad a block have no keys: the interpreter warns of 0 / 0 where a device does not
    pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning"),
]
VLLM = pytest.mark.parametrize("wheel", versions("vllm"))
_ASKED = {"q", "cu_seqlens_q", "max_seqlen_q", "seqused_k", "max_seqlen_k", "out", "k", "v"}
_SCRATCH = {
    "seq_threshold_3D",
    "num_par_softmax_segments",
    "softmax_segm_output",
    "softmax_segm_max",
    "softmax_segm_expsum",
}
_REWRITTEN = {"BLOCK_M", "BLOCK_Q", "TILE_SIZE", "NUM_SEGMENTS_PER_SEQ", "IS_3D"}
_READ = {"num_seqs", "num_queries_per_kv", "query_ptr", "output_ptr", "seq_lens_ptr", "BLOCK_SIZE"}
_PARTIAL = {"segm_output_ptr", "segm_max_ptr", "segm_expsum_ptr"}
BATCHES = [
    pytest.param([5, 1], [20, 33], 0, id="mixed"),
    pytest.param([1, 1, 1], [7, 40, 64], 0, id="decode"),
    pytest.param([1, 1, 1], [7, 40, 64], 8, id="segments"),
]


@VLLM
def test_the_launcher_takes_the_axes_by_name(wheel: Wheel) -> None:
    tree = parsed(unpacked(wheel), attention.MODULE)
    assert set(parameters(tree, "unified_attention")) >= _ASKED | _SCRATCH


@VLLM
def test_the_launcher_names_all_arguments_of_its_kernel(wheel: Wheel) -> None:
    tree = parsed(unpacked(wheel), attention.MODULE)
    (launch,) = launches(tree, "kernel_unified_attention")
    assert not launch.args
    assert keywords(launch) >= _REWRITTEN | _READ | _PARTIAL
    assert keywords(launch) - {"**"} <= set(parameters(tree, "kernel_unified_attention"))


@VLLM
def test_the_launcher_names_all_arguments_of_the_reduction(wheel: Wheel) -> None:
    tree = parsed(unpacked(wheel), attention.MODULE)
    (launch,) = launches(tree, "reduce_segments")
    assert not launch.args
    assert keywords(launch) >= {"TILE_SIZE", "NUM_SEGMENTS_PER_SEQ", "BLOCK_Q"} | _PARTIAL
    assert keywords(launch) <= set(parameters(tree, "reduce_segments"))


@VLLM
def test_one_backend_holds_the_launchers_name(wheel: Wheel) -> None:
    holders = importers(unpacked(wheel), module=attention.MODULE, name="unified_attention")
    assert holders == {"vllm.v1.attention.backends.triton_attn"}
    assert not importers(unpacked(wheel), module=attention.MODULE, name="kernel_unified_attention")


@VLLM
def test_other_kernels_share_the_reduction(wheel: Wheel) -> None:
    """They launch it with segments of theirs, which no table of this launcher may change."""
    holders = importers(unpacked(wheel), module=attention.MODULE, name="reduce_segments")
    assert holders >= {"vllm.v1.attention.ops.int4_per_token_head"}
    assert all(each.startswith("vllm.v1.attention.ops.") for each in holders)


@VLLM
def test_the_stand_in_of_quantisation_modes_has_the_servers_numbers(wheel: Wheel) -> None:
    modes = class_of(parsed(unpacked(wheel), "vllm.v1.kv_cache_interface"), "KVQuantMode")
    found = {
        each.targets[0].id: ast.literal_eval(each.value)
        for each in modes.body
        if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name)
    }
    ours = {each.name: each.value for each in attention.KVQuantMode}
    assert ours.items() <= found.items()


@VLLM
def test_the_kernels_are_module_names_when_they_are_launched(wheel: Wheel) -> None:
    launcher = function(parsed(unpacked(wheel), attention.MODULE), "unified_attention")
    assigned = {
        each.id
        for each in ast.walk(launcher)
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
    }
    assert not assigned & {"kernel_unified_attention", "reduce_segments"}


@VLLM
@pytest.mark.parametrize(("queries", "keys", "segments"), BATCHES)
def test_the_launcher_answers_as_pytorch_does(
    wheel: Wheel, queries: list[int], keys: list[int], segments: int
) -> None:
    with attention.attention(unpacked(wheel)) as module:
        call = attention.arguments(queries, keys, segments=segments)
        module.unified_attention(**call)
    torch.testing.assert_close(call["out"], attention.expected(call))
