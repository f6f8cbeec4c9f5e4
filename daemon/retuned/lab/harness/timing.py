"""Paired timing of incumbent, candidate and a byte-identical clone of the incumbent in one child.

The child only launches and reads its clock. The parent draws the order, keeps its own copy of every
input, checks outputs of timed calls against float64, looks at the red zones, and compares the
child's clock with its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from retuned.contract import Definition
from retuned.errors import CandidateError
from retuned.lab.harness.arena import PAGE, Arena, Region
from retuned.lab.harness.cases import Case, Cell
from retuned.lab.harness.checks import compare_case
from retuned.lab.harness.runs import POISON_MIXED
from retuned.lab.harness.schedule import CANDIDATE, CLONE, INCUMBENT, Block, Call, Scheduler
from retuned.lab.harness.variant import AS_IS, Variant, packed
from retuned.lab.harness.worker import Worker
from retuned.lab.oracle import Tolerance
from retuned.lab.statistics import ShapeSamples
from retuned.lab.subject import Array, Subject, numpy_dtype, shape_of
from retuned.stages.verdict import Check, Reason

SETS = 5
"""Sets of buffers that calls rotate through; odd on purpose."""
_CALL_US = 20.0
"""Launches shorter than this are timed several at a time: a reading of the clock costs 0.1 us."""
_BURST_US = 60_000.0
"""Length of the launches that both clocks time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """One shape's buffers in the arena."""

    axes: Mapping[str, int]
    """Lengths of the variable axes."""
    lengths: tuple[int, ...]
    """Lengths of all axes."""
    regions: tuple[Region, ...]
    """Everything, for the red zones."""
    inputs: tuple[dict[tuple[str, str], Region], ...]
    """Per set: input and layout."""
    outputs: tuple[dict[str, Region], ...]
    """Per set."""
    spare: dict[str, Region]
    """Outputs for the incumbent's answer when a timed output is checked."""
    scratch: tuple[tuple[Region, ...], ...]
    """Per side, per part."""
    model: tuple[dict[str, Array], ...]
    """What the inputs must hold: the parent's own copy, per set."""


class Duel:
    """Times sides against each other, one shape at a time.

    Parameters
    ----------
    subject
        What is tuned.
    sides
        Incumbent, candidate, and where the noise floor is wanted the incumbent's clone.
    arena
        Shared memory.
    worker
        A fresh child that has the sides loaded in this order.
    tolerance
        Of outputs of timed calls.
    timeout_s
        Bound of one block.
    """

    def __init__(
        self,
        subject: Subject,
        sides: Sequence[Variant],
        *,
        arena: Arena,
        worker: Worker,
        tolerance: Tolerance,
        timeout_s: float = 60.0,
    ) -> None:
        self._subject = subject
        self._sides = sides
        self._arena = arena
        self._worker = worker
        self._tolerance = tolerance
        self._timeout_s = timeout_s
        self._placed: Placed | None = None
        self._scheduler: Scheduler | None = None

    @property
    def placed(self) -> Placed:
        """The shape in place now."""
        assert self._placed is not None
        return self._placed

    def prepare(
        self, axes: Mapping[str, int], sets: Sequence[Mapping[str, Array]], *, seed: int
    ) -> float:
        """Place a shape with its sets of inputs, warm up, and return the incumbent's time, us.

        Raises
        ------
        CandidateError
            If a side dies or asks for a layout that does not fit.
        """
        self._placed = place(
            self._subject.definition, self._sides, self._arena, axes=axes, sets=sets
        )
        mutable = mutable_inputs(self._subject.definition, sets[0])
        probe = Scheduler(sets=len(sets), mutable=mutable, repeat=1, seed=seed)
        block = probe.block([CANDIDATE])
        times = self._run(block.calls)
        own = [t for call, t in zip(block.calls, times, strict=True) if call.which == INCUMBENT]
        one_us = max(min(own) / 1e3, 0.05)
        repeat = max(1, min(64, round(_CALL_US / one_us)))
        self._scheduler = Scheduler(sets=len(sets), mutable=mutable, repeat=repeat, seed=seed + 1)
        return one_us

    def block(self, units: Sequence[int]) -> list[tuple[int, float, float]]:
        """Time one block; return (other side, incumbent us, other's us) per pair.

        Raises
        ------
        CandidateError
            If a side dies or hangs, or with reason ``clocks-disagree``.
        """
        assert self._scheduler is not None
        block = self._scheduler.block(units)
        times = self._run(block.calls)
        self._last = block
        return [
            (other, _per_launch(block, times, left), _per_launch(block, times, right))
            for other, left, right in block.pairs
        ]

    def check_outputs(self, *, gate: str) -> Check:
        """Check the newest output of the candidate, inputs and red zones; the block is over.

        Which call's output is looked at cannot be told from inside: every output is poisoned before
        every call, and every call may be a block's last.
        """
        placed, definition = self.placed, self._subject.definition
        if not self._arena.zones_intact(placed.regions, POISON_MIXED):
            return Check(gate=gate, reason=Reason.OUT_OF_BOUNDS, detail="wrote outside its tensors")
        for index, model in enumerate(placed.model):
            for (name, layout), region in placed.inputs[index].items():
                want = packed(model[name], layout)
                if self._arena.view(region, want.dtype, want.shape).tobytes() != want.tobytes():
                    detail = f"input '{name}' changed between timed calls"
                    return Check(gate=gate, reason=Reason.INPUT_MODIFIED, detail=detail)
        newest = self._newest()
        if newest is None:
            return Check(gate=gate, detail="no output to check")
        lengths = definition.lengths(placed.axes)
        got = _read(self._arena, definition, placed.outputs[newest], lengths)
        inputs = {name: array.copy() for name, array in placed.model[newest].items()}
        case = Case(
            cell=Cell(axes=placed.axes, family="timed"),
            inputs=inputs,
            reference=self._subject.reference(inputs, placed.axes),
            incumbent=self._incumbent_answer(newest, lengths),
        )
        return compare_case(
            definition,
            case,
            got,
            tolerance=self._tolerance,
            gate=gate,
            reason=Reason.TIMED_OUTPUT_WRONG,
        )

    def check_clocks(self, *, candidate_us: float, incumbent_us: float, gate: str) -> Check:
        """Let both clocks time the same long run of launches of each side; they must agree."""
        shares = []
        for which, one_us in ((INCUMBENT, incumbent_us), (CANDIDATE, candidate_us)):
            repeat = max(2, min(20_000, round(_BURST_US / max(one_us, 0.05))))
            call = Call(which=which, first=0, repeat=repeat, poison=POISON_MIXED, swaps=())
            answer, wall_ns = self._send([call])
            claimed = float(answer["times"][0])
            if claimed < 0.9 * wall_ns - 15e6 or claimed > 1.02 * wall_ns:
                detail = f"child says {claimed / 1e6:.3g} ms, parent {wall_ns / 1e6:.3g} ms"
                return Check(gate=gate, reason=Reason.CLOCKS_DISAGREE, detail=detail)
            shares.append(claimed / wall_ns)
        return Check(gate=gate, detail=f"child's clock saw {min(shares):.1%} of the parent's time")

    def _run(self, calls: Sequence[Call]) -> list[int]:
        answer, wall_ns = self._send(calls)
        times = [int(time) for time in answer["times"]]
        elapsed = int(answer["elapsed"])
        if len(times) != len(calls) or min(times) <= 0 or sum(times) > elapsed:
            raise CandidateError("clocks-disagree", detail="times that cannot be")
        if elapsed > 1.02 * wall_ns or elapsed < 0.8 * wall_ns - 50e6:
            detail = f"child says {elapsed / 1e6:.3g} ms, parent {wall_ns / 1e6:.3g} ms"
            raise CandidateError("clocks-disagree", detail=detail)
        return times

    def _send(self, calls: Sequence[Call]) -> tuple[dict[str, Any], int]:
        placed, definition = self.placed, self._subject.definition
        body = {
            "op": "time",
            "lengths": placed.lengths,
            "sets": [
                [_tensors(definition, side, placed, index) for index in range(len(placed.inputs))]
                for side in self._sides
            ],
            "outputs": [_spans(regions.values()) for regions in placed.outputs],
            "scratch": [_spans(regions) for regions in placed.scratch],
            "calls": [
                [call.which, call.first, call.repeat, call.poison, self._swaps(call)]
                for call in calls
            ],
        }
        answer = self._worker.command(body, timeout_s=self._timeout_s)
        self._mirror(calls)
        return answer

    def _swaps(self, call: Call) -> list[list[int]]:
        found = []
        for swap in call.swaps:
            region = self.placed.inputs[swap.set][(swap.tensor, AS_IS)]
            item = self.placed.model[swap.set][swap.tensor].itemsize
            found.append([region.start + swap.left * item, region.start + swap.right * item, item])
        return found

    def _mirror(self, calls: Sequence[Call]) -> None:
        """Apply to the parent's copy what the child was told to apply."""
        for call in calls:
            for swap in call.swaps:
                flat = self.placed.model[swap.set][swap.tensor].reshape(-1)
                flat[[swap.left, swap.right]] = flat[[swap.right, swap.left]]

    def _newest(self) -> int | None:
        """Return the set that the candidate wrote last and nobody wrote or changed since."""
        spoiled: set[int] = set()
        count = len(self.placed.inputs)
        for call in reversed(self._last.calls):
            last = (call.first + call.repeat - 1) % count
            if call.which == CANDIDATE and last not in spoiled:
                return last
            spoiled |= {(call.first + turn) % count for turn in range(min(call.repeat, count))}
        return None

    def _incumbent_answer(self, index: int, lengths: dict[str, int]) -> dict[str, Array]:
        placed, definition = self.placed, self._subject.definition
        inputs = len(definition.inputs)
        tensors = _tensors(definition, self._sides[INCUMBENT], placed, index)[:inputs]
        body = {
            "op": "run",
            "kernel": INCUMBENT,
            "tensors": [*tensors, *(region.start for region in placed.spare.values())],
            "lengths": placed.lengths,
            "scratch": [region.start for region in placed.scratch[INCUMBENT]],
            "fences": [],
        }
        self._worker.command(body, timeout_s=self._timeout_s)
        return _read(self._arena, definition, placed.spare, lengths)


def place(
    definition: Definition,
    sides: Sequence[Variant],
    arena: Arena,
    *,
    axes: Mapping[str, int],
    sets: Sequence[Mapping[str, Array]],
) -> Placed:
    """Lay out all sets for all sides; sides with one layout share one copy.

    Raises
    ------
    ContractViolated
        If a layout does not fit.
    """
    arena.reset()
    lengths = definition.lengths(axes)
    inputs, outputs, regions = [], [], []
    for given in sets:
        wanted = {
            (name, layout): packed(given[name], layout)
            for side in sides
            for name in definition.inputs
            for layout in (side.layouts.get(name, AS_IS),)
        }
        # The parent's swaps go to the plain copy, which every non-constant input has.
        placed = {key: arena.place(array.nbytes) for key, array in wanted.items()}
        for key, region in placed.items():
            arena.view(region, wanted[key].dtype, wanted[key].shape)[...] = wanted[key]
        inputs.append(placed)
        outputs.append(_place_outputs(definition, arena, lengths))
        regions += [*placed.values(), *outputs[-1].values()]
    spare = _place_outputs(definition, arena, lengths)
    scratch = tuple(
        tuple(
            arena.place(side.scratch_bytes) for _ in range(side.parts if side.scratch_bytes else 0)
        )
        for side in sides
    )
    regions += [*spare.values(), *(region for group in scratch for region in group)]
    arena.fill_zones(regions, POISON_MIXED)
    return Placed(
        axes=axes,
        lengths=tuple(lengths.values()),
        regions=tuple(regions),
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        spare=spare,
        scratch=scratch,
        model=tuple({name: array.copy() for name, array in given.items()} for given in sets),
    )


def mutable_inputs(definition: Definition, inputs: Mapping[str, Array]) -> list[tuple[str, int]]:
    """Return the inputs whose elements may change places: real numbers that are not weights.

    Integers may be indices or lengths, which must stay where they are.
    """
    return [
        (name, inputs[name].size)
        for name, spec in definition.inputs.items()
        if not spec.constant and numpy_dtype(spec).kind == "f"
    ]


def duel_bytes(
    definition: Definition, axes: Mapping[str, int], sides: Sequence[Variant], *, sets: int
) -> int:
    """Bytes that a shape needs in the arena, red zones included."""
    lengths = definition.lengths(axes)
    copies = max(1, len({tuple(sorted(side.layouts.items())) for side in sides}))
    one = 0
    for spec in (*definition.inputs.values(), *definition.outputs.values()):
        size = int(np.prod(shape_of(spec, lengths))) * numpy_dtype(spec).itemsize
        one += (size + 4 * PAGE) * (copies if spec.constant else 1)
    scratch = sum(side.parts * (side.scratch_bytes + 4 * PAGE) for side in sides)
    return (sets + 1) * one + scratch


def samples_of(
    pairs: Sequence[Sequence[tuple[int, float, float]]], *, side: int, weight: float
) -> ShapeSamples:
    """Collect one side's pairs over blocks."""
    rows = [
        (index, left, right)
        for index, block in enumerate(pairs)
        for other, left, right in block
        if other == side
    ]
    return ShapeSamples(
        weight=weight,
        incumbent_us=np.array([row[1] for row in rows]),
        candidate_us=np.array([row[2] for row in rows]),
        block=np.array([row[0] for row in rows], dtype=np.int64),
    )


def units_for(candidate: int, clone: int) -> list[int]:
    """Return the other sides of a block's ABBA units."""
    return [CANDIDATE] * candidate + [CLONE] * clone


def _per_launch(block: Block, times: Sequence[int], position: int) -> float:
    return times[position] / block.calls[position].repeat / 1e3


def _spans(regions: Any) -> list[list[int]]:  # noqa: ANN401 - any iterable of regions
    return [[region.start, region.end - region.start] for region in regions]


def _tensors(definition: Definition, side: Variant, placed: Placed, index: int) -> list[int]:
    inputs = placed.inputs[index]
    starts = [inputs[(n, side.layouts.get(n, AS_IS))].start for n in definition.inputs]
    return starts + [region.start for region in placed.outputs[index].values()]


def _place_outputs(
    definition: Definition, arena: Arena, lengths: dict[str, int]
) -> dict[str, Region]:
    return {
        name: arena.place(int(np.prod(shape_of(spec, lengths))) * numpy_dtype(spec).itemsize)
        for name, spec in definition.outputs.items()
    }


def _read(
    arena: Arena, definition: Definition, regions: Mapping[str, Region], lengths: dict[str, int]
) -> dict[str, Array]:
    return {
        name: arena.view(regions[name], numpy_dtype(spec), shape_of(spec, lengths)).copy()
        for name, spec in definition.outputs.items()
    }
