"""Every figure of the pages: which plot, of which data, and what to see in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from markupsafe import Markup

from retuned import text
from retuned.report import profiles, story
from retuned.report.plots import Pair, bars, dumbbell, intervals, series
from retuned.report.profiles import Json

WIDE = 920
NARROW = 358
_BARS = 12
_TIMED = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A plot drawn for two widths; the style sheet shows one."""

    wide: Markup
    """For screens from 760 px and for print."""
    narrow: Markup
    """For phones."""
    caption: str
    """What to see in it."""


def figure(draw: Callable[[float], str], *, caption: str = "") -> Figure:
    """Draw for both widths. The markup is ours: `svg` escaped every text in it."""
    return Figure(wide=Markup(draw(WIDE)), narrow=Markup(draw(NARROW)), caption=caption)


def shares(kernels: tuple[profiles.KernelShare, ...]) -> Figure:
    """Draw the largest kernels and one bar for the rest."""
    shown = profiles.share_bars(kernels, top=_BARS)
    return figure(
        lambda width: bars(
            shown,
            title="Share of kernel time by kernel",
            desc="; ".join(f"{row.label}: {text.share(row.value)}" for row in shown),
            width=width,
        ),
        caption="Share of kernel time, with launches.",
    )


def cumulative(kernels: tuple[profiles.KernelShare, ...]) -> Figure:
    """Draw how fast the largest kernels add up."""
    points = [(float(rank), 100 * k.cumulative) for rank, k in enumerate(kernels, start=1)]
    start = [(0.0, 0.0)] if points else []
    return figure(
        lambda width: series(
            [*start, *points],
            x_label="kernels, by falling kernel time",
            y_label="% of kernel time",
            title="Cumulative share of kernel time",
            desc=profiles.profile_sentence(kernels),
            width=width,
            height=140,
        ),
        caption="How many kernels it takes to cover the time of all of them.",
    )


def sources(profile: Json) -> Figure:
    """Draw kernel time by where shapes come from."""
    shown = profiles.source_bars(profile)
    return figure(
        lambda width: bars(
            shown,
            title="Share of kernel time by where the shapes come from",
            desc="; ".join(f"{row.label}: {text.share(row.value)}" for row in shown),
            width=width,
        ),
        caption="Share of kernel time by where a launch's shape comes from, best source first.",
    )


def before_after(rows: list[Pair], names: tuple[str, str], *, what: str = "kernel time") -> Figure:
    """Draw shares before and after."""
    return figure(
        lambda width: dumbbell(
            rows,
            names=names,
            title=f"Share of {what} before and after",
            desc="; ".join(
                f"{r.label}: {text.share(r.before)} to {text.share(r.after)}" for r in rows
            ),
            width=width,
        ),
        caption=f"Share of {what}, largest change first.",
    )


def drift(data: Json, key: str) -> Figure:
    """Draw ``distance`` or ``cusum`` over the windows."""
    points, marks = story.windows(data, key), story.alarms(data)
    said = {"distance": "distance to the nearest tuned profile", "cusum": "CUSUM of the distance"}
    moments = ", ".join(mark.name for mark in marks) or "no action"
    return figure(
        lambda width: series(
            points,
            x_label="seconds since start",
            y_label=said[key],
            title=f"Drift: {said[key]}",
            desc=f"{len(points)} windows; {moments}",
            bands=story.phases(data),
            marks=marks,
            width=width,
            height=120,
        ),
        caption=f"One dot per window: {said[key]}. Dashed: what the detector made of it."
        f"{f' {skipped}.' if (skipped := story.unjudged(data)) else ''}",
    )


def timeline(data: Json) -> Figure:
    """Draw tokens per second over the run."""
    points = story.timeline(data)
    return figure(
        lambda width: series(
            points,
            x_label="seconds since start",
            y_label="tokens/s",
            title="Tokens per second",
            desc="; ".join(
                f"{name}: {text.significant(rate)}" for name, rate in story.throughput(data)
            ),
            bands=story.phases(data),
            width=width,
            height=220,
        ),
        caption="Tokens per second as the client saw them, with the phases of the run.",
    )


def live(data: Json) -> Figure | None:
    """Draw what each live proof has shown of the server; None where none has bounds."""
    rows = story.live_ratios(data)
    if not rows:
        return None
    return figure(
        lambda width: intervals(
            rows,
            title="Speed of the server with a swap over that without",
            desc="; ".join(f"{r.label}: {text.times(r.point)} {r.note}" for r in rows),
            width=width,
        ),
        caption="Speed of the server's steps with the swap over that without it, as the live proof"
        " measured it: below 1 the swap harms.",
    )


def intervals_of(entry: Json) -> Figure:
    """Draw the timed candidates of one experiment."""
    rows = story.ratios(entry, top=_TIMED)
    floor = text.finite(entry.get("noise_floor_ratio"))
    floor = floor if floor and floor > 0 else None
    return figure(
        lambda width: intervals(
            rows,
            noise_floor_ratio=floor,
            title=f"Speedup of candidates for {profiles.named(entry)}",
            desc="; ".join(f"{r.label}: {text.times(r.point)} {r.status} {r.note}" for r in rows),
            width=width,
        ),
        caption="Speedup over the incumbent with bounds, logarithmic. Diamond: promoted; open"
        " circle: ambiguous; filled circle: rejected. Line: same speed; shaded: noise floor.",
    )
