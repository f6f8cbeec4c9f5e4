"""Triton kernels that cheat, each in one sentence, each refused with the reason that fits.

Interpreted where there is no GPU. Compilers and gates are the real ones: code is compiled for an
AMD GPU that need not be there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.hostile.cheats import Cheat, stopped
from tests.hostile.triton_cheats import TRITON_CHEATS
from tests.hostile.triton_kernels import (
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
from retuned.lab.examiner import Examiner
from retuned.lab.languages.gpu import find_gpu
from retuned.lab.languages.limits import CompileLimits
from retuned.lab.languages.triton import build
from retuned.lab.resources import LabResources, LabSettings
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
Admit = Callable[[Solution], tuple[Check, ...]]


@pytest.fixture(scope="module")
def examiners(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Examiner]]:
    """One bay per definition, shared: a candidate gets children of its own all the same."""
    root = tmp_path_factory.mktemp("lab")
    bays = {
        honest.definition: LabResources(
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


@pytest.mark.parametrize("sentence", TRITON_CHEATS)
def test_a_triton_kernel_that_cheats_is_stopped_in_time(sentence: str, examine: Admit) -> None:
    cheat = TRITON_CHEATS[sentence]
    checks = examine(cheat.solution)
    stopped(checks, cheat)
    if cheat.gate == "G2":
        assert "/work" not in checks[-1].detail
        assert "variant.py" not in checks[-1].detail


@pytest.mark.skipif(find_gpu() is not None, reason="a GPU is done with them in time")
def test_a_grid_of_millions_of_programs_is_stopped_in_time(examine: Admit) -> None:
    source = changed("tl.program_id(0)", "tl.program_id(0) % M")
    cheat = Cheat(
        solution=softmax(source, grid=("M * 1000000",)), gate="G3", reasons=(Reason.TIMED_OUT,)
    )
    stopped(examine(cheat.solution), cheat)


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
