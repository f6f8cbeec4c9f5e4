"""From a coin to a pair, and from recorded steps to the difference of its two blocks. Pure.

A pair is planned before its first step. Its result uses the plan, the steps of its two blocks, a
fit of earlier blocks and a scale of earlier pairs, and nothing else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from retuned.stages.watch.proof.normaliser import StepFit
from retuned.stages.watch.proof.records import (
    Arm,
    ArmSums,
    Floats,
    PairKind,
    PairPlan,
    PairResult,
    ProofSettings,
    StepColumns,
    VoidReason,
)

SLOW_RATIO, SLOW_OVER_S = 1.5, 0.010
"""A step is slow if it takes longer than this multiple of its expected time plus these seconds."""
HUGE_RATIO = 10.0


class Coin(Protocol):
    """A source of random bits, such as ``secrets.SystemRandom()``; a seeded one only in tests."""

    def getrandbits(self, k: int, /) -> int:
        """Return an integer of k random bits."""
        ...


@dataclass(frozen=True, slots=True)
class MeasuredBlock:
    """All steps of one block, those of the burn-in included, in order."""

    steps: StepColumns
    began_s: float
    """When the arm took effect, seconds on the clock of the steps."""
    ended_s: float
    """When the block ended, seconds on the same clock."""

    @property
    def wall_s(self) -> float:
        return max(self.ended_s - self.began_s, 0.0)


def block_length_s(settings: ProofSettings, *, toggle_s: float) -> float:
    """Return the shortest length of a short block, seconds: a dear toggle makes it longer.

    Examples
    --------
    >>> block_length_s(ProofSettings(), toggle_s=0.010)
    2.0
    """
    wanted = max(settings.block_s, settings.toggles_per_cost * toggle_s)
    return min(wanted, max(settings.most_block_s, settings.block_s))


def plan_pair(
    number: int, kind: PairKind, *, settings: ProofSettings, toggle_s: float, coin: Coin
) -> PairPlan:
    """Draw the order of one pair."""
    short = block_length_s(settings, toggle_s=toggle_s)
    length = max(settings.long_block_s, short) if kind is PairKind.LONG else short
    return PairPlan(
        number=number,
        kind=kind,
        first=Arm.ON if coin.getrandbits(1) else Arm.OFF,
        block_s=length,
        most_block_s=max(settings.most_block_s, length),
        least_steps=settings.least_steps,
        turn_steps=0 if kind is PairKind.LONG else settings.turn_steps,
        turns=settings.turns if settings.turn_steps and kind is not PairKind.LONG else 0,
    )


def block_is_over(plan: PairPlan, *, elapsed_s: float, steps: int) -> bool:
    """Return whether a block of this pair ends at the next step boundary."""
    if elapsed_s >= plan.most_block_s:
        return True
    return elapsed_s >= plan.block_s and steps >= plan.least_steps


def counted(block: MeasuredBlock, plan: PairPlan, *, settings: ProofSettings) -> StepColumns:
    """Return the steps after the burn-in whose period is known.

    The steps of turns come without the burn-in of each turn.
    """
    steps = block.steps
    keep = np.isfinite(steps.period_s) & (steps.period_s > 0.0)
    if not plan.turn_steps:
        keep &= steps.ended_s >= block.began_s + settings.burn_in_s
        keep &= np.arange(len(steps)) >= settings.burn_in_steps
    return steps.pick(keep)


def void_reason(
    plan: PairPlan, kept: tuple[StepColumns, StepColumns], *, settings: ProofSettings
) -> VoidReason | None:
    """Return why a pair does not count. Counts and arms of counted steps decide, never times."""
    for arm, steps in zip(plan.runs, kept, strict=True):
        if bool((steps.on != (arm is Arm.ON)).any()):
            return VoidReason.MIXED_ARMS
    if min(len(steps) for steps in kept) < settings.least_counted:
        return VoidReason.FEW_STEPS
    return None


def huge_steps(steps: StepColumns) -> int:
    """Count steps of a block that are huge beside its middle, where no fit is known yet."""
    period = steps.period_s
    return int((period > HUGE_RATIO * np.median(period)).sum()) if len(period) else 0


def arm_sums(steps: StepColumns, expected_s: Floats, *, wall_s: float) -> ArmSums:
    """Sum the counted steps of one block."""
    period = steps.period_s
    over_s = period - (SLOW_RATIO * expected_s + SLOW_OVER_S)
    slow = over_s > 0.0
    return ArmSums(
        steps=len(steps),
        seconds=float(period.sum()),
        excess_s=float(over_s[slow].sum()),
        expected_s=float(expected_s.sum()),
        slow=int(slow.sum()),
        huge=int((period > HUGE_RATIO * expected_s).sum()),
        busy_s=_sum(steps.busy_s),
        host_s=_sum(steps.host_s),
        wall_s=wall_s,
    )


def _sum(values: Floats) -> float | None:
    total = float(values.sum())  # NaN if one is missing
    return total if math.isfinite(total) else None


def result_of(
    plan: PairPlan | PairResult,
    first: ArmSums,
    second: ArmSums,
    *,
    scale: float,
    void: VoidReason | None = None,
) -> PairResult:
    """Return the result of a pair from the sums of its blocks, in the order of time.

    In a short block one garbage collection takes as long as many steps. So slow steps count only
    up to the time from which they are slow; separate evidence counts them. Long blocks, which
    decide the size, count the whole time.
    """
    on, off = (first, second) if plan.first is Arm.ON else (second, first)
    if void is not None:
        return PairResult(
            number=plan.number, kind=plan.kind, first=plan.first, on=on, off=off, void=void
        )
    d_busy = None
    if on.busy_s and off.busy_s:
        d_busy = math.log(on.busy_s / on.expected_s) - math.log(off.busy_s / off.expected_s)
    return PairResult(
        number=plan.number,
        kind=plan.kind,
        first=plan.first,
        d=_log_ratio(on, plan.kind) - _log_ratio(off, plan.kind),
        scale=scale,
        d_busy=d_busy,
        on=on,
        off=off,
    )


def _log_ratio(sums: ArmSums, kind: PairKind) -> float:
    """Return the logarithm of a block's time over what its steps take."""
    left_out_s = 0.0 if kind is PairKind.LONG else sums.excess_s
    return math.log((sums.seconds - left_out_s) / sums.expected_s)


def measure(
    plan: PairPlan,
    blocks: tuple[MeasuredBlock, MeasuredBlock],
    kept: tuple[StepColumns, StepColumns],
    *,
    fit: StepFit,
    scale: float,
    settings: ProofSettings,
) -> PairResult:
    """Return the result of a pair of short or long blocks.

    Parameters
    ----------
    plan
        The pair's plan, stored before its data.
    blocks
        Its blocks, in the order of time.
    kept
        Their counted steps.
    fit
        Expected times, fitted on earlier blocks.
    scale
        Noise of the difference, from earlier pairs.
    settings
        Least counts.
    """
    first, second = (
        arm_sums(steps, fit.expected_s(steps), wall_s=block.wall_s)
        for steps, block in zip(kept, blocks, strict=True)
    )
    void = void_reason(plan, kept, settings=settings)
    return result_of(plan, first, second, scale=scale, void=void)
