"""A lab that measures nothing: what it finds are refusals, and candidates that somebody measures.

Pods without an accelerator are such labs. What they say of a candidate can keep it from being
measured, and can never promote it: without evidence of all gates there is no verdict to promote.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from retuned.contract import Digest, Solution
from retuned.errors import UsageError
from retuned.lab.evidence import gather
from retuned.ports import Finding
from retuned.stages.experiment import ExperimentPlan, Turn
from retuned.stages.verdict import Check, Status, judge


class UnmeasuredLab(ABC):
    """A `Bench` without wins: nothing is built for servers, and there is no evidence."""

    def __init__(self) -> None:
        self._stop = threading.Event()

    @abstractmethod
    def run(self, plan: ExperimentPlan, *, known: Mapping[Digest, Finding]) -> Iterator[Finding]:
        """Yield a finding per candidate; see `Bench.run`."""

    def build(self, solution: Solution) -> Path:
        """Refuse: nothing that was not measured becomes an artifact.

        Raises
        ------
        UsageError
            Always.
        """
        raise UsageError(f"{solution.name} was not measured here: there is no artifact of it")

    def evidence(self, digest: Digest) -> bytes | None:
        """Return None: there are no numbers."""
        del digest
        return None

    def turns(self, plan: str) -> Sequence[Turn]:
        """Return nothing: nobody's turn was counted."""
        del plan
        return ()

    def stop(self) -> None:
        """End before the next candidate."""
        self._stop.set()


def unmeasured(
    solution: Solution,
    plan: ExperimentPlan,
    *,
    checks: Sequence[Check],
    detail: str,
    seconds: float,
    definition: Digest,
) -> Finding:
    """Judge a candidate by the few gates that were asked: it is refused, or nobody knows yet.

    Parameters
    ----------
    checks
        What the gates said.
    detail
        What to say of a candidate that none of them refused.
    definition
        Content of what it computes.
    """
    verdict = judge(gather(solution.digest, plan.incumbent, checks=checks))
    if verdict.status is not Status.REJECT:
        verdict = verdict.model_copy(update={"detail": detail[:500]})
    return Finding(solution=solution, verdict=verdict, seconds=seconds, definition=definition)
