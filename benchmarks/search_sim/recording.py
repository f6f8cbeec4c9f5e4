"""Times of every point of some real kernels, taken on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.catalog_cpu import Subject, measure

from retuned import catalog
from retuned.contract import Solution
from retuned.errors import CandidateError
from retuned.lab.generators.spaces import Grid

KERNELS: Mapping[str, tuple[dict[str, int], ...]] = {
    "attention_h8_d64": ({"T": 1, "S": 256}, {"T": 64, "S": 256}),
    "softmax_n2048": ({"M": 4}, {"M": 64}),
    "rmsnorm_h512": ({"M": 64},),
    "linear_w8_n512_k1408": ({"M": 4}, {"M": 16}),
}
"""Kernels and shapes; none of them is what the search's constants were chosen on."""
TURNS = 9
"""Rounds over all points."""


def record(cache: Path) -> Iterator[dict[str, Any]]:
    """Yield the recording of one kernel after the other; it takes a quarter of an hour."""
    for name, shapes in KERNELS.items():
        entry = catalog.get(name)
        grid = Grid(entry, cores=1)
        subjects = [
            subject
            for point in sorted(grid.points)
            if (subject := _subject(entry, grid.solution(point), cache)) is not None
        ]
        times = {
            " ".join(f"{axis}={length}" for axis, length in axes.items()): measure(
                subjects, axes, turns=TURNS, settle=False
            )
            for axes in shapes
        }
        points = [
            {
                "structure": subject.solution.structure,
                "params": dict(subject.solution.params),
                "median_us": {label: rows[n]["median_us"] for label, rows in times.items()},
            }
            for n, subject in enumerate(subjects)
        ]
        yield {"definition": name, "points": points}


def _subject(entry: catalog.KernelEntry, solution: Solution, cache: Path) -> Subject | None:
    try:
        return Subject(entry, solution, cache=cache)
    except CandidateError as error:  # a point that the compiler refuses does not count
        print(f"{solution.name}: {error}")
        return None
