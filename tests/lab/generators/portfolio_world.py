"""Generators and findings made up for the portfolio's tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from retuned.contract import (
    AxisVar,
    Definition,
    DType,
    Language,
    Solution,
    SourceFile,
    TensorSpec,
    Workload,
)
from retuned.ports import Finding
from retuned.stages.verdict import Interval, Reason, Status, Verdict

DEFINITION = Definition(
    name="d",
    op_type="d",
    axes={"M": AxisVar()},
    inputs={"x": TensorSpec(shape=("M",), dtype=DType.FLOAT32)},
    outputs={"y": TensorSpec(shape=("M",), dtype=DType.FLOAT32)},
    reference="",
)
WORKLOADS = (Workload(definition="d", axes={"M": 1}),)


def solution(name: str, number: int) -> Solution:
    return Solution(
        name=f"{name}-{number}",
        definition="d",
        language=Language.CPU_CPP,
        entry="kernel",
        sources=(SourceFile(path="kernel.cpp", content=name),),
        structure=name,
        params={"N": number},
    )


INCUMBENT = solution("incumbent", 0)


def finding(tried: Solution, *, lower: float | None, seconds: float = 1.0) -> Finding:
    speedup = None
    if lower is not None:
        speedup = Interval(lower=lower, point=lower, upper=lower, confidence=0.95)
    verdict = Verdict(
        status=Status.REJECT,
        reason=Reason.WRONG_OUTPUT if lower is None else Reason.LOST_SEARCH,
        gate="G4" if lower is None else "G5",
        candidate=tried.digest,
        incumbent=INCUMBENT.digest,
        speedup=speedup,
    )
    return Finding(solution=tried, verdict=verdict, seconds=seconds)


class Scripted:
    """Proposes numbered variants until it runs out, or raises what it was given."""

    def __init__(
        self, name: str, *, most: int = 10_000, error: Exception | None = None, after: int = 0
    ) -> None:
        self.name = name
        self.calls = 0
        self._most = most
        self._error = error
        self._after = after

    def propose(
        self,
        definition: Definition,
        workloads: Sequence[Workload],
        *,
        history: Sequence[Finding],
        count: int,
    ) -> Sequence[Solution]:
        self.calls += 1
        if self._error is not None and self.calls > self._after:
            raise self._error
        tried = sum(each.solution.structure == self.name for each in history)
        return [solution(self.name, n) for n in range(tried, min(tried + count, self._most))]


class FakeTime:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


Law = Callable[[int], float | None]
"""Lower bound of a generator's n-th variant; None is wrong."""
