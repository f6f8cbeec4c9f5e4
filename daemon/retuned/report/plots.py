"""Plots as SVG text: bars, dumbbells, intervals; curves over time come from `series`.

Every function is pure and total: any finite data gives a well-formed picture, no data gives a box
with that note, NaN and infinity are refused. Colour is never the only distinction: shapes, fills
and labels differ too. Below `WIDE_PX` labels move above their marks, for phones.

Speedups with their bounds against the line at 1 and the noise floor.

A curve over time (or rank), with phases as bands and moments as labelled lines.

Where labelled rows of marks go: labels beside them on wide plots, above them on narrow ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from retuned.report import svg
from retuned.report.svg import Scale, checked, linear, logarithmic
from retuned.text import share, significant, times

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
]

WIDE_PX = 560
ROW_PX = 26
TALL_ROW_PX = 42


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Geometry of a plot with one labelled mark a row."""

    width: float
    """Of the whole plot, pixels."""
    top: float
    """Where the first row begins."""
    wide: bool
    """Whether labels stand beside the marks."""
    label_room: float
    """Pixels left of the marks; 0 where labels stand above."""

    @property
    def step(self) -> float:
        """Height of a row."""
        return ROW_PX if self.wide else TALL_ROW_PX

    def mark_y(self, row: int) -> float:
        """Return the middle of a row's mark."""
        return self.top + row * self.step + (ROW_PX / 2 if self.wide else TALL_ROW_PX - 13)

    def label(self, row: int, text: str) -> str:
        """Return the label of a row, cut to its room."""
        y = self.top + row * self.step + (ROW_PX / 2 + 4.5 if self.wide else 13)
        room = self.label_room - 12 if self.wide else self.width
        return svg.label(0, y, text=svg.fit(text, room, mono=True), class_="mono")

    def bottom(self, count: int) -> float:
        """Return where so many rows end."""
        return self.top + count * self.step


def rows_of(width: float, labels: Sequence[str], *, top: float) -> Rows:
    """Lay out rows with these labels."""
    wide = width >= WIDE_PX
    longest = max((svg.text_width(text, mono=True) for text in labels), default=0.0) + 14
    room = min(longest, 0.42 * width) if wide else 0.0
    return Rows(width=width, top=top, wide=wide, label_room=room)


def grid(scale: Scale, *, top: float, bottom: float, text: Sequence[str]) -> str:
    """Vertical lines at the ticks with their texts below."""
    body = ""
    for tick, shown in zip(scale.ticks, text, strict=True):
        x = scale(tick)
        body += svg.line(x, top, x2=x, y2=bottom, class_="grid")
        body += svg.label(x, bottom + 16, text=shown, class_="tick", anchor="middle")
    return body


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """One row of `intervals`: a speedup with its bounds."""

    label: str
    """Candidate."""
    lower: float
    """Lower bound, > 0."""
    point: float
    """Estimate."""
    upper: float
    """Upper bound."""
    status: str = "reject"
    """``promote`` is a diamond, ``ambiguous`` an open circle, all else a filled circle."""
    note: str = ""
    """Why it won or lost."""


def intervals(
    rows: Sequence[Ratio],
    *,
    title: str,
    desc: str,
    noise_floor_ratio: float | None = None,
    width: float = 920,
) -> str:
    """Speedups with bounds on a logarithmic axis, the line at 1 and the noise band around it.

    Raises
    ------
    ValueError
        If a bound is NaN, infinite or not above zero, or the bounds are out of order.
    """
    bounds = [checked((r.lower, r.point, r.upper), what="speedup", positive=True) for r in rows]
    for low, middle, high in bounds:
        if not low <= middle <= high:
            raise ValueError(f"speedup bounds are out of order: {low} {middle} {high}")
    floor = checked((noise_floor_ratio or 1.0,), what="noise floor", positive=True)[0]
    if not rows:
        return svg.nothing(width, title=title, why="no candidate was timed")
    floor = max(floor, 1.0 / floor)
    place = rows_of(width, [row.label for row in rows], top=44)
    said = [f"{times(r.point)}  [{significant(r.lower)}, {significant(r.upper)}]" for r in rows]
    side = max(svg.text_width(text) for text in said) + 8 if place.wide else 6.0
    every = [value for bound in bounds for value in bound]
    scale = logarithmic(
        (*every, 1.0, floor, 1.0 / floor),
        start=place.label_room + 12,
        end=width - side - 12,
        target=6 if place.wide else 3,
    )
    bottom = place.bottom(len(rows)) + 4
    body = _reference(scale, floor, bottom=bottom, said=noise_floor_ratio is not None)
    for index, (row, bound, text) in enumerate(zip(rows, bounds, said, strict=True)):
        y = place.mark_y(index)
        marks = place.label(index, row.label if place.wide else f"{row.label}  {times(row.point)}")
        marks += _interval([scale(value) for value in bound], y, status=row.status)
        if place.wide:
            marks += svg.label(width, y + 4.5, text=text, anchor="end")
        body += svg.group(marks, tip=f"{row.label}: {text} {row.status} {row.note}".rstrip())
    return svg.document(body, width=width, height=bottom + 22, title=title, desc=desc)


def _reference(scale: Scale, floor: float, *, bottom: float, said: bool) -> str:
    left, one, right = scale(1.0 / floor), scale(1.0), scale(floor)
    body = svg.rect(left, 36, width=right - left, height=bottom - 36, class_="noise")
    body += grid(scale, top=36, bottom=bottom, text=[scale.label(t) for t in scale.ticks])
    body += svg.line(one, 36, x2=one, y2=bottom, class_="one")
    middle = (scale.start + scale.end) / 2
    head = f"noise floor {times(floor)}" if said else "same speed"
    anchor, x = ("end", one + 6) if one > middle else ("", one - 6)
    body += svg.label(x, 30, text=head, class_="muted", anchor=anchor)
    if scale.end - one > 80:
        body += svg.label(scale.end, 14, text="faster \u2192", class_="muted", anchor="end")
    if one - scale.start > 80:
        body += svg.label(scale.start, 14, text="\u2190 slower", class_="muted")
    return body


def _interval(x: Sequence[float], y: float, *, status: str) -> str:
    class_ = {"promote": "won", "ambiguous": "open"}.get(status, "lost")
    body = svg.line(x[0], y, x2=x[2], y2=y, class_=f"whisker {class_}")
    for end in (x[0], x[2]):
        body += svg.line(end, y - 5, x2=end, y2=y + 5, class_=f"whisker {class_}")
    if status == "promote":
        return body + svg.diamond(x[1], y, class_="dot-won")
    return body + svg.dot(
        x[1], y, class_="dot-open" if status == "ambiguous" else "dot-lost", radius=4
    )


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
        target=ticks_across(width),
        tight=True,
    )
    shades, names, key = _bands(bands, x, height=height)
    flags = _marks(marks, x, height=height)
    head = _LINE * (2 + len(marks)) + 4
    curve = _curve(sorted(zip(xs, ys, strict=True)), x, y=y)
    body = svg.element(
        "g",
        shades + axes(x, y, height=height) + curve + flags + names,
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


def ticks_across(width: float) -> int:
    """Return how many ticks fit below a plot of this width, pixels."""
    return max(3, int(width / 110))


def axes(x: Scale, y: Scale, *, height: float) -> str:
    """Return grid lines, ticks and the horizontal axis of a plot."""
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
    """Draw each moment with its name in a separate row, so that names never overlap."""
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
