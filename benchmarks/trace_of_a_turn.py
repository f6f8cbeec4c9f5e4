"""A trace of one whole turn of the loop, as a picture: docs/pictures/trace-of-a-turn.svg.

``python -m benchmarks.trace_of_a_turn`` draws what benchmarks/results/trace_of_a_turn.json has;
``--record`` first plays ``retuned demo --yes``, whose daemon sends its spans over OTLP to a small
collector in this process, and keeps the trace that ended in the rollback. Times are those of the
spans; what happened at one machine's speed says nothing about another's.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from tests.telemetry.receiver import Seen, collecting

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "benchmarks" / "results" / "trace_of_a_turn.json"
PICTURE = ROOT / "docs" / "pictures" / "trace-of-a-turn.svg"
_SHOWN = ("kernel", "action", "status", "state", "reason", "kind", "risk", "format")
"""Attributes that the picture shows."""
_KINDS = {
    "what the traffic does": ("#3b6fb6", ("observe", "trace", "profile", "drift")),
    "what could be faster": ("#7a4fb0", ("hypothesis", "experiment", "lab", "verdict")),
    "what is agreed": ("#b0731d", ("proposal", "gate", "request")),
    "what the server runs": ("#2f7d4f", ("swap", "deliver")),
    "what is taken back": ("#b23a48", ("watch", "rollback")),
}
_WIDE, _LEFT, _RIGHT, _TOP, _ROW = 1080, 190, 1050, 78, 24
_FONT = "font-family='ui-sans-serif, system-ui, sans-serif'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One span of the turn."""

    name: str
    parent: int | None
    """Place of the span that it goes on from; None begins the trace."""
    links: tuple[int, ...]
    """Places of the spans that it links to."""
    elsewhere: int
    """Links to spans of other traces."""
    start_s: float
    """Seconds after the turn began."""
    took_s: float
    about: Mapping[str, str]


def turn_of(spans: Sequence[Seen]) -> tuple[Step, ...]:
    """Return the trace that ended in a rollback, in order of time.

    Raises
    ------
    ValueError
        If none did.
    """
    traces = [span.trace_id for span in spans if span.name == "rollback"]
    if not traces:
        raise ValueError("no trace has a rollback: the demo did not come to its end")
    mine = sorted((s for s in spans if s.trace_id == traces[0]), key=lambda s: s.start_ns)
    place = {span.span_id: at for at, span in enumerate(mine)}
    began_ns = mine[0].start_ns
    return tuple(
        Step(
            name=span.name,
            parent=place.get(span.parent_id),
            links=tuple(sorted(place[id] for _, id in span.links if id in place)),
            elsewhere=sum(id not in place for _, id in span.links),
            start_s=round((span.start_ns - began_ns) / 1e9, 4),
            took_s=round((span.end_ns - span.start_ns) / 1e9, 4),
            about={
                name: str(span.about[f"retuned.{name}"])
                for name in _SHOWN
                if f"retuned.{name}" in span.about
            },
        )
        for span in mine
    )


def read(path: Path) -> tuple[Step, ...]:
    """Return the turn that was kept."""
    rows = json.loads(path.read_text("utf-8"))["spans"]
    return tuple(Step(**(row | {"links": tuple(row["links"])})) for row in rows)


def draw(steps: Sequence[Step]) -> str:
    """Return the turn as SVG: a line for each span under the one that it goes on from."""
    rows = list(_rows(steps))
    line = {at: number for number, (at, _) in enumerate(rows)}
    long_s = max(step.start_s + step.took_s for step in steps)
    high = _TOP + len(rows) * _ROW + 20
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {_WIDE} {high}' "
        f"width='{_WIDE}' height='{high}' {_FONT} font-size='12' role='img'>",
        "<title>One turn of the loop: from the drift to the swap and back</title>",
        f"<rect width='{_WIDE}' height='{high}' fill='#ffffff'/>",
        *_legend(),
        *_axis(long_s, low=_TOP + len(rows) * _ROW),
    ]
    for at, step in enumerate(steps):
        parts += [_link(steps, at, to, line=line, long_s=long_s) for to in step.links]
    for at, depth in rows:
        parts += _bar(steps[at], line[at], depth=depth, long_s=long_s)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _rows(steps: Sequence[Step]) -> Iterator[tuple[int, int]]:
    """Give each span after the one that it goes on from: its place, and how deep it is."""
    stack = [(at, 0) for at, step in enumerate(steps) if step.parent is None][::-1]
    while stack:
        at, depth = stack.pop()
        yield at, depth
        below = [(other, depth + 1) for other, step in enumerate(steps) if step.parent == at]
        stack += below[::-1]


def _x(at_s: float, long_s: float) -> float:
    return _LEFT + (_RIGHT - _LEFT) * at_s / long_s


def _legend() -> Iterator[str]:
    x = 16
    for words, (colour, _) in _KINDS.items():
        yield f"<rect x='{x}' y='14' width='12' height='12' rx='2' fill='{colour}'/>"
        yield f"<text x='{x + 18}' y='24' fill='#333333'>{words}</text>"
        x += 40 + 7 * len(words)
    yield f"<path d='M{x} 20h28' stroke='#555555' stroke-dasharray='3 3'/>"
    yield f"<text x='{x + 36}' y='24' fill='#333333'>link</text>"


def _axis(long_s: float, *, low: int) -> Iterator[str]:
    step_s = next(step for step in (1, 2, 5, 10, 20, 60, 300, 900, 3600) if long_s / step <= 14)
    for tick in range(0, int(long_s) + 1, step_s):
        x = _x(tick, long_s)
        yield f"<path d='M{x:.1f} {_TOP - 14}V{low}' stroke='#e3e3e3'/>"
        yield (
            f"<text x='{x:.1f}' y='{_TOP - 20}' fill='#666666' text-anchor='middle'>{tick} s</text>"
        )


def _bar(step: Step, row: int, *, depth: int, long_s: float) -> Iterator[str]:
    y = _TOP + row * _ROW
    begin, end = _x(step.start_s, long_s), _x(step.start_s + step.took_s, long_s)
    wide = max(3.0, end - begin)
    colour = next((c for c, names in _KINDS.values() if step.name in names), "#777777")
    yield f"<text x='{16 + depth * 12}' y='{y + 13}' fill='#111111'>{escape(step.name)}</text>"
    yield (
        f"<rect x='{begin:.1f}' y='{y + 3}' width='{wide:.1f}' height='13' rx='2' fill='{colour}'/>"
    )
    words = f"{duration(step.took_s)} {', '.join(step.about.values())}"
    if step.elsewhere:
        words += f"(links to {step.elsewhere} spans of other traces)"
    left = begin > (_LEFT + _RIGHT) / 2
    x, anchor = (begin - 6, "end") if left else (begin + wide + 6, "start")
    inside = not left and end > (_LEFT + _RIGHT) / 2
    if inside:
        x = begin + 6
    fill = "#ffffff" if inside else "#444444"
    halo = "" if inside else "paint-order='stroke' stroke='#ffffff' stroke-width='4' "
    yield (
        f"<text x='{x:.1f}' y='{y + 13}' font-size='11' fill='{fill}' {halo}"
        f"text-anchor='{anchor}'>{escape(words)}</text>"
    )


def _link(
    steps: Sequence[Step], at: int, other: int, *, line: Mapping[int, int], long_s: float
) -> str:
    ends = []
    for each in (at, other):
        x = _x(steps[each].start_s, long_s)
        ends.append((x, _TOP + line[each] * _ROW + 10))
    (x1, y1), (x2, y2) = ends
    return (
        f"<path d='M{x1:.1f} {y1}C{x1 - 40:.1f} {y1} {x2 - 40:.1f} {y2} {x2:.1f} {y2}' "
        "fill='none' stroke='#555555' stroke-dasharray='3 3'/>"
    )


def duration(took_s: float) -> str:
    """Write a time as people say it.

    Examples
    --------
    >>> duration(0.0042), duration(0.31), duration(110.78)
    ('4 ms', '310 ms', '111 s')
    """
    if took_s < 1.0:
        return f"{took_s * 1e3:.0f} ms"
    return f"{took_s:.1f} s" if took_s < 20.0 else f"{took_s:.0f} s"


def record() -> tuple[Step, ...]:
    """Play the demo and return its turn."""
    with collecting() as collector, tempfile.TemporaryDirectory() as folder:
        there = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": collector.url}
        page = str(Path(folder) / "page.html")
        subprocess.run(
            [
                *(sys.executable, "-m", "retuned.cli", "demo"),
                *("--yes", "--device", "cpu", "--html", page),
            ],
            env=os.environ | there,
            check=True,
        )
        return turn_of(collector.spans)


def kept(steps: Sequence[Step]) -> dict[str, Any]:
    """Return what is kept of a turn."""
    names = Step.__slots__
    return {
        "method": " ".join((__doc__ or "").split()),
        "cores": len(os.sched_getaffinity(0)),
        "spans": [{name: getattr(step, name) for name in names} for step in steps],
    }


def main() -> None:
    """Play it if that is wanted; draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true", help="play the demo first (minutes)")
    if parser.parse_args().record:
        DATA.write_text(json.dumps(kept(record()), indent=1) + "\n", "utf-8")
    PICTURE.write_text(draw(read(DATA)), "utf-8")


if __name__ == "__main__":
    main()
