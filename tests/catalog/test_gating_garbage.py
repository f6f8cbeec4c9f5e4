"""Gating on numbers that are none: what is chosen must be experts, for others index by it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.catalog.running import Array, launch, run_triton, triton_kernel

from retuned import catalog
from retuned.contract import Definition, Language, Solution
from retuned.runtime.native.cpu import CpuKernel

NAME, AXES, EXPERTS, CHOSEN = "topk_gating_e20_k6", {"M": 64}, 20, 6


def garbage() -> Array:
    """Rows of NaN, infinities of both signs and zeros among ordinary logits, some of them alone."""
    rng = np.random.default_rng(7)
    odd = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 3.4e38, -3.4e38], np.float32)
    logits = rng.standard_normal((AXES["M"], EXPERTS), dtype=np.float32)
    shares = np.repeat([0.1, 0.5, 0.9, 1.0], AXES["M"] // 4)[:, None]
    logits = np.where(rng.random(logits.shape) < shares, rng.choice(odd, logits.shape), logits)
    logits[-3:] = np.array([[np.nan], [np.inf], [-np.inf]])
    return np.ascontiguousarray(logits, np.float32)


def assert_experts(ids: Array) -> None:
    assert ids.shape == (AXES["M"], CHOSEN)
    assert ids.min() >= 0
    assert ids.max() < EXPERTS
    assert all(len(set(row)) == CHOSEN for row in ids.tolist()), "an expert was chosen twice"


@pytest.mark.parametrize("structure", ["rounds", "insert"])
def test_cpp_chooses_experts_whatever_the_logits(
    structure: str, build: Callable[[Definition, Solution], CpuKernel]
) -> None:
    entry = catalog.get(NAME)
    solution = entry.solution(structure, entry.space(structure).starts(AXES)[0])
    kernel = build(entry.definition, solution)
    assert_experts(launch(kernel, entry, {"logits": garbage()}, AXES, layouts={})["ids"])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy computes with the NaN
@pytest.mark.parametrize("structure", ["rounds", "packed"])
def test_triton_chooses_experts_whatever_the_logits(structure: str) -> None:
    pytest.importorskip("torch")
    triton = pytest.importorskip("triton")
    if not triton.knobs.runtime.interpret:
        pytest.skip("runs in Triton's interpreter")
    entry = catalog.get(NAME, language=Language.TRITON)
    kernel = triton_kernel(entry, entry.solution(structure, entry.space(structure).starts(AXES)[0]))
    assert_experts(run_triton(kernel, entry, {"logits": garbage()}, AXES)["ids"])
