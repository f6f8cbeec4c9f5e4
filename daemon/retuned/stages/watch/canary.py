"""Canary: when a swap may spread to more launches, and to which shapes. Pure.

A step is left forward only when every shape bucket that is launched has its own clean checks, and
the step's time is over. Buckets that do not get there within the step's patience are left out of
the guard; where none gets there nothing is proven, and the canary stays. What is wrong goes back,
by the watch's own rules, which come first.
"""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from retuned.contract import Record
from retuned.stages.swap import CanaryStep, SwapOrder
from retuned.stages.watch.power import sentence
from retuned.stages.watch.records import BucketSample, WatchAction, WatchReport, WatchSample

_SAME = 5e-4
"""Fractions are kept in thousandths."""


class CanaryAction(StrEnum):
    """What to do with a canary now."""

    ADVANCE = "advance"
    """Let more launches run it."""
    HOLD = "hold"
    """Stay at this step."""
    ROLL_BACK = "roll-back"
    """Go back at once."""
    NARROW_GUARD = "narrow-guard"
    """Go on without the shape buckets that have too few checks."""


class CanaryReason(StrEnum):
    """Why; stable codes."""

    HARM = "harm"
    """The watch says to go back."""
    COMPLETE = "complete"
    """All launches run it."""
    TOO_EARLY = "too-early"
    """The step's time is not over."""
    NO_LAUNCHES = "no-launches"
    """Nothing was launched within the guard."""
    TOO_FEW_CHECKS = "too-few-checks"
    """Some bucket needs more checks."""
    NOTHING_PROVEN = "nothing-proven"
    """The step's patience is over, and no bucket has its checks."""
    BUCKETS_LEFT_OUT = "buckets-left-out"
    """The step's patience is over for some buckets."""
    STEP_PASSED = "step-passed"
    """Every bucket has its checks."""
    RESTARTED = "restarted"
    """A process is behind the first step."""


class CanaryDecision(Record):
    """What to do, and why."""

    action: CanaryAction
    """What."""
    reason: CanaryReason
    """Why."""
    detail: str
    """One sentence with the numbers."""
    fraction: float = Field(ge=0.0, le=1.0)
    """Share of launches that is to run the artifact."""
    excluded: tuple[tuple[int, ...], ...] = ()
    """All buckets that are to be left out of the guard."""


def decide_canary(order: SwapOrder, sample: WatchSample, *, report: WatchReport) -> CanaryDecision:
    """Decide on the next step of an order in force.

    Parameters
    ----------
    order
        With its steps.
    sample
        The newest report of this order.
    report
        What the watch makes of the same reports.

    Examples
    --------
    >>> from retuned.contract import Guard
    >>> order = SwapOrder(id="x", kind="swap", proposal="p", target="t", definition="d",
    ...     artifact="sha256:" + "a" * 64, previous=None, guard=Guard(), epoch=4,
    ...     canary=(CanaryStep(fraction=0.01, min_checks=300, min_s=60),))
    >>> seen = BucketSample(bucket=(4,), launches=15_000, checks=300, step_checks=300)
    >>> sample = WatchSample(definition="d", artifact=order.artifact, epoch=4,
    ...     swapped_launches=15_000, fallback_launches=1_485_000, shadow_checks=300,
    ...     shadow_mismatches=0, shadow_nonfinite=0, worst_ratio=0.1, errors=0,
    ...     fraction=0.01, fraction_s=90.0, buckets=(seen,))
    >>> wait = WatchReport(action="wait", reason="canary")
    >>> decision = decide_canary(order, sample, report=wait)
    >>> str(decision.action), str(decision.reason), decision.fraction
    ('advance', 'step-passed', 1.0)
    """
    if report.action is WatchAction.ROLLBACK:
        return _answer(sample, CanaryAction.ROLL_BACK, CanaryReason.HARM, report.reason, 0.0)
    if not order.canary or sample.fraction >= 1.0:
        return _hold(sample, CanaryReason.COMPLETE, "all launches within the guard run it")
    number = _step_of(order.canary, sample.fraction)
    if number is None:
        first = order.canary[0].fraction
        return _answer(sample, CanaryAction.ADVANCE, CanaryReason.RESTARTED, "begins again", first)
    step = order.canary[number]
    following = [each.fraction for each in order.canary[number + 1 :]]
    to = following[0] if following else 1.0
    return _judge(sample, step, to=to)


def _judge(sample: WatchSample, step: CanaryStep, *, to: float) -> CanaryDecision:
    served = [each for each in sample.buckets if each.bucket not in sample.excluded]
    launched = [each for each in served if each.launches > 0]
    if not launched:
        return _hold(sample, CanaryReason.NO_LAUNCHES, "no launch within the guard")
    if sample.fraction_s < step.min_s:
        detail = f"{sample.fraction_s:.0f} of {step.min_s:.0f} s at {sample.fraction:.1%}"
        return _hold(sample, CanaryReason.TOO_EARLY, detail)
    short = [each for each in launched if each.step_checks < step.min_checks]
    proven = sum(each.step_checks for each in launched) - sum(each.step_checks for each in short)
    if not short:
        detail = f"{proven} clean checks over {len(launched)} shape buckets; {sentence(proven)}"
        return _answer(sample, CanaryAction.ADVANCE, CanaryReason.STEP_PASSED, detail, to)
    least = min(short, key=lambda each: each.step_checks)
    detail = (
        f"{len(short)} of {len(launched)} shape buckets have fewer than {step.min_checks} checks, "
        f"{list(least.bucket)} has {least.step_checks}"
    )
    if sample.fraction_s < step.patience_s:
        return _hold(sample, CanaryReason.TOO_FEW_CHECKS, detail)
    if len(short) == len(launched):
        return _hold(sample, CanaryReason.NOTHING_PROVEN, detail)
    return _narrow(sample, short, detail=detail, to=to)


def _narrow(
    sample: WatchSample, short: list[BucketSample], *, detail: str, to: float
) -> CanaryDecision:
    excluded = sorted({*sample.excluded, *(each.bucket for each in short)})
    return CanaryDecision(
        action=CanaryAction.NARROW_GUARD,
        reason=CanaryReason.BUCKETS_LEFT_OUT,
        detail=detail,
        fraction=to,
        excluded=tuple(excluded),
    )


def _step_of(steps: tuple[CanaryStep, ...], fraction: float) -> int | None:
    """Return the last step that the fraction has reached; None before the first."""
    reached = [n for n, step in enumerate(steps) if step.fraction <= fraction + _SAME]
    return reached[-1] if reached else None


def _hold(sample: WatchSample, reason: CanaryReason, detail: str) -> CanaryDecision:
    return _answer(sample, CanaryAction.HOLD, reason, detail, sample.fraction)


def _answer(
    sample: WatchSample, action: CanaryAction, reason: CanaryReason, detail: str, fraction: float
) -> CanaryDecision:
    return CanaryDecision(
        action=action, reason=reason, detail=detail, fraction=fraction, excluded=sample.excluded
    )
