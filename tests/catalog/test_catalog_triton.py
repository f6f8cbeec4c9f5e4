"""The catalog's Triton kernels: right in the interpreter, compiled for GPUs that are not here."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.catalog.running import differs, run_triton, triton_kernel
from tests.expect import raises_naming

from retuned import catalog
from retuned.catalog.entry import KernelEntry, Space
from retuned.contract import Language, Solution
from retuned.errors import UsageError
from retuned.lab.languages.triton_contract import check_contract

pytest.importorskip("torch")
pytest.importorskip("triton")


SMALL = {
    "linear_w8_n48_k80": [{"M": 1}, {"M": 5}],
    "rmsnorm_h80": [{"M": 1}, {"M": 9}],
    "silu_mul_i40": [{"M": 1}, {"M": 9}],
    "softmax_n100": [{"M": 1}, {"M": 3}],
    "softmax": [{"M": 3, "N": 70}],
    "add_rmsnorm_h80": [{"M": 1}, {"M": 9}],
    "layernorm_h80": [{"M": 1}, {"M": 9}],
    "gelu_mul_i40": [{"M": 1}, {"M": 9}],
    "rope_q5_k2_d24": [{"M": 1, "P": 1}, {"M": 5, "P": 30}],
    "topk_gating_e20_k3": [{"M": 1}, {"M": 9}],
    "topk_gating_e8_k8": [{"M": 5}],
    "attention_h2_d48": [{"T": 1, "S": 20}, {"T": 18, "S": 21}],
}
REAL = (
    "linear_w8_n6144_k2048",
    "rmsnorm_h2048",
    "add_rmsnorm_h2048",
    "layernorm_h2048",
    "silu_mul_i5632",
    "gelu_mul_i5632",
    "rope_q32_k8_d128",
    "softmax_n8192",
    "topk_gating_e256_k8",
    "attention_h16_d128",
)
REAL_HALVES = (
    "rmsnorm_bf16_h4096",
    "add_rmsnorm_bf16_h4096",
    "layernorm_fp16_h4096",
    "silu_mul_bf16_i14336",
    "gelu_mul_bf16_i14336",
    "rope_bf16_q32_k8_d128",
    "softmax_bf16_n8192",
)
CROSSED = (
    *(name for name in REAL if name.split("_")[0] not in ("add", "layernorm", "gelu", "rope")),
    *REAL_HALVES,
)
"""Every source at least once; 16-bit forms widen what they load, and are compiled as such."""
HALVES = {
    name.format(mark): axes
    for mark in ("_bf16", "_fp16")
    for name, axes in {
        "rmsnorm{}_h80": {"M": 9},
        "add_rmsnorm{}_h80": {"M": 9},
        "layernorm{}_h80": {"M": 9},
        "silu_mul{}_i40": {"M": 9},
        "gelu_mul{}_i40": {"M": 9},
        "rope{}_q5_k2_d24": {"M": 5, "P": 30},
        "softmax{}_n100": {"M": 3},
    }.items()
}
TINY = (
    "linear_w8_n16_k16",
    "rmsnorm_h16",
    "rmsnorm_h1",
    "layernorm_h7",
    "softmax_n1",
    "gelu_mul_i1",
    "attention_h1_d16",
    "rope_q1_k1_d2",
    "rope_q1024_k1024_d1024",
    "topk_gating_e1_k1",
    "topk_gating_e4096_k32",
)
NEAR = 1e-5
"""Allowed difference, in root mean squares of the output: float32 sums of some hundred terms."""


def solutions(entry: KernelEntry, axes: dict[str, int]) -> Iterator[Solution]:
    """Yield the incumbent, and the best guess of every structure."""
    yield entry.incumbent
    for space in entry.spaces:
        yield entry.solution(space.name, space.starts(axes)[0])


@pytest.fixture
def _in_the_interpreter() -> None:
    import triton

    if not triton.knobs.runtime.interpret:
        pytest.skip("runs in Triton's interpreter; tests/gpu has the same on a device")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy computes with the planted NaN
@pytest.mark.usefixtures("_in_the_interpreter")
@pytest.mark.parametrize("name", SMALL)
def test_every_structure_computes_what_the_reference_does(name: str) -> None:
    entry = catalog.get(name, language=Language.TRITON)
    for axes in SMALL[name]:
        check(entry, axes, step=0.0)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.usefixtures("_in_the_interpreter")
@pytest.mark.parametrize("name", HALVES)
def test_every_structure_computes_it_in_16_bits_too(name: str) -> None:
    # Half a unit in the last place.
    step = 2.0**-8 if "_bf16" in name else 2.0**-11
    check(catalog.get(name, language=Language.TRITON), HALVES[name], step=step)


def check(entry: KernelEntry, axes: dict[str, int], *, step: float) -> None:
    """Compare every family of inputs with the reference, for every structure."""
    for solution in solutions(entry, axes):
        kernel = triton_kernel(entry, solution)
        for family in entry.families:
            inputs = entry.inputs(axes, seed=3, family=family)
            got = run_triton(kernel, entry, inputs, axes)
            for output, expected in entry.reference(inputs, axes).items():
                wrong = differs(got[output], expected, near=NEAR, step=step)
                assert not wrong, (solution.name, axes, family, output, wrong)


@pytest.mark.parametrize("name", [*SMALL, *REAL])
def test_definition_reference_and_inputs_are_those_of_every_language(name: str) -> None:
    gpu, cpu = catalog.get(name, language=Language.TRITON), catalog.get(name)
    assert gpu.definition == cpu.definition
    assert gpu.families == cpu.families
    assert (gpu.compute, gpu.make, gpu.cost) == (cpu.compute, cpu.make, cpu.cost)
    assert gpu.incumbent.language is Language.TRITON
    assert cpu.incumbent.language is Language.CPU_CPP
    assert len(gpu.spaces) >= 2
    assert gpu.incumbent.structure == gpu.spaces[0].name


def test_a_language_without_kernels_is_a_usage_error() -> None:
    with raises_naming(UsageError, "layernorm_h64", "gpu_cpp", "cpu_cpp", "triton"):
        catalog.get("layernorm_h64", language=Language.GPU_CPP)


def points(space: Space, definition: Any) -> int:
    """Count the points of a space by trying them all."""
    from itertools import product

    names = list(space.params)
    return sum(
        space.constraints(dict(zip(names, values, strict=True)), definition)
        for values in product(*space.params.values())
    )


@pytest.mark.parametrize("name", [*REAL, *REAL_HALVES, *TINY])
def test_spaces_are_pruned_and_hold_their_starts(name: str) -> None:
    entry = catalog.get(name, language=Language.TRITON)
    for space in entry.spaces:
        count = points(space, entry.definition)
        assert 1 <= count <= 450, (space.name, count)
        for rows in (1, 8, 256):
            axes = dict.fromkeys(entry.definition.variable_axes, rows)
            starts = space.starts(axes)
            assert starts
            assert all(space.constraints(point, entry.definition) for point in starts), starts


@pytest.mark.parametrize("name", [*SMALL, *REAL])
def test_every_source_keeps_the_contract_and_binds_to_its_definition(name: str) -> None:
    entry = catalog.get(name, language=Language.TRITON)
    definition = entry.definition
    for solution in solutions(entry, dict.fromkeys(definition.variable_axes, 8)):
        plan = check_contract(solution, definition)
        lengths = definition.lengths(dict.fromkeys(definition.variable_axes, 8))
        assert min(min(grid) for grid in plan.check_at(list(lengths.values()))) >= 1


CROSS = """
import json, sys
from retuned import catalog
from retuned.contract import Language
from retuned.lab.languages.triton_contract import load
from triton.backends.compiler import GPUTarget

TARGETS = [GPUTarget("cuda", 90, 32)]
TARGETS += [GPUTarget("hip", arch, 64) for arch in ("gfx942", "gfx950")]
found = {}
for name in sys.argv[1:]:
    entry = catalog.get(name, language=Language.TRITON)
    definition = entry.definition
    axes = dict.fromkeys(definition.variable_axes, 64)
    made = [entry.incumbent]
    made += [entry.solution(space.name, space.starts(axes)[0]) for space in entry.spaces]
    for solution in made:
        kernel = load(solution, definition)
        tensors = (*definition.inputs.values(), *definition.outputs.values())
        for target in TARGETS:
            compiled = kernel.cross_compile(
                target, list(definition.lengths(axes).values()),
                dtypes=[str(tensor.dtype) for tensor in tensors])
            shared = max(each.metadata.shared for each in compiled)
            found[f"{name} {solution.name} {target.arch}"] = shared
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.timeout(900)  # a hundred compilations: minutes where others use the machine, too
def test_incumbents_and_first_starts_compile_for_nvidia_and_amd(tmp_path: Path) -> None:
    """In a process of its own: this one may have Triton's interpreter in it."""
    env = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    env["TRITON_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", CROSS, *CROSSED],
        capture_output=True,
        text=True,
        env=env,
        timeout=850,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    shared_bytes = json.loads(done.stdout)
    assert len(shared_bytes) >= 3 * 2 * len(CROSSED)
    for name, size in shared_bytes.items():
        limit = 64 << 10 if name.endswith("gfx942") else 160 << 10
        assert size <= limit, name


def test_kernels_are_written_for_people_too() -> None:
    folder = Path(catalog.__file__).parent / "sources"
    for path in folder.glob("triton_*.py"):
        assert ast.get_docstring(ast.parse(path.read_text())), path.name
