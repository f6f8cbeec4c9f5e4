"""Triton kernels that cheat, each in one sentence, each refused with the reason that fits.

Interpreted where there is no GPU. Compilers and gates are the real ones: code is compiled for an
AMD GPU that need not be there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.hostile.triton_kernels import (
    HEAD,
    LINEAR,
    ROW,
    SOFTMAX,
    TILE,
    changed,
    linear,
    softmax,
)

from retuned import catalog
from retuned.contract import Solution, Workload
from retuned.errors import CompileFailed
from retuned.lab.bay import Bay, LabSettings
from retuned.lab.examiner import Examiner
from retuned.lab.languages.gpu import find_gpu
from retuned.lab.languages.limits import CompileLimits
from retuned.lab.languages.triton import build
from retuned.stages.verdict import Check, Reason

pytest.importorskip("triton", reason="Triton is not installed")
pytest.importorskip("torch", reason="PyTorch is not installed")

QUICK = LabSettings(search_s=0.1, search_blocks=3, launch_timeout_s=1.0)
SHAPES = ({"M": 4}, {"M": 12})
PASSED = {
    "one row per program": softmax(),
    "with other launch options": softmax(params={"BLOCK": 64, "num_warps": 8, "num_stages": 1}),
    "two rows per program": softmax(
        changed(
            "row = tl.program_id(0)",
            "row = tl.program_id(0) * 2 + tl.arange(0, 2)[:, None]",
            source=ROW.replace("tl.arange(0, BLOCK)", "tl.arange(0, BLOCK)[None, :]")
            .replace("at < N", "(at < N) & (row < M)")
            .replace("axis=0)", "axis=1)[:, None]")
            .replace("tl.exp(v -", "tl.exp(tl.where(row < M, v, 0.0) -")
            .replace("tl.max(v,", "tl.max(tl.where(row < M, v, 0.0),"),
        ),
        grid=("cdiv(M, 2)",),
    ),
    "through its scratch": softmax(
        changed(
            "    out = e",
            "    tl.store(scratch + row * N + at, e, mask=mask)\n"
            "    tl.debug_barrier()\n"
            "    e = tl.load(scratch + row * N + at, mask=mask, other=0.0)\n    out = e",
            source=ROW.replace("(x, y, M,", "(x, y, scratch, M,"),
        ),
        scratch_bytes=13 * 32 * 4,
    ),
    "a linear layer in tiles": linear(),
    "a linear layer in one tile": linear(params={"BM": 32, "BN": 16, "BK": 32}),
    "a linear layer from transposed weights": linear(
        changed("n[None, :] * K + k[:, None]", "k[:, None] * N + n[None, :]", source=TILE),
        layouts={"wq": "transposed"},
    ),
}
WITHOUT_COMPUTING: dict[str, tuple[Solution, tuple[Reason, ...]]] = {
    "returns its input": (softmax(changed("out, mask", "v, mask")), (Reason.WRONG_OUTPUT,)),
    "writes nothing": (
        softmax(changed("out, mask=mask", "out, mask=mask & (at + row < 0)")),
        (Reason.OUTPUT_NOT_WRITTEN,),
    ),
    "writes every second row": (
        softmax(changed("out, mask=mask", "out, mask=mask & ((at * 0 + row) % 2 == 0)")),
        (Reason.OUTPUT_NOT_WRITTEN,),
    ),
    "leaves the last element": (
        softmax(changed("out, mask=mask", "out, mask=mask & (row * N + at < M * N - 1)")),
        (Reason.OUTPUT_NOT_WRITTEN,),
    ),
    "launches one program for all rows": (softmax(grid=("1",)), (Reason.OUTPUT_NOT_WRITTEN,)),
    "fills the output with the mean": (
        softmax(changed("out, mask", "v * 0.0 + 1.0 / N, mask")),
        (Reason.WRONG_OUTPUT, Reason.NAN_MISMATCH),
    ),
    "starts from what its scratch holds": (
        softmax(
            changed(
                "out, mask=mask",
                "out + tl.load(scratch) * 0.0, mask=mask",
                source=ROW.replace("(x, y, M,", "(x, y, scratch, M,"),
            ),
            scratch_bytes=64,
        ),
        (Reason.OUT_OF_BOUNDS,),
    ),
}
NUMBERS: dict[str, tuple[Solution, tuple[Reason, ...]]] = {
    "is wrong for odd M": (
        softmax(changed("out, mask", "out * (1.0 + 0.001 * (M % 2)), mask")),
        (Reason.WRONG_OUTPUT,),
    ),
    "is right at the shapes it was tuned for": (
        softmax(
            changed("out, mask", "tl.where((M == 4) | (M == 12), out, out * 1.001), mask"),
        ),
        (Reason.WRONG_OUTPUT,),
    ),
    "is wrong in the last row": (
        softmax(changed("out, mask", "tl.where(row == M - 1, out * 1.001, out), mask")),
        (Reason.WRONG_OUTPUT,),
    ),
    "rounds its input to bfloat16": (
        softmax(
            changed("    e = tl.exp", "    v = v.to(tl.bfloat16).to(tl.float32)\n    e = tl.exp")
        ),
        (Reason.WRONG_OUTPUT,),
    ),
    "multiplies in half precision": (
        linear(changed("tl.dot(a, b,", "tl.dot(a.to(tl.float16), b.to(tl.float16),", source=TILE)),
        (Reason.WRONG_OUTPUT, Reason.NAN_MISMATCH),
    ),
    "adds up in half precision": (
        linear(
            changed(
                "    s = tl.load",
                "    acc = acc.to(tl.float16).to(tl.float32)\n    s = tl.load",
                source=TILE,
            )
        ),
        (Reason.WRONG_OUTPUT, Reason.NAN_MISMATCH),
    ),
    "skips the last of the sum": (
        linear(changed("(k[None, :] < K)", "(k[None, :] < K - 1)", source=TILE)),
        (Reason.WRONG_OUTPUT, Reason.NAN_MISMATCH),
    ),
    "hides NaN": (
        softmax(changed("out, mask", "tl.where(out != out, 0.0, out), mask")),
        (Reason.NAN_MISMATCH, Reason.WRONG_OUTPUT),
    ),
    "subtracts no maximum": (
        softmax(changed("tl.exp(v - tl.max(v, axis=0))", "tl.exp(v)")),
        (Reason.NAN_MISMATCH, Reason.WRONG_OUTPUT),
    ),
}
MEMORY: dict[str, tuple[Solution, tuple[Reason, ...]]] = {
    "writes past its last row": (
        softmax(changed("out, mask=mask)", "out, mask=mask)\n    tl.store(y + M * N + row, 0.0)")),
        (Reason.OUT_OF_BOUNDS,),
    ),
    "writes a tile far past its end": (
        softmax(
            changed("out, mask=mask)", "out, mask=mask)\n    tl.store(y + (M + 40) * N + at, e)")
        ),
        (Reason.OUT_OF_BOUNDS,),
    ),
    "writes before its first row": (
        softmax(changed("out, mask=mask)", "out, mask=mask)\n    tl.store(y - 1 - row, 0.0)")),
        (Reason.OUT_OF_BOUNDS,),
    ),
    "reads past its input": (
        softmax(changed("out, mask", "out + 0.0 * tl.load(x + M * N + at), mask")),
        (Reason.OUT_OF_BOUNDS,),
    ),
    "changes its input": (
        softmax(changed("out, mask=mask)", "out, mask=mask)\n    tl.store(x + row * N + at, e)")),
        (Reason.INPUT_MODIFIED,),
    ),
    "answers with the address of its output": (
        softmax(changed("out, mask", "out * (1.0 + (y.to(tl.int64) // 64 % 64) * 1e-6), mask")),
        (Reason.NONDETERMINISTIC,),
    ),
    "never ends": (
        softmax(
            changed(
                "    tl.store(y",
                "    turn = M\n    while turn > 0:\n        turn += M - M\n"
                "        tl.atomic_add(y + at, 0.0, mask=mask)\n    tl.store(y",
            )
        ),
        (Reason.TIMED_OUT,),
    ),
}
COMPILED: dict[str, tuple[Solution, tuple[Reason, ...]]] = {
    "wants more shared memory than there is": (
        linear(params={"BM": 128, "BN": 16, "BK": 256}),
        (Reason.OVER_LIMIT,),
    ),
    "adds shapes that do not fit": (
        softmax(changed("out, mask", "out + tl.arange(0, 7 * 0 + 16), mask")),
        (Reason.COMPILE_FAILED,),
    ),
    "asks for more threads than a program has": (
        softmax(changed("tl.arange(0, BLOCK)", "tl.arange(0, BLOCK * 3)")),
        (Reason.COMPILE_FAILED,),
    ),
}
NOT_THE_FORM: dict[str, Solution] = {
    "imports the operating system": softmax("import os\n" + ROW),
    "imports PyTorch and lets it compute": softmax("import torch\n" + ROW),
    "imports from triton's insides": softmax(
        "from triton.runtime import driver\n" + ROW,
    ),
    "acts while it is imported": softmax(ROW + '\nprint("here")\n'),
    "writes a file while it is imported": softmax(ROW + '\nopen("/tmp/x", "w")\n'),
    "keeps what it computed in a global": softmax(
        changed("    row =", "    global kept\n    row =", source=ROW)
    ),
    "calls the host in a default": softmax(
        changed("BLOCK: tl.constexpr)", "BLOCK: tl.constexpr = exec('1'))")
    ),
    "decorates with something of its own": softmax(
        changed("@triton.jit", "@triton.autotune(configs=[], key=[])\n@triton.jit")
    ),
    "defines a class": softmax(ROW + "\nclass Kept:\n    value = 0\n"),
    "replaces a function of the language": softmax(ROW + "\ntl.exp = tl.abs\n"),
    "climbs through private attributes": softmax(
        changed("    out = e", "    q = tl.exp.__globals__\n    out = e")
    ),
    "evaluates text": softmax(changed("    out = e", "    q = eval('1')\n    out = e")),
    "writes assembly": softmax(
        changed(
            "    out = e",
            "    q = tl.inline_asm_elementwise('exit;', '=r,r', [at], dtype=tl.int32,"
            " is_pure=True, pack=1)\n    out = e",
        )
    ),
    "prints from the device": softmax(
        changed("    out = e", "    tl.device_print('x')\n    out = e")
    ),
    "looks like ASCII and is not": softmax(changed("    out = e", "    \u043eut = e\n    out = e")),
    "has no kernel": softmax(HEAD),
    "asks for a parameter nobody gives": softmax(changed("(x, y, M,", "(x, y, z, M,")),
    "is given a parameter it does not have": softmax(params={"BLOCK": 32, "OTHER": 1}),
    "asks for options that are none": softmax(params={"BLOCK": 32, "num_warps": 3}),
    "has no grid": softmax(grid=()),
    "computes its grid with a call": softmax(grid=("__import__('os').getpid()",)),
    "divides by zero in its grid": softmax(grid=("M // (M - 4)",)),
    "asks for scratch that it was not given": softmax(changed("(x, y, M,", "(x, y, scratch, M,")),
    "asks for another layout of an input": softmax(layouts={"x": "transposed"}),
    "launches wider than any device": softmax(grid=("M", "70000")),
    "is not Python": softmax("int main() { return 0; }"),
}


Admit = Callable[[Solution], tuple[Check, ...]]


@pytest.fixture(scope="module")
def examiners(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Examiner]]:
    """One bay per definition, shared: a candidate gets children of its own all the same."""
    root = tmp_path_factory.mktemp("lab")
    bays = {
        honest.definition: Bay(
            catalog.get(honest.definition),
            [Workload(definition=honest.definition, axes=axes) for axes in SHAPES],
            incumbent=honest,
            folder=root,
            settings=QUICK,
        )
        for honest in (
            softmax(params={"BLOCK": 128}),
            linear(params={"BM": 16, "BN": 16, "BK": 32}),
        )
    }
    yield {name: Examiner(bay) for name, bay in bays.items()}
    for bay in bays.values():
        bay.close()


@pytest.fixture
def examine(examiners: dict[str, Examiner]) -> Admit:
    """Take a candidate through G1 to G4; return all answers."""

    def run(solution: Solution) -> tuple[Check, ...]:
        examiner = examiners[solution.definition]
        variant, checks = examiner.admit(solution)
        return checks if variant is None else (*checks, *examiner.correct(variant))

    return run


def refused(checks: tuple[Check, ...], gates: set[str], reasons: tuple[Reason, ...]) -> None:
    found = [check for check in checks if check.reason is not None]
    assert found, f"accepted: {[check.detail for check in checks]}"
    assert found[0].reason in reasons, found[0]
    assert found[0].gate in gates, found[0]


@pytest.mark.parametrize("sentence", PASSED)
def test_an_honest_triton_variant_is_never_called_wrong(
    sentence: str, examine: Admit, examiners: dict[str, Examiner]
) -> None:
    checks = examine(PASSED[sentence])
    assert [check for check in checks if check.reason is not None] == []
    assert {check.gate for check in checks} == {"G1", "G2", "G3", "G4"}
    assert any("red zones" in check.detail for check in checks if check.gate == "G3")
    assert any("shared memory" in check.detail for check in checks if check.gate == "G2")
    assert SOFTMAX in examiners


@pytest.mark.parametrize("sentence", WITHOUT_COMPUTING)
def test_a_triton_kernel_that_does_not_compute_is_refused(sentence: str, examine: Admit) -> None:
    solution, reasons = WITHOUT_COMPUTING[sentence]
    refused(examine(solution), {"G3", "G4"}, reasons)


@pytest.mark.parametrize("sentence", NUMBERS)
def test_a_triton_kernel_with_wrong_numbers_is_refused(sentence: str, examine: Admit) -> None:
    solution, reasons = NUMBERS[sentence]
    refused(examine(solution), {"G4"}, reasons)


@pytest.mark.parametrize("sentence", MEMORY)
def test_a_triton_kernel_that_leaves_its_memory_or_never_ends_is_refused(
    sentence: str, examine: Admit
) -> None:
    solution, reasons = MEMORY[sentence]
    refused(examine(solution), {"G1", "G2", "G3"}, reasons)


@pytest.mark.parametrize("sentence", COMPILED)
def test_a_triton_kernel_that_no_gpu_can_run_is_refused_before_it_runs(
    sentence: str, examine: Admit
) -> None:
    solution, reasons = COMPILED[sentence]
    checks = examine(solution)
    refused(checks, {"G2"}, reasons)
    assert "/work" not in checks[-1].detail
    assert "variant.py" not in checks[-1].detail


@pytest.mark.parametrize("sentence", NOT_THE_FORM)
def test_a_triton_source_outside_the_contract_is_refused_before_it_runs(
    sentence: str, examine: Admit
) -> None:
    refused(examine(NOT_THE_FORM[sentence]), {"G1"}, (Reason.CONTRACT,))


@pytest.mark.skipif(find_gpu() is not None, reason="a GPU is done with them in time")
def test_a_grid_of_millions_of_programs_is_stopped_in_time(examine: Admit) -> None:
    source = changed("tl.program_id(0)", "tl.program_id(0) % M")
    refused(examine(softmax(source, grid=("M * 1000000",))), {"G3"}, (Reason.TIMED_OUT,))


def test_a_triton_kernel_that_wears_out_the_compiler_is_refused_in_time(tmp_path: Path) -> None:
    body = "    for turn in tl.static_range(1000000000):\n        v = v + turn\n    e = tl.exp"
    solution = softmax(changed("    e = tl.exp", body))
    limits = CompileLimits(wall_s=4.0, cpu_s=3, memory_bytes=4 * 2**30)
    with pytest.raises(CompileFailed):
        build(
            solution,
            catalog.get(SOFTMAX).definition,
            cache_dir=tmp_path,
            limits=limits,
            arch="gfx942",
        )


@pytest.mark.parametrize("arch", ["gfx950", "sm_90"])
def test_a_variant_is_compiled_for_gpus_that_are_not_here(arch: str, tmp_path: Path) -> None:
    built = build(linear(), catalog.get(LINEAR).definition, cache_dir=tmp_path, arch=arch)
    assert built.figures[0]["registers"] > 0
    assert built.figures[0]["shared_bytes"] > 0
    assert arch in built.note
