"""Shadow and self checks of 16- and 8-bit outputs: neighbours are honest, anything more is not."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from retuned.runtime.artifacts.loaded import poison  # noqa: E402
from retuned.runtime.shadow.sampler import RATIO_CAP, Comparison, compare_tensors  # noqa: E402
from retuned.runtime.shadow.selfcheck import _Fenced  # noqa: E402

NARROW = (torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e4m3fnuz)


def compare(ours: Any, theirs: Any) -> Comparison:
    return compare_tensors([ours], [theirs], 1e-3)


def numbers(dtype: Any) -> Any:
    generator = torch.Generator().manual_seed(1)
    return (torch.rand(512, generator=generator) * 8 + 1).to(dtype)


@pytest.mark.parametrize("dtype", NARROW)
def test_a_neighbour_is_not_counted_and_two_steps_are(dtype: Any) -> None:
    theirs = numbers(dtype)
    assert compare(theirs, theirs).ratio == 0.0
    step = (theirs.float() * (1 + 0.6 * torch.finfo(dtype).eps)).to(dtype)
    assert compare(step, theirs).ratio == 0.0
    wrong = theirs.clone()
    wrong[7] = (wrong[7].float() + 4 * torch.finfo(dtype).eps * 9).to(dtype)
    assert compare(wrong, theirs).ratio > 1.0


@pytest.mark.parametrize("dtype", NARROW)
def test_nan_in_a_narrow_output_must_agree(dtype: Any) -> None:
    theirs = numbers(dtype)
    with_nan = theirs.float()
    with_nan[3] = math.nan
    assert compare(with_nan.to(dtype), theirs).nonfinite
    assert compare(with_nan.to(dtype), with_nan.to(dtype)) == Comparison(nonfinite=False, ratio=0.0)


def test_a_hundredth_of_int8_may_be_neighbours_and_none_further() -> None:
    theirs = torch.zeros(1000, dtype=torch.int8)
    ours = theirs.clone()
    ours[:10] = 1
    assert compare(ours, theirs).ratio == pytest.approx(1.0)
    ours[:50] = -1
    assert compare(ours, theirs).ratio == pytest.approx(5.0)
    ours[0] = 2
    assert compare(ours, theirs).ratio == RATIO_CAP
    ids = torch.zeros(1000, dtype=torch.int32)
    other = ids.clone()
    other[0] = 1
    assert compare(other, ids).ratio == RATIO_CAP


@pytest.mark.parametrize("dtype", [*NARROW, torch.int8])
def test_poison_and_fences_know_every_format(dtype: Any) -> None:
    fenced = _Fenced(torch, torch.device("cpu"))
    inner = fenced.allocate((3, 5), dtype=dtype)
    if dtype.is_floating_point:
        assert bool(inner.float().isnan().all())
    else:
        assert bool((inner != 0).all())
    assert fenced.intact()
    poison(inner)
    assert fenced.intact()
    fenced._flat[0][0].view(torch.uint8)[0] = 1
    assert not fenced.intact()
