"""The figures of the pages: which plot, of which facts, and what to see in it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from retuned import text
from retuned.report.figures import Figure, figure
from retuned.report.plots import Bar, Mark, Pair, Ratio, bars, dumbbell, intervals, series
from retuned.review.records import DriftLine, Roofs
from retuned.review.roofline import RooflinePoint, roofline
from retuned.stages.drift import DriftAction
from retuned.stages.profile import WorkloadProfile
from retuned.stages.verdict import EvidenceDocument, ShapeResult
from retuned.stages.watch import Account

_SHAPES = 24
_KERNELS = 12
_WINDOWS = 200
_HUGE = 1e6


def shape_words(axes: Mapping[str, int]) -> str:
    """Name a shape by its lengths.

    Examples
    --------
    >>> shape_words({"M": 16, "N": 4096})
    'M=16 N=4096'
    """
    return " ".join(f"{name}={length}" for name, length in axes.items()) or "the one shape"


def shapes_figure(document: EvidenceDocument) -> Figure | None:
    """Draw the speedup at each shape with its bounds; None where nothing was timed."""
    timing = document.evidence.timing
    if timing is None:
        return None
    shown = sorted(timing.shapes, key=_time, reverse=True)[:_SHAPES]
    guard = document.verdict.guard
    rows = [_ratio(shape, inside=guard.allows(shape.axes)) for shape in shown]
    return figure(
        lambda width: intervals(
            rows,
            noise_floor_ratio=timing.noise_floor_ratio,
            title="Speedup at each shape",
            desc="; ".join(f"{row.label}: {text.times(row.point)} {row.note}" for row in rows),
            width=width,
        ),
        caption="Speedup over what runs now, with bounds, logarithmic; shapes that take most time "
        "first. Diamond: swapped; open circle: outside the guard, stays as it is. Line: same "
        "speed; shaded: how far two identical copies were apart in the same run.",
    )


def _time(shape: ShapeResult) -> float:
    return shape.weight * shape.incumbent_us


def _ratio(shape: ShapeResult, *, inside: bool) -> Ratio:
    said = shape.speedup
    return Ratio(
        label=shape_words(shape.axes),
        lower=max(said.lower, 1 / _HUGE),
        point=said.point,
        upper=min(said.upper, max(said.point, _HUGE)),
        status="promote" if inside else "ambiguous",
        note="swapped" if inside else "outside the guard",
    )


def roof_figure(document: EvidenceDocument, roofs: Roofs | None) -> Figure | None:
    """Draw the shapes below the device's roof; None without times, or without a known roof."""
    timing = document.evidence.timing
    if timing is None or roofs is None or not (roofs.gflops > 0 and roofs.gbytes_per_s > 0):
        return None
    known = {tuple(sorted(roof.axes.items())): roof for roof in roofs.shapes}
    spots = []
    for shape in sorted(timing.shapes, key=_time, reverse=True)[:_SHAPES]:
        roof = known.get(tuple(sorted(shape.axes.items())))
        if roof is None or roof.flops <= 0 or roof.moved_bytes <= 0:
            continue
        spots.append(
            RooflinePoint(
                label=shape_words(shape.axes),
                intensity=roof.flops / roof.moved_bytes,
                before_gflops=roof.flops / shape.incumbent_us / 1e3,
                after_gflops=roof.flops / shape.candidate_us / 1e3,
            )
        )
    if not spots:
        return None
    return figure(
        lambda width: roofline(
            spots,
            gflops=roofs.gflops,
            gbytes_per_s=roofs.gbytes_per_s,
            title="Roofline",
            desc="; ".join(
                f"{s.label}: {s.before_gflops:.3g} to {s.after_gflops:.3g} GFLOP/s" for s in spots
            ),
            width=width,
        ),
        caption="How fast each shape runs now (open) and would run (filled), below the line of "
        "what memory and float32 units without matrix cores allow at best, by the data sheet. What "
        "is near it cannot gain much more; matrix cores may pass the flat part.",
    )


def drift_figure(lines: Sequence[DriftLine], what: str) -> Figure:
    """Draw ``distance`` or ``cusum`` over time before the newest report; what was judged only."""
    shown = sorted(lines, key=lambda line: line.at)[-_WINDOWS:]
    ages_s = [(line.at - shown[-1].at).total_seconds() for line in shown]
    unit, unit_s = _unit(-ages_s[0] if ages_s else 0.0)
    points, marks = [], []
    for line, age_s in zip(shown, ages_s, strict=True):
        at = age_s / unit_s
        value = line.report.distance if what == "distance" else line.report.cusum
        if not line.report.skipped and text.finite(value) is not None:
            points.append((at, value))
        if line.report.action in (DriftAction.RETUNE, DriftAction.ALARM):
            marks.append(Mark(name=line.report.action.value, at=at))
    left_out = sum(bool(line.report.skipped) for line in shown)
    unjudged = f" {text.plural(left_out, 'window')} not judged, and not drawn." if left_out else ""
    said = {"distance": "distance to the nearest tuned profile", "cusum": "accumulated excess"}
    return figure(
        lambda width: series(
            points,
            x_label=f"{unit} before the newest window",
            y_label=said[what],
            title=f"Drift: {said[what]}",
            desc=f"{len(points)} windows; {len(marks)} of them asked for something",
            marks=marks[-4:],
            width=width,
            height=130,
        ),
        caption=f"One point a window: {said[what]}. Dashed: the newest that asked for a retune or "
        f"raised an alarm.{unjudged}",
    )


def _unit(span_s: float) -> tuple[str, float]:
    """Return the unit in which a span reads best, with its seconds.

    Examples
    --------
    >>> _unit(90.0)[0], _unit(1800.0)[0], _unit(7200.0)[0], _unit(6 * 86_400.0)[0]
    ('seconds', 'minutes', 'hours', 'days')
    """
    units = (("days", 86_400.0, 3.0), ("hours", 3600.0, 2.0), ("minutes", 60.0, 2.0))
    return next(((n, s) for n, s, least in units if span_s >= least * s), ("seconds", 1.0))


def kernels_figure(profile: WorkloadProfile) -> Figure:
    """Draw the largest kernels of a window and one bar for the rest."""
    shares = kernel_shares(profile)
    ranked = sorted(shares.items(), key=lambda item: -item[1])
    labels = text.kernels([name for name, _ in ranked[:_KERNELS]], 52)
    rows = [Bar(label=labels[name], value=value) for name, value in ranked[:_KERNELS]]
    if len(ranked) > _KERNELS:
        rest = sum(value for _, value in ranked[_KERNELS:])
        rows.append(Bar(label=text.plural(len(ranked) - _KERNELS, "smaller kernel"), value=rest))
    return figure(
        lambda width: bars(
            rows,
            title="Share of kernel time by kernel",
            desc="; ".join(f"{row.label}: {text.share(row.value)}" for row in rows),
            width=width,
        ),
        caption="Share of kernel time by kernel in this window.",
    )


def change_figure(before: WorkloadProfile, after: WorkloadProfile) -> Figure:
    """Draw the kernels whose share changed most against the window before."""
    old, new = kernel_shares(before), kernel_shares(after)
    names = sorted({*old, *new}, key=lambda n: -abs(new.get(n, 0.0) - old.get(n, 0.0)))[:_KERNELS]
    labels = text.kernels(names, 52)
    rows = [Pair(label=labels[n], before=old.get(n, 0.0), after=new.get(n, 0.0)) for n in names]
    return figure(
        lambda width: dumbbell(
            rows,
            names=("the window before", "this window"),
            title="Share of kernel time before and after",
            desc="; ".join(
                f"{r.label}: {text.share(r.before)} to {text.share(r.after)}" for r in rows
            ),
            width=width,
        ),
        caption="Share of kernel time against the window before, largest change first.",
    )


def kernel_shares(profile: WorkloadProfile) -> dict[str, float]:
    """Return the share of kernel time of each kernel."""
    total = profile.gpu_time_ns or 1
    found: dict[str, float] = {}
    for stat in profile.stats:
        name = stat.signature.kernel
        found[name] = found.get(name, 0.0) + stat.gpu_time_ns / total
    return found


def months_figure(accounts: Sequence[Account]) -> Figure:
    """Draw hours saved less hours spent, added up over months."""
    months = sorted({account.month for account in accounts})
    net, points = 0.0, []
    for number, month in enumerate(months):
        net += sum(each.net_h.point for each in accounts if each.month == month)
        points.append((float(number), net))
    return figure(
        lambda width: series(
            points,
            x_label="months since " + months[0] if months else "months",
            y_label="GPU-hours",
            title="GPU-hours saved less spent, added up",
            desc="; ".join(f"{m}: {v:.3g}" for m, (_, v) in zip(months, points, strict=True)),
            width=width,
            height=130,
        ),
        caption="GPU-hours saved less those spent on experiments, added up over the months.",
    )
