from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.expect import raises_naming

from retuned.report.plots import (
    Band,
    Bar,
    Mark,
    Pair,
    Ratio,
    bars,
    dumbbell,
    intervals,
    series,
    thin,
)
from retuned.report.svg import linear, logarithmic

SVG = "{http://www.w3.org/2000/svg}"
NAMES = st.text(max_size=80)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
POSITIVE = st.floats(min_value=0, exclude_min=True, allow_nan=False, allow_infinity=False)
WIDTHS = st.sampled_from([300.0, 358.0, 560.0, 920.0])


def parsed(svg: str, *, width: float | None = None) -> ET.Element:
    """Parse, and check what holds for every picture."""
    root = ET.fromstring(svg)
    assert root.tag == f"{SVG}svg"
    assert root.get("role") == "img"
    assert root.get("aria-label")
    assert [child.tag for child in root][:2] == [f"{SVG}title", f"{SVG}desc"]
    _, _, wide, high = (float(part) for part in root.attrib["viewBox"].split())
    assert width is None or wide == width
    for node in root.iter():
        for key in ("x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "r", "width", "height", "points"):
            for part in re.split("[ ,]", node.get(key, "0")):
                assert math.isfinite(float(part))
                assert abs(float(part)) <= 20 * max(wide, high)
    return root


def texts(root: ET.Element) -> list[str]:
    return [node.text or "" for node in root.iter(f"{SVG}text")]


@given(rows=st.lists(st.tuples(NAMES, FINITE.map(abs), NAMES), max_size=8), width=WIDTHS)
def test_bars_are_well_formed_for_any_data(
    rows: list[tuple[str, float, str]], width: float
) -> None:
    shown = [Bar(label=name, value=value, note=note) for name, value, note in rows]
    root = parsed(bars(shown, width=width, title="t", desc="d"), width=width)
    assert len(root.findall(f".//{SVG}rect[@class='bar']")) == len(rows)


@given(rows=st.lists(st.tuples(NAMES, FINITE, FINITE), max_size=8), width=WIDTHS)
def test_dumbbells_are_well_formed_for_any_data(
    rows: list[tuple[str, float, float]], width: float
) -> None:
    shown = [Pair(label=name, before=a, after=b) for name, a, b in rows]
    parsed(dumbbell(shown, names=("a<", "b&"), width=width, title="t", desc="d"), width=width)


@given(
    rows=st.lists(st.tuples(NAMES, st.lists(POSITIVE, min_size=3, max_size=3)), max_size=8),
    floor=st.none() | POSITIVE,
    width=WIDTHS,
)
def test_intervals_are_well_formed_for_any_data(
    rows: list[tuple[str, list[float]]], floor: float | None, width: float
) -> None:
    shown = [
        Ratio(label=name, lower=low, point=mid, upper=high, status="promote")
        for name, values in rows
        for low, mid, high in [sorted(values)]
    ]
    parsed(intervals(shown, noise_floor_ratio=floor, width=width, title="t", desc="d"), width=width)


@settings(max_examples=60)
@given(
    points=st.lists(st.tuples(FINITE, FINITE), max_size=60),
    bands=st.lists(st.tuples(NAMES, FINITE, FINITE), max_size=4),
    marks=st.lists(st.tuples(NAMES, FINITE), max_size=3),
    width=WIDTHS,
)
def test_curves_are_well_formed_for_any_data(
    points: list[tuple[float, float]],
    bands: list[tuple[str, float, float]],
    marks: list[tuple[str, float]],
    width: float,
) -> None:
    picture = series(
        points,
        x_label="s",
        y_label="tokens/s",
        bands=[Band(name=n, start=min(a, b), end=max(a, b)) for n, a, b in bands],
        marks=[Mark(name=n, at=at) for n, at in marks],
        width=width,
        title="t",
        desc="d",
    )
    parsed(picture, width=width)


Draw = Callable[[float], str]
BROKEN: dict[str, Draw] = {
    "bars": lambda v: bars([Bar(label="a", value=v)], title="t", desc="d"),
    "before": lambda v: dumbbell(
        [Pair(label="a", before=v, after=0)], names=("a", "b"), title="t", desc="d"
    ),
    "after": lambda v: dumbbell(
        [Pair(label="a", before=0, after=v)], names=("a", "b"), title="t", desc="d"
    ),
    "interval": lambda v: intervals(
        [Ratio(label="a", lower=1, point=v, upper=2)], title="t", desc="d"
    ),
    "floor": lambda v: intervals(
        [Ratio(label="a", lower=1, point=1, upper=2)], noise_floor_ratio=v, title="t", desc="d"
    ),
    "x": lambda v: series([(v, 0)], x_label="", y_label="", title="t", desc="d"),
    "y": lambda v: series([(0, v)], x_label="", y_label="", title="t", desc="d"),
    "mark": lambda v: series(
        [(0, 0)], marks=[Mark(name="m", at=v)], x_label="", y_label="", title="t", desc="d"
    ),
    "band": lambda v: series(
        [(0, 0)],
        bands=[Band(name="b", start=0, end=v)],
        x_label="",
        y_label="",
        title="t",
        desc="d",
    ),
}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", BROKEN)
def test_numbers_that_are_none_are_refused(name: str, value: float) -> None:
    with raises_naming(ValueError, f"got {value}"):
        BROKEN[name](value)


def test_negative_bars_and_bounds_out_of_order_are_refused() -> None:
    with raises_naming(ValueError, "bar length", "-0.1"):
        bars([Bar(label="a", value=-0.1)], title="t", desc="d")
    with raises_naming(ValueError, "speedup", "0.0"):
        intervals([Ratio(label="a", lower=0, point=1, upper=1)], title="t", desc="d")
    with raises_naming(ValueError, "speedup bounds", "2.0 1.0 3.0"):
        intervals([Ratio(label="a", lower=2, point=1, upper=3)], title="t", desc="d")
    band = Band(name="b", start=2, end=1)
    with raises_naming(ValueError, "'b'", "1", "2"):
        series([(0, 0)], bands=[band], x_label="", y_label="", title="t", desc="d")


def test_without_data_a_box_says_so() -> None:
    empty = (
        bars([], title="t", desc="d"),
        dumbbell([], names=("a", "b"), title="t", desc="d"),
        intervals([], title="t", desc="d"),
        series([], x_label="", y_label="", title="t", desc="d"),
    )
    said = [texts(parsed(picture)) for picture in empty]
    assert said == [["no data"], ["no data"], ["no candidate was timed"], ["no data"]]


def test_a_bar_is_as_long_as_its_share() -> None:
    rows = [Bar(label="a", value=0.4), Bar(label="b", value=0.1)]
    found = parsed(bars(rows, title="t", desc="d")).findall(f".//{SVG}rect[@class='bar']")
    long, short = (float(rect.attrib["width"]) for rect in found)
    assert long / short == pytest.approx(4.0, rel=0.01)


def test_a_dumbbell_tells_before_from_after_without_colour() -> None:
    rows = [Pair(label="k", before=0.1, after=0.3)]
    root = parsed(dumbbell(rows, names=("chat", "code"), title="t", desc="d"))
    opened = [float(n.attrib["cx"]) for n in root.findall(f".//{SVG}circle[@class='dot-open']")]
    filled = [float(n.attrib["cx"]) for n in root.findall(f".//{SVG}circle[@class='dot']")]
    assert len(opened) == len(filled) == 2  # one each in the legend, one each in the row
    assert opened[1] < filled[1]
    assert {"chat", "code", "10.0 %", "30.0 %"} <= set(texts(root))


def test_the_line_at_one_lies_in_the_middle_of_the_noise_band() -> None:
    rows = [Ratio(label="a", lower=0.5, point=0.6, upper=2.0)]
    root = parsed(intervals(rows, noise_floor_ratio=1.1, title="t", desc="d"))
    band, one = root.find(f".//{SVG}rect[@class='noise']"), root.find(f".//{SVG}line[@class='one']")
    assert band is not None
    assert one is not None
    middle = float(band.attrib["x"]) + float(band.attrib["width"]) / 2
    assert float(one.attrib["x1"]) == pytest.approx(middle, abs=0.2)


def test_only_a_promoted_candidate_is_a_diamond() -> None:
    for status, count in (("promote", 1), ("reject", 0), ("ambiguous", 0)):
        rows = [Ratio(label="a", lower=1.1, point=1.2, upper=1.3, status=status)]
        root = parsed(intervals(rows, title="t", desc="d"))
        assert len(root.findall(f".//{SVG}polygon")) == count


def test_phases_without_room_for_a_name_get_a_number_and_a_key() -> None:
    bands = [Band(name="long phase", start=0, end=90), Band(name="short phase", start=90, end=91)]
    root = parsed(
        series([(0, 1), (100, 2)], bands=bands, x_label="s", y_label="y", title="t", desc="d")
    )
    assert {"long phase", "2", "2 short phase"} <= set(texts(root))


@given(values=st.lists(FINITE, min_size=1, max_size=2000))
def test_thinning_keeps_the_lowest_and_the_highest(values: list[float]) -> None:
    points = [(float(i), v) for i, v in enumerate(values)]
    kept = thin(points, buckets=50)
    assert len(kept) <= 100
    assert min(v for _, v in kept) == min(values)
    assert max(v for _, v in kept) == max(values)
    assert kept == sorted(kept)


@given(values=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20), target=st.integers(2, 10))
def test_linear_scales_hold_every_value_between_round_numbers(
    values: list[float], target: int
) -> None:
    scale = linear(values, start=0, end=100, target=target)
    slack = 1e-8 * (scale.high - scale.low)  # a hair outside is held at the edge, not drawn beyond
    assert scale.low <= min(values) + slack
    assert scale.high >= max(values) - slack
    assert 2 <= len(scale.ticks) <= 4 * target + 1
    assert list(scale.ticks) == sorted(set(scale.ticks))
    assert scale(scale.low) == pytest.approx(0)
    assert scale(scale.high) == pytest.approx(100)


@given(values=st.lists(st.floats(0.01, 100), min_size=1, max_size=20))
def test_ratios_and_their_inverse_lie_equally_far_from_one(values: list[float]) -> None:
    scale = logarithmic([*values, *(1 / v for v in values), 1.0], start=0, end=100)
    for value in values:
        assert scale(value) + scale(1 / value) == pytest.approx(2 * scale(1.0), abs=1e-6)
    assert all(scale.low <= tick <= scale.high for tick in scale.ticks)
