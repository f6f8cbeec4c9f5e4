"""Speedups with their bounds against the line at 1 and the noise floor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from retuned.report import svg
from retuned.report.rows import grid, rows_of
from retuned.report.scales import Scale, checked, logarithmic
from retuned.report.words import significant, times


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
