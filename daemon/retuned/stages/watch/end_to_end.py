"""Gate G7: whether the whole server is as correct as before, and as much faster as predicted. Pure.

Quality first: failed requests, different tokens and moved probabilities, each compared with two
runs of the original. Then speed: blocks of the same requests with the swap off and on in turn, the
log ratio of each pair, and its t interval. A measured gain of at least half of the prediction
passes. A gain surely below that is rolled back. If the interval is still inconclusive after the
last look, the result is "not measured". There are two looks, and each bound is taken at half the
error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from math import exp, log, sqrt
from statistics import fmean, median, stdev
from typing import Annotated, Literal

from pydantic import Field

from retuned.contract import Record
from retuned.stages.gate import EndToEndRule

State = Literal["off", "on"]
Positive = Annotated[float, Field(gt=0.0, lt=1e9)]


class ServerResponse(Record):
    """The server's response to one request."""

    tokens: tuple[str, ...] = ()
    """Its tokens, or pieces of text if the server does not report tokens."""
    logprobs: tuple[float, ...] = ()
    """Log-probability of each; empty if the server does not report them."""
    ttft_s: Positive | None = None
    """Time to the first token, seconds; None where none came."""
    tpot_s: Positive | None = None
    """Mean time of each further token, seconds; None where there was none."""
    failed: bool = False
    """Whether it ended in an error or incomplete."""


class Served(Record):
    """One pass over all requests."""

    answers: tuple[ServerResponse, ...] = Field(min_length=1)
    """In the order of the requests."""
    wall_s: Positive
    """From the first byte sent to the last one read, seconds."""


class Block(Record):
    """Summary of one pass."""

    state: State
    requests: int = Field(ge=1)
    failed: int = Field(ge=0)
    """Requests without a complete response."""
    tokens: int = Field(ge=0)
    wall_s: Positive
    ttft_s: Positive | None = None
    """Median time to the first token, seconds."""
    tpot_s: Positive | None = None
    """Median time of each further token, seconds."""
    compared: int = Field(ge=0)
    """Tokens with the same text before them as in the first pass."""
    diverged: int = Field(ge=0)
    """Compared tokens that differ: at most one a request."""
    shift: float | None = Field(default=None, ge=0.0)
    """Mean absolute difference of log-probabilities; None if the server does not report them."""

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.wall_s


def order_of(pair: int) -> tuple[State, State]:
    """Return the order of a pair: off on, on off, and so on, so that drift affects both alike.

    Examples
    --------
    >>> order_of(0), order_of(1)
    (('off', 'on'), ('on', 'off'))
    """
    return ("off", "on") if pair % 2 == 0 else ("on", "off")


def compare_answers(
    first: Sequence[ServerResponse], later: Sequence[ServerResponse]
) -> tuple[int, int]:
    """Return how many tokens had the same text before them, and how many of those differ.

    After the first different token two responses continue different texts and are not comparable.
    So one rounding counts once, however long the response is.

    Examples
    --------
    >>> one = ServerResponse(tokens=("a", "b", "c"))
    >>> other = ServerResponse(tokens=("a", "x", "c"))
    >>> compare_answers([one], [one]), compare_answers([one], [other])
    ((3, 0), (2, 1))
    """
    compared = diverged = 0
    for one, other in zip(first, later, strict=True):
        if one.failed or other.failed:
            continue
        same = _common(one.tokens, other.tokens)
        differs = (same < len(one.tokens)) or (same < len(other.tokens))
        compared += same + differs
        diverged += differs
    return compared, diverged


def summarise(state: State, first: Sequence[ServerResponse], served: Served) -> Block:
    """Summarise a pass, compared with the first one.

    Raises
    ------
    ValueError
        If the two are not of the same requests.
    """
    answers = served.answers
    compared, diverged = compare_answers(first, answers)
    ttft = [answer.ttft_s for answer in answers if answer.ttft_s is not None]
    tpot = [answer.tpot_s for answer in answers if answer.tpot_s is not None]
    return Block(
        state=state,
        requests=len(answers),
        failed=sum(answer.failed for answer in answers),
        tokens=sum(len(answer.tokens) for answer in answers),
        wall_s=served.wall_s,
        ttft_s=median(ttft) if ttft else None,
        tpot_s=median(tpot) if tpot else None,
        compared=compared,
        diverged=diverged,
        shift=_shift(first, answers),
    )


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    for place, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return place
    return min(len(one), len(other))


def _shift(first: Sequence[ServerResponse], later: Sequence[ServerResponse]) -> float | None:
    found: list[float] = []
    for one, other in zip(first, later, strict=True):
        same = min(_common(one.tokens, other.tokens), len(one.logprobs), len(other.logprobs))
        pairs = zip(one.logprobs[:same], other.logprobs[:same], strict=True)
        found += [abs(left - right) for left, right in pairs]
    return sum(found) / len(found) if found else None


_T_975 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""Student's t at 97.5 %, by degrees of freedom from one on; the last applies beyond."""
_Z_975 = 1.960


class Gain(Record):
    """Share of time saved; negative if time is lost."""

    lower: float = Field(lt=1.0)
    """Lower bound, at 97.5 % on its own."""
    point: float = Field(lt=1.0)
    """Estimate."""
    upper: float = Field(lt=1.0)
    """Upper bound, at 97.5 % on its own."""


def gain_of(off: Sequence[Block], on: Sequence[Block]) -> Gain | None:
    """Return the share of time saved per token: one minus the ratio of times."""
    ratio = interval_of(off, on, lambda b: b.wall_s / b.tokens if b.tokens else None)
    if ratio is None:
        return None
    low, middle, high = ratio
    return Gain(lower=1.0 - exp(high), point=1.0 - exp(middle), upper=1.0 - exp(low))


def interval_of(
    off: Sequence[Block], on: Sequence[Block], value: Callable[[Block], float | None]
) -> tuple[float, float, float] | None:
    """Return bounds and mean of log(on / off) over pairs; None where a block has no value."""
    logs = []
    for before, after in zip(off, on, strict=True):
        one, other = value(before), value(after)
        if one is None or other is None:
            return None
        logs.append(log(other / one))
    if len(logs) < 2:
        return None
    middle = fmean(logs)
    reach = _T_975[min(len(logs) - 1, len(_T_975)) - 1] * stdev(logs) / sqrt(len(logs))
    return middle - reach, middle, middle + reach


def compared_in(blocks: Sequence[Block]) -> float:
    """Return the tokens compared in one pass: passes repeat them and add no evidence."""
    return fmean(block.compared for block in blocks) if blocks else 0.0


def divergence_of(blocks: Sequence[Block]) -> float:
    """Return the share of compared tokens that differ; 0 where none was compared."""
    compared = sum(block.compared for block in blocks)
    return sum(block.diverged for block in blocks) / compared if compared else 0.0


def share_bounds(rate: float, count: float) -> tuple[float, float]:
    """Return the bounds of a share, at 97.5 % each (Wilson 1927)."""
    if count <= 0.0:
        return 0.0, 1.0
    square = _Z_975**2 / count
    centre = (rate + square / 2.0) / (1.0 + square)
    reach = _Z_975 * sqrt(rate * (1.0 - rate) / count + square / (4.0 * count)) / (1.0 + square)
    return max(0.0, centre - reach), min(1.0, centre + reach)


def mean_of(blocks: Sequence[Block], value: Callable[[Block], float | None]) -> float | None:
    """Return the mean over the blocks that have a value; None if none has."""
    found = [each for each in map(value, blocks) if each is not None]
    return fmean(found) if found else None


def off_and_on(
    off: Sequence[Block], on: Sequence[Block], value: Callable[[Block], float | None]
) -> tuple[float, float] | None:
    """Return the means off and on; None if either is missing."""
    before, after = mean_of(off, value), mean_of(on, value)
    return (before, after) if before is not None and after is not None else None


_LEAST_FAILURES = 3
"""Requests that must have failed more often with the swap: a single one may be chance."""
_ALLOWED_FAILURES = 0.01
"""Share of requests that may fail beyond those that fail without the swap."""


class EndToEndOutcome(StrEnum):
    """Three-valued: what could not be measured neither passes nor fails."""

    PASS = "pass"
    FAIL = "fail"
    NOT_MEASURED = "not-measured"


class EndToEndReason(StrEnum):
    """Stable codes that evidence, policies and tests use."""

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
    """Faster, but surely by less than half of the prediction."""
    INTERVAL_TOO_WIDE = "interval-too-wide"
    """The noise is larger than the effect."""
    TOO_FEW_TOKENS = "too-few-tokens"
    """Responses agree, but are too few as evidence."""
    NO_ENDPOINT = "no-endpoint"
    """No endpoint of the server is configured."""
    NO_ANSWER = "no-answer"
    """The server did not answer every request."""
    NOT_SWITCHABLE = "not-switchable"
    """A file configures the kernel: it cannot be switched while the server runs."""
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
    """Pairs of blocks after which the result is evaluated; the error is halved."""
    least_share: float = Field(default=0.5, gt=0.0, le=1.0)
    """Part of the predicted gain that must be measured."""
    allowed_divergence: float = Field(default=0.02, gt=0.0, lt=1.0)
    """Share of tokens that may differ, with the same text before them, beyond the original's share.

    The original differs between two runs too: roundings flip near ties."""
    allowed_shift: float = Field(default=0.1, gt=0.0)
    """Mean absolute difference of log-probabilities that is allowed beyond twice the original's."""
    allowed_latency_ratio: float = Field(default=1.05, gt=1.0)
    """Latency on over off that is allowed."""


class EndToEndReport(Record):
    """Result of gate G7 on one swap."""

    outcome: EndToEndOutcome
    reason: EndToEndReason
    detail: str = ""
    """One sentence with the numbers."""
    pairs: int = Field(default=0, ge=0)
    """Blocks on and off that were compared."""
    predicted: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of the server's time that the swap should save."""
    gain: Gain | None = None
    """Share of time that it saved; None if not measured."""
    divergence: float | None = Field(default=None, ge=0.0, le=1.0)
    """Share of tokens that differ with the swap on; None if none was compared."""
    own_divergence: float | None = Field(default=None, ge=0.0, le=1.0)
    """The same for a second run of the original."""
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
    """Judge the measurements so far; None if they are inconclusive and more can be measured.

    Parameters
    ----------
    blocks
        Timed passes, in the order they were made: pairs of on and off.
    predicted
        Share of time that the swap should save.
    settings
        How much evidence is enough.
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
    """Return the report of a measurement that ended inconclusively."""
    return EndToEndReport(
        outcome=EndToEndOutcome.NOT_MEASURED,
        reason=reason,
        detail=detail[:2000],
        predicted=predicted,
        pairs=pairs,
    )


def consequence(report: EndToEndReport | None, rule: EndToEndRule) -> Consequence:
    """Return what a report means under a policy; None is a report still to come.

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
    """Describe how many more requests failed with the swap; empty if it may be chance."""
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
    """Return what is significantly worse than without the swap."""
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
    """Whether significantly few tokens differ, so that roundings explain them."""
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
    detail = f"{told}, predicted {predicted:.2%}, {needed:.2%} are required"
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
