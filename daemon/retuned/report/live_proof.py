"""The prediction before a live proof, and its result, as one sentence each. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from retuned.report.proof_figures import (
    account_parts,
    dots_of,
    e_words,
    kernel_words,
    reach_of,
    shown_kernels,
)
from retuned.stages.watch.proof import (
    EffectInterval,
    Forecast,
    ForecastReason,
    PairKind,
    ProofReport,
    ProofState,
    ReplicaReport,
    StepAccount,
    Verdict,
    course,
    effect_so_far,
    percent_of,
)

_OUTCOMES = {
    Verdict.HELPS: "helps",
    Verdict.HARMS: "harms",
    Verdict.NO_MEASURABLE_EFFECT: "no measurable effect",
    Verdict.TOO_LITTLE_TRAFFIC: "too little traffic",
    Verdict.NOT_CONCLUDED: "not concluded",
}


_NOT_PREDICTED = {
    ForecastReason.STEPS_UNKNOWN: "the steps of the server were not observed",
    ForecastReason.GPU_TIME_UNKNOWN: "the GPU time of its steps is not measured",
    ForecastReason.FEW_STEPS: "too few of its steps were observed",
    ForecastReason.PACE_UNCLEAR: (
        "its steps are launched as long as the GPU works, so either may wait for the other"
    ),
    ForecastReason.SHARE_UNKNOWN: "the kernel's share of GPU time is unknown",
}


def prediction_of(forecast: Forecast | None) -> str:
    """Return the predicted change of step time and what it rests on, or why there is none.

    Examples
    --------
    >>> prediction_of(None)
    'not predicted: the steps of the server were not observed (steps-unknown)'
    """
    if forecast is None or forecast.prediction is None:
        reason = ForecastReason.STEPS_UNKNOWN if forecast is None else forecast.reason
        reason = reason or ForecastReason.STEPS_UNKNOWN
        return f"not predicted: {_NOT_PREDICTED[reason]} ({reason})"
    found = forecast.prediction
    rests = (
        f"{forecast.kernel_share:.1%} of GPU time, {forecast.speedup:.2f}x, and the GPU sets the "
        f"pace of {found.gpu_bound:.0%} of {forecast.pace.clear} steps"
    )
    if found.host_bound:
        return f"host-bound: the server cannot gain from this ({rests})"
    less = "" if found.worth_a_proof else ", less than minEffect"
    return f"steps take {_change(found.effect)}{less} ({rests})"


def sentence_of(report: ProofReport) -> str:
    """Return the verdict, the effect with its interval, and what it rests on.

    Examples
    --------
    >>> from retuned.stages.watch.proof import ProofReason
    >>> report = ProofReport(
    ...     verdict=Verdict.HARMS, reason=ProofReason.SLOWER, effect=0.02, low=0.01, high=0.03,
    ...     pairs=24, seconds=48.0, exposed_s=24.0
    ... )
    >>> sentence_of(report)
    'harms (slower): steps take 2.0 % longer (1.0 to 3.0 % longer); 24 pairs in 48 s, 24 s on'
    >>> sentence_of(report.model_copy(update={"low": None, "high": None, "pairs": 0}))
    'harms (slower): steps take 2.0 % longer (too few pairs for an interval)'
    """
    said = f"{_OUTCOMES[report.verdict]} ({report.reason})"
    if not report.final:
        said += ", not final"
    if report.effect is not None:
        said += f": steps take {_change(report.effect)} ({_range(report.low, report.high)})"
    if report.pairs or report.void_pairs:
        said += f"; {report.pairs} pairs in {report.seconds:.0f} s"
        said += f", {report.exposed_s:.0f} s on"
    if report.void_pairs:
        said += f"; {report.void_pairs} pairs do not count"
    wants_visible = report.verdict in (Verdict.TOO_LITTLE_TRAFFIC, Verdict.NO_MEASURABLE_EFFECT)
    if wants_visible and report.visible is not None:
        said += f"; these pairs show effects from {percent_of(report.visible):.1f} %"
    return said + ("; the host sets the pace" if report.account.host_bound else "")


def boots_sentence(report: ReplicaReport) -> str:
    """Return the verdict of a proof by boots, with how far boots of one configuration differ.

    Examples
    --------
    >>> from retuned.stages.watch.proof import ProofReason, spread_of
    >>> report = ReplicaReport(
    ...     verdict=Verdict.TOO_LITTLE_TRAFFIC, reason=ProofReason.BOOT_SPREAD, effect=-0.01,
    ...     pairs=16, visible=0.03, spread=spread_of([0.014] * 8)
    ... )
    >>> boots_sentence(report)  # doctest: +NORMALIZE_WHITESPACE
    'too little traffic (boot-spread): steps take 1.0 % less time (too few pairs for an interval);
    16 pairs of boots; boots of one configuration differ by 1.0 % (1.5 % at most, by 8 A/A pairs);
    these pairs show effects from 3.0 %'
    """
    said = f"{_OUTCOMES[report.verdict]} ({report.reason})"
    if report.effect is not None:
        said += f": steps take {_change(report.effect)} ({_range(report.low, report.high)})"
    said += f"; {report.pairs} pairs of boots"
    if report.void_pairs:
        said += f"; {report.void_pairs} pairs do not count"
    if report.spread is not None:
        said += (
            f"; boots of one configuration differ by {percent_of(report.spread.measured):.1f} % "
            f"({percent_of(report.spread.high):.1f} % at most, by {report.spread.sham_pairs} A/A "
            "pairs)"
        )
    if report.visible is not None and report.verdict is not Verdict.HARMS:
        said += f"; these pairs show effects from {percent_of(report.visible):.1f} %"
    return said


def sentinel_sentence(state: ProofState) -> str:
    """Return what a day of a sentinel shows: its verdict, or its pairs until now."""
    if state.report is not None:
        return sentence_of(state.report)
    effect, count = effect_so_far(state), len(state.of(PairKind.LONG))
    if effect is None:
        return "no pair that counts yet"
    return f"steps take {_change(effect)}; {count} pairs of the last day"


_COLUMNS = 41
_MARKS = ".:|#"
_KEY = ". one pair, : two or three, | four to seven, # more"


def compact_lines(state: ProofState) -> list[tuple[str, str]]:
    """Return the pairs, the evidence and the account of a proof as short named lines of text.

    Nothing without pairs that count.
    """
    dots = dots_of(state)
    real = [dot.percent for dot in dots if dot.at > 0]
    if not dots:
        return []
    reach = reach_of(dots)
    outside = sum(abs(dot.percent) > reach for dot in dots)
    held = f"; outside the range: {outside}" if outside else ""
    lines = [
        ("d %", f"{-reach:<+{_COLUMNS // 2}.1f}0{reach:>+{_COLUMNS // 2}.1f}"),
        ("sham", _histogram([dot.percent for dot in dots if dot.at < 0], reach=reach)),
    ]
    if real:
        lines.append(("pairs", f"{_histogram(real, reach=reach)}  {_KEY}{held}"))
        lines.append(("E", _evidence_line(state)))
    return lines + (account_lines(state.report.account) if state.report is not None else [])


def account_lines(account: StepAccount) -> list[tuple[str, str]]:
    """Return where the time of a step went as named lines: the changes, and the kernel in place.

    Examples
    --------
    >>> account_lines(StepAccount(busy_s=-4e-4, period_s=2e-4))
    [('per step', 'GPU busy -0.40 ms  step +0.20 ms')]
    """
    parts = account_parts(account)
    said = "  ".join(f"{name} {ms:+.2f} ms" for name, ms in parts)
    lines = [("per step", said)] if parts else []
    return lines + [("in place", kernel_words(each)) for each in shown_kernels(account)]


def _histogram(percents: Sequence[float], *, reach: float) -> str:
    """Return one character a column, from -reach to reach; others count in the last columns."""
    counts = [0] * _COLUMNS
    for percent in percents:
        held = max(-1.0, min(percent / reach, 1.0))
        counts[round((held + 1.0) / 2.0 * (_COLUMNS - 1))] += 1
    return "".join(
        _MARKS[min(count.bit_length() - 1, len(_MARKS) - 1)] if count else " " for count in counts
    )


def _evidence_line(state: ProofState) -> str:
    """Return the evidence for the verdict, or the largest so far, at up to six of the pairs."""
    points = course(state)
    verdict = state.report.verdict if state.report is not None else Verdict.NOT_CONCLUDED
    last = len(points) - 1
    places = sorted({round(last * part / 5) for part in range(6)})
    said = " -> ".join(e_words(points[place].towards(verdict)) for place in places)
    return f"{said}   bound {e_words(state.settings.log_bound)}"


def effect_words(found: EffectInterval) -> str:
    """Return an effect and its interval as signed changes of step time.

    Examples
    --------
    >>> effect_words(EffectInterval(effect=-0.02, low=-0.03))
    '-2.0 % (-3.0 to open)'
    """
    ends = ("open" if end is None else f"{percent_of(end):+.1f}" for end in (found.low, found.high))
    return f"{percent_of(found.effect):+.1f} % ({' to '.join(ends)})"


def _change(effect: float) -> str:
    percent = percent_of(effect)
    return f"{abs(percent):.1f} % {'longer' if percent > 0 else 'less time'}"


def _range(low: float | None, high: float | None) -> str:
    if low is not None and high is not None and (low > 0.0) == (high > 0.0):
        near, far = sorted((abs(percent_of(low)), abs(percent_of(high))))
        return f"{near:.1f} to {far:.1f} % {'longer' if low > 0.0 else 'less'}"
    if low is None and high is None:
        return "too few pairs for an interval"
    ends = ("open" if end is None else _change(end) for end in (low, high))
    return " to ".join(ends)
