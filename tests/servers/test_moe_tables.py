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
from retuned.runtime.steps.launch_timer import HostMoments
from retuned.runtime.steps.launch_times import LaunchTimes
from retuned.runtime.steps.log import StepLog
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


class Kernel:
    """In place of the kernel: keeps what is launched and what is compiled."""

    def __init__(self, arg_names: list[str]) -> None:
        self.arg_names, self.src = arg_names, "def fused_moe_kernel(): ..."
        self.launched: list[dict[str, Any]] = []
        self.compiled: list[dict[str, Any]] = []

    def __getitem__(self, grid: Any) -> Any:
        def launch(*args: Any, **kwargs: Any) -> None:
            self.launched.append({**dict(zip(self.arg_names, args, strict=False)), **kwargs})

        return launch

    def run(self, *, grid: Any, warmup: bool, **named: Any) -> None:
        assert warmup
        self.compiled.append(named)


def specialised(named: dict[str, Any]) -> dict[str, Any]:
    """Return what Triton compiles a launch for."""

    def kind(value: Any) -> Any:
        if hasattr(value, "data_ptr"):
            return "pointer", value.dtype, value.data_ptr() % 16 == 0
        if type(value) is int:
            return "constant one" if value == 1 else ("number", value % 16 == 0)
        return value

    constants = {"BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "SPLIT_K", "top_k"}
    constants |= {"num_warps", "num_stages", "group_n", "group_k"}
    return {name: v if name in constants else kind(v) for name, v in named.items()}


@VLLM
@pytest.mark.parametrize("tokens", [20, 32, 8])
def test_rows_are_compiled_for_the_launches_that_follow_before_they_serve(
    wheel: Wheel, tokens: int
) -> None:
    registry, layer = Registry(), moe.experts_of(tokens, 7, 80)
    with moe.fused_moe(unpacked(wheel)) as module:
        kernel = Kernel(list(module.fused_moe_kernel.arg_names))
        vars(module)["fused_moe_kernel"] = kernel
        hook = MoeHook(registry)
        hook.install()
        moe.launched(module, layer, moe.asked(module, 20))
        tunable = only(registry)
        put(tunable, ROW)
        assert tunable.table is not None
        tunable.warm(tunable.table)
        assert len(kernel.compiled) == 4
        moe.launched(module, layer, moe.asked(module, tokens))
        assert specialised(kernel.launched[1]) in [specialised(each) for each in kernel.compiled]
        assert kernel.launched[1]["BLOCK_SIZE_K"] == ROW["BLOCK_SIZE_K"]
        hook.uninstall()
        assert module.fused_moe_kernel is kernel
    assert not registry.failures


@VLLM
def test_a_row_is_cut_to_the_blocks_of_scales_as_the_server_cuts_it(wheel: Wheel) -> None:
    registry = Registry()
    with moe.fused_moe(unpacked(wheel)) as module:
        kernel = Kernel(list(module.fused_moe_kernel.arg_names))
        vars(module)["fused_moe_kernel"] = kernel
        vars(module)["enable_swap_ab"] = lambda rows, columns: (rows, columns) == (32, 64)
        MoeHook(registry).install()
        moe.launched_fp8(module, moe.asked(module, 20))
        tunable = only(registry)
        put(tunable, ROW | {"BLOCK_SIZE_K": 128})
        assert tunable.table is not None
        tunable.warm(tunable.table)
        moe.launched_fp8(module, moe.asked(module, 20))
        assert specialised(kernel.launched[1]) in [specialised(each) for each in kernel.compiled]
        assert kernel.launched[1]["BLOCK_SIZE_K"] == 64
        assert [each["SWAP_AB"] for each in kernel.launched] == [False, True]
    assert not registry.failures


@VLLM
def test_a_launch_counts_for_the_look_up_before_it_alone(wheel: Wheel) -> None:
    registry, layer = Registry(), moe.experts_of(20, 4, 80)
    with moe.fused_moe(unpacked(wheel)) as module:
        kernel = Kernel(list(module.fused_moe_kernel.arg_names))
        vars(module)["fused_moe_kernel"] = kernel
        MoeHook(registry).install()
        moe.asked(module, 20)
        row = moe.asked(module, 20, experts=7)
        first, second = registry
        for _ in range(2):
            moe.launched(module, layer, row)
        moe.launched_naive(module, row)  # a third kind, of no look-up
        for tunable, kinds in ((first, set()), (second, {False})):
            kernel.compiled.clear()
            put(tunable, ROW)
            assert tunable.table is not None
            tunable.warm(tunable.table)
            assert {each["naive_block_assignment"] for each in kernel.compiled} == kinds
        moe.asked(module, 20, experts=7)
        moe.launched_naive(module, row)
        assert second.table is not None
        second.warm(second.table)
        assert {each["naive_block_assignment"] for each in kernel.compiled} == {False, True}


@VLLM
def test_a_layer_is_one_launch_for_a_live_proof(wheel: Wheel) -> None:
    registry, layer, log = Registry(), moe.experts_of(20, 4, 80), StepLog()
    times = LaunchTimes(log, device=HostMoments)
    with moe.fused_moe(unpacked(wheel)) as module:
        vars(module)["fused_moe_kernel"] = Kernel(list(module.fused_moe_kernel.arg_names))
        MoeHook(registry).install()
        row = moe.asked(module, 20)
        log.start()
        times.follow(only(registry))
        log.arm = "0-0-on"
        moe.asked(module, 20)
        moe.launched(module, layer, row)
        assert [len(each["us"]) for each in times.rows()] == [0]
        moe.launched(module, layer, row)
    (found,) = times.rows()
    assert (found["arm"], found["launches"], len(found["us"])) == ("on", 1, 1)
    assert not registry.failures


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
