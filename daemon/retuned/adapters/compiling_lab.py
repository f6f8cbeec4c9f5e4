"""The lab of a pod without an accelerator: compiles for one, and says what gates G1 and G2 refuse.

Nothing that was compiled leaves: whoever measures compiles from source, and believes nobody's
binary. What leaves is what not to try.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from retuned.adapters.unmeasured_lab import UnmeasuredLab, unmeasured
from retuned.contract import Digest, Solution
from retuned.errors import RetunedError
from retuned.lab.admitting import (
    Compiled,
    admitted,
    check_form,
    compiled_for,
    compiles_for,
)
from retuned.lab.languages.limits import CompileLimits
from retuned.lab.remembering import definition_digest
from retuned.lab.subject import KernelUnderTest
from retuned.ports import Finding, Generator
from retuned.stages.experiment import ExperimentPlan

log = logging.getLogger(__name__)

AHEAD = 2
"""So many times the candidates that a search may try are compiled: it chooses among them."""
TIME_SHARE = 0.5
"""Part of the search's time that this may take; what is not reached is compiled by the search."""


class CompilingLab(UnmeasuredLab):
    """Compiles what a search would try first, without measuring anything.

    Parameters
    ----------
    root
        Private folder for compiled code.
    arch
        What servers run on, as an `Environment` names it; empty where nobody knows.
    subject
        What is tuned.
    incumbent
        The variant in production.
    written
        Variants that somebody has written already; they come first.
    generators
        Those that need no measurement to begin, in the plan's order.
    limits
        Bounds of the compiler; None takes the language's.
    """

    def __init__(
        self,
        root: Path,
        *,
        arch: str,
        subject: KernelUnderTest,
        incumbent: Solution,
        written: Sequence[Solution] = (),
        generators: Sequence[Callable[[ExperimentPlan], Generator]] = (),
        limits: CompileLimits | None = None,
    ) -> None:
        super().__init__()
        self._root = root
        self._arch = arch
        self._subject = subject
        self._incumbent = incumbent
        self._written = tuple(written)
        self._generators = tuple(generators)
        self._limits = limits

    def run(self, plan: ExperimentPlan, *, known: Mapping[Digest, Finding]) -> Iterator[Finding]:
        """Yield what the two gates say of each candidate; nothing where it cannot be compiled here.

        Raises
        ------
        MissingDependency
            If this machine has no compiler for what it is to compile.
        """
        if not compiles_for(self._incumbent.language, self._arch):
            log.warning("nothing here compiles for %s: the search does", self._arch or "nobody")
            return
        until = time.monotonic() + TIME_SHARE * plan.budget.max_seconds
        definition = definition_digest(self._subject.definition)
        seen = {plan.incumbent, *known}
        for solution in self._candidates(plan):
            if solution.digest in seen:
                continue
            if self._stop.is_set() or time.monotonic() >= until:
                return
            seen.add(solution.digest)
            begin = time.monotonic()
            built, checks = admitted(partial(self._compiled, solution, plan))
            yield unmeasured(
                solution,
                plan,
                checks=checks,
                detail=built.note if built is not None else "",
                seconds=time.monotonic() - begin,
                definition=definition,
            )

    def _compiled(self, solution: Solution, plan: ExperimentPlan) -> Compiled:
        check_form(
            solution, definition=self._subject.definition, incumbent=self._incumbent, cores=0
        )
        return compiled_for(
            self._arch,
            solution,
            self._subject.definition,
            folder=self._root / "compiled",
            shapes=[workload.axes for workload in plan.workloads],
            limits=self._limits,
        )

    def _candidates(self, plan: ExperimentPlan) -> Iterator[Solution]:
        """Yield what was written, and then what each generator would try before anything is known.

        A generator that needs measurements, or breaks, has nothing to say here.
        """
        yield from self._written
        for make in self._generators:
            try:
                proposed = make(plan).propose(
                    self._subject.definition,
                    plan.workloads,
                    history=(),
                    count=AHEAD * plan.budget.max_candidates,
                )
            except (RetunedError, ArithmeticError, LookupError, TypeError, ValueError) as error:
                log.warning("a generator proposes nothing without measurements: %s", error)
            else:
                yield from proposed
