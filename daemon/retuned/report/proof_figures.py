"""Pictures of a live proof: its pairs, its evidence, and where the time of a step went. Pure.

Each picture has its numbers as text besides, for readers who do not see it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from retuned.report import svg
from retuned.report.figures import Figure, figure
from retuned.report.plots import axes, ticks_across
from retuned.report.svg import Scale, linear, logarithmic
from retuned.stages.watch.proof import (
    CoursePoint,
    KernelTime,
    PairKind,
    ProofState,
    StepAccount,
    course,
    percent_of,
)

_HEIGHT = 190
_ABOVE = 22
_BELOW = 38
_ROW = 30
_QUANTILE = 0.95
"""Of the differences; the picture shows those in full, others at its edge."""
_MOST_E = 1e4
_LEAST_E = 1e-2
_BOUND_ROOM = 2.0
_MOST_KERNELS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PairDot:
    """One pair that counts."""

    at: int
    """Its place: sham pairs are below 0, the first pair is 1."""
    percent: float
    """Change of step time, per cent; of a sham pair, of one arbitrary block over the other."""


def dots_of(state: ProofState) -> list[PairDot]:
    """Return the pairs that count: sham pairs, then the others."""
    counted = [pair for pair in state.pairs if pair.void is None and pair.d is not None]
    sham = [pair for pair in counted if pair.sham]
    real = [pair for pair in counted if not pair.sham]
    places = [*range(-len(sham), 0), *range(1, len(real) + 1)]
    return [
        PairDot(at=at, percent=percent_of(pair.d or 0.0))
        for at, pair in zip(places, [*sham, *real], strict=True)
    ]


def reach_of(dots: Sequence[PairDot], *, least: float = 1.0) -> float:
    """Return how far from 0 a picture reaches, per cent: nearly all pairs lie within."""
    sizes = sorted(abs(dot.percent) for dot in dots)
    reach = sizes[min(len(sizes) - 1, int(_QUANTILE * len(sizes)))] if sizes else 0.0
    return max(least, 1.25 * reach)


@functools.lru_cache(maxsize=16)  # a page draws the same proof at each view
def proof_figures(state: ProofState, *, of: str = "") -> tuple[Figure, ...]:
    """Return the pictures of a proof that has pairs; none of one that has not.

    Parameters
    ----------
    of
        The server, in front of the captions; empty for the only one.
    """
    dots = dots_of(state)
    if not dots:
        return ()
    points = course(state)
    found = [_pairs_figure(dots, points, state=state, of=of)]
    if len(points) > 1:
        found.append(_evidence_figure(points, state=state, of=of))
    account = account_figure(state.report.account, of=of) if state.report is not None else None
    return (*found, account) if account is not None else tuple(found)


def _of(server: str) -> str:
    return f"{server}: " if server else ""


# --- pairs ----------------------------------------------------------------------------------------


def _pairs_figure(
    dots: Sequence[PairDot], points: Sequence[CoursePoint], *, state: ProofState, of: str
) -> Figure:
    reach = reach_of(dots)
    outside = sum(abs(dot.percent) > reach for dot in dots)
    real = [dot for dot in dots if dot.at > 0]
    last = points[-1]
    desc = (
        f"{len(dots) - len(real)} sham pairs, {len(real)} pairs; interval after the last: "
        f"{_end(last.low)} to {_end(last.high)} % of step time"
    )
    held = f" {outside} outside the range, drawn at its edge." if outside else ""
    return figure(
        lambda width: pairs_plot(
            dots,
            points,
            reach=reach,
            margin=percent_of(state.settings.min_effect),
            desc=desc,
            width=width,
        ),
        caption=_of(of)
        + "Change of step time by pair: below 0 the swap is faster. Open circles left of the "
        "dashed line are sham pairs, without the swap. Shaded: the interval so far. Dotted: the "
        f"smallest effect that counts.{held}",
    )


def pairs_plot(
    dots: Sequence[PairDot],
    points: Sequence[CoursePoint],
    *,
    reach: float,
    margin: float,
    desc: str,
    width: float,
) -> str:
    """Draw differences by pair, sham pairs left of a dashed line, and the interval so far.

    Parameters
    ----------
    dots, points
        Pairs, and the course of the evidence.
    reach
        Largest difference of the picture, per cent.
    margin
        Smallest effect that counts, per cent.
    desc
        The picture in words.
    width
        Of the picture, pixels.
    """
    title = "Change of step time by pair"
    y = linear((-reach, reach), start=_HEIGHT, end=0, target=6, tight=True)
    x = _across([dot.at for dot in dots], y, width=width)
    body = _frame(x, y, unit="pair; sham pairs are negative")
    body += _band(points, x, y=y)
    for level in (-margin, margin):
        body += svg.line(x.start, y(level), x2=x.end, y2=y(level), class_="limit")
    body += svg.line(x.start, y(0.0), x2=x.end, y2=y(0.0), class_="axis")
    if dots[0].at < 0:
        body += svg.line(x(0.0), 0, x2=x(0.0), y2=_HEIGHT, class_="mark")
    for dot in dots:
        class_ = "dot-open" if dot.at < 0 else "dot"
        name = f"sham pair {-dot.at} before the first" if dot.at < 0 else f"pair {dot.at}"
        mark = svg.dot(x(dot.at), y(dot.percent), class_=class_, radius=2.5)
        body += svg.group(mark, tip=f"{name}: {dot.percent:+.2f} %")
    return _picture(body, y_label="% of step time", title=title, desc=desc, width=width)


def _band(points: Sequence[CoursePoint], x: Scale, *, y: Scale) -> str:
    """Shade the interval; an open end reaches the edge of the picture."""
    known = [p for p in points if p.pairs and (p.low is not None or p.high is not None)]
    if len(known) < 2:
        return ""
    top = [(x(p.pairs), y(y.high if p.high is None else percent_of(p.high))) for p in known]
    low = [(x(p.pairs), y(y.low if p.low is None else percent_of(p.low))) for p in known]
    corners = " ".join(f"{svg.number(a)},{svg.number(b)}" for a, b in (*top, *reversed(low)))
    return svg.element("polygon", points=corners, class_="interval")


# --- evidence -------------------------------------------------------------------------------------


def _evidence_figure(points: Sequence[CoursePoint], *, state: ProofState, of: str) -> Figure:
    last, log_bound = points[-1], state.settings.log_bound
    short = len(state.of(PairKind.SHORT))
    long = f" From pair {short + 1} on blocks are long; they can only take a gain back."
    ends = ", ".join(f"{name} {e_words(getattr(last, part))}" for part, name, _ in _CURVES)
    bound = e_words(log_bound)
    return figure(
        lambda width: evidence_plot(
            points,
            log_bound=log_bound,
            desc=f"After {last.pairs} pairs: {ends}; bound {bound}",
            width=width,
        ),
        caption=_of(of)
        + f"Evidence (E-value) by pair, logarithmic. A verdict is proven at {bound}, the "
        "dashed line. Solid: faster; long dashes: slower; dots: no effect that counts."
        f"{long if state.of(PairKind.LONG) else ''}",
    )


_CURVES = (("faster", "faster", ""), ("slower", "slower", "8 4"), ("no_effect", "none", "2 4"))
"""Field, name, and dashes of each curve."""


def evidence_plot(
    points: Sequence[CoursePoint], *, log_bound: float, desc: str, width: float
) -> str:
    """Draw the E-value of each verdict after each pair against the bound.

    Parameters
    ----------
    points
        Course of the evidence.
    log_bound
        Logarithm of the E-value that decides.
    desc
        The picture in words.
    width
        Of the picture, pixels.
    """
    bound = math.exp(log_bound)
    shown = {
        part: [_shown(getattr(point, part), bound=bound) for point in points]
        for part, _, _ in _CURVES
    }
    every = [bound, 1.0, *(value for curve in shown.values() for value in curve)]
    y = logarithmic(every, start=_HEIGHT, end=0, target=4)
    x = _across([point.pairs for point in points], y, width=width - 52)
    body = _frame(x, y, unit="pair")
    body += svg.line(x.start, y(bound), x2=x.end, y2=y(bound), class_="mark")
    taken: list[float] = []
    for part, name, dashes in _CURVES:
        places = [(x(p.pairs), y(v)) for p, v in zip(points, shown[part], strict=True)]
        corners = " ".join(f"{svg.number(a)},{svg.number(b)}" for a, b in places)
        style = {"stroke_dasharray": dashes} if dashes else {}
        body += svg.element("polyline", points=corners, class_="line", **style)
        at = places[-1][1]
        while any(abs(at - other) < 14 for other in taken):
            at += 3
        taken.append(at)
        body += svg.label(x.end + 6, at + 4, text=name, class_="tick")
    title = "Evidence by pair"
    return _picture(body, y_label=f"E; bound {bound:.0f}", title=title, desc=desc, width=width)


def _shown(log_e: float, *, bound: float) -> float:
    most = max(_MOST_E, _BOUND_ROOM * bound)
    return math.exp(max(math.log(_LEAST_E), min(log_e, math.log(most))))


def e_words(log_e: float) -> str:
    """Return an E-value as text.

    Examples
    --------
    >>> e_words(0.0), e_words(4.605), e_words(30.0), e_words(-9.0)
    ('1', '100', 'over 10,000', 'under 0.01')
    """
    if log_e > math.log(_MOST_E):
        return f"over {_MOST_E:,.0f}"
    if log_e < math.log(_LEAST_E):
        return f"under {_LEAST_E:g}"
    value = math.exp(log_e)
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


# --- account --------------------------------------------------------------------------------------


def account_parts(account: StepAccount) -> list[tuple[str, float]]:
    """Return the known parts of an account with their changes per step, milliseconds.

    Examples
    --------
    >>> account_parts(StepAccount(busy_s=-0.0004, period_s=0.0002))
    [('GPU busy', -0.4), ('step', 0.2)]
    """
    parts = (
        ("kernel", account.kernel_s),
        ("GPU busy", account.busy_s),
        ("gap", account.gap_s),
        ("host", account.host_s),
        ("step", account.period_s),
    )
    return [(name, 1e3 * seconds) for name, seconds in parts if seconds is not None]


def shown_kernels(account: StepAccount) -> Sequence[KernelTime]:
    """Return the lengths to show of the kernel in place: those with times of both arms, if any."""
    compared = [each for each in account.kernels if each.speedup is not None]
    timed = [k for k in account.kernels if k.off_s is not None or k.on_s is not None]
    return (compared or timed)[:_MOST_KERNELS]


def kernel_words(kernel: KernelTime) -> str:
    """Return in words what a kernel takes in place at one length.

    Examples
    --------
    >>> kernel_words(KernelTime(lengths=(512,), launches=8.0, off_s=1.2e-3, on_s=3e-4))
    'at 512: 1,200 us without the swap, 300 us with it (4.00x), 8 launches a step'
    """
    lengths = " x ".join(map(str, kernel.lengths)) or "one length"
    off, on = map(_time_words, (kernel.off_s, kernel.on_s))
    times = f" ({kernel.speedup:.2f}x)" if kernel.speedup is not None else ""
    return (
        f"at {lengths}: {off} without the swap, {on} with it{times}, "
        f"{kernel.launches:.2g} launches a step"
    )


def _time_words(seconds: float | None) -> str:
    if seconds is None:
        return "not measured"
    return f"{1e6 * seconds:,.0f} us" if seconds >= 1e-4 else f"{1e6 * seconds:.3g} us"


def account_figure(account: StepAccount, *, of: str = "") -> Figure | None:
    """Return the picture of an account with the kernel in place; None where nothing is known.

    Parameters
    ----------
    of
        The server, in front of the caption; empty for the only one.
    """
    parts = account_parts(account)
    if not parts:
        return None
    desc = "; ".join(f"{name} {ms:+.3g} ms" for name, ms in parts)
    in_place = "; ".join(map(kernel_words, shown_kernels(account)))
    return figure(
        lambda width: account_plot(parts, desc=desc, width=width),
        caption=_of(of)
        + "Change per step with the swap, milliseconds; left of the line is less time. The "
        "step is what counts: what the GPU saves may go into the gap, where it waits for the host."
        + (f" The kernel within steps: {in_place}." if in_place else ""),
    )


def account_plot(parts: Sequence[tuple[str, float]], *, desc: str, width: float) -> str:
    """Draw the change of each part of a step as a bar left or right of 0.

    Parameters
    ----------
    parts
        Name and change, milliseconds.
    desc
        The picture in words.
    width
        Of the picture, pixels.
    """
    left = max(svg.text_width(name) for name, _ in parts) + 16
    most = max(abs(ms) for _, ms in parts) or 1.0
    x = linear((-most, most), start=left + 66, end=width - 78, target=4)
    bottom = _ROW * len(parts)
    body = ""
    for tick in x.ticks:
        body += svg.line(x(tick), 0, x2=x(tick), y2=bottom, class_="grid")
        body += svg.label(x(tick), bottom + 16, text=x.label(tick), class_="tick", anchor="middle")
    body += svg.line(x(0.0), 0, x2=x(0.0), y2=bottom, class_="axis")
    for row, (name, ms) in enumerate(parts):
        top, ends = _ROW * row + 6, sorted((x(0.0), x(ms)))
        body += svg.label(0, top + 14, text=name)
        body += svg.rect(ends[0], top, width=ends[1] - ends[0], height=_ROW - 12, class_="bar")
        beside = ends[1] + 6 if ms > 0 else ends[0] - 6
        body += svg.label(beside, top + 14, text=f"{ms:+.3g} ms", anchor="" if ms > 0 else "end")
    body += svg.label(x.end, bottom + 32, text="ms per step", class_="tick", anchor="end")
    title = "Where the time of a step went"
    return svg.document(body, width=width, height=bottom + 38, title=title, desc=desc)


# --- common ---------------------------------------------------------------------------------------


def _across(places: Sequence[float], y: Scale, *, width: float) -> Scale:
    left = max(svg.text_width(y.label(tick)) for tick in y.ticks) + 12
    ends = (min(places), max(*places, 1.0))
    target = ticks_across(width)
    return linear(ends, start=left, end=width - 14, zero=False, target=target, tight=True)


def _frame(x: Scale, y: Scale, *, unit: str) -> str:
    body = axes(x, y, height=_HEIGHT)
    return body + svg.label(x.end, _HEIGHT + 33, text=unit, class_="tick", anchor="end")


def _picture(body: str, *, y_label: str, title: str, desc: str, width: float) -> str:
    moved = svg.element("g", body, transform=f"translate(0 {_ABOVE})")
    head = svg.label(0, 12, text=y_label, class_="tick")
    height = _ABOVE + _HEIGHT + _BELOW
    return svg.document(head + moved, width=width, height=height, title=title, desc=desc)


def _end(effect: float | None) -> str:
    return "open" if effect is None else f"{percent_of(effect):+.2f}"
