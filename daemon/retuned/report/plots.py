"""Plots as SVG text: bars, dumbbells, intervals, strips; curves over time come from `series`.

Every function is pure and total: any finite data gives a well-formed picture, no data gives a box
that says so, NaN and infinity are refused. Meaning never hangs on colour alone: shapes, fills and
words carry it too. Below `WIDE_PX` labels move above their marks, for phones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from retuned.report import svg
from retuned.report.intervals import Ratio, intervals
from retuned.report.rows import WIDE_PX, grid, rows_of
from retuned.report.scales import checked, linear
from retuned.report.series import Band, Mark, series
from retuned.report.words import share, significant

__all__ = [
    "WIDE_PX",
    "Band",
    "Bar",
    "Mark",
    "Pair",
    "Ratio",
    "bars",
    "dumbbell",
    "intervals",
    "series",
    "strip",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One row of `bars`."""

    label: str
    """Kernel name or the like."""
    value: float
    """Length of the bar, >= 0, in shares of one."""
    note: str = ""
    """Said after the value, for example the launches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One row of `dumbbell`."""

    label: str
    """Kernel and shape."""
    before: float
    """Share before."""
    after: float
    """Share after."""
    note: str = ""
    """Said in the tooltip."""


def bars(rows: Sequence[Bar], *, title: str, desc: str, width: float = 920) -> str:
    """Horizontal bars of shares, longest first as given, value and note beside each.

    Raises
    ------
    ValueError
        If a value is NaN, infinite or negative.
    """
    values = checked((row.value for row in rows), what="bar length")
    if any(value < 0 for value in values):
        raise ValueError(f"bar length must not be negative, got {min(values)}")
    if not rows:
        return svg.nothing(width, title=title)
    place = rows_of(width, [row.label for row in rows], top=2)
    notes = [row.note if place.wide else "" for row in rows]
    room = width - place.label_room - max(svg.text_width(text) for text in notes) - 76
    longest = max(values) or 1.0
    body = ""
    for index, (row, value, note) in enumerate(zip(rows, values, notes, strict=True)):
        y, length = place.mark_y(index), max(value / longest * max(room, 40.0), 1.0)
        said = share(value)
        after = place.label_room + length + 7
        body += svg.group(
            place.label(index, row.label)
            + svg.rect(place.label_room, y - 7, width=length, height=14, class_="bar")
            + svg.label(after, y + 4.5, text=said)
            + svg.label(after + svg.text_width(said) + 10, y + 4.5, text=note, class_="muted"),
            tip=f"{row.label}: {said} {row.note}".rstrip(),
        )
    bottom = place.bottom(len(rows))
    body += svg.line(place.label_room, 2, x2=place.label_room, y2=bottom, class_="axis")
    return svg.document(body, width=width, height=bottom + 2, title=title, desc=desc)


def dumbbell(
    rows: Sequence[Pair], *, names: tuple[str, str], title: str, desc: str, width: float = 920
) -> str:
    """Share before (open circle) and after (filled) on one line each.

    Raises
    ------
    ValueError
        If a value is NaN or infinite.
    """
    before = checked((row.before for row in rows), what="share before")
    after = checked((row.after for row in rows), what="share after")
    if not rows:
        return svg.nothing(width, title=title)
    place = rows_of(width, [row.label for row in rows], top=34)
    scale = linear((*before, *after), start=place.label_room + 54, end=width - 60)
    bottom = place.bottom(len(rows)) + 4
    ticks = grid(scale, top=28, bottom=bottom, text=[f"{100 * t:.4g} %" for t in scale.ticks])
    half = width / 2
    body = ticks + svg.dot(8, 12, class_="dot-open")
    body += svg.label(20, 16.5, text=svg.fit(names[0], half - 30))
    second = min(20 + svg.text_width(svg.fit(names[0], half - 30)) + 24, half + 8)
    body += svg.dot(second + 8, 12, class_="dot")
    body += svg.label(second + 20, 16.5, text=svg.fit(names[1], width - second - 24))
    for index, row in enumerate(rows):
        x, y = (scale(before[index]), scale(after[index])), place.mark_y(index)
        tip = f"{row.label}: {share(row.before)} \u2192 {share(row.after)}"
        body += svg.group(
            place.label(index, row.label) + _pair(x, y, said=(share(row.before), share(row.after))),
            tip=f"{tip}, {row.note}" if row.note else tip,
        )
    return svg.document(body, width=width, height=bottom + 22, title=title, desc=desc)


def _pair(x: tuple[float, float], y: float, *, said: tuple[str, str]) -> str:
    """One dumbbell; the values stand outside, so that they never cover the line."""
    rising = x[1] >= x[0]
    outer = (-9.0, 9.0) if rising else (9.0, -9.0)
    anchor = ("end", "") if rising else ("", "end")
    return (
        svg.line(x[0], y, x2=x[1], y2=y, class_="rod")
        + svg.dot(x[0], y, class_="dot-open")
        + svg.dot(x[1], y, class_="dot")
        + svg.label(x[0] + outer[0], y + 4.5, text=said[0], class_="muted", anchor=anchor[0])
        + svg.label(x[1] + outer[1], y + 4.5, text=said[1], anchor=anchor[1])
    )


def strip(
    samples: Sequence[tuple[str, float]], *, unit: str, title: str, desc: str, width: float = 920
) -> str:
    """One row per group, a dot per sample, a bar at the median.

    Raises
    ------
    ValueError
        If a value is NaN or infinite.
    """
    values = checked((value for _, value in samples), what="sample")
    if not samples:
        return svg.nothing(width, title=title)
    names = list(dict.fromkeys(name for name, _ in samples))
    widest = max(svg.text_width(name) for name in names)
    left = min(widest + 16, 0.35 * width)
    scale = linear(values, start=left + 12, end=width - 86, zero=False, target=5)
    body, row, top = "", 34, 4
    bottom = top + row * len(names) + 2
    body += grid(scale, top=top, bottom=bottom, text=[scale.label(t) for t in scale.ticks])
    for index, name in enumerate(names):
        y = top + index * row + 18
        class_ = "dot" if index == 0 else "dot-open"
        body += svg.label(0, y + 4.5, text=svg.fit(name, left - 8))
        own = [
            (i, v) for i, ((n, _), v) in enumerate(zip(samples, values, strict=True)) if n == name
        ]
        middle = median(value / 2 for _, value in own) * 2
        body += svg.line(scale(middle), y - 9, x2=scale(middle), y2=y + 9, class_="median")
        for order, value in own:
            tip = f"{order + 1}: {value:.4g}"
            body += svg.group(svg.dot(scale(value), y, class_=class_), tip=tip)
        body += svg.label(width, y + 4.5, text=f"median {significant(middle)}", anchor="end")
    body += svg.label(scale.end, bottom + 32, text=unit, class_="tick", anchor="end")
    return svg.document(body, width=width, height=bottom + 38, title=title, desc=desc)
