"""One candidate against eager PyTorch: contract, memory, numerics, and paired times.

The gates are the lab's own. The incumbent differs: it is a model in a child process, not a kernel.
A block times eager, candidate, eager: drift cancels, and each block counts once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from retuned.contract import Solution
from retuned.errors import CandidateError, HarnessError
from retuned.lab.harness.arena import Arena
from retuned.lab.harness.buffers import duel_bytes
from retuned.lab.harness.cases import CaseCache, CaseKey, Seeds
from retuned.lab.harness.checks import check_memory, check_numerics, failed_check
from retuned.lab.harness.run import Runner, arena_bytes
from retuned.lab.harness.timing import SETS, Duel, units_for
from retuned.lab.harness.variant import Variant
from retuned.lab.harness.worker import Worker
from retuned.lab.languages.cpp_contract import ContractViolated
from retuned.lab.oracle import Tolerance
from retuned.lab.statistics import ShapeSamples, estimate
from retuned.lab.subject import Array, make_inputs
from retuned.lab.toolchain import Toolchain, clone_of
from retuned.stages.verdict import Check, Interval, Reason
from retuned_bench.kernelbench.problem import EagerModel, ProblemSubject
from retuned_bench.kernelbench.process import ProblemRefused

EAGER, COMPILED = "eager", "compiled"

OpenModel = Callable[[], EagerModel]
"""Opens a baseline when it is needed; raises `ProblemRefused`."""

_CONFIDENCE = 0.95

_LEAST_BLOCKS = 5

_MOST_BLOCKS = 25

_UNIT_US = 10_000.0

_SETTLE_S = 0.005
"""Threads of PyTorch wait for more work before they sleep; the candidate is not timed beside them.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A candidate's time beside one baseline's."""

    baseline_us: float
    """Median time of the baseline, microseconds."""
    candidate_us: float
    """Median time of the candidate, microseconds."""
    speedup: Interval
    """Baseline over candidate."""
    blocks: int
    """Blocks it rests on."""
    threads: int = 1
    """Threads of the baseline: all, or one where that is faster."""


class EagerDuel(Duel):
    """Times a candidate beside its own bytes; outputs are compared with what eager answers."""

    def _incumbent_answer(self, index: int, lengths: dict[str, int]) -> dict[str, Array]:
        del lengths
        subject = self._subject
        assert isinstance(subject, ProblemSubject)
        return subject.eager.run(self.placed.model[index], {}, timeout_s=60.0)


def open_baselines(
    baselines: Mapping[str, OpenModel], sets: Sequence[Mapping[str, Array]]
) -> tuple[dict[str, EagerModel], dict[str, str]]:
    """Open baselines and give them their inputs; say of each that fails why."""
    models: dict[str, EagerModel] = {}
    missing: dict[str, str] = {}
    for name, opened in baselines.items():
        try:
            model = opened()
            model.place(sets, compiles=name == COMPILED)
        except ProblemRefused as error:
            if name == EAGER:
                raise HarnessError(f"the problem's model cannot be timed: {error}") from error
            missing[name] = str(error)
            continue
        models[name] = model
    return models, missing


def time_blocks(
    duel: Duel, baselines: Mapping[str, EagerModel], *, one_us: float, seconds: float
) -> tuple[dict[str, Ratio], float]:
    """Time blocks until the time is over; return the ratios and the candidate's median."""
    units = max(1, min(16, round(_UNIT_US / (4.0 * max(one_us, 20.0)))))
    before: dict[str, list[float]] = {name: [] for name in baselines}
    ours: list[float] = []
    deadline = time.monotonic() + seconds
    while len(ours) < _LEAST_BLOCKS or (time.monotonic() < deadline and len(ours) < _MOST_BLOCKS):
        around = {name: [model.batch_us()] for name, model in baselines.items()}
        time.sleep(_SETTLE_S)
        pairs = duel.block(units_for(units, 0))
        ours.append(float(np.median([t for pair in pairs for t in pair[1:]])))
        for name, model in reversed(list(baselines.items())):
            around[name].append(model.batch_us())
            before[name].append(float(np.sqrt(np.prod(around[name]))))
    median_us = float(np.median(ours))
    ratios = {name: _ratio(times, ours) for name, times in before.items()}
    return {n: replace(r, threads=baselines[n].threads) for n, r in ratios.items()}, median_us


def _ratio(baseline_us: Sequence[float], candidate_us: Sequence[float]) -> Ratio:
    samples = ShapeSamples(
        weight=1.0,
        incumbent_us=np.array(baseline_us),
        candidate_us=np.array(candidate_us),
        block=np.arange(len(candidate_us)),
    )
    found = estimate(samples)
    assert found is not None, "there are several blocks"
    return Ratio(
        baseline_us=float(np.median(baseline_us)),
        candidate_us=float(np.median(candidate_us)),
        speedup=found.interval(_CONFIDENCE),
        blocks=len(candidate_us),
    )


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
