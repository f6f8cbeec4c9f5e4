"""Where labelled rows of marks go: labels beside them on wide plots, above them on narrow ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from retuned.report import svg
from retuned.report.scales import Scale

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
