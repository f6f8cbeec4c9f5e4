"""The lab of a pod without an accelerator: compiles for one, and says what gates G1 and G2 refuse.

Nothing that was compiled leaves: whoever measures compiles from source, and believes nobody's
binary. What leaves is what not to try.

The lab of a pod that reaches a model: has variants written, and neither compiles nor runs them.

A lab that measures nothing: what it finds are refusals, and candidates that somebody measures.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from retuned.contract import Digest, Solution, TrustClass
from retuned.errors import (
    HarnessError,
    Refused,
    RetunedError,
    TemporaryError,
    UnreadableInput,
    UsageError,
)
from retuned.lab.evidence import gather
from retuned.lab.languages.limits import CompileLimits
from retuned.lab.rejected_cache import definition_digest
from retuned.lab.static_gates import Compiled, admitted, check_form, compiled_for, compiles_for
from retuned.lab.subject import KernelUnderTest
from retuned.ports import Finding, Generator
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


_AT_A_TIME = 4
"""Variants that are asked for before the next look at the time."""


class GeneratingLab(UnmeasuredLab):
    """Asks one generator for variants until it has no more, or the plan's budget ends.

    Parameters
    ----------
    subject
        What is tuned.
    generator
        Who writes; None where nobody may be asked now.
    """

    def __init__(self, subject: KernelUnderTest, generator: Generator | None) -> None:
        super().__init__()
        self._subject = subject
        self._generator = generator

    def run(self, plan: ExperimentPlan, *, known: Mapping[Digest, Finding]) -> Iterator[Finding]:
        """Yield a finding per variant, which says nothing of it but that it is there.

        Raises
        ------
        HarnessError
            If there is none, because the model cannot be asked.
        """
        if self._generator is None:
            log.warning("no model is asked: the day's money is spent")
            return
        definition = self._subject.definition
        named, history = definition_digest(definition), list(known.values())
        until = time.monotonic() + plan.budget.max_seconds
        while len(history) < plan.budget.max_candidates and time.monotonic() < until:
            if self._stop.is_set():
                return
            begin = time.monotonic()
            room = min(_AT_A_TIME, plan.budget.max_candidates - len(history))
            try:
                written = self._generator.propose(
                    definition, plan.workloads, history=tuple(history), count=room
                )
            except (Refused, TemporaryError, UnreadableInput) as error:
                if not history:
                    raise HarnessError(f"the model wrote nothing: {error}") from error
                log.warning("the model writes no more: %s", error)
                return
            if not written:
                return
            took_s = (time.monotonic() - begin) / len(written)
            for solution in written:
                found = unmeasured(
                    solution.model_copy(update={"trust": TrustClass.GENERATED}),
                    plan,
                    checks=(),
                    detail="written, and looked at by nobody",
                    seconds=took_s,
                    definition=named,
                )
                history.append(found)
                yield found
