"""The production detector: hours of ten-minute windows, a baseline of days, the state it stores."""

from __future__ import annotations

import numpy as np
import pytest
from tests.expect import raises_invalid

from retuned.stages.drift import (
    DetectorState,
    DriftAction,
    DriftReport,
    DriftSettings,
    detect,
    learn,
)
from retuned.stages.drift.baseline import trailing
from retuned.stages.profile import Signature, SignatureStat, WorkloadProfile

S = 10**9
KEYS = 12
DAYS = 3
SETTINGS = DriftSettings(size_classes=(3_000,), medoids=144)


def mix(hour: float, *, drift: float = 0.0) -> np.ndarray:
    """Shares of time by key: day and night, and `drift` of the time moved elsewhere."""
    places = np.arange(KEYS)
    centre = 4.0 + 1.5 * np.sin(2 * np.pi * hour / 24)
    daily = np.exp(-((places - centre) ** 2) / 4.0)
    other = np.exp(-((places - 9.5) ** 2) / 1.0)
    shares: np.ndarray = (1 - drift) * daily / daily.sum() + drift * other / other.sum()
    return shares


def window(index: int, rng: np.random.Generator, *, drift: float = 0.0) -> WorkloadProfile:
    """Ten minutes: 100 engine steps of 60 launches each, so that launches are not independent."""
    counts = 60 * rng.multinomial(100, mix(index / 6, drift=drift))
    return WorkloadProfile(
        window_start_ns=index * 600 * S,
        window_ns=600 * S,
        observed_ns=30 * S,
        stats=tuple(
            SignatureStat(
                signature=Signature(kernel="gemm", dims=((2**place, 64), (64, 64))),
                launches=int(count),
                gpu_time_ns=int(count) * 1_000,
                median_ns=1_000,
            )
            for place, count in enumerate(counts)
            if count
        ),
    )


def day(rng: np.random.Generator, start: int, drifts: list[float]) -> list[WorkloadProfile]:
    return [window(start + i, rng, drift=drift) for i, drift in enumerate(drifts)]


def follow(state: DetectorState, profiles: list[WorkloadProfile]) -> list[DriftReport]:
    reports = []
    for profile in profiles:
        report, state = detect(profile, state=state, settings=SETTINGS)
        reports.append(report)
    return reports


@pytest.fixture(scope="module")
def learned() -> DetectorState:
    rng = np.random.default_rng(1)
    return learn([window(i, rng) for i in range(DAYS * 144)], settings=SETTINGS)


def test_days_like_those_learned_raise_next_to_no_alarm(learned: DetectorState) -> None:
    rng = np.random.default_rng(2)
    alarms = sum(report.detected for report in follow(learned, day(rng, 432, [0.0] * 144 * 10)))
    assert alarms <= 3


@pytest.mark.parametrize("offset", range(6))
def test_a_fifth_of_the_time_moved_is_found_within_two_hours_wherever_the_hour_begins(
    learned: DetectorState, offset: int
) -> None:
    rng = np.random.default_rng([3, offset])
    before = 12 + offset
    reports = follow(learned, day(rng, 432, [0.0] * before + [0.2] * 12))
    assert not any(report.detected for report in reports[:before])
    assert any(report.detected for report in reports[before:])


@pytest.mark.parametrize("offset", range(6))
def test_one_odd_window_is_not_drift_wherever_in_the_hour_it_lies(
    learned: DetectorState, offset: int
) -> None:
    rng = np.random.default_rng([4, offset])
    drifts = [0.0] * (12 + offset) + [1.0] + [0.0] * 30
    reports = follow(learned, day(rng, 432, drifts))
    assert max(report.distance for report in reports) > 0.02
    assert not any(report.detected for report in reports)


def test_a_ramp_too_slow_for_any_pair_of_hours_is_found_by_its_sum(learned: DetectorState) -> None:
    rng = np.random.default_rng(5)
    patient = SETTINGS.model_copy(update={"pair_min": 100.0})
    state = learned.model_copy(
        update={
            "classes": tuple(
                size.model_copy(update={"pair": patient.pair_min}) for size in learned.classes
            )
        }
    )
    ramp = [min(0.12, 0.12 * i / 72) for i in range(144)]
    found = [i for i, r in enumerate(follow(state, day(rng, 432, ramp))) if r.detected]
    assert found
    assert found[0] < 144


def test_what_an_hour_brings_is_judged_at_every_window_once_an_hour_is_there(
    learned: DetectorState,
) -> None:
    rng = np.random.default_rng(6)
    state = learned
    lengths = []
    for profile in day(rng, 432, [0.0] * 14):
        _, state = detect(profile, state=state, settings=SETTINGS)
        lengths.append((len(state.rolled), len(state.pending), len(state.scores)))
    assert lengths[:6] == [(0, 1, 0), (0, 2, 0), (0, 3, 0), (0, 4, 0), (0, 5, 0), (6, 0, 6)]
    assert lengths[6:] == [(6, i % 6, 6) for i in range(1, 9)]


def test_a_state_stored_by_an_older_version_loads_and_goes_on(learned: DetectorState) -> None:
    stored = learned.model_dump(mode="json", exclude={"rolled", "cusums", "scores", "new_recent"})
    stored |= {"cusum": 3.5, "score": 1.25, "new_windows": 1}
    state = DetectorState.model_validate(stored)
    assert (state.library, state.classes) == (learned.library, learned.classes)
    assert (state.rolled, state.cusums, state.scores) == ((), (), ())
    reports = follow(state, day(np.random.default_rng(7), 432, [0.0] * 6 + [0.4] * 12))
    assert any(report.action is not DriftAction.NONE for report in reports[6:])


def test_a_state_of_unknown_make_is_refused_by_the_name_of_its_field(
    learned: DetectorState,
) -> None:
    stored = learned.model_dump(mode="json") | {"momentum": 1.0}
    with raises_invalid("momentum", kind="extra_forbidden"):
        DetectorState.model_validate(stored)


def test_the_library_also_holds_what_lies_between_hours(learned: DetectorState) -> None:
    assert len(learned.library.profiles) > DAYS * 24
    profiles = day(np.random.default_rng(8), 0, [0.0] * 12)
    starts = [p.window_start_ns // (600 * S) for p in trailing(profiles, size=6, step=3)]
    assert starts == [0, 3, 6]


@pytest.mark.parametrize(("span", "found"), [(2, False), (3, True)])
def test_what_is_new_in_every_other_window_is_news_where_windows_are_short(
    learned: DetectorState, span: int, found: bool
) -> None:
    settings = SETTINGS.model_copy(update={"new_span": span})
    rng = np.random.default_rng(9)
    state = learned
    detected = False
    for place, profile in enumerate(day(rng, 432, [0.0] * 5)):
        stat = profile.stats[0].model_copy(update={"signature": Signature(kernel="moe")})
        new = profile.model_copy(update={"stats": (*profile.stats, stat)})
        report, state = detect(new if place % 2 else profile, state=state, settings=settings)
        detected = detected or report.detected
    assert detected is found


def test_more_new_windows_than_their_span_cannot_be_meant() -> None:
    with raises_invalid(names=("new_windows", "new_span")):
        DriftSettings(new_windows=3, new_span=2)
