"""Gate G7: is the whole server as right as before, and as much faster as was promised? Pure.

Quality first: requests that fail, tokens that differ, probabilities that move, each beside what the
original does when it is asked twice. Then speed: blocks of the same requests with the swap off and
on in turn, the log ratio of each pair, and its t interval. A measured gain of at least half of what
was predicted passes; one that is surely below goes back; what an interval leaves open after the
last look is not measured. There are two looks, and each bound is taken at half the error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from math import exp, log

from pydantic import Field

from retuned.contract import Record
from retuned.stages.gate import EndToEndRule
from retuned.stages.watch.blocks import Block
from retuned.stages.watch.paired import (
    Gain,
    compared_in,
    divergence_of,
    gain_of,
    interval_of,
    mean_of,
    off_and_on,
    share_bounds,
)

_LEAST_FAILURES = 3
"""Requests that must have failed more often with the swap: one is nobody's fault."""
_ALLOWED_FAILURES = 0.01
"""Share of requests that may fail beyond those that fail anyway."""


class EndToEndOutcome(StrEnum):
    """Three-valued: what could not be measured is neither."""

    PASS = "pass"
    FAIL = "fail"
    NOT_MEASURED = "not-measured"


class EndToEndReason(StrEnum):
    """Stable codes: evidence, policies and tests name them."""

    GAIN_HOLDS = "gain-holds"
    """At least half of the predicted gain, and nothing lost."""
    REQUESTS_FAILED = "requests-failed"
    """More requests failed with the swap than without."""
    TOKENS_DIFFER = "tokens-differ"
    """Answers differ by more than rounding does."""
    LOGITS_DIFFER = "logits-differ"
    """Log-probabilities move by more than rounding moves them."""
    SLOWER = "slower"
    """The server is slower with the swap."""
    LATENCY_WORSE = "latency-worse"
    """The first token, or each further one, takes longer."""
    GAIN_BELOW_HALF = "gain-below-half"
    """Faster, and surely by less than half of what was predicted."""
    INTERVAL_TOO_WIDE = "interval-too-wide"
    """Noise hides what was to be seen."""
    TOO_FEW_TOKENS = "too-few-tokens"
    """Answers agree, and are too few to say that they do."""
    NO_ENDPOINT = "no-endpoint"
    """Nobody said where the server can be asked."""
    NO_ANSWER = "no-answer"
    """The server did not answer, or not to every request."""
    NOT_SWITCHABLE = "not-switchable"
    """A file configures the kernel: nobody can switch it to and fro while the server runs."""
    OUT_OF_TIME = "out-of-time"
    """The time was used up before it was decided."""


class Consequence(StrEnum):
    """What follows for the swap."""

    KEEP = "keep"
    WAIT = "wait"
    REVERT = "revert"


class EndToEndSettings(Record):
    """How much is measured, and how much harm is too much."""

    looks: tuple[int, ...] = Field(default=(8, 24), min_length=1, max_length=2)
    """Pairs of blocks after which it is asked whether that is decided; the error is halved."""
    least_share: float = Field(default=0.5, gt=0.0, le=1.0)
    """Part of the predicted gain that must be measured."""
    allowed_divergence: float = Field(default=0.02, gt=0.0, lt=1.0)
    """Share of tokens that may differ, with the same text before them, beyond those that differ
    when the original is asked twice: roundings flip near ties."""
    allowed_shift: float = Field(default=0.1, gt=0.0)
    """Mean absolute difference of log-probabilities that is allowed beyond twice the original's."""
    allowed_latency_ratio: float = Field(default=1.05, gt=1.0)
    """Latency on over off that is allowed."""


class EndToEndReport(Record):
    """The answer of gate G7 on one swap."""

    outcome: EndToEndOutcome
    """What it is."""
    reason: EndToEndReason
    """Stable code."""
    detail: str = ""
    """One sentence with the numbers."""
    pairs: int = Field(default=0, ge=0)
    """Blocks on and off that were compared."""
    predicted: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of the server's time that the swap should save."""
    gain: Gain | None = None
    """Share of time that it saved; None where that was not measured."""
    divergence: float | None = Field(default=None, ge=0.0, le=1.0)
    """Share of tokens that differ with the swap on; None where none was compared."""
    own_divergence: float | None = Field(default=None, ge=0.0, le=1.0)
    """The same of the original, asked again."""
    tokens_per_s: tuple[float, float] | None = None
    """Mean throughput off and on."""
    ttft_ms: tuple[float, float] | None = None
    """Mean over blocks of the median time to the first token, off and on, milliseconds."""
    tpot_ms: tuple[float, float] | None = None
    """Mean over blocks of the median time of each further token, off and on, milliseconds."""


def predicted_gain(share: float, speedup: float) -> float:
    """Return the share of time that a kernel's speedup saves.

    Parameters
    ----------
    share
        Of the GPU time of the present profile that the swapped shapes take.
    speedup
        Of the kernel on these shapes.

    Examples
    --------
    >>> predicted_gain(0.4, 2.0)
    0.2
    """
    return min(1.0, max(0.0, share * (1.0 - 1.0 / max(speedup, 1.0))))


def judge_end_to_end(
    blocks: Sequence[Block], *, predicted: float, settings: EndToEndSettings
) -> EndToEndReport | None:
    """Judge what was measured so far; None where that is not decided, and more can be measured.

    Parameters
    ----------
    blocks
        Timed passes, in the order they were made: pairs of on and off.
    predicted
        Share of time that the swap should save.
    settings
        How much is enough.
    """
    pairs = len(blocks) // 2
    off, on = _of(blocks[: 2 * pairs], "off"), _of(blocks[: 2 * pairs], "on")
    failures = _failures(off, on)
    if failures:
        return _failed(EndToEndReason.REQUESTS_FAILED, failures, off, on, predicted)
    if pairs not in settings.looks:
        return None
    harm = _harm(off, on, settings)
    if harm is not None:
        return _failed(*harm, off, on, predicted)
    last = pairs == settings.looks[-1]
    answer = _speed(off, on, predicted, settings)
    if answer.outcome is EndToEndOutcome.NOT_MEASURED and not last:
        return None
    if answer.outcome is EndToEndOutcome.PASS and not _agrees(off, on, settings):
        if not last:
            return None
        detail = f"{compared_in(on)} tokens a pass are too few to bound what differs"
        return _report(
            EndToEndOutcome.NOT_MEASURED,
            EndToEndReason.TOO_FEW_TOKENS,
            detail,
            off,
            on,
            predicted,
        )
    return answer


def not_measured(
    reason: EndToEndReason, detail: str, *, predicted: float, pairs: int = 0
) -> EndToEndReport:
    """Return the answer where measuring ended before it was decided."""
    return EndToEndReport(
        outcome=EndToEndOutcome.NOT_MEASURED,
        reason=reason,
        detail=detail[:2000],
        predicted=predicted,
        pairs=pairs,
    )


def consequence(report: EndToEndReport | None, rule: EndToEndRule) -> Consequence:
    """Return what an answer means under a policy; None is one that is still to come.

    Examples
    --------
    >>> str(consequence(None, EndToEndRule.WHEN_POSSIBLE))
    'wait'
    >>> unknown = not_measured(EndToEndReason.NO_ENDPOINT, "", predicted=0.1)
    >>> str(consequence(unknown, EndToEndRule.WHEN_POSSIBLE))
    'keep'
    >>> str(consequence(unknown, EndToEndRule.REQUIRED))
    'revert'
    """
    if rule is EndToEndRule.OFF:
        return Consequence.KEEP
    if report is None:
        return Consequence.WAIT
    if report.outcome is EndToEndOutcome.FAIL:
        return Consequence.REVERT
    unproven = report.outcome is not EndToEndOutcome.PASS
    return Consequence.REVERT if unproven and rule is EndToEndRule.REQUIRED else Consequence.KEEP


def _of(blocks: Sequence[Block], state: str) -> list[Block]:
    return [block for block in blocks if block.state == state]


def _failures(off: Sequence[Block], on: Sequence[Block]) -> str:
    """Say how many more requests failed with the swap; empty where chance may have done it."""
    before, after = sum(b.failed for b in off), sum(b.failed for b in on)
    sent = sum(b.requests for b in on)
    if after < before + _LEAST_FAILURES or not sent:
        return ""
    least = share_bounds(after / sent, sent)[0]
    if least <= before / sent + _ALLOWED_FAILURES:
        return ""
    return f"{after} of {sent} requests failed with it, {before} without"


def _harm(
    off: Sequence[Block], on: Sequence[Block], settings: EndToEndSettings
) -> tuple[EndToEndReason, str] | None:
    """Return what is worse than without the swap, beyond doubt."""
    allowed = divergence_of(off) + settings.allowed_divergence
    least = share_bounds(divergence_of(on), compared_in(on))[0]
    if least > allowed:
        detail = (
            f"{divergence_of(on):.2%} of tokens differ, {divergence_of(off):.2%} without the swap"
        )
        return EndToEndReason.TOKENS_DIFFER, detail
    shift, own = mean_of(on, lambda b: b.shift), mean_of(off, lambda b: b.shift)
    if shift is not None and shift > settings.allowed_shift + 2.0 * (own or 0.0):
        detail = f"log-probabilities move by {shift:.3g}, {own or 0.0:.3g} without the swap"
        return EndToEndReason.LOGITS_DIFFER, detail
    names: tuple[tuple[str, Callable[[Block], float | None]], ...] = (
        ("the first token", lambda b: b.ttft_s),
        ("each further token", lambda b: b.tpot_s),
    )
    for name, latency in names:
        ratio = interval_of(off, on, latency)
        if ratio is not None and ratio[0] > log(settings.allowed_latency_ratio):
            detail = f"{name} takes {exp(ratio[1]):.3f} times as long"
            return EndToEndReason.LATENCY_WORSE, detail
    return None


def _agrees(off: Sequence[Block], on: Sequence[Block], settings: EndToEndSettings) -> bool:
    """Whether so few tokens differ, beyond doubt, that roundings explain them."""
    return (
        share_bounds(divergence_of(on), compared_in(on))[1]
        <= divergence_of(off) + settings.allowed_divergence
    )


def _speed(
    off: Sequence[Block], on: Sequence[Block], predicted: float, settings: EndToEndSettings
) -> EndToEndReport:
    gain = gain_of(off, on)
    needed = settings.least_share * predicted
    if gain is None:
        detail = "some pass generated nothing"
        outcome, reason = EndToEndOutcome.NOT_MEASURED, EndToEndReason.NO_ANSWER
        return _report(outcome, reason, detail, off, on, predicted)
    told = f"{gain.point:.2%} of the time saved ({gain.lower:.2%} to {gain.upper:.2%})"
    detail = f"{told}, predicted {predicted:.2%}, {needed:.2%} are needed"
    if gain.lower >= needed:
        outcome, reason = EndToEndOutcome.PASS, EndToEndReason.GAIN_HOLDS
    elif gain.upper < needed:
        slower = gain.upper < 0.0
        outcome = EndToEndOutcome.FAIL
        reason = EndToEndReason.SLOWER if slower else EndToEndReason.GAIN_BELOW_HALF
    else:
        outcome, reason = EndToEndOutcome.NOT_MEASURED, EndToEndReason.INTERVAL_TOO_WIDE
    return _report(outcome, reason, detail, off, on, predicted)


def _failed(
    reason: EndToEndReason,
    detail: str,
    off: Sequence[Block],
    on: Sequence[Block],
    predicted: float,
) -> EndToEndReport:
    return _report(EndToEndOutcome.FAIL, reason, detail, off, on, predicted)


def _report(
    outcome: EndToEndOutcome,
    reason: EndToEndReason,
    detail: str,
    off: Sequence[Block],
    on: Sequence[Block],
    predicted: float,
) -> EndToEndReport:
    return EndToEndReport(
        outcome=outcome,
        reason=reason,
        detail=detail,
        pairs=len(on),
        predicted=predicted,
        gain=gain_of(off, on),
        divergence=divergence_of(on) if compared_in(on) else None,
        own_divergence=divergence_of(off) if compared_in(off) else None,
        tokens_per_s=off_and_on(off, on, lambda b: b.tokens_per_s),
        ttft_ms=off_and_on(off, on, lambda b: b.ttft_s * 1e3 if b.ttft_s else None),
        tpot_ms=off_and_on(off, on, lambda b: b.tpot_s * 1e3 if b.tpot_s else None),
    )
