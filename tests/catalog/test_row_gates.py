"""The row-wise families at the lab's own gates: the honest pass G1 to G4, the wrong do not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from retuned import catalog
from retuned.contract import Language, Solution, SourceFile, Workload
from retuned.lab.examiner import Examiner
from retuned.lab.resources import LabResources
from retuned.stages.verdict import Check, Reason

CPP = {
    "add_rmsnorm_h72": ({"M": 3}, {"M": 20}),
    "layernorm_h72": ({"M": 3}, {"M": 20}),
    "gelu_mul_i72": ({"M": 3}, {"M": 20}),
    "rope_q3_k1_d36": ({"M": 3, "P": 40},),
    "topk_gating_e40_k6": ({"M": 3}, {"M": 20}),
}
TRITON = {
    "topk_gating_e20_k3": {"M": 3},
    "add_rmsnorm_bf16_h40": {"M": 3},
    "layernorm_fp16_h40": {"M": 3},
    "gelu_mul_bf16_i40": {"M": 3},
    "rope_bf16_q3_k1_d24": {"M": 2, "P": 20},
}
WRONG = {
    "add_rmsnorm_h72": [
        ("rows", "store(summed + at, v);", "store(summed + at, load(x + at));"),
    ],
    # Squares around zero: 7 of 24 bits are left of a variance of 7 a thousand away.
    "layernorm_h72": [
        ("shifted", "return sum(load_part(x, n)) / static_cast<float>(n);", "return 0.0f;"),
    ],
    # Without the cube it is another function, off by a hundredth at most.
    "gelu_mul_i72": [
        ("polynomial", "splat(0.0713548162726f)", "splat(0.07f)"),
    ],
    # Right for the first rows of the table, and for no others.
    "rope_q3_k1_d36": [
        ("angles", "cache + positions[m] * D", "cache + positions[m] % 32 * D"),
    ],
    # Of equals, the last.
    "topk_gating_e40_k6": [
        ("insert", "logit > list.top[k - 1]", "logit >= list.top[k - 1]"),
        ("rounds", "at[u][l] < first", "at[u][l] > first"),
    ],
}


@contextmanager
def examiner(
    name: str, shapes: tuple[dict[str, int], ...], *, language: Language, folder: Path
) -> Iterator[Examiner]:
    entry = catalog.get(name, language=language)
    workloads = [Workload(definition=name, axes=axes) for axes in shapes]
    bay = LabResources(entry, workloads, incumbent=entry.incumbent, folder=folder)
    try:
        yield Examiner(bay)
    finally:
        bay.close()


def gates(examined: Examiner, solution: Solution) -> tuple[Check, ...]:
    """Take a solution through G1 to G4."""
    variant, checks = examined.admit(solution)
    return checks if variant is None else (*checks, *examined.correct(variant))


def changed(solution: Solution, old: str, new: str) -> Solution:
    """Replace a piece of text that must be in exactly one of the sources."""
    assert sum(old in source.content for source in solution.sources) == 1
    sources = tuple(
        SourceFile(path=source.path, content=source.content.replace(old, new))
        for source in solution.sources
    )
    return solution.model_copy(update={"sources": sources})


@pytest.mark.parametrize("name", CPP)
def test_honest_cpp_passes_the_gates_and_what_is_wrong_does_not(name: str, tmp_path: Path) -> None:
    shapes = CPP[name]
    with examiner(name, shapes, language=Language.CPU_CPP, folder=tmp_path) as examined:
        entry = catalog.get(name)
        for space in entry.spaces:
            solution = entry.solution(space.name, space.starts(shapes[0])[1])
            checks = gates(examined, solution)
            assert [c for c in checks if c.reason is not None] == []
            assert {check.gate for check in checks} == {"G1", "G2", "G3", "G4"}
        for structure, old, new in WRONG[name]:
            solution = entry.solution(structure, entry.space(structure).starts(shapes[0])[0])
            last = gates(examined, changed(solution, old, new))[-1]
            assert last.reason is Reason.WRONG_OUTPUT, (structure, new, last)
            assert last.gate == "G4"


@pytest.mark.slow
@pytest.mark.parametrize("name", TRITON)
def test_honest_triton_passes_the_gates(name: str, tmp_path: Path) -> None:
    pytest.importorskip("triton")
    axes = TRITON[name]
    with examiner(name, (axes,), language=Language.TRITON, folder=tmp_path) as examined:
        entry = catalog.get(name, language=Language.TRITON)
        space = next(space for space in entry.spaces if space.name != entry.incumbent.structure)
        checks = gates(examined, entry.solution(space.name, space.starts(axes)[0]))
        assert [check for check in checks if check.reason is not None] == []
        assert {check.gate for check in checks} == {"G1", "G2", "G3", "G4"}
