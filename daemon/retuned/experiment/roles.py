"""Lab roles without measurements: compile without the device, or generate with a model.

A compile pod reports which candidates gates G1 and G2 refuse. Its binaries are not used: the
measuring pod compiles from source. A generating pod writes variants, and neither compiles nor runs
them. Their findings are refusals, or candidates for another pod to measure.
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
    """A `Bench` without wins, artifacts and evidence."""

    def __init__(self) -> None:
        self._stop = threading.Event()

    @abstractmethod
    def run(self, plan: ExperimentPlan, *, known: Mapping[Digest, Finding]) -> Iterator[Finding]:
        """Yield a finding per candidate; see `Bench.run`."""

    def build(self, solution: Solution) -> Path:
        """Refuse: a variant without measurements must not become an artifact.

        Raises
        ------
        UsageError
            Always.
        """
        raise UsageError(f"{solution.name} was not measured here and has no artifact")

    def evidence(self, digest: Digest) -> bytes | None:
        del digest
        return None

    def turns(self, plan: str) -> Sequence[Turn]:
        del plan
        return ()

    def stop(self) -> None:
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
    """Judge a candidate by the static gates: refused or ambiguous.

    `detail` is the text for a candidate without a refusal. `definition` is the digest of its
    definition.
    """
    verdict = judge(gather(solution.digest, plan.incumbent, checks=checks))
    if verdict.status is not Status.REJECT:
        verdict = verdict.model_copy(update={"detail": detail[:500]})
    return Finding(solution=solution, verdict=verdict, seconds=seconds, definition=definition)


log = logging.getLogger(__name__)

AHEAD = 2
"""Compiled candidates per candidate that a search may try, so that it can choose."""
TIME_SHARE = 0.5
"""Share of the search's time for this role; the search compiles the rest."""


class CompilingLab(UnmeasuredLab):
    """Compiles the first candidates of a search, without measurements.

    `arch` is the servers' architecture, as an `Environment` names it; empty if unknown. `written`
    holds variants that a model wrote; they come first. `generators` must not need measurements and
    keep the plan's order. `limits` of None uses the language's.
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
        """Yield the two gates' result per candidate; empty if the language cannot be compiled here.

        Raises
        ------
        MissingDependency
            If the required compiler is missing.
        """
        if not compiles_for(self._incumbent.language, self._arch):
            log.warning(
                "no compiler for the target, the search compiles: arch=%s", self._arch or "unknown"
            )
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
        """Yield written variants, then each generator's first candidates.

        A generator that needs measurements, or fails, is skipped.
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
                log.warning("a generator was skipped, it needs measurements: %s", error)
            else:
                yield from proposed


_AT_A_TIME = 4


class GeneratingLab(UnmeasuredLab):
    """Asks one generator for variants until it has no more, or the plan's budget ends.

    `generator` is None if no model may be asked now.
    """

    def __init__(self, subject: KernelUnderTest, generator: Generator | None) -> None:
        super().__init__()
        self._subject = subject
        self._generator = generator

    def run(self, plan: ExperimentPlan, *, known: Mapping[Digest, Finding]) -> Iterator[Finding]:
        """Yield a finding per variant, which only states that the variant exists.

        Raises
        ------
        HarnessError
            If the model cannot be asked.
        """
        if self._generator is None:
            log.warning("variants not generated: the budget of the day is spent")
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
                log.warning("the model stopped writing variants: %s", error)
                return
            if not written:
                return
            took_s = (time.monotonic() - begin) / len(written)
            for solution in written:
                found = unmeasured(
                    solution.model_copy(update={"trust": TrustClass.GENERATED}),
                    plan,
                    checks=(),
                    detail="written, not checked",
                    seconds=took_s,
                    definition=named,
                )
                history.append(found)
                yield found
