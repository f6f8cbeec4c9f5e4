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
from retuned.tunables.references import distance
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


CLOSE = 1e-5
"""Distance of float32 from float64."""


def repeated(module: Any, queries: list[int], keys: list[int], **changed: Any) -> AttentionCase:
    """Return a case of a described call, with other arguments, after one run."""
    case = AttentionCase(described(module, queries, keys, segments=0), torch=torch, device="cpu")
    case._call.update(changed)
    case.reset(3)
    case.run(None)
    return case


@VLLM
@pytest.mark.parametrize(
    "changed",
    [{}, {"window_size": (11, 0)}, {"window_size": (0, 0)}, {"softcap": 0.7}],
    ids=["plain", "window", "own-key-only", "softcap"],
)
def test_rows_in_float64_are_what_the_kernel_computes(
    wheel: Wheel, changed: dict[str, Any]
) -> None:
    with attention.attention(unpacked(wheel)) as module:
        case = repeated(module, [5, 1, 40], [20, 33, 64], **changed)
        rows = case.reference(7)
        assert rows is not None
        assert len(rows.at) == len(set(rows.at)) == 16
        assert rows.at[-1] == 45
        assert distance(case.outputs()[0], rows) < CLOSE
        if changed:
            plain = repeated(module, [5, 1, 40], [20, 33, 64]).reference(7)
            assert plain is not None
            assert distance(case.outputs()[0], plain) > 100 * CLOSE, "the argument has an effect"


@VLLM
@pytest.mark.parametrize(
    "changed",
    [
        {"sinks": torch.zeros(4)},
        {"alibi_slopes": torch.ones(4)},
        {"kv_quant_mode": attention.KVQuantMode.FP8_PER_TENSOR},
        {"causal": False},
        {"chunk_lookback": 1},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_a_call_with_another_effect_has_no_rows_in_float64(
    wheel: Wheel, changed: dict[str, Any]
) -> None:
    with attention.attention(unpacked(wheel)) as module:
        case = repeated(module, [1], [7])
        case._call.update(changed)
        assert case.reference(7) is None


@VLLM
def test_a_server_without_the_seam_is_named(wheel: Wheel) -> None:
    with attention.attention(unpacked(wheel)) as module:
        recipe = described(module, [1], [7], segments=0)
        del module.reduce_segments
        with raises_code(Refused, "module-missing"):
            AttentionCase(recipe, torch=torch, device="cpu")
