"""How far kernels are from what physics allows: a roofline as SVG. Pure.

What physics allows the kernels of the catalog, for the roofline.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from retuned import catalog
from retuned.contract import Language
from retuned.lab.physics import GPU_PEAKS, Peak
from retuned.report import svg
from retuned.report.plots import WIDE_PX
from retuned.report.svg import Scale, checked, logarithmic
from retuned.review.records import Roof, Roofs

_TOP = 30.0
_HEIGHT = 260.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflinePoint:
    """One shape, before and after."""

    label: str
    """The shape."""
    intensity: float
    """Operations per byte that must be moved, > 0."""
    before_gflops: float
    """Speed of what runs now, 1e9 operations a second, > 0."""
    after_gflops: float
    """Speed of the variant, > 0."""


def roofline(
    spots: Sequence[RooflinePoint],
    *,
    gflops: float,
    gbytes_per_s: float,
    title: str,
    desc: str,
    width: float = 920,
) -> str:
    """Draw the roof, and each shape below it, before (open) and after (filled).

    Parameters
    ----------
    spots
        Shapes.
    gflops, gbytes_per_s
        The roof: most operations, and most bytes, a second, 1e9 each.

    Raises
    ------
    ValueError
        If a number is NaN, infinite or not above zero.
    """
    checked((gflops, gbytes_per_s), what="roof", positive=True)
    for spot in spots:
        checked((spot.intensity, spot.before_gflops, spot.after_gflops), what="spot", positive=True)
    if not spots:
        return svg.nothing(width, title=title)
    ridge = gflops / gbytes_per_s
    xs = [spot.intensity for spot in spots]
    ys = [speed for spot in spots for speed in (spot.before_gflops, spot.after_gflops)]
    left = 64.0
    target = 8 if width >= WIDE_PX else 4
    x = logarithmic((*xs, ridge), start=left, end=width - 14, target=target)
    roofs = [min(gflops, gbytes_per_s * each) for each in xs]
    y = logarithmic((*ys, *roofs), start=_TOP + _HEIGHT, end=_TOP, target=5)
    body = _axes(x, y) + _roof(x, y, gflops=gflops, gbytes_per_s=gbytes_per_s)
    for spot in spots:
        body += _spot(spot, x, y, roof=min(gflops, gbytes_per_s * spot.intensity))
    bottom = _TOP + _HEIGHT + 20
    body += svg.label(0, 12, text="1e9 operations a second", class_="tick")
    body += svg.label(
        width - 14, bottom + 16, text="operations per byte moved", class_="tick", anchor="end"
    )
    return svg.document(body, width=width, height=bottom + 22, title=title, desc=desc)


def _axes(x: Scale, y: Scale) -> str:
    body = ""
    for tick in y.ticks:
        body += svg.line(x.start, y(tick), x2=x.end, y2=y(tick), class_="grid")
        body += svg.label(
            x.start - 7, y(tick) + 4.5, text=y.label(tick), class_="tick", anchor="end"
        )
    for tick in x.ticks:
        place = x(tick)
        body += svg.line(place, y.end, x2=place, y2=y.start, class_="grid")
        body += svg.label(place, y.start + 17, text=x.label(tick), class_="tick", anchor="middle")
    return body + svg.line(x.start, y.start, x2=x.end, y2=y.start, class_="axis")


def _roof(x: Scale, y: Scale, *, gflops: float, gbytes_per_s: float) -> str:
    """Draw what memory and units allow, as far as it is within the picture."""
    corners = sorted({x.low, min(max(gflops / gbytes_per_s, x.low), x.high), x.high})
    # where the picture's floor is above memory's line, the line begins at the floor
    floor = max(x.low, min(y.low / gbytes_per_s, x.high))
    points = [max(corner, floor) for corner in corners]
    places = [(x(at), y(min(max(min(gflops, gbytes_per_s * at), y.low), y.high))) for at in points]
    text = " ".join(f"{svg.number(a)},{svg.number(b)}" for a, b in places)
    said = f"memory {gbytes_per_s:,.0f} GB/s, units {gflops:,.0f} GFLOP/s"
    return svg.group(svg.element("polyline", points=text, class_="roof"), tip=said)


def _spot(spot: RooflinePoint, x: Scale, y: Scale, *, roof: float) -> str:
    at = x(spot.intensity)
    before, after = y(spot.before_gflops), y(spot.after_gflops)
    reached = f"{100 * spot.after_gflops / roof:.0f} % of the roof"
    tip = f"{spot.label}: {spot.before_gflops:,.3g} to {spot.after_gflops:,.3g} GFLOP/s, {reached}"
    gap = math.copysign(4.5, before - after)
    rod = (
        ""
        if abs(before - after) < 10
        else svg.line(at, before - gap, x2=at, y2=after + gap, class_="rod")
    )
    return svg.group(
        rod + svg.dot(at, before, class_="dot-open") + svg.dot(at, after, class_="dot"), tip=tip
    )


def roofs_of(definition: str, shapes: Sequence[Mapping[str, int]], *, arch: str) -> Roofs | None:
    """Return what physics allows some shapes of a kernel of the catalog; None where unknown.

    Parameters
    ----------
    definition
        Kernel.
    shapes
        Lengths of the variable axes.
    arch
        Architecture that it was measured on.
    """
    peak: Peak | None = GPU_PEAKS.get(arch)
    languages = catalog.languages(definition) if peak is not None else ()
    if peak is None or not languages:
        return None
    language = Language.TRITON if Language.TRITON in languages else next(iter(languages))
    entry = catalog.get(definition, language=language)
    found = []
    for axes in shapes:
        try:
            cost = entry.cost(entry.definition.lengths(axes))
        except ValueError:  # measured by another version of the definition
            continue
        moved = cost.read_bytes + cost.write_bytes
        found.append(Roof(axes=dict(axes), flops=cost.flops, moved_bytes=moved))
    return Roofs(shapes=tuple(found), gflops=peak.gflops, gbytes_per_s=peak.gbytes_per_s)
