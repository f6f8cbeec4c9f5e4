"""Write SVG: escaped, well formed, sized by a viewBox, named for screen readers.

Colours are classes; the page's style sheet decides them for light, dark and print.

From data to pixels: linear and logarithmic scales with ticks at round numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape

from retuned.text import MINUS, clean, short

FONT_PX = 13
_SANS = 0.56
_MONO = 0.605


def text_width(text: str, *, mono: bool = False, size: float = FONT_PX) -> float:
    """Estimate the pixels a line of text takes; exact for mono, a little wide for sans."""
    return len(text) * size * (_MONO if mono else _SANS)


def fit(text: str, room: float, *, mono: bool = False) -> str:
    """Cut text in the middle so that it fits `room` pixels."""
    return short(text, max(4, int(room / (FONT_PX * (_MONO if mono else _SANS)))))


def number(value: float) -> str:
    """Coordinate with one decimal."""
    return f"{value:.1f}".removesuffix(".0")


def element(tag: str, body: str = "", **attributes: str | float) -> str:
    """Return one element; `body` is markup already, attributes are escaped here.

    A trailing underscore is dropped from a name and inner ones become dashes (``class_``,
    ``text_anchor``).
    """
    parts = [tag]
    for name, value in attributes.items():
        if value == "":
            continue
        shown = value if isinstance(value, str) else number(value)
        parts.append(f'{name.rstrip("_").replace("_", "-")}="{escape(clean(shown))}"')
    head = " ".join(parts)
    return f"<{head}>{body}</{tag}>" if body else f"<{head}/>"


def label(x: float, y: float, *, text: str, class_: str = "", anchor: str = "") -> str:
    """Text with its baseline at y; `anchor` is start (default), middle or end."""
    return element("text", escape(clean(text)), x=x, y=y, class_=class_, text_anchor=anchor)


def line(x1: float, y1: float, *, x2: float, y2: float, class_: str) -> str:
    """Straight line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def rect(x: float, y: float, *, width: float, height: float, class_: str) -> str:
    """Rectangle; never of negative size."""
    return element("rect", x=x, y=y, width=max(width, 0.0), height=max(height, 0.0), class_=class_)


def dot(x: float, y: float, *, class_: str, radius: float = 4.5) -> str:
    """Circle."""
    return element("circle", cx=x, cy=y, r=radius, class_=class_)


def diamond(x: float, y: float, *, class_: str, radius: float = 6.5) -> str:
    """Diamond: tells a winner from circles without colour."""
    corners = ((x, y - radius), (x + radius, y), (x, y + radius), (x - radius, y))
    return element(
        "polygon", points=" ".join(f"{number(a)},{number(b)}" for a, b in corners), class_=class_
    )


def group(body: str, *, tip: str = "") -> str:
    """Group with an optional tooltip, which screen readers and pointers both find."""
    return element("g", (element("title", escape(clean(tip))) if tip else "") + (body or " "))


def document(body: str, *, width: float, height: float, title: str, desc: str) -> str:
    """Whole picture."""
    head = element("title", escape(clean(title)) or " ") + element(
        "desc", escape(clean(desc)) or " "
    )
    return element(
        "svg",
        head + body,
        xmlns="http://www.w3.org/2000/svg",
        class_="plot",
        viewBox=f"0 0 {number(width)} {number(height)}",
        role="img",
        aria_label=title or "plot",
    )


def nothing(width: float, *, title: str, why: str = "no data") -> str:
    """Draw a box with a note, so that missing data does not look like zero."""
    body = rect(0.5, 0.5, width=width - 1, height=55, class_="empty")
    body += label(width / 2, 33, text=why, class_="muted", anchor="middle")
    return document(body, width=width, height=56, title=title, desc=why)


_TINY = 1e-290
_HUGE = 1e290


def checked(values: Iterable[float], *, what: str, positive: bool = False) -> tuple[float, ...]:
    """Return the values as floats.

    Raises
    ------
    ValueError
        If one is NaN or infinite, or (where `positive`) not above zero: a broken measurement must
        not become a picture.
    """
    found = tuple(float(v) for v in values)
    for value in found:
        if not math.isfinite(value):
            raise ValueError(f"{what} must be finite, got {value}")
        if positive and value <= 0:
            raise ValueError(f"{what} must be above zero, got {value}")
    least = _TINY if positive else -_HUGE
    return tuple(max(least, min(_HUGE, value)) for value in found)


def nice_step(span: float, *, target: int) -> float:
    """Return the step of 1, 2 or 5 times a power of ten that gives about `target` steps."""
    raw = max(span / max(target, 1), _TINY)
    power = 10.0 ** math.floor(math.log10(raw))
    return next((m * power for m in (1.0, 2.0, 5.0) if m * power >= raw), 10.0 * power)


def linear_ticks(low: float, high: float, *, target: int = 5) -> tuple[float, ...]:
    """Round numbers from at or below `low` to at or above `high`.

    Examples
    --------
    >>> linear_ticks(0.0, 93.0, target=5)
    (0.0, 20.0, 40.0, 60.0, 80.0, 100.0)
    """
    step = nice_step(high - low, target=target)
    first = math.floor(low / step + 1e-9)
    last = max(math.ceil(high / step - 1e-9), first + 1)
    if last - first > 4 * target or step <= _TINY:
        return (low, high)
    return tuple(i * step for i in range(first, last + 1))


def log_ticks(low: float, high: float, *, target: int = 6) -> tuple[float, ...]:
    """Return round numbers within [low, high], which is wider than nothing and above zero."""
    decades = math.log10(high) - math.log10(low)
    if decades < 0.6:
        return tuple(t for t in linear_ticks(low, high, target=target) if low <= t <= high)
    mantissas: tuple[int, ...] = (1, 2, 5) if decades <= target / 2 else (1,)
    stride = max(1, math.ceil(decades / target))
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found = (m * 10.0**e for e in exponents if e % stride == 0 for m in mantissas)
    return tuple(t for t in found if low <= t <= high)


def tick_label(value: float, step: float) -> str:
    """Only as many decimals as the step needs."""
    if value == 0:
        return "0"
    if not 1e-5 <= abs(value) < 1e7:
        return f"{value:.3g}".replace("-", MINUS)
    decimals = max(0, -math.floor(math.log10(abs(step)) + 1e-9)) if step else 0
    return f"{value:,.{min(decimals, 6)}f}".replace("-", MINUS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Maps [low, high] to [start, end] pixels; values outside are held at the edge."""

    low: float
    """Value at `start`."""
    high: float
    """Value at `end`, above `low`."""
    start: float
    """Pixel of `low`."""
    end: float
    """Pixel of `high`; below `start` where pixels grow downwards."""
    ticks: tuple[float, ...]
    """Round values to label."""
    log: bool = False
    """Whether equal ratios, not equal differences, take equal room."""

    def __call__(self, value: float) -> float:
        """Return the pixel of a value."""
        low, high, at = self.low, self.high, max(self.low, min(self.high, value))
        if self.log:
            low, high, at = math.log(low), math.log(high), math.log(at)
        # halves: the difference of two huge values may not be a float
        fraction = (at / 2 - low / 2) / (high / 2 - low / 2)
        return self.start + fraction * (self.end - self.start)

    def label(self, tick: float) -> str:
        """Return the text of a tick."""
        if self.log:
            return f"{tick:.4g}"
        step = self.ticks[1] - self.ticks[0] if len(self.ticks) > 1 else 0.0
        return tick_label(tick, step)


def linear(
    values: Iterable[float],
    *,
    start: float,
    end: float,
    zero: bool = True,
    target: int = 5,
    tight: bool = False,
) -> Scale:
    """Scale that holds all values (and zero) between round numbers.

    A `tight` one ends at the outermost values and has the round numbers between them as ticks.
    """
    found = [*values, *((0.0,) if zero else ())] or [0.0]
    low, high = min(found), max(found)
    if high / 2 - low / 2 <= max(1e-12 * max(abs(low), abs(high)), _TINY):
        low, high = (low, high + (abs(high) or 1.0)) if zero else (low - 1.0, high + 1.0)
    if not low < high:  # so large that one more changes nothing
        low, high = low * 0.5 if low > 0 else low * 2, high * 2 if high > 0 else high * 0.5
    ticks = linear_ticks(low, high, target=target)
    if tight:
        inside = tuple(t for t in ticks if low <= t <= high)
        return Scale(low=low, high=high, start=start, end=end, ticks=inside)
    return Scale(low=ticks[0], high=ticks[-1], start=start, end=end, ticks=ticks)


def logarithmic(values: Iterable[float], *, start: float, end: float, target: int = 6) -> Scale:
    """Scale for ratios: holds all values (all above zero) with some room on both sides."""
    logs = [math.log(max(v, _TINY)) for v in values]
    low, high = min(logs), max(logs)
    room = max(0.06 * (high - low), 0.02)
    low, high = math.exp(max(low - room, -700.0)), math.exp(min(high + room, 700.0))
    return Scale(
        low=low,
        high=high,
        start=start,
        end=end,
        ticks=log_ticks(low, high, target=target),
        log=True,
    )
