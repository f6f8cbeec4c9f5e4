"""Assessment of a swap from its counters: keep, wait or roll back; and steps of its canary. Pure.

The runtime reports totals per order. Every rule reads the newest totals; the rule for slow decay
reads their course. The rules are ordered by harm: wrong results come before slow ones. Only enough
clean checks over enough time keep a swap; missing data never does. `decide_canary` decides when a
swap may spread to more launches, and to which shapes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum

from pydantic import Field

from retuned.contract import Record
from retuned.stages.swap import CanaryStep, SwapOrder
from retuned.stages.watch import run_length
from retuned.stages.watch.records import (
    BucketSample,
    WatchAction,
    WatchReason,
    WatchReport,
    WatchSample,
    WatchSettings,
)
from retuned.stages.watch.run_length import sentence


def assess(
    order: SwapOrder,
    samples: Sequence[WatchSample],
    *,
    seconds_since_commit: float,
    settings: WatchSettings,
) -> WatchReport:
    """Judge an active order.

    Parameters
    ----------
    order
        The order; a rollback can be watched too.
    samples
        Reports of this slot, oldest first; those of other epochs are ignored.
    seconds_since_commit
        Time since these processes have the order, seconds; restarts at 0 with the server.
    settings
        How much evidence is enough.

    Examples
    --------
    >>> from retuned.contract import Guard
    >>> order = SwapOrder(id="x", kind="swap", proposal="p", target="t", definition="d",
    ...     artifact="sha256:" + "a" * 64, previous=None, guard=Guard(), epoch=4)
    >>> assess(order, [], seconds_since_commit=1.0, settings=WatchSettings()).reason
    'no-sample'
    >>> report = assess(order, [], seconds_since_commit=600.0, settings=WatchSettings())
    >>> str(report.action), report.reason
    ('rollback', 'not-engaged')
    """
    mine = [s for s in samples if s.definition == order.definition]
    if any(sample.epoch > order.epoch for sample in mine):
        return _report(WatchAction.WAIT, WatchReason.SUPERSEDED, "a later order is in force")
    mine = [sample for sample in mine if _is_of(order, sample)]
    late = seconds_since_commit >= settings.engage_within_s
    if not mine:
        if late:
            detail = f"no report of this order after {seconds_since_commit:.0f} s"
            return _report(WatchAction.ROLLBACK, WatchReason.NOT_ENGAGED, detail)
        return _report(WatchAction.WAIT, WatchReason.NO_SAMPLE, "the server has not reported yet")
    harm = _harm(mine, settings)
    if harm is not None:
        return harm
    newest = mine[-1]
    if order.canary:  # a small share takes longer until its first launch
        engaged_s = min(seconds_since_commit, newest.fraction_s) * newest.fraction
        late = engaged_s >= settings.engage_within_s
    if order.artifact is None:
        return _report(WatchAction.KEEP, WatchReason.CLEAN, "the original is in force")
    if newest.configured is not None:
        return _configured(newest, seconds_since_commit, settings)
    if newest.fraction > 0.0 and newest.unfollowed_graphs:
        action = WatchAction.ROLLBACK if late else WatchAction.WAIT
        return _report(action, WatchReason.NOT_ENGAGED, _unfollowed(newest.unfollowed_graphs))
    if newest.fraction > 0.0 and (newest.swapped_launches == 0 or newest.idle_processes):
        if late and not _no_traffic(newest):
            return _report(
                WatchAction.ROLLBACK,
                WatchReason.NOT_ENGAGED,
                f"{newest.swapped_launches} launches ran it, {newest.idle_processes} of "
                f"{newest.processes} processes none{_named(newest)}, after "
                f"{seconds_since_commit:.0f} s",
            )
        return _report(WatchAction.WAIT, WatchReason.TOO_FEW_CHECKS, "waiting for launches")
    return _enough(newest, seconds_since_commit, settings)


def _configured(newest: WatchSample, seconds: float, settings: WatchSettings) -> WatchReport:
    """Judge a row by the server's lookup: launches under a file are not compared.

    Launches under a table are compared, except replays of graphs. Their number depends on the
    traffic, so the watch requires none.
    """
    if newest.idle_processes:
        detail = f"{newest.idle_processes} of {newest.processes} processes do not pick the row"
        if seconds >= settings.engage_within_s:
            return _rollback(WatchReason.NOT_ENGAGED, f"{detail}{_named(newest)}")
        return _report(WatchAction.WAIT, WatchReason.NO_SAMPLE, f"{detail} yet{_named(newest)}")
    if newest.configured == "needs-restart":
        detail = "the file is written; the server reads it at its next start"
        return _report(WatchAction.WAIT, WatchReason.NEEDS_RESTART, detail)
    detail = f"{newest.processes} processes pick the row, for {seconds:.0f} s"
    if seconds < settings.min_s:
        detail = f"{detail}, {settings.min_s:.0f} s are required"
        return _report(WatchAction.WAIT, WatchReason.TOO_EARLY, detail)
    checks = f"{newest.shadow_checks} clean checks" if newest.shadow_checks else "no checks"
    detail = f"{detail}; {checks} of its launches"
    return _report(WatchAction.KEEP, WatchReason.CONFIGURED, detail)


def _unfollowed(count: int) -> str:
    """Explain why counted launches do not prove engagement."""
    return (
        f"{count} captured graphs are not followed, so what their replays run is unknown; start "
        "the server with Retuned attached and without RETUNED_GRAPHS=off, or without graphs"
    )


def _named(newest: WatchSample) -> str:
    """Name the first processes that do not run the artifact."""
    return f" ({', '.join(newest.idle_members[:8])})" if newest.idle_members else ""


def _is_of(order: SwapOrder, sample: WatchSample) -> bool:
    """Whether a report is about this order: its epoch with its artifact, or stopped."""
    same = sample.artifact == order.artifact or sample.tripped != ""
    return sample.epoch == order.epoch and same


def _no_traffic(newest: WatchSample) -> bool:
    """Whether the artifact did not run because the slot was not called; that is not evidence."""
    if newest.idle_processes:
        return newest.idle_processes <= newest.quiet_processes
    return newest.fallback_launches == 0


def _enough(newest: WatchSample, seconds: float, settings: WatchSettings) -> WatchReport:
    counts = f"{newest.shadow_checks} clean checks of {newest.swapped_launches} launches"
    if newest.shadow_checks < settings.min_checks:
        detail = f"{counts}, {settings.min_checks} are needed"
        return _report(WatchAction.WAIT, WatchReason.TOO_FEW_CHECKS, detail)
    if seconds < settings.min_s:
        detail = f"{counts} in {seconds:.0f} s, {settings.min_s:.0f} s are required"
        return _report(WatchAction.WAIT, WatchReason.TOO_EARLY, detail)
    if newest.fraction < 1.0:
        detail = f"{counts}, {newest.fraction:.1%} of the launches run it"
        return _report(WatchAction.WAIT, WatchReason.CANARY, detail)
    proven = run_length.sentence(newest.shadow_checks)
    detail = f"{counts}, worst {newest.worst_ratio:.3g} of what is allowed; {proven}"
    return _report(WatchAction.KEEP, WatchReason.CLEAN, detail)


def _harm(samples: Sequence[WatchSample], settings: WatchSettings) -> WatchReport | None:
    """Return why to roll back, worst first; None if nothing is wrong."""
    newest = samples[-1]
    if newest.tripped:
        orphaned = newest.tripped == WatchReason.ORPHANED
        reason = WatchReason.ORPHANED if orphaned else WatchReason.TRIPPED
        return _rollback(reason, f"the runtime rolled back: {newest.tripped}")
    if newest.shadow_nonfinite:
        detail = f"NaN or Inf in {newest.shadow_nonfinite} of {newest.shadow_checks} checks"
        return _rollback(WatchReason.NONFINITE, detail)
    if newest.shadow_mismatches > settings.max_mismatches:
        return _rollback(
            WatchReason.MISMATCH,
            f"{newest.shadow_mismatches} of {newest.shadow_checks} checks over the allowed "
            f"difference, worst {newest.worst_ratio:.3g} times",
        )
    if newest.errors > settings.max_errors:
        return _rollback(WatchReason.ERRORS, f"{newest.errors} launches raised")
    score = decay_score(samples, settings)
    if score > settings.decay_threshold:
        return _rollback(
            WatchReason.DECAY,
            f"mean ratio has risen to {newest.last_mean_ratio:.3g}, score {score:.1f}",
        )
    return None


def decay_score(samples: Sequence[WatchSample], settings: WatchSettings) -> float:
    """One-sided CUSUM of the log of the mean ratio, over the reports that bring new checks.

    ``S = max(0, S + log(ratio) - mean log of the warm-up - slack)``. The warm-up is frozen: a
    reference that follows the decay would hide it.
    """
    logs: list[float] = []
    checks = 0
    for sample in samples:
        if sample.shadow_checks < checks:  # the server's counters restarted
            logs, checks = [], 0
        if sample.shadow_checks > checks:
            checks = sample.shadow_checks
            logs.append(math.log(max(sample.last_mean_ratio, settings.decay_floor)))
    if len(logs) <= settings.decay_warmup:
        return 0.0
    normal = sum(logs[: settings.decay_warmup]) / settings.decay_warmup
    score = 0.0
    for value in logs[settings.decay_warmup :]:
        score = max(0.0, score + value - normal - settings.decay_slack)
    return score


def _rollback(reason: WatchReason, detail: str) -> WatchReport:
    return _report(WatchAction.ROLLBACK, reason, detail)


def _report(action: WatchAction, reason: WatchReason, detail: str) -> WatchReport:
    return WatchReport(action=action, reason=str(reason), detail=detail)


_SAME = 5e-4
"""Fractions are rounded to thousandths."""


class CanaryAction(StrEnum):
    """What to do with a canary now."""

    ADVANCE = "advance"
    """Let more launches run it."""
    HOLD = "hold"
    """Stay at this step."""
    ROLL_BACK = "roll-back"
    """Roll back immediately."""
    NARROW_GUARD = "narrow-guard"
    """Continue without the shape buckets that have too few checks."""


class CanaryReason(StrEnum):
    """Stable codes."""

    HARM = "harm"
    """The watch demands a rollback."""
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
    """Next step of a canary, with its reason."""

    action: CanaryAction
    reason: CanaryReason
    detail: str
    """One sentence with the numbers."""
    fraction: float = Field(ge=0.0, le=1.0)
    """Share of launches that shall run the artifact."""
    excluded: tuple[tuple[int, ...], ...] = ()
    """All buckets that shall be left out of the guard."""


def decide_canary(order: SwapOrder, sample: WatchSample, *, report: WatchReport) -> CanaryDecision:
    """Decide on the next step of an active order.

    Parameters
    ----------
    order
        With its steps.
    sample
        The newest report of this order.
    report
        Result of `assess` for the same reports.

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
