"""What a raw row means, and shapes for launches replayed from a graph."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retuned.stages.trace import (
    NAME_CHARS,
    CapturedLaunch,
    LaunchRecord,
    ShapeSource,
    align_capture,
    blocks_from_work_items,
    geometry,
    is_contiguous,
    normalise_kernel_name,
    parse_ns,
    us_to_ns,
)

axes = st.tuples(*[st.integers(1, 2**31)] * 3)
texts = st.text(st.characters(exclude_categories=()), max_size=80)


@given(texts)
def test_a_normalised_name_can_be_printed_and_stays_as_it_is(raw: str) -> None:
    name = normalise_kernel_name(raw)
    assert name.isprintable()
    assert len(name) <= NAME_CHARS
    assert normalise_kernel_name(f"{name} [clone .kd]") == normalise_kernel_name(name)


@pytest.mark.parametrize(
    "raw",
    [
        "void f<g<2>>(int*)",
        "void f<g<2> >(int*)",
        "  void   f<g<2>>(int*)",
        "void f<g<2>>(int*) [clone .kd]",
        "void f<g<2>>(int*) (.kd)",
        "void f<g<2>>(int*).kd",
        '"void f<g<2> >(int*).kd"',
    ],
)
def test_every_profilers_spelling_of_a_kernel_is_one_name(raw: str) -> None:
    assert normalise_kernel_name(raw) == "void f<g<2>>(int*)"


def test_names_that_differ_only_beyond_the_cut_stay_apart() -> None:
    names = {normalise_kernel_name("x" * 5000 + end) for end in ("a", "b")}
    assert len(names) == 2


@given(axes, axes)
def test_blocks_cover_all_work_items_and_no_block_is_empty(
    items: tuple[int, int, int], threads: tuple[int, int, int]
) -> None:
    for blocks, item, size in zip(
        blocks_from_work_items(items, threads), items, threads, strict=True
    ):
        assert (blocks - 1) * size < item <= blocks * size


@given(st.lists(st.integers(-3, 2**33), max_size=5))
def test_a_geometry_has_three_axes_that_a_device_can_have(raw: list[int]) -> None:
    found = geometry(raw)
    assert (found is None) == (
        not 1 <= len(raw) <= 3 or any(axis < 0 or axis >= 2**32 for axis in raw)
    )
    if found is not None:
        assert found == tuple([*raw, 1, 1][:3])


@given(st.text(max_size=25))
def test_only_plain_digits_are_a_time(text: str) -> None:
    value = parse_ns(text)
    assert value is None or (str(value) == text.lstrip("0") or value == 0)


@given(st.integers(0, 10**18))
def test_nanoseconds_survive_the_way_through_microseconds(ns: int) -> None:
    assert us_to_ns(ns / 1000) == pytest.approx(ns, abs=max(1, ns * 2**-51))


@given(st.lists(st.integers(1, 9), max_size=5))
def test_row_major_strides_are_contiguous(shape: list[int]) -> None:
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    assert is_contiguous(shape, strides)


def captured(names: str) -> list[CapturedLaunch]:
    return [
        CapturedLaunch(kernel=name, dims=((at + 1,),), op=f"op{at}", shape_confidence=0.9)
        for at, name in enumerate(names)
    ]


def replayed(names: Sequence[str], **fields: tuple[int, int, int]) -> list[LaunchRecord]:
    return [
        LaunchRecord(kernel=name, start_ns=10 * at, duration_ns=5, **fields)  # type: ignore[arg-type]
        for at, name in enumerate(names)
    ]


def ops(launches: Sequence[LaunchRecord]) -> list[str]:
    return [launch.op for launch in launches]


def test_surplus_rows_of_the_capture_are_passed_over() -> None:
    found = align_capture(captured("ccabxd"), replayed("abd"))
    assert ops(found) == ["op2", "op3", "op5"]
    assert {launch.shape_confidence for launch in found} == {0.9}


def test_a_graph_replayed_many_times_is_explained_every_time() -> None:
    found = align_capture(captured("xabac"), replayed("abac" * 25))
    assert ops(found) == ["op1", "op2", "op3", "op4"] * 25


def test_a_trace_that_starts_in_the_middle_of_a_replay_is_explained_too() -> None:
    found = align_capture(captured("abcd"), replayed("cd" + "abcd" * 3 + "ab"))
    assert ops(found) == ["op2", "op3", *(["op0", "op1", "op2", "op3"] * 3), "op0", "op1"]


def test_order_is_that_of_time_not_of_rows() -> None:
    found = align_capture(captured("ab"), list(reversed(replayed("ab"))))
    assert [(launch.kernel, launch.op) for launch in found] == [("a", "op0"), ("b", "op1")]


def test_launches_that_know_their_shape_keep_it() -> None:
    known = LaunchRecord(
        kernel="a", start_ns=0, duration_ns=1, dims=((7,),), shape_source=ShapeSource.OP
    )
    (found,) = align_capture(captured("a"), [known])
    assert found is known


def test_a_capture_of_another_geometry_explains_nothing() -> None:
    row = CapturedLaunch(kernel="a", blocks=(4, 1, 1), threads=(64, 1, 1), dims=((7,),))
    (found,) = align_capture([row], replayed("a", blocks=(8, 1, 1), threads=(64, 1, 1)))
    assert found.dims == ()


def test_a_capture_that_explains_little_is_believed_little() -> None:
    found = align_capture(captured("a"), replayed("azzz"))
    assert found[0].shape_confidence == pytest.approx(0.9 / 4)
    assert [launch.dims for launch in found[1:]] == [()] * 3


@given(st.text("abc", max_size=40), st.text("abc", max_size=60))
def test_alignment_changes_no_launch_but_its_shape_and_never_its_kernel(
    capture: str, replay: str
) -> None:
    rows, launches = captured(capture), replayed(replay)
    found = align_capture(rows, launches)
    assert [(r.kernel, r.start_ns, r.duration_ns) for r in found] == [
        (r.kernel, r.start_ns, r.duration_ns) for r in launches
    ]
    for launch in found:
        if launch.op:
            assert rows[int(launch.op.removeprefix("op"))].kernel == launch.kernel


def test_an_endless_replay_of_strange_graphs_ends() -> None:
    names = [str(n * n % 977) for n in range(60_000)]
    found = align_capture(captured("abc"), replayed(names))
    assert not any(launch.dims for launch in found)
