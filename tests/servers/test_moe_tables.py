"""Tables on the real look-up of fused mixture-of-experts kernels, and what they launch."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from tests.servers import moe
from tests.servers.sources import file_of
from tests.servers.tables import only, put
from tests.servers.wheels import Wheel, unpacked, versions

from retuned.runtime.schema import Refused
from retuned.runtime.tunables.moe import MoeHook
from retuned.runtime.tunables.state import Registry

pytestmark = pytest.mark.index
VLLM = pytest.mark.parametrize("wheel", versions("vllm"))
ROW = {
    "BLOCK_SIZE_M": 32,
    "BLOCK_SIZE_N": 64,
    "BLOCK_SIZE_K": 64,
    "GROUP_SIZE_M": 16,
    "num_warps": 8,
    "num_stages": 2,
}


@VLLM
@pytest.mark.parametrize(
    ("tokens", "experts", "how", "detail"),
    [
        (16, 128, "exact", "row of 16 tokens"),
        (20, 128, "nearest", "row of 16 tokens"),
        (20, 7, "default", "no file for this card and shape"),
    ],
)
def test_the_servers_own_row_is_named_with_where_it_came_from(
    wheel: Wheel, tokens: int, experts: int, how: str, detail: str
) -> None:
    registry = Registry()
    with moe.fused_moe(unpacked(wheel)) as module:
        own = moe.asked(module, tokens, experts=experts)
        assert MoeHook(registry).install() == "on"
        assert moe.asked(module, tokens, experts=experts) == own
    (asked,) = only(registry).asked()
    assert (asked["how"], asked["detail"], asked["config"]) == (how, detail, own)
    assert not registry.failures


@VLLM
def test_a_table_answers_and_its_removal_gives_the_file_back(wheel: Wheel) -> None:
    registry = Registry()
    with moe.fused_moe(unpacked(wheel)) as module:
        hook = MoeHook(registry)
        hook.install()
        own = moe.asked(module, 20)
        before = dict(own)
        put(only(registry), ROW)
        assert ROW.items() <= moe.asked(module, 20).items()
        only(registry).table = None
        assert moe.asked(module, 20) is own
        assert own == before  # the file's row is shared by all launches
    assert only(registry).matched == 1


@VLLM
def test_all_holders_of_the_look_up_follow_and_are_restored(wheel: Wheel) -> None:
    with moe.fused_moe(unpacked(wheel)) as module:
        stock = module.try_get_optimal_moe_config
        layer = ModuleType("vllm.layer_that_imported_it")
        vars(layer)["try_get_optimal_moe_config"] = stock
        sys.modules[layer.__name__] = layer  # removed with all other modules of vLLM
        hook = MoeHook(Registry())
        hook.install()
        assert vars(layer)["try_get_optimal_moe_config"] is module.try_get_optimal_moe_config
        assert module.try_get_optimal_moe_config is not stock
        hook.uninstall()
        assert vars(layer)["try_get_optimal_moe_config"] is stock
        assert module.try_get_optimal_moe_config is stock


@VLLM
def test_the_kernel_launches_by_the_row_of_a_table(wheel: Wheel) -> None:
    registry, layer = Registry(), moe.experts_of(20, 4, 80)
    with moe.fused_moe(unpacked(wheel)) as module:
        hook = MoeHook(registry)
        hook.install()
        moe.asked(module, 20)
        put(only(registry), ROW)
        answer = moe.launched(module, layer, moe.asked(module, 20))
        hook.uninstall()
    torch.testing.assert_close(answer, moe.expected(layer))


@VLLM
def test_an_unknown_look_up_is_refused_and_left_alone(wheel: Wheel, tmp_path: Path) -> None:
    text = file_of(unpacked(wheel), moe.MODULE).read_text("utf-8")
    target = tmp_path.joinpath(*moe.MODULE.split(".")).with_suffix(".py")
    target.parent.mkdir(parents=True)
    target.write_text(text.replace("    w2_shape", "    down_shape"), "utf-8")
    with moe.fused_moe(tmp_path) as module:
        before = dict(vars(module))
        assert MoeHook(Registry()).install() == "moe-unknown"
        assert vars(module) == before


_WRONG: list[dict[str, Any]] = [
    {name: value for name, value in ROW.items() if name != "num_warps"},
    ROW | {"BLOCK_SIZE_M": 24},
    ROW | {"BLOCK_SIZE_K": None},
    ROW | {"USE_TMA": True},
]


@VLLM
def test_a_row_that_the_kernel_cannot_launch_is_refused(wheel: Wheel) -> None:
    registry = Registry()
    with moe.fused_moe(unpacked(wheel)) as module:
        MoeHook(registry).install()
        moe.asked(module, 20)
    for row in _WRONG:
        with pytest.raises(Refused) as refused:
            only(registry).check(row)
        assert refused.value.reason == "config-unknown"
