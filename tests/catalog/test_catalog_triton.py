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

import numpy as np
import pytest

from retuned import catalog
from retuned.catalog.entry import Entry, Space
from retuned.contract import Language, Solution
from retuned.errors import UsageError
from retuned.runtime.triton_bind import bind
from retuned.runtime.triton_source import check_source

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from retuned.runtime.triton_launch import TritonKernel  # noqa: E402

SMALL = {
    "linear_w8_n48_k80": [{"M": 1}, {"M": 5}],
    "rmsnorm_h80": [{"M": 1}, {"M": 9}],
    "silu_mul_i40": [{"M": 1}, {"M": 9}],
    "softmax_n100": [{"M": 1}, {"M": 3}],
    "softmax": [{"M": 3, "N": 70}],
    "attention_h2_d48": [{"T": 1, "S": 20}, {"T": 18, "S": 21}],
}
REAL = (
    "linear_w8_n6144_k2048",
    "rmsnorm_h2048",
    "silu_mul_i5632",
    "softmax_n8192",
    "attention_h16_d128",
)
NEAR = 1e-5
"""Allowed difference, in root mean squares of the output: float32 sums of some hundred terms."""


def solutions(entry: Entry, axes: dict[str, int]) -> Iterator[Solution]:
    """Yield the incumbent, and the best guess of every structure."""
    yield entry.incumbent
    for space in entry.spaces:
        yield entry.solution(space.name, space.starts(axes)[0])


def kernel(entry: Entry, solution: Solution) -> TritonKernel:
    definition = entry.definition
    return TritonKernel(
        solution.sources[0].content,
        entry=solution.entry,
        params=solution.params,
        grid=solution.grid,
        tensors=[*definition.inputs, *definition.outputs],
        axes=list(definition.axes),
        scratch_bytes=solution.scratch_bytes,
    )


def differs(ours: Any, theirs: Any) -> str:
    """Say what differs from the reference; nothing if nothing does."""
    finite = np.isfinite(theirs)
    odd_ours, odd_theirs = ours[~finite], theirs[~finite]
    if not np.isfinite(ours[finite]).all() or not np.array_equal(odd_ours, odd_theirs, True):
        return "NaN or Inf in other places"
    rms = float(np.sqrt(np.mean(theirs[finite] ** 2))) if finite.any() else 0.0
    worst = float(np.max(np.abs(ours[finite] - theirs[finite]), initial=0.0))
    return "" if worst <= NEAR * rms else f"{worst:.3g} where the rms is {rms:.3g}"


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy computes with the planted NaN
@pytest.mark.parametrize("name", SMALL)
def test_every_structure_computes_what_the_reference_does(name: str) -> None:
    import triton

    if not triton.knobs.runtime.interpret:
        pytest.skip("runs in Triton's interpreter; tests/gpu has the same on a device")
    entry = catalog.get(name, language=Language.TRITON)
    for solution in solutions(entry, SMALL[name][-1]):
        launch = kernel(entry, solution).launch
        for axes in SMALL[name]:
            for family in entry.families:
                inputs = entry.inputs(axes, seed=3, family=family)
                lengths = entry.definition.lengths(axes)
                shape = [lengths[a] for a in next(iter(entry.definition.outputs.values())).shape]
                output = torch.full(shape, 777.0)
                tensors = [torch.from_numpy(inputs[tensor]) for tensor in entry.definition.inputs]
                launch([*tensors, output], list(lengths.values()))
                (expected,) = entry.reference(inputs, axes).values()
                assert not differs(output.double().numpy(), expected), (
                    solution.name,
                    axes,
                    family,
                    differs(output.double().numpy(), expected),
                )


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
    with pytest.raises(UsageError, match="no kernels in gpu_cpp"):
        catalog.get("rmsnorm_h64", language=Language.GPU_CPP)


def points(space: Space, definition: Any) -> int:
    """Count the points of a space by trying them all."""
    from itertools import product

    names = list(space.params)
    return sum(
        space.constraints(dict(zip(names, values, strict=True)), definition)
        for values in product(*space.params.values())
    )


@pytest.mark.parametrize("name", [*REAL, "linear_w8_n16_k16", "rmsnorm_h16", "attention_h1_d16"])
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
        signature = check_source(solution.sources[0].content, entry=solution.entry)
        binding = bind(
            signature,
            params=solution.params,
            grid=solution.grid,
            tensors=[*definition.inputs, *definition.outputs],
            axes=list(definition.axes),
        )
        lengths = definition.lengths(dict.fromkeys(definition.variable_axes, 8))
        assert min(binding.grid_at(list(lengths.values()))) >= 1


CROSS = """
import json, sys
from retuned import catalog
from retuned.contract import Language
from retuned.runtime.triton_launch import TritonKernel
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
        kernel = TritonKernel(
            solution.sources[0].content, entry=solution.entry, params=solution.params,
            grid=solution.grid, tensors=[*definition.inputs, *definition.outputs],
            axes=list(definition.axes))
        tensors = (*definition.inputs.values(), *definition.outputs.values())
        for target in TARGETS:
            compiled = kernel.cross_compile(
                target, list(definition.lengths(axes).values()),
                dtypes=[str(tensor.dtype) for tensor in tensors])
            found[f"{solution.name} {target.arch}"] = compiled.metadata.shared
print(json.dumps(found))
"""


@pytest.mark.slow
def test_incumbents_and_first_starts_compile_for_nvidia_and_amd(tmp_path: Path) -> None:
    """In a process of its own: this one may have Triton's interpreter in it."""
    env = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    env["TRITON_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", CROSS, *REAL], capture_output=True, text=True, env=env, timeout=250
    )
    assert done.returncode == 0, done.stderr[-3000:]
    shared_bytes = json.loads(done.stdout)
    assert len(shared_bytes) >= 3 * 11
    for name, size in shared_bytes.items():
        limit = 64 << 10 if name.endswith("gfx942") else 160 << 10
        assert size <= limit, name


def test_kernels_are_written_for_people_too() -> None:
    folder = Path(catalog.__file__).parent / "sources"
    for path in folder.glob("triton_*.py"):
        assert ast.get_docstring(ast.parse(path.read_text())), path.name
