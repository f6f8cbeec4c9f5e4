"""Experiments on the real attention launchers: a described call, repeated on private tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.expect import raises_code
from tests.servers import attention
from tests.servers.tables import only
from tests.servers.wheels import Wheel, unpacked, versions

from retuned.runtime.schema import Refused
from retuned.runtime.tunables.attention import AttentionHook
from retuned.runtime.tunables.state import Registry
from retuned.tunables.attention import AttentionCase
from retuned.tunables.child import difference
from retuned.tunables.tune import MAX_ERROR, MAX_WORST

pytestmark = [
    pytest.mark.index,
    pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning"),
]
VLLM = pytest.mark.parametrize("wheel", versions("vllm"))


def described(module: Any, queries: list[int], keys: list[int], *, segments: int) -> dict[str, Any]:
    """Return how the runtime describes one call in a server."""
    registry = Registry()
    hook = AttentionHook(registry)
    assert hook.install() == "on"
    try:
        module.unified_attention(**attention.arguments(queries, keys, segments=segments))
    finally:
        hook.uninstall()
    (recipe,) = only(registry).recipes.values()
    lengths = [{"queries": queries, "keys": keys}]
    return {**recipe, "call": {**recipe["call"], "lengths": lengths}}


@VLLM
@pytest.mark.parametrize(
    ("queries", "keys", "segments", "config"),
    [
        ([5, 1], [20, 33], 0, {"BLOCK_M": 32, "TILE_SIZE": 64}),
        ([1, 1, 1], [7, 40, 64], 0, {"TILE_SIZE": 16, "segments": 4}),
        ([1, 1, 1], [7, 40, 64], 8, {"TILE_SIZE": 32, "segments": 2}),
    ],
)
def test_a_described_call_is_repeated_with_its_lengths(
    wheel: Wheel, queries: list[int], keys: list[int], segments: int, config: dict[str, Any]
) -> None:
    with attention.attention(unpacked(wheel)) as module:
        recipe = described(module, queries, keys, segments=segments)
        case = AttentionCase(recipe, torch=torch, device="cpu")
        assert (case.queries, case.keys) == (queries, keys)
        outputs = []
        for each in (None, config):
            case.reset(3)
            case.run(each)
            (output,) = case.outputs()
            outputs.append(output.clone())
        assert case.intact()
        assert float(outputs[0].abs().max()) > 0.0
        error, worst = difference(*outputs)
        assert error <= MAX_ERROR
        assert worst <= MAX_WORST
        case.reset(4)
        case.run(None)
        assert difference(outputs[0], case.outputs()[0])[0] > MAX_ERROR, (
            "other inputs, other answer"
        )


@VLLM
def test_a_server_without_the_seam_is_named(wheel: Wheel) -> None:
    with attention.attention(unpacked(wheel)) as module:
        recipe = described(module, [1], [7], segments=0)
        del module.reduce_segments
        with raises_code(Refused, "module-missing"):
            AttentionCase(recipe, torch=torch, device="cpu")
