"""A curve over time (or rank), with phases as bands and moments as labelled lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from retuned.report import svg
from retuned.report.scales import Scale, checked, linear

_DOTS_UP_TO = 40
_LINE = 18
_BETWEEN = " \N{MIDDLE DOT} "


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """A phase: a named stretch of the horizontal axis."""

    name: str
    """What was going on."""
    start: float
    """Where it begins."""
    end: float
    """Where it ends, at or after `start`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A moment."""

    name: str
    """What happened."""
    at: float
    """Where."""


def thin(points: Sequence[tuple[float, float]], *, buckets: int) -> list[tuple[float, float]]:
    """Keep lowest and highest of each bucket: no peak is lost, the picture stays small."""
    if len(points) <= 2 * buckets:
        return list(points)
    size = -(-len(points) // buckets)
    kept: list[tuple[float, float]] = []
    for start in range(0, len(points), size):
        part = points[start : start + size]
        ends = {min(part, key=lambda p: p[1]), max(part, key=lambda p: p[1])}
        kept += sorted(ends)
    return kept


def series(
    points: Sequence[tuple[float, float]],
    *,
    x_label: str,
    y_label: str,
    title: str,
    desc: str,
    bands: Sequence[Band] = (),
    marks: Sequence[Mark] = (),
    width: float = 920,
    height: float = 190,
) -> str:
    """Draw points in the order of x, with phases behind and moments in front.

    Raises
    ------
    ValueError
        If a coordinate is NaN or infinite, or a band ends before it starts.
    """
    _check(points, bands, marks, names=(x_label or "x", y_label or "y"))
    if not points:
        return svg.nothing(width, title=title)
    xs, ys = (checked(axis, what="point") for axis in zip(*points, strict=True))
    others = [*(e for b in bands for e in (b.start, b.end)), *(m.at for m in marks)]
    y = linear(ys, start=height, end=0, target=4)
    left = max(svg.text_width(y.label(tick)) for tick in y.ticks) + 12
    x = linear(
        (*xs, *checked(others, what="band or mark")),
        start=left,
        end=width - 14,
        zero=False,
        target=_steps(width),
        tight=True,
    )
    shades, names, key = _bands(bands, x, height=height)
    flags = _marks(marks, x, height=height)
    head = _LINE * (2 + len(marks)) + 4
    curve = _curve(sorted(zip(xs, ys, strict=True)), x, y=y)
    body = svg.element(
        "g",
        shades + _axes(x, y, height=height) + curve + flags + names,
        transform=f"translate(0 {svg.number(head)})",
    )
    body += svg.label(0, 12, text=y_label, class_="tick")
    bottom = head + height + 34
    body += svg.label(width - 14, bottom, text=x_label, class_="tick", anchor="end")
    for row, text in enumerate(_wrap(key, width)):
        body += svg.label(0, bottom + 6 + _LINE * (row + 1), text=text, class_="muted")
    total = bottom + 8 + (_LINE * len(_wrap(key, width)) + 4 if key else 0)
    return svg.document(body, width=width, height=total, title=title, desc=desc)


def _check(
    points: Sequence[tuple[float, float]],
    bands: Sequence[Band],
    marks: Sequence[Mark],
    *,
    names: tuple[str, str],
) -> None:
    """Refuse what cannot be drawn, before anything is."""
    checked((x for x, _ in points), what=names[0])
    checked((y for _, y in points), what=names[1])
    checked((edge for band in bands for edge in (band.start, band.end)), what="band")
    checked((mark.at for mark in marks), what="mark")
    for band in bands:
        if band.end < band.start:
            raise ValueError(f"band '{band.name}' ends at {band.end} before {band.start}")


def _steps(width: float) -> int:
    return max(3, int(width / 110))


def _axes(x: Scale, y: Scale, *, height: float) -> str:
    body = ""
    for tick in y.ticks:
        body += svg.line(x.start, y(tick), x2=x.end, y2=y(tick), class_="grid")
        body += svg.label(
            x.start - 7, y(tick) + 4.5, text=y.label(tick), class_="tick", anchor="end"
        )
    for tick in x.ticks:
        body += svg.label(x(tick), height + 17, text=x.label(tick), class_="tick", anchor="middle")
    return body + svg.line(x.start, height, x2=x.end, y2=height, class_="axis")


def _curve(points: Sequence[tuple[float, float]], x: Scale, *, y: Scale) -> str:
    kept = thin(points, buckets=max(2, int(x.end - x.start)))
    places = [(x(a), y(b)) for a, b in kept]
    body = svg.element(
        "polyline",
        points=" ".join(f"{svg.number(a)},{svg.number(b)}" for a, b in places),
        class_="line",
    )
    if len(places) <= _DOTS_UP_TO:
        body += "".join(svg.dot(a, b, class_="point", radius=2.5) for a, b in places)
    return body


def _bands(bands: Sequence[Band], x: Scale, *, height: float) -> tuple[str, str, list[str]]:
    """Shade every second phase; names that do not fit become numbers with a key."""
    shades, names, key = "", "", []
    for index, band in enumerate(bands):
        a, b = x(band.start), x(band.end)
        class_ = "band-even" if index % 2 else "band-odd"
        name, middle = band.name, (a + b) / 2
        if svg.text_width(name) > b - a - 4:
            key.append(f"{index + 1} {svg.fit(name, 240)}")
            name = str(index + 1)
        area = svg.rect(a, -_LINE, width=b - a, height=height + _LINE, class_=class_)
        shades += svg.group(area, tip=f"{band.name}: {band.start:.4g} to {band.end:.4g}")
        names += svg.label(middle, -5, text=name, class_=f"phase {class_}", anchor="middle")
    return shades, names, key


def _marks(marks: Sequence[Mark], x: Scale, *, height: float) -> str:
    """Draw each moment with its name in a row of its own, so that names never overlap."""
    body = ""
    for index, mark in enumerate(marks):
        at, row = x(mark.at), -_LINE * (len(marks) - index + 1)
        right = at < (x.start + x.end) / 2
        body += svg.line(at, row + 2, x2=at, y2=height, class_="mark")
        name = svg.fit(mark.name, max(at - x.start, x.end - at) - 8)
        body += svg.label(
            at + 5 if right else at - 5, row + 11, text=name, anchor="" if right else "end"
        )
    return body


def _wrap(words: Sequence[str], width: float) -> list[str]:
    lines: list[str] = []
    for word in words:
        if lines and svg.text_width(f"{lines[-1]}{_BETWEEN}{word}") <= width:
            lines[-1] += f"{_BETWEEN}{word}"
        else:
            lines.append(word)
    return lines
