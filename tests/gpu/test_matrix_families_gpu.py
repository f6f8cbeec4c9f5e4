"""Matrix kernels, quantisation and paged attention on a device, judged as the lab judges them."""

from __future__ import annotations

import pytest

from retuned import catalog
from retuned.lab.harness.cases import EXACT_FAMILY
from retuned.lab.languages.gpu import find_gpu
from retuned.lab.oracle import compare, exact_mismatch, reduced_elements
from retuned.lab.subject import make_inputs

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from tests.catalog.launching import launched, solutions  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(find_gpu() is None, reason="no GPU that PyTorch can use"),
]

SHAPES = {
    "gemm_bf16_n6144_k4096": [{"M": 1}, {"M": 17}, {"M": 300}],
    "gemm_bf16_n96_k80": [{"M": 5}],
    "linear_w8_bf16_n6144_k4096": [{"M": 1}, {"M": 300}],
    "gemm_fp8_n1536_k7168": [{"M": 1}, {"M": 300}],
    "gemm_fp8_n144_k264": [{"M": 3}],
    "quant_fp8_h7168": [{"M": 1}, {"M": 300}],
    "quant_int8_h7168": [{"M": 33}],
    "paged_attention_bf16_h32_g8_d128_p16": [{"B": 9, "C": 64, "W": 33}],
    "paged_attention_bf16_h4_g4_d64_p16": [{"B": 3, "C": 9, "W": 5}],
    "moe_gemm_bf16_e128_t8_n768_k2048": [{"M": 1}, {"M": 77}],
    "fused_moe_bf16_e32_t4_f768_k1024": [{"M": 1}, {"M": 77}],
    "fused_moe_bf16_e6_t2_f40_k80": [{"M": 5}],
}


@pytest.mark.parametrize("name", SHAPES)
def test_every_structure_is_as_right_as_the_incumbent(name: str) -> None:
    entry = catalog.get(name)
    wrong = []
    for axes in SHAPES[name]:
        depth = reduced_elements(entry.definition, entry.definition.lengths(axes))
        for family in entry.families:
            inputs = make_inputs(entry, axes, seed=3, family=family)
            want = entry.reference(inputs, axes)
            incumbent = launched(entry, entry.incumbent, inputs, axes, device="cuda")
            for solution in solutions(entry, axes):
                got = launched(entry, solution, inputs, axes, device="cuda")
                for output, reference in want.items():
                    ours, theirs = got[output], incumbent[output]
                    judged = compare(ours, theirs, reference=reference, depth=depth)
                    if judged.reason is None and family == EXACT_FAMILY:
                        judged = exact_mismatch(ours, theirs, reference=reference) or judged
                    if judged.reason is not None:
                        wrong.append((solution.name, axes, family, output, judged.detail))
    assert not wrong, wrong
