"""A race that is decided once for a process shows only between processes (H38)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from retuned.lab.examiner import Examiner
from retuned.lab.harness.cases import Seeds
from retuned.lab.harness.variant import Variant
from retuned.lab.resources import LabResources
from retuned.lab.subject import Array
from retuned.stages.verdict import Reason


class Racing:
    """A bay whose candidate answers otherwise in one launch of one process."""

    timeout_s = 1.0

    def __init__(self, *, wrong: tuple[int, int] | None) -> None:
        self.processes = 0
        self._wrong = wrong

    def open_book(self, *_: object) -> None:
        return None

    def case(self, *_: object) -> Any:
        return SimpleNamespace(inputs={}, cell=SimpleNamespace(axes={"M": 4}))

    @contextmanager
    def runner(self, _variant: Variant) -> Iterator[Any]:
        process, launches = self.processes, 0
        self.processes += 1

        def run(*_: object, **__: object) -> dict[str, Array]:
            nonlocal launches
            wrong = self._wrong == (process, launches)
            launches += 1
            return {"y": np.array([2.0 if wrong else 1.0], dtype=np.float32)}

        yield SimpleNamespace(run=run)


def held_out(bay: Racing, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(Examiner, "correct", lambda *_, **__: ())
    monkeypatch.setattr(Examiner, "_memory_cells", lambda _self: [None])
    return Examiner(cast(LabResources, bay))._hold_out(cast(Variant, None), Seeds())


@pytest.mark.parametrize("process", [0, 1, 2])
@pytest.mark.parametrize("launch", [0, 2])
def test_one_launch_of_one_of_three_processes_that_differs_is_nondeterministic(
    process: int, launch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = held_out(Racing(wrong=(process, launch)), monkeypatch)
    assert (check.gate, check.reason) == ("G6", Reason.NONDETERMINISTIC)


def test_equal_bits_from_three_processes_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    bay = Racing(wrong=None)
    assert held_out(bay, monkeypatch).reason is None
    assert bay.processes == 3
