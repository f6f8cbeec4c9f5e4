"""The verdict on one candidate; missing evidence never promotes.

One rule applies after every measurement, so that stopping early uses the same rule as deciding at
the end. A group of shapes wins if the lower bound of its speedup is above the required gain and
above what identical clones showed, its adjusted p-value is small enough, and no shape in it may be
slower than allowed. Every bound and p-value comes from an anytime-valid sequence over blocks (see
`Timing`). It is valid at any stopping point, so repeated evaluation does not raise the chance of a
false promotion. The lower bound of a group is also never above the bootstrap's, which captures skew
that a t statistic does not. The lower of two lower bounds claims no more than either.
"""

from __future__ import annotations

from collections.abc import Sequence

from retuned.contract import Digest, Guard
from retuned.stages.profile import ProfileSettings
from retuned.stages.verdict.guards import guard_for
from retuned.stages.verdict.records import (
    Evidence,
    GroupTiming,
    Interval,
    JudgeSettings,
    Reason,
    ShapeResult,
    Status,
    Timing,
    Verdict,
)

_REQUIRED = ("G0", "G1", "G2", "G3", "G4")


def judge(evidence: Evidence, settings: JudgeSettings | None = None) -> Verdict:
    """Judge one candidate; missing evidence never promotes.

    The first failed check decides. A candidate that passed all of them and was not chosen for
    re-measurement lost the search. A finalist is promoted for the largest group of shapes where the
    lower bound of its speedup is above the required gain and above what byte-identical clones
    showed, and where no shape gets slower.

    Examples
    --------
    >>> nothing = Evidence(candidate="sha256:" + "a" * 64, incumbent="sha256:" + "b" * 64)
    >>> judge(nothing).status, judge(nothing).reason
    (<Status.AMBIGUOUS: 'ambiguous'>, <Reason.TOO_FEW_SAMPLES: 'too-few-samples'>)
    """
    settings = settings or JudgeSettings()
    for check in evidence.checks:
        if check.reason is not None:
            harness = check.reason is Reason.HARNESS_FAILED
            status = Status.AMBIGUOUS if harness else Status.REJECT
            return _verdict(evidence, status, check.reason, gate=check.gate, detail=check.detail)
    passed = {check.gate for check in evidence.checks}
    missing = next((gate for gate in _REQUIRED if gate not in passed), None)
    if missing is not None:
        detail = f"no evidence from gate {missing}"
        return _verdict(
            evidence, Status.AMBIGUOUS, Reason.TOO_FEW_SAMPLES, gate=missing, detail=detail
        )
    if not evidence.finalist:
        return _judge_search(evidence, settings)
    return _judge_finalist(evidence, settings)


def is_settled(evidence: Evidence, settings: JudgeSettings | None = None) -> bool:
    """Whether further measurement of a finalist cannot change the verdict.

    It is settled once it failed, once it wins for all shapes together, or once no group of shapes
    that does not win now can still win. Stopping for any other reason (time) is valid as well.

    Examples
    --------
    >>> is_settled(Evidence(candidate="sha256:" + "a" * 64, incumbent="sha256:" + "b" * 64))
    False
    """
    settings = settings or JudgeSettings()
    if any(check.reason is not None for check in evidence.checks):
        return True
    timing = evidence.timing
    if timing is None or _too_few(timing, settings):
        return False
    if any(_is_impossible(shape, settings) for shape in timing.shapes):
        return True
    if _wins(timing.groups[0], timing, settings):
        return True
    return not any(_is_open(group, timing, settings) for group in timing.groups)


def rank(
    results: Sequence[tuple[Digest, Interval]],
    *,
    count: int,
    settings: JudgeSettings | None = None,
) -> tuple[Digest, ...]:
    """Choose finalists: the fastest by estimate among those that may be faster at all.

    The winner of a search is lucky as well as good, so its estimate decides nothing; it is measured
    again from zero.

    Examples
    --------
    >>> slow = Interval(lower=0.8, point=0.9, upper=0.95, confidence=0.95)
    >>> rank([("sha256:" + "a" * 64, slow)], count=3)
    ()
    """
    least = 1.0 / (1.0 - min((settings or JudgeSettings()).min_gain_ratio, 0.99))
    hopeful = [(digest, speedup) for digest, speedup in results if speedup.upper > least]
    hopeful.sort(key=lambda item: (-item[1].point, item[0]))
    return tuple(digest for digest, _ in hopeful[:count])


def _judge_search(evidence: Evidence, settings: JudgeSettings) -> Verdict:
    speedup = evidence.search
    if speedup is None:
        return _verdict(
            evidence,
            Status.AMBIGUOUS,
            Reason.TOO_FEW_SAMPLES,
            gate="G5",
            detail="correct, but never timed: the budget ended",
        )
    if speedup.upper < 1.0:
        reason = Reason.SLOWER
    elif speedup.point < 1.0 + settings.min_gain_ratio:
        reason = Reason.NOT_FASTER_ENOUGH
    else:
        reason = Reason.LOST_SEARCH
    detail = f"{speedup.point:.3f}x in the search; others were faster" if (
        reason is Reason.LOST_SEARCH
    ) else f"{speedup.point:.3f}x in the search"  # fmt: skip
    return _verdict(evidence, Status.REJECT, reason, gate="G5", detail=detail, speedup=speedup)


def _judge_finalist(evidence: Evidence, settings: JudgeSettings) -> Verdict:
    timing = evidence.timing
    verified = any(check.gate == "G6" for check in evidence.checks)
    if timing is None or not verified or _too_few(timing, settings):
        detail = "finalist without outputs checked after timing" if timing and not verified else (
            f"{timing.pairs} pairs in {timing.blocks} blocks of {timing.processes} processes"
            if timing
            else "finalist that was not re-measured"
        )  # fmt: skip
        return _verdict(
            evidence, Status.AMBIGUOUS, Reason.TOO_FEW_SAMPLES, gate="G6", detail=detail
        )
    for shape in timing.shapes:
        if _is_impossible(shape, settings):
            detail = (
                f"{shape.candidate_us:.3g} us at {shape.axes}, physics says {shape.floor_us:.3g} us"
            )
            return _verdict(
                evidence, Status.REJECT, Reason.IMPOSSIBLY_FAST, gate="G6", detail=detail
            )
    winners = [group for group in timing.groups if _wins(group, timing, settings)]
    if not winners:
        return _judge_loser(evidence, timing, settings)
    best = max(winners, key=lambda group: (_saving(group, timing), len(group.members)))
    return _promote(evidence, timing, best, settings.buckets)


def _is_impossible(shape: ShapeResult, settings: JudgeSettings) -> bool:
    """Whether it beat the physical floor; a floor above the incumbent's own time is invalid."""
    slack = settings.physics_slack * shape.floor_us
    return shape.candidate_us < slack <= shape.incumbent_us


def _is_open(group: GroupTiming, timing: Timing, settings: JudgeSettings) -> bool:
    """Whether a group that does not win now can still win."""
    if _wins(group, timing, settings) or group.speedup.upper <= _bar(timing, settings):
        return False
    shapes = (timing.shapes[index] for index in group.members)
    return not any(
        shape.speedup.upper < 1.0 / _allowed(shape, timing, settings) for shape in shapes
    )


def _too_few(timing: Timing, settings: JudgeSettings) -> bool:
    return (
        timing.blocks < settings.min_blocks
        or timing.pairs < settings.min_pairs
        or timing.processes < settings.min_processes
    )


def _bar(timing: Timing, settings: JudgeSettings) -> float:
    """Speedup that the lower bound must exceed."""
    return max(1.0 / (1.0 - min(settings.min_gain_ratio, 0.99)), timing.noise_floor_ratio)


def _wins(group: GroupTiming, timing: Timing, settings: JudgeSettings) -> bool:
    if group.speedup.confidence < 1.0 - settings.alpha or group.p_value > settings.alpha:
        return False
    if group.speedup.lower <= _bar(timing, settings):
        return False
    return not any(_regresses(timing.shapes[index], timing, settings) for index in group.members)


def _regresses(shape: ShapeResult, timing: Timing, settings: JudgeSettings) -> bool:
    return shape.speedup.lower < 1.0 / _allowed(shape, timing, settings)


def _allowed(shape: ShapeResult, timing: Timing, settings: JudgeSettings) -> float:
    """Return how much slower a shape may get, candidate over incumbent."""
    total = sum(each.weight * each.incumbent_us for each in timing.shapes)
    share = shape.weight * shape.incumbent_us / total if total > 0.0 else 1.0
    return settings.common_slowdown if share >= settings.common_share else settings.rare_slowdown


def _saving(group: GroupTiming, timing: Timing) -> float:
    """Microseconds per second that its members save, each by its own estimate.

    Winning groups differ by their members. They are compared by what those members save or lose,
    not by the uncertainty of each group's sum.
    """
    members = (timing.shapes[index] for index in group.members)
    return sum(
        each.weight * each.incumbent_us * (1.0 - 1.0 / each.speedup.point) for each in members
    )


def _promote(
    evidence: Evidence, timing: Timing, group: GroupTiming, buckets: ProfileSettings
) -> Verdict:
    guard = guard_for([timing.shapes[index].axes for index in group.members], buckets=buckets)
    low = group.speedup
    detail = (
        f"{low.point:.3f}x, above {low.lower:.3f}x with {low.confidence:.0%} confidence, "
        f"for {guard}; "
        f"identical clones differ by up to {timing.noise_floor_ratio:.3f}x, "
        f"{timing.looks} looks"
    )
    return _verdict(
        evidence,
        Status.PROMOTE,
        Reason.FASTER,
        gate="G6",
        detail=detail,
        speedup=low,
        noise_floor_ratio=timing.noise_floor_ratio,
        shapes=timing.shapes,
        guard=guard,
    )


def _judge_loser(evidence: Evidence, timing: Timing, settings: JudgeSettings) -> Verdict:
    speedup = timing.groups[0].speedup
    status = Status.REJECT
    if speedup.upper < 1.0:
        reason = Reason.SLOWER
    elif speedup.lower <= timing.noise_floor_ratio and speedup.point > 1.0:
        status, reason = Status.AMBIGUOUS, Reason.WITHIN_NOISE
    elif speedup.lower > 1.0 and any(_regresses(s, timing, settings) for s in timing.shapes):
        reason = Reason.SLOWER
    else:
        reason = Reason.NOT_FASTER_ENOUGH
    detail = (
        f"{speedup.point:.3f}x [{speedup.lower:.3f}, {speedup.upper:.3f}]; "
        f"needed above {_bar(timing, settings):.3f}x, {timing.looks} looks"
    )
    return _verdict(
        evidence,
        status,
        reason,
        gate="G6",
        detail=detail,
        speedup=speedup,
        noise_floor_ratio=timing.noise_floor_ratio,
        shapes=timing.shapes,
    )


def _verdict(
    evidence: Evidence,
    status: Status,
    reason: Reason,
    *,
    gate: str,
    detail: str,
    speedup: Interval | None = None,
    noise_floor_ratio: float | None = None,
    shapes: tuple[ShapeResult, ...] = (),
    guard: Guard | None = None,
) -> Verdict:
    ratios = [check.error_ratio for check in evidence.checks if check.error_ratio is not None]
    return Verdict(
        status=status,
        reason=reason,
        gate=gate,
        candidate=evidence.candidate,
        incumbent=evidence.incumbent,
        detail=detail[:500],
        speedup=speedup,
        noise_floor_ratio=noise_floor_ratio,
        shapes=shapes,
        guard=guard or Guard(),
        error_ratio=max(ratios, default=None),
        evidence=evidence.raw,
    )
