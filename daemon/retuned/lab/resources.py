"""Lab resources of one plan: children, memory and inputs for the gates."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from retuned.contract import Solution, Workload
from retuned.errors import CandidateError, HarnessError, UsageError
from retuned.lab.harness.arena import Arena
from retuned.lab.harness.buffers import duel_bytes
from retuned.lab.harness.cases import Case, CaseCache, CaseKey, Seeds, cells_for
from retuned.lab.harness.isolation import isolation
from retuned.lab.harness.processes import ChildLimits
from retuned.lab.harness.run import Runner, arena_bytes
from retuned.lab.harness.sanity import require_agreement, require_meaning, telling_shape
from retuned.lab.harness.timing import SETS, Duel
from retuned.lab.harness.variant import Variant
from retuned.lab.harness.worker import Worker
from retuned.lab.languages.limits import CompileLimits
from retuned.lab.oracle import Tolerance
from retuned.lab.subject import Array, KernelUnderTest, UntrustedReference, make_inputs
from retuned.lab.toolchain import Toolchain, clone_of, lend_tools, toolchain_for
from retuned.stages.verdict import Isolation

_ARENA_MAX_BYTES = 8 * 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class LabSettings:
    """Amount of measurement; thresholds of the decision are `JudgeSettings`."""

    search_s: float = 0.8
    search_blocks: int = 5
    hopeless_ratio: float = 1 / 3
    """A candidate this slow on the costliest shape is not timed further."""
    final_s: float = 5.0
    final_blocks: int = 12
    """Blocks per shape at the first look; a further process adds its part of them."""
    final_units: int = 2
    """Least ABBA units of candidate and incumbent per block of a finalist; two pairs each."""
    processes: int = 8
    """Fresh processes per finalist before the first look.

    With fewer than six no bound of 99 % is finite. With fewer than eight no part of the shapes can
    win against the whole.
    """
    most_processes: int = 24
    """Maximum of processes, if looks do not decide sooner and time allows."""
    launch_timeout_s: float | None = None
    """Bound of one launch, beyond twenty times the incumbent's time; None uses the language's."""
    compile: CompileLimits | None = None
    child: ChildLimits | None = None
    tolerance: Tolerance = field(default_factory=Tolerance)


class LabResources:
    """One plan's incumbent, its outputs, and the resources to run variants beside it.

    Compiled objects are stored in `folder`, which is private. Empty `cores` means all. `toolchain`
    of None uses the one of the incumbent's language.

    Raises
    ------
    HarnessError
        If the incumbent does not compile or run, or the definition's outputs do not vary.
    """

    def __init__(
        self,
        subject: KernelUnderTest,
        workloads: Sequence[Workload],
        *,
        incumbent: Solution,
        folder: Path,
        cores: Sequence[int] = (),
        settings: LabSettings | None = None,
        toolchain: Toolchain | None = None,
    ) -> None:
        self.subject = subject
        self.toolchain = toolchain or toolchain_for(incumbent.language)
        self.production = incumbent
        """The given incumbent, which candidates are compared with."""
        self.workloads = tuple(workloads)
        self.settings = settings or LabSettings()
        self.cells = _possible(subject, workloads)
        require_meaning(subject, telling_shape(subject, [c.axes for c in self.cells]), seed=1)
        self.cores = tuple(cores)
        self._folder = folder
        self._stack = ExitStack()
        self._sets: dict[tuple[object, ...], list[dict[str, Array]]] = {}
        self._slowest_us = 0.0
        self._confined = False
        try:
            self.toolchain.program.warm()
            self.incumbent = self.compiled(incumbent)
            self.seeds = Seeds()
            self.book = self.open_book(self.seeds, self._stack)
            self._require_agreement()
        except CandidateError as error:
            self.close()
            raise HarnessError(f"the incumbent itself fails: {error}") from error
        except HarnessError:
            self.close()
            raise

    def _require_agreement(self) -> None:
        ordinary = [cell for cell in self.cells if cell.family == self.subject.families[0]]
        if ordinary:
            cell = min(ordinary, key=lambda each: math.prod(each.axes.values()))
            require_agreement(self.book.case(cell), name=self.subject.definition.name)

    def close(self) -> None:
        self._stack.close()

    @property
    def timeout_s(self) -> float:
        own_s = self.settings.launch_timeout_s
        base_s = self.toolchain.pace.launch_timeout_s if own_s is None else own_s
        return base_s + 20.0 * self._slowest_us / 1e6

    def compiled(self, solution: Solution) -> Variant:
        return self.toolchain.build(
            solution,
            self.subject.definition,
            folder=self._folder / "compiled",
            shapes=[workload.axes for workload in self.workloads],
            limits=self.settings.compile,
        ).variant

    @property
    def isolation(self) -> Isolation:
        program, walls = self.toolchain.program, isolation()
        missing = [*walls.missing]
        if not self._confined and walls.system_calls:
            missing.append("system calls were not filtered")
        if program.mirrored:
            which = "the system's files and packages" if walls.files else "files"
            missing.append(f"a process that drives a device may open {which}")
        if not program.fences:
            missing.append("pages of a device cannot be made unreadable: red zones alone")
        reference = self._reference_walls()
        if reference == ():
            missing.append("the definition's reference ran behind its static check alone")
        return Isolation(
            system_calls_filtered=self._confined,
            network_cut=walls.network,
            files_denied=walls.files > 0 and not program.mirrored,
            memory_check=program.memory_check,
            reference_confined_by=reference or (),
            missing=tuple(missing),
        )

    def _reference_walls(self) -> tuple[str, ...] | None:
        subject = self.subject
        return subject.reference_confined_by() if isinstance(subject, UntrustedReference) else None

    def clone(self) -> Variant:
        """Return the incumbent under another path: the same bytes, loaded a second time."""
        return clone_of(self.incumbent)

    def open_book(self, seeds: Seeds, stack: ExitStack) -> CaseCache:
        """Open a book of cases whose incumbent runs in a separate child until `stack` closes."""
        runner = stack.enter_context(self.runner(self.incumbent))
        self._confined = runner.confined
        return CaseCache(self.subject, incumbent=runner, seeds=seeds)

    def case(self, book: CaseCache, cell: CaseKey) -> Case:
        try:
            return book.case(cell)
        except CandidateError as error:
            raise HarnessError(f"the incumbent fails at {dict(cell.axes)}: {error}") from error

    @contextmanager
    def runner(self, variant: Variant) -> Iterator[Runner]:
        lend_tools(self.incumbent, variant)
        definition = self.subject.definition
        size = max(
            arena_bytes(
                definition,
                cell.axes,
                scratch_bytes=variant.scratch_bytes,
                parts=variant.parts,
                zone_rows=self.toolchain.program.zone_rows,
                named=variant.scratch_sizes(definition.lengths(cell.axes)),
            )
            for cell in self.cells
        )
        with (
            _arena(size) as arena,
            Runner(
                definition,
                variant,
                arena=arena,
                cores=self.cores,
                program=self.toolchain.program,
                limits=self.settings.child,
            ) as runner,
        ):
            yield runner

    @contextmanager
    def duel(self, sides: Sequence[Variant]) -> Iterator[Duel]:
        definition = self.subject.definition
        size = max(
            duel_bytes(definition, workload.axes, sides, sets=SETS) for workload in self.workloads
        )
        libraries = [side.as_library(definition) for side in sides]
        with (
            _arena(size) as arena,
            Worker(
                libraries,
                arena,
                cores=self.cores,
                program=self.toolchain.program,
                limits=self.settings.child,
            ) as worker,
        ):
            yield Duel(
                self.subject,
                sides,
                arena=arena,
                worker=worker,
                tolerance=self.settings.tolerance,
            )

    def sets(self, index: int, seeds: Seeds, *, process: int = 0) -> list[dict[str, Array]]:
        """Return sets of ordinary inputs of one shape; those of the search are cached."""
        key = ("sets", index, process)
        kept = seeds is self.seeds
        if kept and key in self._sets:
            return self._sets[key]
        made = [
            make_inputs(
                self.subject,
                self.workloads[index].axes,
                seed=seeds.seed(*key, number),
                family=self.subject.families[0],
            )
            for number in range(SETS)
        ]
        if kept:
            self._sets[key] = made
        return made

    def saw(self, one_us: float) -> None:
        self._slowest_us = max(self._slowest_us, one_us)

    def by_cost(self) -> list[int]:
        def work(index: int) -> float:
            workload = self.workloads[index]
            size = 1.0
            for length in workload.axes.values():
                size *= max(length, 1)
            return workload.weight * size

        return sorted(range(len(self.workloads)), key=lambda index: -work(index))


def units_within(
    budget_s: float, *, blocks: int, one_us: float, least: int, overhead_us: float
) -> int:
    """Return how many ABBA units a block may have so that all blocks fit the budget."""
    unit_us = 4.0 * max(one_us, 20.0) + overhead_us
    return max(least, min(16, int(budget_s * 1e6 / (blocks * unit_us))))


def _possible(subject: KernelUnderTest, workloads: Sequence[Workload]) -> tuple[CaseKey, ...]:
    """Leave out edges that the definition does not allow, such as fewer keys than queries."""
    given = [dict(workload.axes) for workload in workloads]
    kept = []
    for cell in cells_for(subject, workloads):
        if dict(cell.axes) not in given:
            try:
                make_inputs(subject, cell.axes, seed=0, family=cell.family)
            except (UsageError, ValueError):
                continue
        kept.append(cell)
    return tuple(kept)


def _arena(size: int) -> Arena:
    if size > _ARENA_MAX_BYTES:
        detail = f"needs {size} bytes of tensors and scratch, more than {_ARENA_MAX_BYTES}"
        raise CandidateError("out-of-memory", detail=detail)
    return Arena(size)
