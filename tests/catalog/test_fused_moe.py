"""A whole mixture of experts and split-K: several launches, right in the interpreter, compiled."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.catalog.launching import launched, solutions
from tests.expect import raises_naming

from retuned import catalog
from retuned.contract import Workload
from retuned.errors import UsageError
from retuned.lab.examiner import Examiner
from retuned.lab.languages.triton_contract import check_contract
from retuned.lab.resources import LabResources
from retuned.lab.subject import make_inputs

pytest.importorskip("torch")
pytest.importorskip("triton")

MOE = "fused_moe_bf16_e6_t2_f40_k80"
REAL = "fused_moe_bf16_e128_t8_f768_k2048"
ROUNDING = 2.0**-8
"""Of bfloat16, relative; what servers keep between their launches is rounded to it too."""


@pytest.fixture
def interpreted() -> None:
    import triton

    if not triton.knobs.runtime.interpret:
        pytest.skip("runs in Triton's interpreter")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy computes with the planted NaN
@pytest.mark.parametrize("family", ["randn", "planted-nan", "crowded", "elsewhere"])
def test_every_structure_of_a_mixture_computes_what_the_reference_does(
    family: str, interpreted: None
) -> None:
    entry, axes = catalog.get(MOE), {"M": 5}
    inputs = make_inputs(entry, axes, seed=3, family=family)
    want = entry.reference(inputs, axes)["y"]
    for solution in [entry.incumbent, *list(solutions(entry, axes))[2:]]:
        got = launched(entry, solution, inputs, axes)["y"].astype(np.float64)
        assert np.array_equal(np.isnan(got), np.isnan(want)), (solution.name, family)
        rms = np.sqrt(np.nanmean(want**2))
        assert np.nanmax(np.abs(got - want)) <= 8 * ROUNDING * rms, (solution.name, family)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # places without a route hold anything
def test_a_route_to_no_expert_adds_nothing(interpreted: None) -> None:
    entry, axes = catalog.get(MOE), {"M": 3}
    inputs = make_inputs(entry, axes, seed=5, family="randn")
    inputs["ids"][0] = -1
    inputs["ids"][1, 0] = 6  # one past the last
    want = entry.reference(inputs, axes)["y"]
    assert (want[0] == 0.0).all()
    for solution in list(solutions(entry, axes))[1:]:
        got = launched(entry, solution, inputs, axes)["y"].astype(np.float64)
        assert (got[0] == 0.0).all(), solution.name
        np.testing.assert_allclose(got, want, atol=4 * ROUNDING * np.abs(want).max())


def test_the_incumbent_is_what_servers_launch() -> None:
    entry = catalog.get(REAL)
    assert [step.entry for step in entry.incumbent.steps] == [
        "fused_moe_sort",
        "fused_moe_up",
        "fused_moe_activate",
        "fused_moe_down",
        "fused_moe_combine",
    ]
    gated = entry.solution("gated", entry.space("gated").starts({"M": 64})[0])
    assert len(gated.steps) == 4
    assert {each.name for each in entry.incumbent.scratch} - {
        each.name for each in gated.scratch
    } == {"both"}
    few = min(entry.spaces, key=lambda space: space.rank({"M": 1}))
    many = min(entry.spaces, key=lambda space: space.rank({"M": 512}))
    assert (few.name, many.name) == ("tokens", "gated")


def test_a_mixture_is_recognised_by_its_shapes() -> None:
    shapes = ((7, 80), (6, 80, 80), (6, 80, 40), (7, 2), (7, 2))
    found = catalog.recognise("retuned::fused_moe_bf16", shapes, ())
    assert found is not None
    assert (found.definition, found.axes) == (MOE, {"M": 7})
    halves = ((7, 80), (6, 79, 80), (6, 80, 40), (7, 2), (7, 2))
    assert catalog.recognise("retuned::fused_moe_bf16", halves, ()) is None
    with raises_naming(UsageError, "fused_moe_bf16_e2_t3_f40_k80", "T <= E <= 1024"):
        catalog.get("fused_moe_bf16_e2_t3_f40_k80")


def test_scratch_of_a_mixture_grows_with_its_tokens_and_ends_at_a_limit() -> None:
    entry = catalog.get(REAL)
    plan = check_contract(entry.incumbent, entry.definition, shapes=[{"M": 1}, {"M": 4096}])
    sizes = plan.sizes_at(list(entry.definition.lengths({"M": 16}).values()))
    assert sizes == [4 * 128, 4 * 128, 2 * 128 * 1536, 2 * 128 * 768, 2 * 128 * 2048]


def test_the_real_gates_accept_a_variant_of_several_launches(tmp_path: Path) -> None:
    name, axes = "fused_moe_bf16_e3_t2_f16_k32", {"M": 3}
    entry = catalog.get(name)
    candidate = entry.solution("gated", entry.space("gated").starts(axes)[0])
    bay = LabResources(
        entry,
        [Workload(definition=name, axes=axes)],
        incumbent=entry.incumbent,
        folder=tmp_path,
    )
    try:
        variant, admitted = Examiner(bay).admit(candidate)
        assert variant is not None, admitted
        assert {each["kernel"] for each in variant.audit} == {
            step.entry for step in candidate.steps
        }
        checks = Examiner(bay).correct(variant)
        assert [check for check in checks if check.reason is not None] == []
        assert {check.gate for check in checks} == {"G3", "G4"}
    finally:
        bay.close()


CROSS = """
import json, sys
from retuned import catalog
from retuned.lab.languages.triton_contract import load
from triton.backends.compiler import GPUTarget

TARGETS = [GPUTarget("cuda", 90, 32)]
TARGETS += [GPUTarget("hip", arch, 64) for arch in ("gfx942", "gfx950")]
entry = catalog.get(sys.argv[1])
axes = {"M": 16}
tensors = (*entry.definition.inputs.values(), *entry.definition.outputs.values())
found = {}
for space in entry.spaces:
    steps = load(entry.solution(space.name, space.starts(axes)[0]), entry.definition)
    for target in TARGETS:
        compiled = steps.cross_compile(
            target, list(entry.definition.lengths(axes).values()),
            dtypes=[str(tensor.dtype) for tensor in tensors])
        for step, each in zip(steps.plan.steps, compiled, strict=True):
            found[f"{space.name} {step.entry} {target.arch}"] = each.metadata.shared
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.timeout(900)  # a hundred compilations: minutes where others use the machine, too
def test_every_launch_of_a_mixture_compiles_for_nvidia_and_amd(tmp_path: Path) -> None:
    """In a process of its own: this one may have Triton's interpreter in it."""
    env = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    env["TRITON_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", CROSS, REAL], capture_output=True, text=True, env=env, timeout=850
    )
    assert done.returncode == 0, done.stderr[-3000:]
    shared_bytes = json.loads(done.stdout)
    assert len(shared_bytes) == 3 * (5 + 4 + 2)
    for name, size in shared_bytes.items():
        assert size <= (64 << 10 if name.endswith("gfx942") else 160 << 10), (name, size)
