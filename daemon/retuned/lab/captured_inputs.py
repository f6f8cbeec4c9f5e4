"""Captured production inputs as an additional family of inputs.

They are the only inputs with the distribution of production. They may hold personal data, so
evidence records only digests and a few statistics.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from retuned.contract import Definition, Workload
from retuned.errors import UnreadableInput
from retuned.lab.captured_files import Captured, read_captured
from retuned.lab.subject import Array, KernelUnderTest, make_inputs

log = logging.getLogger(__name__)

FOLDER = "captured"

FAMILY = "captured"
"""Name of the family; further samples of one shape are ``captured-2`` and so on."""

MAX_CASES = 8

_FEW = 64
"""With fewer elements no statistics are recorded: a mean of one number is that number."""

_MOST_WORK = 4
"""Samples this many times larger than the largest workload are left out: the oracle is slow."""


class WithCaptured:
    """A subject with captured launches as an additional family; see `KernelUnderTest`."""

    def __init__(self, subject: KernelUnderTest, captured: Sequence[Captured]) -> None:
        self._subject = subject
        self._captured: dict[tuple[tuple[tuple[str, int], ...], str], Captured] = {}
        seen: dict[tuple[tuple[str, int], ...], int] = {}
        for each in captured:
            key = tuple(each.axes.items())
            seen[key] = seen.get(key, 0) + 1
            family = FAMILY if seen[key] == 1 else f"{FAMILY}-{seen[key]}"
            self._captured[key, family] = each

    @property
    def definition(self) -> Definition:
        return self._subject.definition

    @property
    def families(self) -> tuple[str, ...]:
        """Families that can be made at any shape; captured ones exist at some shapes only."""
        return self._subject.families

    def reference(self, inputs: dict[str, Array], axes: Mapping[str, int]) -> dict[str, Array]:
        return self._subject.reference(inputs, axes)

    def inputs(self, axes: Mapping[str, int], *, seed: int, family: str) -> dict[str, Array]:
        """Make every input; for a captured family only the weights are made.

        Raises
        ------
        ValueError
            If no sample was captured at this shape.
        """
        if not is_captured(family):
            return self._subject.inputs(axes, seed=seed, family=family)
        captured = self._captured.get((tuple(axes.items()), family))
        if captured is None:
            raise ValueError(f"no captured inputs at {dict(axes)}")
        ordinary = self._subject.families[0]
        made = make_inputs(self._subject, axes, seed=seed, family=ordinary)
        return {**made, **captured.tensors}

    def shapes(self, workloads: Sequence[Workload]) -> list[tuple[dict[str, int], str]]:
        largest = max(math.prod(w.axes.values()) for w in workloads)
        found = [(dict(key), family) for key, family in self._captured]
        fitting = [each for each in found if math.prod(each[0].values()) <= _MOST_WORK * largest]
        fitting.sort(key=lambda each: (math.prod(each[0].values()), each[1]))
        return fitting[:MAX_CASES]

    def summary(self, axes: Mapping[str, int], family: str) -> dict[str, Any]:
        """Return the evidence of one sample: its digest and statistics, without its numbers."""
        captured = self._captured[tuple(axes.items()), family]
        tensors = {name: _statistics(array) for name, array in captured.tensors.items()}
        return {"axes": dict(axes), "digest": captured.digest, "tensors": tensors}


def with_captured(subject: KernelUnderTest, folder: Path) -> KernelUnderTest:
    """Return a subject with the usable samples of a folder; unchanged if there are none."""
    try:
        found = read_captured(folder, subject.definition)
    except UnreadableInput as error:
        log.error("captured inputs are not used: %s", error)
        return subject
    if not found:
        return subject
    log.info("captured inputs loaded: samples=%d", len(found))
    return WithCaptured(subject, found)


def is_captured(family: str) -> bool:
    return family == FAMILY or family.startswith(f"{FAMILY}-")


def _statistics(array: Array) -> dict[str, float | int]:
    """Return mean, deviation and shares of an array; no single element decides any of them."""
    wide = array.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    if finite.size < _FEW:
        return {"elements": int(wide.size), "nonfinite": int(wide.size)}
    return {
        "elements": int(wide.size),
        "nonfinite": int(wide.size - finite.size),
        "mean": float(finite.mean()),
        "deviation": float(finite.std()),
        "negative_ratio": float((finite < 0).mean()),
        "zero_ratio": float((finite == 0).mean()),
    }
