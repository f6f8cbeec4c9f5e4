"""Launches to profiles: buckets, modes, bounded memory, merging."""

from __future__ import annotations

import random
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.expect import raises_naming

from retuned.stages.profile import (
    OTHER,
    ProfileBuilder,
    ProfileSettings,
    Signature,
    SignatureStat,
    WorkloadProfile,
    aligned,
    bucket,
    fold,
    merge,
)
from retuned.stages.trace import LaunchRecord, ShapeSource
from retuned.stats import BINS_MAX, DurationSketch


def launch(
    kernel: str = "gemm",
    duration_ns: int = 1000,
    dims: tuple[tuple[int, ...], ...] = (),
    blocks: tuple[int, int, int] = (8, 1, 1),
) -> LaunchRecord:
    return LaunchRecord(
        kernel=kernel, start_ns=0, duration_ns=duration_ns, dims=dims, blocks=blocks
    )


def folded(
    launches: list[LaunchRecord], settings: ProfileSettings | None = None
) -> WorkloadProfile:
    return fold(launches, window_start_ns=5, window_ns=10, observed_ns=7, settings=settings)


def stat(kernel: str, gpu_time_ns: int, *, median_ns: int = 100, mode: int = 0) -> SignatureStat:
    return SignatureStat(
        signature=Signature(kernel=kernel, mode=mode),
        launches=max(1, gpu_time_ns // median_ns),
        gpu_time_ns=gpu_time_ns,
        median_ns=median_ns,
    )


def window(start: int, *stats: SignatureStat, environment: str = "") -> WorkloadProfile:
    return WorkloadProfile(
        window_start_ns=start, window_ns=10, observed_ns=5, stats=stats, environment=environment
    )


@given(st.integers(0, 2**40))
def test_a_bucket_is_the_smallest_that_holds_the_length_and_maps_to_itself(length: int) -> None:
    settings = ProfileSettings()
    up = bucket(length, settings)
    assert up >= length
    assert bucket(up, settings) == up
    assert up - length < 128
    assert length == 0 or bucket(up - 1, settings) <= up


@pytest.mark.parametrize("length", [64, 896, 1024, 2816, 4096, 5120, 14336, 28672, 151936])
def test_weight_dims_survive_bucketing(length: int) -> None:
    assert bucket(length, ProfileSettings()) == length


def test_launches_of_one_bucket_are_one_signature_whatever_their_grid() -> None:
    seen = folded(
        [
            launch(dims=((m, 4096), (4096, 4096)), blocks=(m, 1, 1), duration_ns=10 * m)
            for m in (9, 12, 16)
        ]
    )
    assert [s.signature.dims for s in seen.stats] == [((16, 4096), (4096, 4096))]
    assert seen.stats[0].signature.blocks == (0, 0, 0)
    assert (seen.launches, seen.gpu_time_ns) == (3, 370)
    assert (seen.window_start_ns, seen.window_ns, seen.observed_ns) == (5, 10, 7)


@given(
    st.lists(
        st.tuples(st.sampled_from("abcdefgh"), st.integers(1, 10**7), st.integers(1, 600)),
        max_size=200,
    ),
    st.integers(1, 6),
)
def test_no_launch_and_no_nanosecond_is_lost_whatever_the_cap(
    rows: list[tuple[str, int, int]], cap: int
) -> None:
    settings = ProfileSettings(max_signatures=cap)
    seen = folded([launch(k, ns, ((m, 8),)) for k, ns, m in rows], settings)
    assert seen.launches == len(rows)
    assert seen.gpu_time_ns == sum(ns for _, ns, _ in rows)
    assert sum(s.signature.kernel != OTHER for s in seen.stats) <= cap
    times = [s.gpu_time_ns for s in seen.stats]
    assert times == sorted(times, reverse=True)


def test_two_gemms_of_one_geometry_split_by_duration_as_measured_on_an_mi300x() -> None:
    rng = random.Random(1)
    short = [rng.randint(39_200, 45_000) for _ in range(300)]
    long = [rng.randint(93_700, 105_900) for _ in range(100)]
    seen = folded([launch(duration_ns=ns) for ns in [*short, *long]])
    modes = {s.signature.mode: s for s in seen.stats}
    assert {mode: s.launches for mode, s in modes.items()} == {0: 300, 1: 100}
    assert 39_200 <= modes[0].median_ns <= 45_000
    assert 93_700 <= modes[1].median_ns <= 105_900
    assert seen.gpu_time_ns == sum(short) + sum(long)


def test_overlapping_durations_stay_one_signature() -> None:
    rng = random.Random(2)
    near = [rng.randint(9_000, 11_000) for _ in range(200)]
    nearer = [rng.randint(10_000, 12_500) for _ in range(200)]
    seen = folded([launch(duration_ns=ns) for ns in [*near, *nearer]])
    assert [s.signature.mode for s in seen.stats] == [0]


def test_a_few_stragglers_are_no_mode_of_their_own() -> None:
    seen = folded([launch(duration_ns=ns) for ns in [1000] * 100 + [50_000] * 3])
    assert [(s.signature.mode, s.launches) for s in seen.stats] == [(0, 103)]


def test_known_dims_never_split_by_duration() -> None:
    seen = folded([launch(duration_ns=ns, dims=((8, 8),)) for ns in [1000] * 50 + [9000] * 50])
    assert len(seen.stats) == 1


def test_a_window_keeps_the_worst_shape_source_and_the_lowest_confidence() -> None:
    rows = [
        LaunchRecord(
            kernel="k",
            start_ns=0,
            duration_ns=5,
            dims=((8,),),
            shape_source=source,
            shape_confidence=sure,
        )
        for source, sure in (
            (ShapeSource.CAPTURE, 1.0),
            (ShapeSource.OP, 0.5),
            (ShapeSource.CAPTURE, 0.8),
        )
    ]
    seen = folded(rows).stats[0]
    assert (seen.shape_source, seen.shape_confidence) == (ShapeSource.OP, 0.5)


@pytest.mark.parametrize("duration_ns", [0, -5])
def test_a_duration_that_cannot_be_is_refused_with_its_kernel(duration_ns: int) -> None:
    with raises_naming(ValueError, "gemm", "duration_ns", str(duration_ns)):
        ProfileBuilder().add(launch(duration_ns=duration_ns))


def test_every_heavy_signature_outlives_a_flood_of_rare_ones() -> None:
    cap = 50
    folder = ProfileBuilder(ProfileSettings(max_signatures=cap))
    rng = random.Random(3)
    true = {f"heavy{i}": 0 for i in range(10)}
    total = 0
    for n in range(40_000):
        if rng.random() < 0.4:
            name = f"heavy{rng.randrange(10)}"
            true[name] += 100
        else:
            name = f"rare{n}"
        folder.add(launch(name, 100))
        total += 100
    seen = folder.profile(window_start_ns=0, window_ns=1, observed_ns=1)
    found = {s.signature.kernel: s.gpu_time_ns for s in seen.stats}
    assert seen.gpu_time_ns == total
    for name, time in true.items():
        assert time > total / cap
        assert 0 <= time - found[name] <= total / cap


def test_memory_stays_flat_while_distinct_signatures_flood_in() -> None:
    folder = ProfileBuilder(ProfileSettings(max_signatures=200))

    def flood(start: int) -> None:
        for n in range(start, start + 20_000):
            folder.add(launch(f"k{n}", 10 + n % 7))

    tracemalloc.start()
    try:
        flood(0)
        _, before = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        flood(20_000)
        _, after = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after < 1.1 * before


def test_a_megabyte_of_kernel_name_is_cut_and_not_remembered() -> None:
    folder = ProfileBuilder()
    for n in range(3):
        folder.add(launch("x" * 10**6 + str(n)))
    seen = folder.profile(window_start_ns=0, window_ns=1, observed_ns=1)
    assert [(len(s.signature.kernel), s.launches) for s in seen.stats] == [(1024, 3)]


@given(st.lists(st.integers(1, 10**12), min_size=1, max_size=300))
def test_a_sketch_is_bounded_and_its_median_lies_within_its_bins(values: list[int]) -> None:
    sketch = DurationSketch()
    for value in values:
        sketch.add(value)
    assert len(sketch.bins) <= BINS_MAX
    assert (sketch.count, sketch.total) == (len(values), sum(values))
    true = sorted(values)[(len(values) + 1) // 2 - 1]
    error = 1.02 ** (1 << sketch.shift)
    assert true / error - 1 <= sketch.quantile(0.5) <= true * error + 1


@given(st.lists(st.integers(1, 10**9), max_size=150), st.lists(st.integers(1, 10**9), max_size=150))
def test_merged_sketches_count_everything(left: list[int], right: list[int]) -> None:
    one, other = DurationSketch(), DurationSketch()
    for value in left:
        one.add(value)
    for value in right:
        other.add(value)
    one.merge(other)
    assert (one.count, one.total) == (len(left) + len(right), sum(left) + sum(right))
    assert sum(one.bins.values()) == one.count
    assert len(one.bins) <= BINS_MAX


def test_merging_adds_up_and_takes_the_middle_median() -> None:
    hour = merge(
        [
            window(20, stat("a", 300, median_ns=100)),
            window(0, stat("a", 300, median_ns=104), stat("b", 500)),
            window(10, stat("a", 300, median_ns=90)),
        ]
    )
    assert (hour.window_start_ns, hour.window_ns, hour.observed_ns) == (0, 30, 15)
    found = {s.signature.kernel: s for s in hour.stats}
    assert found["a"].gpu_time_ns == 900
    assert found["a"].median_ns == 100
    assert hour.stats[0].signature.kernel == "a"


def test_merging_nothing_is_refused() -> None:
    with raises_naming(ValueError, "merge"):
        merge([])


def test_a_merged_window_has_an_environment_only_if_all_agree() -> None:
    one, two = (window(n, stat("a", 10), environment=e) for n, e in ((0, "x"), (10, "y")))
    assert merge([one, one]).environment == "x"
    assert merge([one, two]).environment == ""


def test_merging_respects_the_cap_and_keeps_every_nanosecond() -> None:
    merged = merge(
        [window(n, stat(f"k{n}", 100 + n), stat(OTHER, 7)) for n in range(10)],
        settings=ProfileSettings(max_signatures=4),
    )
    assert len(merged.stats) == 5
    assert merged.gpu_time_ns == sum(107 + n for n in range(10))


def test_a_window_without_the_short_mode_does_not_rename_the_long_one() -> None:
    both = window(0, stat("a", 1000, median_ns=40), stat("a", 1000, median_ns=100, mode=1))
    long_only = window(10, stat("a", 1000, median_ns=103))
    merged = merge([both, long_only])
    assert {s.signature.mode: s.gpu_time_ns for s in merged.stats} == {0: 1000, 1: 2000}


def test_a_mode_that_nothing_known_resembles_gets_the_next_free_number() -> None:
    known = {Signature(kernel="a"): 40.0, Signature(kernel="a", mode=1): 100.0}
    new = aligned([stat("a", 10, median_ns=1000)], known, gap_ratio=1.4)
    assert [s.signature.mode for s in new] == [2]


def test_the_folded_tail_is_one_signature_whatever_its_median() -> None:
    merged = merge([window(0, stat(OTHER, 100, median_ns=5)), window(10, stat(OTHER, 100))])
    assert [(s.signature, s.gpu_time_ns) for s in merged.stats] == [(Signature(kernel=OTHER), 200)]
