"""The row-wise kernels of the catalog on a real GPU, in every number format."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.catalog.running import differs, run_triton, triton_kernel

from retuned import catalog
from retuned.catalog.entry import KernelEntry
from retuned.contract import Language, Solution
from retuned.lab.oracle import compare, reduced_elements

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

pytestmark = pytest.mark.gpu

WIDE = {
    "topk_gating_e256_k8": [{"M": 1}, {"M": 130}],
    "topk_gating_e20_k3": [{"M": 9}],
    "topk_gating_e8_k8": [{"M": 5}],
}
FORMS = {
    "rmsnorm{}_h4096": [{"M": 1}, {"M": 130}],
    "add_rmsnorm{}_h4096": [{"M": 1}, {"M": 130}],
    "add_rmsnorm{}_h80": [{"M": 9}],
    "layernorm{}_h4096": [{"M": 1}, {"M": 130}],
    "layernorm{}_h80": [{"M": 9}],
    "silu_mul{}_i5632": [{"M": 1}, {"M": 130}],
    "gelu_mul{}_i5632": [{"M": 1}, {"M": 130}],
    "rope{}_q32_k8_d128": [{"M": 1, "P": 1}, {"M": 130, "P": 4096}],
    "rope{}_q5_k2_d24": [{"M": 9, "P": 30}],
    "softmax{}_n8192": [{"M": 1}, {"M": 64}],
}
DEFINITIONS = {
    **WIDE,
    **{name.format(form): axes for form in ("", "_bf16", "_fp16") for name, axes in FORMS.items()},
}
NEAR = 3e-5
"""Allowed difference in root mean squares; exp2 of the hardware moves a logit of 60 by 1e-6."""
STEPS = {"_bf16": 2.0**-8, "_fp16": 2.0**-11}
"""Rounding of the outputs, relative."""


def solutions(entry: KernelEntry, axes: dict[str, int]) -> Iterator[Solution]:
    """Yield every start of every structure."""
    for space in entry.spaces:
        for params in space.starts(axes):
            yield entry.solution(space.name, params)


@pytest.mark.parametrize("name", DEFINITIONS)
def test_every_start_is_right_and_as_right_as_the_incumbent(name: str) -> None:
    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no GPU")
    entry = catalog.get(name, language=Language.TRITON)
    step = next((step for mark, step in STEPS.items() if mark in name), 0.0)
    incumbent = triton_kernel(entry, entry.incumbent)
    wrong = []
    for axes in DEFINITIONS[name]:
        made = [(each, triton_kernel(entry, each)) for each in solutions(entry, axes)]
        depth = reduced_elements(entry.definition, entry.definition.lengths(axes))
        for family in entry.families:
            inputs = entry.inputs(axes, seed=3, family=family)
            expected = entry.reference(inputs, axes)
            base = run_triton(incumbent, entry, inputs, axes, device="cuda")
            for solution, kernel in made:
                got = run_triton(kernel, entry, inputs, axes, device="cuda")
                for output, reference in expected.items():
                    far = differs(got[output], reference, near=NEAR, step=step)
                    judged = compare(got[output], base[output], reference=reference, depth=depth)
                    if far or judged.reason is not None:
                        wrong.append((solution.name, axes, family, output, far, judged.detail))
    assert not wrong, wrong
