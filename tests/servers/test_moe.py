"""Fused mixture-of-experts of vLLM: who asks for a configuration, and what the answer is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tests.servers import moe
from tests.servers.sources import importers, parameters, parsed
from tests.servers.wheels import Wheel, unpacked, versions

pytestmark = pytest.mark.index
VLLM = pytest.mark.parametrize("wheel", versions("vllm"))
_EXPERTS = f"{moe.PACKAGE}.experts"
_HOLDERS = {
    f"{_EXPERTS}.triton_moe",
    f"{_EXPERTS}.fused_batched_moe",
    f"{_EXPERTS}.nvfp4_emulation_moe",
    "vllm.lora.layers.utils",
}
_ROW = {"BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps", "num_stages"}


@VLLM
def test_the_look_up_takes_shapes_and_tokens_in_the_known_order(wheel: Wheel) -> None:
    tree = parsed(unpacked(wheel), moe.MODULE)
    assert parameters(tree, "try_get_optimal_moe_config") == [
        *("w1_shape", "w2_shape", "top_k", "dtype", "M", "block_shape")
    ]
    assert parameters(tree, "get_moe_configs") == ["E", "N", "dtype", "block_n", "block_k"]
    assert parameters(tree, "get_config_file_name") == ["E", "N", "dtype", "block_shape"]
    assert parameters(tree, "get_default_config") == [
        *("M", "E", "N", "K", "topk", "dtype", "block_shape")
    ]


@VLLM
def test_layers_hold_the_look_up_by_name(wheel: Wheel) -> None:
    found = importers(unpacked(wheel), module=moe.MODULE, name="try_get_optimal_moe_config")
    assert found >= _HOLDERS


@VLLM
def test_only_the_look_up_itself_holds_the_reader_of_tables(wheel: Wheel) -> None:
    """So a table replaced in its module reaches all holders of the look-up."""
    found = importers(unpacked(wheel), module=moe.MODULE, name="get_moe_configs")
    assert {each for each in found if ".fused_moe." in each} <= {moe.PACKAGE}


@VLLM
@pytest.mark.parametrize(("tokens", "row"), [(1, 1), (20, 16), (21, 24), (40, 32), (100_000, 4096)])
def test_the_nearest_row_answers_and_the_first_of_two(wheel: Wheel, tokens: int, row: int) -> None:
    with moe.fused_moe(unpacked(wheel)) as module:
        table = module.get_moe_configs(128, 768, None, 0, 0)
        assert moe.asked(module, tokens) == table[row]
        assert moe.asked(module, tokens) is table[row]


@VLLM
def test_without_a_file_the_default_answers_with_a_whole_row(wheel: Wheel) -> None:
    with moe.fused_moe(unpacked(wheel)) as module:
        answer = moe.asked(module, 64, experts=7)
        assert answer == module.get_default_config(64, 7, 768, 2048, 8, None, None)
        assert set(answer) >= _ROW


@VLLM
def test_a_row_put_into_the_kept_table_answers_at_once(wheel: Wheel) -> None:
    with moe.fused_moe(unpacked(wheel)) as module:
        table = module.get_moe_configs(128, 768, None, 0, 0)
        table[20] = {"BLOCK_SIZE_M": 16}
        assert moe.asked(module, 20) == {"BLOCK_SIZE_M": 16}
        # another form of the same question is another entry of the cache
        assert module.get_moe_configs(128, 768, None) is not table


@VLLM
def test_the_users_folder_comes_before_the_package(wheel: Wheel, tmp_path: Path) -> None:
    row = {"BLOCK_SIZE_M": 64}
    with moe.fused_moe(unpacked(wheel), tmp_path) as module:
        name = module.get_config_file_name(128, 768, None)
        (tmp_path / name).write_text(json.dumps({"triton_version": "3.6.0", "8": row}))
        assert name == "E=128,N=768,device_name=NVIDIA_H200.json"
        assert moe.asked(module, 1) == row


@VLLM
def test_the_files_of_the_package_have_whole_rows(wheel: Wheel) -> None:
    folder = unpacked(wheel).joinpath(*moe.PACKAGE.split("."), "configs")
    files = sorted(folder.glob("E=*device_name=NVIDIA_H200*.json"))
    assert files
    for file in files:
        table = json.loads(file.read_text("utf-8"))
        assert all(set(row) >= _ROW for m, row in table.items() if m.isdigit()), file.name


@VLLM
@pytest.mark.parametrize(
    "row",
    [
        {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 32, "GROUP_SIZE_M": 1},
        {"BLOCK_SIZE_M": 32, "BLOCK_SIZE_N": 16, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 8},
    ],
    ids=["small", "large"],
)
def test_rows_differ_in_speed_and_not_in_the_answer(wheel: Wheel, row: dict[str, int]) -> None:
    layer = moe.experts_of(20, 4, 80)
    with moe.fused_moe(unpacked(wheel)) as module:
        answer = moe.launched(module, layer, row | {"num_warps": 4, "num_stages": 2})
    torch.testing.assert_close(answer, moe.expected(layer))
