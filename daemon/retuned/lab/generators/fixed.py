"""Proposes exactly the variants it was given: a person's candidate, or a list from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from retuned.contract import Definition, Solution, Workload
from retuned.ports import Finding


class GivenGenerator:
    """Hands out a fixed list in order, each once.

    Parameters
    ----------
    solutions
        The list.
    """

    name = "given"

    def __init__(self, solutions: Sequence[Solution]) -> None:
        self._solutions = tuple(solutions)

    def propose(
        self,
        definition: Definition,
        workloads: Sequence[Workload],
        *,
        history: Sequence[Finding],
        count: int,
    ) -> Sequence[Solution]:
        """Return the next of the list that have no finding yet."""
        tried = {finding.solution.digest for finding in history}
        left = [each for each in self._solutions if each.digest not in tried]
        return left[:count]
