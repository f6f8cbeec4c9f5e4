"""Examiner of one candidate: it runs the gates and gathers evidence, without a decision.

G1 contract, G2 compile and audit, G3 memory, G4 numerics, G5 search timing, G6 hold-out. G6 uses
fresh processes, new secret seeds and a clone of the incumbent in the same run. After the minimum of
processes, the examiner asks the caller after each one whether the result is decided. Measurement
ends then, or when time is up.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import numpy as np

from retuned.contract import Digest, Solution
from retuned.errors import CandidateError
from retuned.lab.captured_inputs import WithCaptured, is_captured
from retuned.lab.harness.cases import CaseCache, CaseKey, Seeds
from retuned.lab.harness.checks import check_memory, check_numerics, failed_check
from retuned.lab.harness.schedule import CANDIDATE, CLONE
from retuned.lab.harness.timing import Duel, samples_of, units_for
from retuned.lab.harness.variant import Variant
from retuned.lab.oracle import bit_equal
from retuned.lab.resources import LabResources, units_within
from retuned.lab.static_gates import admitted, check_form
from retuned.lab.statistics import ShapeSamples
from retuned.lab.subject import Array
from retuned.stages.verdict import Check, Reason

_FRESH, _LAUNCHES = 3, 3
"""A race may resolve the same way for a whole process: processes, and launches in each."""

_CLOCKS_EVERY = 4
"""After the first look, one process in this many compares clocks, on average.

Before it, every process does. The draw is secret, and the comparison comes last.
"""

Pairs = list[list[tuple[int, float, float]]]
"""Per block: (other side, incumbent's us, other's us)."""


@dataclass(slots=True)
class _Blocks:
    pairs: Pairs = field(default_factory=list)
    processes: list[int] = field(default_factory=list)

    def add(self, pairs: Pairs, *, process: int) -> None:
        self.pairs += pairs
        self.processes += [process] * len(pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    checks: tuple[Check, ...]
    samples: tuple[ShapeSamples, ...] = ()
    """Candidate against incumbent, one per shape in `shapes`."""
    clones: tuple[ShapeSamples, ...] = ()
    """Clone against incumbent, one per shape in `shapes`."""
    shapes: tuple[int, ...] = ()
    processes: int = 0
    looks: int = 1
    commitment: Digest | None = None

    @property
    def passed(self) -> bool:
        return all(check.reason is None for check in self.checks)


class Examiner:
    """Runs the gates with the resources of one plan."""

    def __init__(self, bay: LabResources) -> None:
        self._bay = bay

    def admit(self, solution: Solution) -> tuple[Variant | None, tuple[Check, ...]]:
        return admitted(lambda: self._compiled(solution))

    def correct(self, variant: Variant, *, book: CaseCache | None = None) -> tuple[Check, ...]:
        """Gates G3 and G4 in a fresh child; the first failure ends them."""
        bay, book = self._bay, book or self._bay.book
        cases = {cell: bay.case(book, cell) for cell in bay.cells}
        checks: list[Check] = []
        gate = "G3"
        try:
            with bay.runner(variant) as runner:
                for cell in self._memory_cells():
                    check, _ = check_memory(runner, cases[cell], timeout_s=bay.timeout_s)
                    checks.append(check)
                    if check.reason is not None:
                        return tuple(checks)
                gate = "G4"
                check = check_numerics(
                    runner,
                    book,
                    definition=bay.subject.definition,
                    cells=bay.cells,
                    tolerance=bay.settings.tolerance,
                    timeout_s=bay.timeout_s,
                )
                checks.append(self._with_captured(check))
        except CandidateError as error:
            checks.append(failed_check(gate, error))
        return tuple(checks)

    def _with_captured(self, check: Check) -> Check:
        subject = self._bay.subject
        if not isinstance(subject, WithCaptured):
            return check
        cells = [cell for cell in self._bay.cells if is_captured(cell.family)]
        told = [subject.summary(cell.axes, cell.family) for cell in cells]
        return check.model_copy(update={"figures": {**check.figures, "captured": told}})

    def search(self, variant: Variant) -> Timed:
        """Gate G5: short paired timing, costliest shape first; very slow candidates stop early."""
        bay = self._bay
        found: dict[int, ShapeSamples] = {}
        checks: list[Check] = []
        try:
            with bay.duel([bay.incumbent, variant]) as duel:
                for index in bay.by_cost():
                    found[index] = self._search_shape(duel, index)
                    checks.append(duel.check_outputs(gate="G5"))
                    if checks[-1].reason is not None or self._hopeless(found[index]):
                        break
        except CandidateError as error:
            checks.append(failed_check("G5", error))
        shapes = tuple(sorted(found))
        return Timed(
            checks=tuple(checks),
            samples=tuple(found[index] for index in shapes),
            shapes=shapes,
            processes=1,
        )

    def final(
        self,
        variant: Variant,
        *,
        decided: Callable[[Timed], bool] = lambda _timed: False,
        until_s: float = math.inf,
    ) -> Timed:
        """Gate G6: re-measure in fresh processes, on new seeds, beside a clone.

        `decided` gets the measurements after each process, once the minimum is reached, and returns
        whether they suffice. No process starts that could not end by `until_s`, on the monotonic
        clock.
        """
        seeds = Seeds()
        result = Timed(checks=(self._hold_out(variant, seeds),), commitment=seeds.commitment)
        timed = [_Blocks() for _ in self._bay.workloads]
        most, looks = max(self._bay.settings.processes, self._bay.settings.most_processes), 0
        for process in range(most):
            if not result.passed:
                break
            begin_s = time.monotonic()
            result = self._final_process(variant, seeds, timed, before=result, process=process)
            if not result.passed or process + 1 < self._bay.settings.processes:
                continue
            looks += 1
            result = replace(result, looks=looks)
            took_s = time.monotonic() - begin_s
            if decided(result) or time.monotonic() + took_s > until_s:
                break
        if result.passed:
            return result
        return Timed(checks=result.checks, commitment=result.commitment, looks=max(looks, 1))

    def _final_process(
        self,
        variant: Variant,
        seeds: Seeds,
        timed: list[_Blocks],
        *,
        before: Timed,
        process: int,
    ) -> Timed:
        bay, checks = self._bay, list(before.checks)
        try:
            with bay.duel([bay.incumbent, variant, bay.clone()]) as duel:
                for index in bay.by_cost():
                    blocks, check = self._final_shape(duel, index, seeds, process=process)
                    timed[index].add(blocks, process=process)
                    checks.append(check)
                    if check.reason is not None:
                        break
        except CandidateError as error:
            checks.append(failed_check("G6", error))
        result = replace(before, checks=tuple(checks), processes=process + 1)
        if not result.passed:
            return result
        return replace(
            result,
            samples=self._collect(timed, CANDIDATE),
            clones=self._collect(timed, CLONE),
            shapes=tuple(range(len(timed))),
        )

    def _search_shape(self, duel: Duel, index: int) -> ShapeSamples:
        bay = self._bay
        workload, blocks = bay.workloads[index], bay.settings.search_blocks
        one_us = duel.prepare(
            workload.axes, bay.sets(index, bay.seeds), seed=Seeds().seed("search", index)
        )
        bay.saw(one_us)
        budget_s = bay.settings.search_s / len(bay.workloads)
        overhead_us = bay.toolchain.pace.unit_overhead_us
        units = units_within(
            budget_s, blocks=blocks, one_us=one_us, least=1, overhead_us=overhead_us
        )
        pairs = [duel.block(units_for(units, 0))]
        first = samples_of(pairs, side=CANDIDATE, weight=workload.weight)
        more = 1 if self._hopeless(first) else blocks - 1
        pairs += [duel.block(units_for(units, 0)) for _ in range(more)]
        return samples_of(pairs, side=CANDIDATE, weight=workload.weight)

    def _final_shape(
        self, duel: Duel, index: int, seeds: Seeds, *, process: int
    ) -> tuple[Pairs, Check]:
        bay, settings = self._bay, self._bay.settings
        one_us = duel.prepare(
            bay.workloads[index].axes,
            bay.sets(index, seeds, process=process),
            seed=seeds.seed("order", index, process),
        )
        blocks = -(-settings.final_blocks // settings.processes)
        budget_s = settings.final_s / (len(bay.workloads) * settings.processes)
        least = settings.final_units + 1
        overhead_us = bay.toolchain.pace.unit_overhead_us
        units = units_within(
            budget_s, blocks=blocks, one_us=one_us, least=least, overhead_us=overhead_us
        )
        clones = max(1, units // 3)
        found = [duel.block(units_for(units - clones, clones)) for _ in range(blocks)]
        check = duel.check_outputs(gate="G6")
        early = process < settings.processes
        clocks_too = early or seeds.seed("clocks", process) % _CLOCKS_EVERY == 0
        if check.reason is None and clocks_too and index == bay.by_cost()[0]:
            samples = samples_of(found, side=CANDIDATE, weight=1.0)
            clocks = duel.check_clocks(
                candidate_us=float(np.median(samples.candidate_us)),
                incumbent_us=float(np.median(samples.incumbent_us)),
                gate="G6",
            )
            check = clocks if clocks.reason is not None else check
        return found, check

    def _hold_out(self, variant: Variant, seeds: Seeds) -> Check:
        """Check correctness on new seeds, and bit equality over more processes, several times."""
        bay = self._bay
        with ExitStack() as stack:
            book = bay.open_book(seeds, stack)
            for check in self.correct(variant, book=book):
                if check.reason is not None:
                    return check.model_copy(update={"gate": "G6"})
            case = bay.case(book, self._memory_cells()[0])
            answers: list[dict[str, Array]] = []
            try:
                for _ in range(_FRESH):
                    with bay.runner(variant) as runner:
                        answers += [
                            runner.run(case.inputs, case.cell.axes, timeout_s=bay.timeout_s)
                            for _ in range(_LAUNCHES)
                        ]
            except CandidateError as error:
                return failed_check("G6", error)
        first = answers[0]
        if not all(bit_equal(first[name], other[name]) for other in answers for name in first):
            detail = f"{_FRESH} processes of {_LAUNCHES} launches differ at {dict(case.cell.axes)}"
            return Check(gate="G6", reason=Reason.NONDETERMINISTIC, detail=detail)
        detail = f"held-out seeds, equal bits from {_FRESH} processes of {_LAUNCHES} launches"
        return Check(gate="G6", detail=detail)

    def _collect(self, timed: Sequence[_Blocks], side: int) -> tuple[ShapeSamples, ...]:
        return tuple(
            samples_of(each.pairs, side=side, weight=workload.weight, processes=each.processes)
            for each, workload in zip(timed, self._bay.workloads, strict=True)
        )

    def _memory_cells(self) -> list[CaseKey]:
        """Return the smallest shape's ordinary key, and the smallest odd edge's."""
        ordinary = self._bay.subject.families[0]
        cells = [cell for cell in self._bay.cells if cell.family == ordinary]
        odd = [cell for cell in cells[1:] if any(n % 2 and n > 1 for n in cell.axes.values())]
        return [cells[0], *odd[:1]]

    def _hopeless(self, samples: ShapeSamples) -> bool:
        ratio = float(np.median(samples.incumbent_us) / np.median(samples.candidate_us))
        return ratio < self._bay.settings.hopeless_ratio

    def _compiled(self, solution: Solution) -> Variant:
        bay = self._bay
        check_form(
            solution,
            definition=bay.subject.definition,
            incumbent=bay.production,
            cores=len(bay.cores),
        )
        return bay.compiled(solution)
