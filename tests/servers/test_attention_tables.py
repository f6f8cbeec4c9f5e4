"""Tables on the real attention launchers: other constants, other forms, one answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from tests.servers import attention
from tests.servers.sources import file_of
from tests.servers.tables import only, put
from tests.servers.wheels import Wheel, unpacked, versions

from retuned.runtime.core.orders import CheckRates
from retuned.runtime.schema import Refused
from retuned.runtime.tunables.attention import AttentionHook
from retuned.runtime.tunables.state import Registry

pytestmark = [
    pytest.mark.index,
    pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning"),
]
VLLM = pytest.mark.parametrize("wheel", versions("vllm"))
MIXED, DECODE = ([5, 1], [20, 33]), ([1, 1, 1], [7, 40, 64])
CONFIGS = [
    pytest.param(*MIXED, 0, {"BLOCK_M": 32, "TILE_SIZE": 64}, id="prefill"),
    pytest.param(*MIXED, 8, {"TILE_SIZE": 16, "segments": 8}, id="prefill-and-segments"),
    pytest.param(*DECODE, 0, {"TILE_SIZE": 32, "num_warps": 8, "num_stages": 2}, id="decode"),
    pytest.param(*DECODE, 0, {"TILE_SIZE": 16, "segments": 4}, id="2d-to-3d"),
    pytest.param(*DECODE, 8, {"BLOCK_M": 32, "segments": 0}, id="3d-to-2d"),
    pytest.param(*DECODE, 8, {"TILE_SIZE": 32, "segments": 2}, id="fewer-segments"),
    pytest.param(*DECODE, 8, {"TILE_SIZE": 16, "segments": 32}, id="more-segments"),
    pytest.param(*DECODE, 8, {"TILE_SIZE": 64}, id="same-segments"),
]


class Spied:
    """A kernel that remembers the launches it runs."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self.launches: list[tuple[Any, dict[str, Any]]] = []
        self._spoiled: tuple[bool, int] | None = None

    def spoil(self, *, fails: bool, tile: int) -> None:
        """Make launches with one tile wrong, or raise."""
        self._spoiled = fails, tile

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        def launch(**kwargs: Any) -> Any:
            self.launches.append((grid, kwargs))
            known = {k: v for k, v in kwargs.items() if k not in ("num_warps", "num_stages")}
            found = self._kernel[grid](**known)
            if self._spoiled is not None and kwargs["TILE_SIZE"] == self._spoiled[1]:
                if self._spoiled[0]:
                    raise RuntimeError("out of resource: shared memory")
                kwargs["output_ptr"].mul_(3.0)
            return found

        return launch


def spied(module: ModuleType) -> tuple[Spied, Spied]:
    """Put spies in the place of the two kernels, below what the hook adds."""
    kernel, reduction = Spied(module.kernel_unified_attention), Spied(module.reduce_segments)
    vars(module).update(kernel_unified_attention=kernel, reduce_segments=reduction)
    return kernel, reduction


@VLLM
@pytest.mark.parametrize(("queries", "keys", "segments", "config"), CONFIGS)
def test_a_table_changes_the_launch_and_not_the_answer(
    wheel: Wheel, queries: list[int], keys: list[int], segments: int, config: dict[str, int]
) -> None:
    registry = Registry()
    with attention.attention(unpacked(wheel)) as module:
        kernel, reduction = spied(module)
        hook = AttentionHook(registry)
        assert hook.install() == "on"
        call = attention.arguments(queries, keys, segments=segments)
        module.unified_attention(**call)
        torch.testing.assert_close(call["out"], attention.expected(call))
        put(only(registry), config)
        call["out"].fill_(float("nan"))
        reduction.launches.clear()
        module.unified_attention(**call)
        hook.uninstall()
    torch.testing.assert_close(call["out"], attention.expected(call))
    assert only(registry).matched == 1
    assert not registry.failures
    _, launched = kernel.launches[-1]
    given = {name: value for name, value in config.items() if name != "segments"}
    assert given.items() <= launched.items()
    wanted = config.get("segments", segments) if max(queries) == 1 else launched["IS_3D"] * 8
    assert launched["IS_3D"] == bool(wanted)
    assert launched["NUM_SEGMENTS_PER_SEQ"] == (wanted or 1)
    shared = ("TILE_SIZE", "NUM_SEGMENTS_PER_SEQ", "BLOCK_Q")
    for _, reduced in reduction.launches:
        assert [reduced[name] for name in shared] == [launched[name] for name in shared]
    assert len(reduction.launches) == bool(wanted)


@VLLM
@pytest.mark.parametrize(("queries", "keys", "segments", "config"), CONFIGS)
def test_both_sides_of_a_checked_launch_agree(
    wheel: Wheel, queries: list[int], keys: list[int], segments: int, config: dict[str, int]
) -> None:
    registry = Registry()
    with attention.attention(unpacked(wheel)) as module:
        spied(module)
        hook = AttentionHook(registry)
        hook.install()
        call = attention.arguments(queries, keys, segments=segments)
        module.unified_attention(**call)
        put(only(registry), config, rates=CheckRates(shadow_every=1))
        for _ in range(2):
            call["out"].fill_(float("nan"))
            module.unified_attention(**call)
            torch.testing.assert_close(call["out"], attention.expected(call))
        hook.uninstall()
    checks = only(registry).checks
    assert checks is not None
    counts = checks.report()
    assert (counts["checks"], counts["mismatches"], counts["dropped"]) == (2, 0, {})
    assert not only(registry).tripped
    assert not registry.failures


@VLLM
@pytest.mark.parametrize("fails", [False, True], ids=["wrong", "raises"])
def test_a_configuration_that_is_wrong_live_serves_nothing(wheel: Wheel, *, fails: bool) -> None:
    registry = Registry()
    with attention.attention(unpacked(wheel)) as module:
        kernel, _ = spied(module)
        AttentionHook(registry).install()
        call = attention.arguments(*MIXED, segments=0)
        module.unified_attention(**call)
        put(only(registry), {"TILE_SIZE": 64}, rates=CheckRates(shadow_every=1))
        kernel.spoil(fails=fails, tile=64)
        for _ in range(2):
            call["out"].fill_(float("nan"))
            module.unified_attention(**call)
            torch.testing.assert_close(call["out"], attention.expected(call))
    assert only(registry).matched == 1
    assert only(registry).tripped == ("" if fails else "shadow-mismatch")
    assert registry.failures == fails


@VLLM
def test_without_a_table_the_servers_launch_is_untouched(wheel: Wheel) -> None:
    with attention.attention(unpacked(wheel)) as module:
        kernel, _ = spied(module)
        call = attention.arguments(*DECODE, segments=8)
        module.unified_attention(**call)
        hook = AttentionHook(Registry())
        hook.install()
        module.unified_attention(**call)
    (before, own), (after, seen) = kernel.launches
    assert before == after
    assert own.keys() == seen.keys()
    assert all(own[name] is seen[name] or own[name] == seen[name] for name in own)


@VLLM
def test_launches_alike_are_counted_whatever_way_they_take(wheel: Wheel) -> None:
    registry = Registry()
    with attention.attention(unpacked(wheel)) as module:
        vars(module).update(
            kernel_unified_attention=Unrun(module.kernel_unified_attention),
            reduce_segments=Unrun(module.reduce_segments),
        )
        hook = AttentionHook(registry)
        assert hook.install() == "on"
        call = attention.arguments(*DECODE, segments=0)
        for _ in range(128):
            module.unified_attention(**call)
        (asked,) = only(registry).asked()
        assert (asked["launches"], asked["timed"]) == (128, 3)  # the 5th, 66th and 127th

        put(only(registry), {"TILE_SIZE": 64})  # in force with the next call
        module.unified_attention(**call)
        assert only(registry).matched == 1
        only(registry).put(None)
        module.unified_attention(**call)
        assert only(registry).matched == 1
        only(registry).recording = True  # the next call is described again, with its values
        module.unified_attention(**call)
        (recipe,) = only(registry).recipes.values()
        tensors = [spec["tensor"] for _, spec in recipe["call"]["arguments"] if "tensor" in spec]
        assert any(each["data"] for each in tensors)

        module.unified_attention(**{**call, "max_seqlen_k": 65})
        assert [each["launches"] for each in only(registry).asked()] == [131, 1]
        module.unified_attention(**{**call, "window_size": (15, 0)})
        assert len(list(registry)) == 2
        hook.uninstall()
    assert not registry.failures


class Unrun:
    """A kernel whose launches do nothing."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda **_: None


@VLLM
def test_uninstalling_leaves_the_servers_objects(wheel: Wheel) -> None:
    with attention.attention(unpacked(wheel)) as module:
        names = ("unified_attention", "kernel_unified_attention", "reduce_segments")
        before = [vars(module)[name] for name in names]
        hook = AttentionHook(Registry())
        hook.install()
        assert all(vars(module)[name] is not old for name, old in zip(names, before, strict=True))
        hook.uninstall()
        assert all(vars(module)[name] is old for name, old in zip(names, before, strict=True))


@pytest.mark.parametrize("wheel", [each for each in versions("vllm") if each.id != "vllm-0.26.0"])
def test_more_rows_than_the_servers_scratch_has_are_segmented_too(wheel: Wheel) -> None:
    """From 0.33 the server leaves the segmented form if its scratch has fewer rows than a call."""
    registry = Registry()
    with attention.attention(unpacked(wheel)) as module:
        kernel, _ = spied(module)
        AttentionHook(registry).install()
        call = attention.arguments(*DECODE, segments=8)
        for name in ("softmax_segm_output", "softmax_segm_max", "softmax_segm_expsum"):
            call[name] = call[name][:2].contiguous()
        call["seq_threshold_3D"] = 2
        module.unified_attention(**call)
        put(only(registry), {"TILE_SIZE": 16, "segments": 4})
        module.unified_attention(**call)
    torch.testing.assert_close(call["out"], attention.expected(call))
    assert kernel.launches[-1][1]["IS_3D"]


@VLLM
def test_the_packed_form_keeps_its_own_reduction(wheel: Wheel) -> None:
    """Its kernel takes no tile of a table, so its reduction must not either."""
    registry = Registry()
    with attention.attention(unpacked(wheel)) as module:
        _, reduction = spied(module)
        AttentionHook(registry).install()
        call = attention.arguments(*DECODE, segments=8)
        module.unified_attention(**call)

        def packed(**given: Any) -> None:
            _, own = reduction.launches[0]
            module.reduce_segments[(3, 4)](**{**own, "TILE_SIZE": 32})

        packed_module = "vllm.v1.attention.ops.int4_per_token_head"
        vars(__import__(packed_module, fromlist=["_"])).update(unified_attention_int4=packed)
        put(only(registry), {"TILE_SIZE": 64, "segments": 4})
        mode = attention.KVQuantMode.INT4_PER_TOKEN_HEAD
        module.unified_attention(**call, kv_quant_mode=mode)
    assert reduction.launches[-1][1]["TILE_SIZE"] == 32


def renamed(wheel: Wheel, folder: Path, old: str, new: str) -> Path:
    """Copy the launcher's files, with a name changed in one of them."""
    for each in (attention.HELPERS, attention.MODULE):
        text = file_of(unpacked(wheel), each).read_text("utf-8")
        assert old in text or each == attention.HELPERS
        target = folder.joinpath(*each.split(".")).with_suffix(".py")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text.replace(old, new), "utf-8")
    return folder


@VLLM
@pytest.mark.parametrize(
    "name",
    [
        *("max_seqlen_q", "seq_threshold_3D", "BLOCK_M", "NUM_SEGMENTS_PER_SEQ", "IS_3D"),
        *("TILE_SIZE", "reduce_segments"),
    ],
)
def test_an_unknown_version_is_refused_and_left_alone(
    wheel: Wheel, name: str, tmp_path: Path
) -> None:
    with attention.attention(renamed(wheel, tmp_path, name, f"{name}_2")) as module:
        before = dict(vars(module))
        assert AttentionHook(Registry()).install() == "attention-unknown"
        assert vars(module) == before


def refused(wheel: Wheel, configs: list[dict[str, Any]]) -> list[str]:
    """Return with which codes a tunable of the real launcher refuses configurations."""
    registry, codes = Registry(), []
    with attention.attention(unpacked(wheel)) as module:
        AttentionHook(registry).install()
        module.unified_attention(**attention.arguments([1], [7], segments=0))
    for config in configs:
        try:
            only(registry).check(config)
        except Refused as error:
            codes.append(error.reason)
    return codes


@VLLM
def test_a_configuration_outside_the_space_is_refused(wheel: Wheel) -> None:
    wrong: list[dict[str, Any]] = [
        *({"BLOCK_M": 24}, {"TILE_SIZE": 7}, {"waves": 2}, {"TILE_SIZE": None}, {"num_warps": "4"})
    ]
    assert refused(wheel, wrong) == ["config-unknown"] * len(wrong)


@VLLM
def test_a_number_that_is_no_integer_is_refused(wheel: Wheel) -> None:
    assert refused(wheel, [{"BLOCK_M": 32.0}, {"segments": False}]) == ["config-unknown"] * 2
