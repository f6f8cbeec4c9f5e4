"""Paired timing of incumbent, candidate and a byte-identical clone of the incumbent in one child.

The child only launches and reads its clock. The parent draws the order, keeps its own copy of every
input, checks outputs of timed calls against float64, checks the red zones, and compares the child's
clock with its own.

The pure part converts calls to samples and detects timings that an honest kernel cannot produce.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from retuned.errors import CandidateError
from retuned.lab.harness.arena import Arena, Region
from retuned.lab.harness.buffers import (
    Placed,
    mutable_inputs,
    place,
    read_outputs,
    spans,
    tensors_of,
    updated_of,
)
from retuned.lab.harness.cases import Case, CaseKey
from retuned.lab.harness.checks import compare_case
from retuned.lab.harness.run import POISON_MIXED, put_back
from retuned.lab.harness.schedule import CANDIDATE, CLONE, INCUMBENT, Block, Scheduler, TimedCall
from retuned.lab.harness.variant import AS_IS, Variant, packed
from retuned.lab.harness.worker import Elapsed, Worker
from retuned.lab.oracle import Tolerance
from retuned.lab.statistics import ShapeSamples
from retuned.lab.subject import Array, KernelUnderTest
from retuned.stages.verdict import Check, Reason

__all__ = ["SETS", "Duel", "samples_of", "units_for"]

Pair = tuple[int, float, float]
"""(other side, incumbent's us, other's us)."""
_SEEN_RATIO = 1.4
"""Short calls cost both sides some tenths of a microsecond more, which hides part of a speedup."""


def pairs_of(block: Block, times_ns: Sequence[int]) -> list[Pair]:
    each = [ns / call.repeat / 1e3 for ns, call in zip(times_ns, block.calls, strict=True)]
    return [(other, each[left], each[right]) for other, left, right in block.pairs]


def samples_of(
    pairs: Sequence[Sequence[Pair]],
    *,
    side: int,
    weight: float,
    processes: Sequence[int] | None = None,
) -> ShapeSamples:
    """Collect one side's pairs over blocks; `processes` names the process of each block."""
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
        process=None if processes is None else np.array(processes, dtype=np.int64),
    )


def units_for(candidate: int, clone: int) -> list[int]:
    return [CANDIDATE] * candidate + [CLONE] * clone


def remembers(usual: Sequence[Pair], fresh: Sequence[Pair]) -> str:
    """Return a message if a candidate is faster on repeated inputs within a call.

    Parameters
    ----------
    usual
        Pairs whose calls go through the sets of inputs several times.
    fresh
        Pairs whose calls meet every content once.

    Examples
    --------
    >>> honest = [(CANDIDATE, 2.0, 1.0)] * 8
    >>> remembers(honest, honest)
    ''
    >>> remembers(honest, [(CANDIDATE, 2.0, 2.0)] * 8)
    '2.00 times as fast as the incumbent on inputs it has seen, 1.00 times on new ones'
    """
    if not usual or not fresh:
        return ""
    seen, new = (statistics.median(left / right for _, left, right in p) for p in (usual, fresh))
    if seen <= _SEEN_RATIO * new:
        return ""
    return (
        f"{seen:.2f} times as fast as the incumbent on inputs it has seen, "
        f"{new:.2f} times on new ones"
    )


SETS = 5
"""Sets of buffers that calls rotate through; must be odd."""
_CALL_US = 20.0
"""Shorter launches are timed several at a time: a clock reading costs 0.1 us."""
_BURST_US = 60_000.0
_FRESH_UNITS = 12
_BEFORE, _EACH, _ONLY = "before", "each", "only"
"""When a child restores in-place outputs.

Before a call; before each launch, timed with it; or without launches, to measure the restore alone.
"""
_LONG_RUN_RATIO = 2.5
"""Largest ratio of a long run to the time that its paired launches predict, unless the other side's
ratio is as large. The child reports the paired times, so code in it may have forged them.
"""


class Duel:
    """Times sides against each other, one shape at a time.

    `sides` are incumbent, candidate and, to measure the noise floor, the incumbent's clone.
    `worker` is a fresh child that has loaded the sides in this order. `timeout_s` bounds one block.
    """

    def __init__(
        self,
        subject: KernelUnderTest,
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
        self._once: Scheduler | None = None
        self._pairs: list[Pair] = []
        self._calls = self._late = 0

    @property
    def placed(self) -> Placed:
        assert self._placed is not None
        return self._placed

    def prepare(
        self, axes: Mapping[str, int], sets: Sequence[Mapping[str, Array]], *, seed: int
    ) -> float:
        """Place a shape with its sets of inputs, warm up, and return the incumbent's time in us.

        Raises
        ------
        CandidateError
            If a side dies or asks for a layout that does not fit.
        """
        self._placed = place(
            self._subject.definition, self._sides, self._arena, axes=axes, sets=sets
        )
        for which in range(len(self._sides)):
            self._worker.prepare(which, self._placed.lengths)
        self._worker.push(self._arena.used_bytes)
        mutable = mutable_inputs(self._subject.definition, sets[0])
        probe = Scheduler(sets=len(sets), mutable=mutable, repeat=1, seed=seed)
        block = probe.block([CANDIDATE])
        times = self._run(block.calls)
        own = [t for call, t in zip(block.calls, times, strict=True) if call.which == INCUMBENT]
        one_us = max(min(own) / 1e3, 0.05)
        # In-place outputs are restored between calls: within one, every launch has its own.
        most = len(sets) if self._subject.definition.updated else 64
        repeat = max(1, min(most, round(_CALL_US / one_us)))
        count, self._pairs = len(sets), []
        self._scheduler = Scheduler(sets=count, mutable=mutable, repeat=repeat, seed=seed + 1)
        # Calls of more launches than there are sets meet the same content again.
        once = Scheduler(sets=count, mutable=mutable, repeat=count, seed=seed + 2)
        self._once = once if repeat > count and mutable else None
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
        found = pairs_of(block, self._run(block.calls))
        self._last = block
        self._pairs += [pair for pair in found if pair[0] == CANDIDATE]
        return found

    def check_outputs(self, *, gate: str) -> Check:
        """Check the candidate's newest output, inputs and red zones; this ends the block.

        The child cannot predict which output is checked: every output is poisoned before every
        call, and any call may be a block's last.
        """
        placed, definition = self.placed, self._subject.definition
        self._worker.pull(self._arena.used_bytes)
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
            detail = "later calls wrote over the candidate's outputs; inputs and memory are intact"
            return Check(gate=gate, detail=detail)
        lengths = definition.lengths(placed.axes)
        got = read_outputs(self._arena, definition, placed.outputs[newest], lengths)
        inputs = {name: array.copy() for name, array in placed.model[newest].items()}
        case = Case(
            cell=CaseKey(axes=placed.axes, family="timed"),
            inputs=inputs,
            reference=self._subject.reference(inputs, placed.axes),
            incumbent=self._incumbent_answer(newest, lengths),
        )
        wrong = Reason.TIMED_OUTPUT_WRONG
        check = compare_case(
            definition, case, got, tolerance=self._tolerance, gate=gate, reason=wrong
        )
        return check if check.reason is not None else self._check_conduct(check)

    def check_clocks(self, *, candidate_us: float, incumbent_us: float, gate: str) -> Check:
        """Time the same long run of launches of each side with both clocks; they must agree.

        If only the candidate is slow, the run is repeated once: the machine may have been
        suspended.
        """
        both_us = ((INCUMBENT, incumbent_us), (CANDIDATE, candidate_us))
        for last in (False, True):
            shares, slower = [], []
            for which, one_us in both_us:
                repeat = max(2, min(20_000, round(_BURST_US / max(one_us, 0.05))))
                runs = self._long_runs_of(which, repeat)
                for claimed, elapsed in runs:
                    if claimed < 0.9 * elapsed.busy_ns - 15e6 or claimed > 1.02 * elapsed.wall_ns:
                        detail = _disagreement(claimed, elapsed)
                        return Check(gate=gate, reason=Reason.CLOCKS_DISAGREE, detail=detail)
                claimed, elapsed = runs[0]
                shares.append(claimed / max(elapsed.busy_ns, 1))
                took, *rest = [min(claimed, elapsed.busy_ns) for claimed, elapsed in runs]
                slower.append((took - sum(rest)) / repeat / 1e3 / max(one_us, 0.05))
            if slower[1] <= _LONG_RUN_RATIO * max(1.0, slower[0]):
                break
            if last:
                detail = f"{slower[1]:.2g} times slower in a long run than in blocks, and once more"
                return Check(gate=gate, reason=Reason.CLOCKS_DISAGREE, detail=detail)
        seen = f"child's clock saw {min(shares):.1%} of the time it ran"
        gaps = f"; launching fell behind in {self._late} of {self._calls} calls"
        return Check(gate=gate, detail=seen + (gaps if self._late else ""))

    def _long_runs_of(self, which: int, repeat: int) -> list[tuple[float, Elapsed]]:
        """Return both clocks' times of a long run.

        If outputs are updated in place, a second run only restores them, so that its time can be
        subtracted.
        """
        call = TimedCall(which=which, first=0, repeat=repeat, poison=POISON_MIXED, swaps=())
        updates = bool(self._subject.definition.updated)
        ways = (_EACH, _ONLY) if updates else (_BEFORE,)
        return [self._long_run(call, restore) for restore in ways]

    def _long_run(self, call: TimedCall, restore: str) -> tuple[float, Elapsed]:
        answer, elapsed = self._send([call], restore=restore)
        return float(answer["times"][0]), elapsed

    def _run(self, calls: Sequence[TimedCall]) -> list[int]:
        answer, elapsed = self._send(calls)
        times = [int(time) for time in answer["times"]]
        claimed = int(answer["elapsed"])
        if len(times) != len(calls) or min(times) <= 0 or sum(times) > claimed:
            raise CandidateError("clocks-disagree", detail="impossible times")
        if claimed > 1.02 * elapsed.wall_ns or claimed < 0.8 * elapsed.busy_ns - 50e6:
            raise CandidateError("clocks-disagree", detail=_disagreement(claimed, elapsed))
        return times

    def _send(
        self, calls: Sequence[TimedCall], *, restore: str = _BEFORE
    ) -> tuple[dict[str, Any], Elapsed]:
        placed, definition = self.placed, self._subject.definition
        body = {
            "op": "time",
            "lengths": placed.lengths,
            "sets": [
                [tensors_of(definition, side, placed, index) for index in range(len(placed.inputs))]
                for side in self._sides
            ],
            "outputs": [spans(regions.values()) for regions in placed.outputs],
            "scratch": [spans(regions) for regions in placed.scratch],
            "updated": updated_of(definition, placed),
            "restore": restore,
            "calls": [
                [call.which, call.first, call.repeat, call.poison, self._swaps(call)]
                for call in calls
            ],
        }
        answer = self._worker.command(body, timeout_s=self._timeout_s)
        self._calls += len(calls)
        self._late += int(answer[0].get("late", 0))
        self._mirror(calls)
        return answer

    def _swaps(self, call: TimedCall) -> list[list[int]]:
        found = []
        for swap in call.swaps:
            region = self.placed.inputs[swap.set][(swap.tensor, AS_IS)]
            item = self.placed.model[swap.set][swap.tensor].itemsize
            found.append([region.start + swap.left * item, region.start + swap.right * item, item])
        return found

    def _mirror(self, calls: Sequence[TimedCall]) -> None:
        for call in calls:
            for swap in call.swaps:
                flat = self.placed.model[swap.set][swap.tensor].reshape(-1)
                flat[[swap.left, swap.right]] = flat[[swap.right, swap.left]]

    def _newest(self) -> int | None:
        spoiled: set[int] = set()
        count = len(self.placed.inputs)
        for call in reversed(self._last.calls):
            last = (call.first + call.repeat - 1) % count
            if call.which == CANDIDATE and last not in spoiled:
                return last
            spoiled |= {(call.first + turn) % count for turn in range(min(call.repeat, count))}
        return None

    def _incumbent_answer(self, index: int, lengths: dict[str, int]) -> dict[str, Array]:
        definition = self._subject.definition
        if definition.updated:
            put_back(self._arena, definition, self.placed.spare, self.placed.model[index])
            self._worker.push(self._arena.used_bytes)
        self._launch(INCUMBENT, index, outputs=self.placed.spare)
        return read_outputs(self._arena, definition, self.placed.spare, lengths)

    def _check_conduct(self, check: Check) -> Check:
        """Detect work done outside the timed launch: ahead of it, or once for all launches.

        Return `check` if there is none.
        """
        gate = check.gate
        if self._works_ahead(len(self.placed.outputs) // 2):  # with others on both sides
            detail = "one launch wrote the outputs of others: work that was not timed where it ran"
            return Check(gate=gate, reason=Reason.OUT_OF_BOUNDS, detail=detail)
        if self._once is not None and self._pairs:
            block = self._once.block([CANDIDATE] * _FRESH_UNITS)
            detail = remembers(self._pairs, pairs_of(block, self._run(block.calls)))
            if detail:
                return Check(gate=gate, reason=Reason.IMPOSSIBLY_FAST, detail=detail)
        return check

    def _works_ahead(self, index: int) -> bool:
        """Launch the candidate once with all outputs poisoned; did it fill others too?"""
        outputs = self.placed.outputs
        others = [r for at, group in enumerate(outputs) if at != index for r in group.values()]
        self._arena.fill([*others, *outputs[index].values()], POISON_MIXED)
        put_back(self._arena, self._subject.definition, outputs[index], self.placed.model[index])
        self._worker.push(self._arena.used_bytes)
        self._launch(CANDIDATE, index, outputs=outputs[index])
        return not self._arena.holds(others, POISON_MIXED)

    def _launch(self, which: int, index: int, *, outputs: Mapping[str, Region]) -> None:
        placed, definition = self.placed, self._subject.definition
        tensors = tensors_of(definition, self._sides[which], placed, index)
        body = {
            "op": "run",
            "kernel": which,
            "tensors": [
                *tensors[: len(definition.inputs)],
                *(region.start for region in outputs.values()),
            ],
            "lengths": placed.lengths,
            "scratch": [region.start for region in placed.scratch[which]],
            "fences": [],
        }
        self._worker.command(body, timeout_s=self._timeout_s)
        self._worker.pull(self._arena.used_bytes)


def _disagreement(claimed_ns: float, elapsed: Elapsed) -> str:
    return (
        f"the child reports {claimed_ns / 1e6:.3g} ms; it used "
        f"{elapsed.busy_ns / 1e6:.3g} ms of processor time in {elapsed.wall_ns / 1e6:.3g} ms"
    )
