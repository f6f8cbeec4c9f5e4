"""Pairs of blocks with steps of one composition, for tests of decisions."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np

from retuned.stages.watch.proof import (
    Arm,
    MeasuredBlock,
    PairMeasured,
    PairPlan,
    ProofSettings,
    ProofState,
    StepColumns,
    begin,
    next_pair,
    step,
)

STEP_S = 0.010
SHORT = ProofSettings(long_blocks=0)


def block(
    arm: Arm,
    *,
    began_s: float = 0.0,
    ratio: float = 1.0,
    count: int = 60,
    seed: int = 0,
    noise: float = 0.01,
    stalls: int = 0,
    stall_s: float = 0.050,
    busy: float | None = None,
) -> MeasuredBlock:
    """Return a block of steps of 10 ms; the last ones stall."""
    rng = np.random.default_rng(seed)
    level = ratio * np.exp(noise * rng.standard_normal())
    period = STEP_S * level * np.exp(0.001 * rng.standard_normal(count))
    if stalls:
        period[-stalls:] += stall_s
    ended = began_s + 0.3 + np.cumsum(period)
    return MeasuredBlock(
        StepColumns(
            on=np.full(count, arm is Arm.ON),
            prefill=np.zeros(count),
            decode=np.full(count, 16.0),
            context=np.full(count, 5000.0),
            graph=np.full(count, 16),
            period_s=period,
            busy_s=np.full(count, np.nan if busy is None else busy),
            host_s=np.full(count, np.nan),
            ended_s=ended,
        ),
        began_s=began_s,
        ended_s=began_s + 1.0,
    )


Make = Callable[[Arm, Arm, int], MeasuredBlock]
"""From a label, the arm that runs, and a seed."""


def plain(label: Arm, arm: Arm, seed: int) -> MeasuredBlock:
    return block(arm, seed=seed)


def slower(by: float) -> Make:
    """Return blocks whose steps take longer by this ratio with the swap on."""

    def make(label: Arm, arm: Arm, seed: int) -> MeasuredBlock:
        return block(arm, seed=seed, ratio=1.0 + by if arm is Arm.ON else 1.0)

    return make


def planned(state: ProofState) -> PairPlan:
    assert state.plan is not None
    return state.plan


def measured(state: ProofState, make: Make, *, at_s: float) -> PairMeasured:
    plan = planned(state)
    first, second = (
        make(label, arm, 2 * plan.number + position)
        for position, (label, arm) in enumerate(zip(plan.labels, plan.runs, strict=True))
    )
    return PairMeasured(plan.number, first, second, at_s=at_s)


class Run:
    """A proof that is fed pair by pair, 2 s each."""

    def __init__(self, settings: ProofSettings = SHORT, *, seed: int = 1) -> None:
        self.state = begin(settings, at_s=0.0)
        self.coin = random.Random(seed)
        self.now_s = 0.0

    def pair(self, make: Make = plain) -> ProofState:
        self.state = next_pair(self.state, self.coin)
        self.now_s += 2.0
        self.state = step(self.state, measured(self.state, make, at_s=self.now_s))
        return self.state

    def pilot(self) -> ProofState:
        for _ in range(self.state.settings.pilot_pairs):
            self.pair()
        return self.state

    def until_done(self, make: Make = plain, *, most: int = 1000) -> ProofState:
        for _ in range(most):
            if self.state.done:
                return self.state
            self.pair(make)
        raise AssertionError("the proof did not end")


def proven(ratio: float, *, busy: float | None = None) -> ProofState:
    """Return a whole proof of a swap that changes the time of a step by a ratio."""

    def make(label: Arm, arm: Arm, seed: int) -> MeasuredBlock:
        changed = ratio if arm is Arm.ON else 1.0
        return block(arm, seed=seed, ratio=changed, busy=None if busy is None else busy * changed)

    return Run().until_done(make)
