"""One candidate against eager PyTorch: contract, memory, numerics, and paired times.

The gates are the lab's own; what differs is the incumbent, which is no kernel but a model in a
child of its own. A block times eager, candidate, eager: drift cancels, and each block counts once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from retuned.contract import Solution
from retuned.errors import CandidateError
from retuned.lab.harness.arena import Arena
from retuned.lab.harness.buffers import duel_bytes
from retuned.lab.harness.cases import CaseCache, CaseKey, Seeds
from retuned.lab.harness.checks import check_memory, check_numerics, failed_check
from retuned.lab.harness.run import Runner, arena_bytes
from retuned.lab.harness.timing import SETS
from retuned.lab.harness.variant import Variant
from retuned.lab.harness.worker import Worker
from retuned.lab.languages.cpp_contract import ContractViolated
from retuned.lab.oracle import Tolerance
from retuned.lab.subject import make_inputs
from retuned.lab.toolchain import Toolchain, clone_of
from retuned.stages.verdict import Check, Reason
from retuned_bench.kernelbench.eager_timing import (
    EagerDuel,
    OpenModel,
    Ratio,
    open_baselines,
    time_blocks,
)
from retuned_bench.kernelbench.problem import ProblemSubject

_ARENA_MAX_BYTES = 8 * 2**30

_SLOWER_THAN_EAGER = 50.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """How a candidate's examination ended."""

    compiled: bool
    """Whether it met its contract and the compiler took it."""
    correct: bool
    """Whether it passed all checks, those of timed launches included."""
    checks: tuple[Check, ...]
    """The gates' answers; the last is the one that failed, if any did."""
    ratios: Mapping[str, Ratio]
    """Times by baseline; empty where nothing was timed."""
    untimed: Mapping[str, str] = field(default_factory=dict)
    """Why a baseline has no time."""

    @property
    def failure(self) -> Check | None:
        """Return the check that failed."""
        return next((check for check in self.checks if check.reason is not None), None)

    @property
    def error_ratio(self) -> float | None:
        """Return the largest error against float64, relative to eager's."""
        known = [check.error_ratio for check in self.checks if check.error_ratio is not None]
        return max(known, default=None)


def examine(
    solution: Solution,
    subject: ProblemSubject,
    *,
    toolchain: Toolchain,
    folder: Path,
    seconds: float,
    baselines: Mapping[str, OpenModel],
    cores: Sequence[int] = (),
) -> Examined:
    """Take a candidate through contract, compiler, memory, numerics and timing.

    Parameters
    ----------
    solution
        The candidate.
    subject
        What it has to compute.
    toolchain
        Of its language.
    folder
        Private; compiled objects are kept in it.
    seconds
        Time for timing; 0 times nothing.
    baselines
        Models to time it against, by name; opened only where the candidate is right.
    cores
        Cores it may use; empty means all.

    Raises
    ------
    HarnessError
        If the problem's own model fails: nothing is known of the candidate then.
    """
    checks: list[Check] = []
    try:
        if solution.definition != subject.definition.name:
            raise ContractViolated(f"is for '{solution.definition}'")
        built = toolchain.build(solution, subject.definition, folder=folder, shapes=[{}])
        clone = clone_of(built.variant)
    except CandidateError as error:
        gate = "G1" if isinstance(error, ContractViolated) else "G2"
        return Examined(
            compiled=False, correct=False, checks=(failed_check(gate, error),), ratios={}
        )
    trial = _Trial(subject, built.variant, toolchain=toolchain, cores=cores)
    checks += trial.correct()
    timed = _Timed()
    if seconds and all(check.reason is None for check in checks):
        try:
            timed = trial.timed(clone, baselines, seconds=seconds)
            checks += timed.checks
        except CandidateError as error:
            checks.append(failed_check("G5", error))
    correct = all(check.reason is None for check in checks)
    return Examined(
        compiled=True,
        correct=correct,
        checks=tuple(checks),
        ratios=timed.ratios if correct else {},
        untimed=timed.missing,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Timed:
    """What timing gave."""

    checks: tuple[Check, ...] = ()
    ratios: Mapping[str, Ratio] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)


class _Trial:
    """One compiled candidate on one problem; seeds are drawn now, after it was compiled."""

    def __init__(
        self,
        subject: ProblemSubject,
        variant: Variant,
        *,
        toolchain: Toolchain,
        cores: Sequence[int],
    ) -> None:
        self._subject = subject
        self._variant = variant
        self._toolchain = toolchain
        self._cores = cores
        self._seeds = Seeds()
        self._eager_us = 0.0

    @property
    def _timeout_s(self) -> float:
        slow_s = _SLOWER_THAN_EAGER * self._eager_us / 1e6
        return self._toolchain.pace.launch_timeout_s + slow_s

    def correct(self) -> tuple[Check, ...]:
        """Gates G3 and G4 in a fresh child; the first failure ends them."""
        definition = self._subject.definition
        book = CaseCache(self._subject, incumbent=self._subject.eager, seeds=self._seeds)
        cells = [CaseKey(axes={}, family=family) for family in self._subject.families]
        first = book.case(cells[0])  # before the candidate's child lives
        begin = time.perf_counter()
        self._subject.eager.run(first.inputs, {}, timeout_s=60.0)
        self._eager_us = (time.perf_counter() - begin) * 1e6
        for cell in cells[1:]:
            book.case(cell)
        checks: list[Check] = []
        gate = "G3"
        try:
            with self._runner() as runner:
                check, _ = check_memory(runner, first, timeout_s=self._timeout_s)
                checks.append(check)
                gate = "G4"
                if check.reason is None:
                    check = check_numerics(
                        runner,
                        book,
                        definition=definition,
                        cells=cells,
                        tolerance=Tolerance(),
                        timeout_s=self._timeout_s,
                    )
                    checks.append(check)
        except CandidateError as error:
            checks.append(failed_check(gate, error))
        return tuple(checks)

    def timed(
        self, clone: Variant, baselines: Mapping[str, OpenModel], *, seconds: float
    ) -> _Timed:
        """Time in blocks, and check the outputs of timed launches.

        Raises
        ------
        CandidateError
            If the candidate dies, hangs, or lies about its times.
        HarnessError
            If eager PyTorch cannot be timed.
        """
        subject, sides = self._subject, (self._variant, clone)
        sets = [
            make_inputs(subject, {}, seed=self._seeds.seed("timed", n), family=subject.families[0])
            for n in range(SETS)
        ]
        models, missing = open_baselines(baselines, sets)
        size = duel_bytes(subject.definition, {}, sides, sets=SETS)
        libraries = [side.as_library(subject.definition) for side in sides]
        program = self._toolchain.program
        with (
            _arena(size) as arena,
            Worker(libraries, arena, cores=self._cores, program=program) as worker,
        ):
            duel = EagerDuel(
                subject, sides, arena=arena, worker=worker, tolerance=Tolerance(), timeout_s=120.0
            )
            one_us = duel.prepare({}, sets, seed=self._seeds.seed("order"))
            ratios, own_us = time_blocks(duel, models, one_us=one_us, seconds=seconds)
            check = duel.check_outputs(gate="G5")
            if check.reason is None:
                clocks = duel.check_clocks(candidate_us=own_us, incumbent_us=own_us, gate="G5")
                check = clocks if clocks.reason is not None else check
        return _Timed(checks=(check,), ratios=ratios, missing=missing)

    @contextmanager
    def _runner(self) -> Iterator[Runner]:
        definition, variant, program = self._subject.definition, self._variant, self._toolchain
        size = arena_bytes(
            definition,
            {},
            scratch_bytes=variant.scratch_bytes,
            parts=variant.parts,
            zone_rows=program.program.zone_rows,
        )
        with (
            _arena(size) as arena,
            Runner(
                definition, variant, arena=arena, cores=self._cores, program=program.program
            ) as runner,
        ):
            yield runner


def _arena(size: int) -> Arena:
    if size > _ARENA_MAX_BYTES:
        detail = f"needs {size} bytes of tensors and scratch, more than {_ARENA_MAX_BYTES}"
        raise CandidateError(Reason.OUT_OF_MEMORY.value, detail=detail)
    return Arena(size)
