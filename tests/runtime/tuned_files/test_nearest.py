"""Only the guarded batch sizes change, for every one from 1 on, by the servers' own rule."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.expect import raises_code

from retuned.runtime.schema import Refused
from retuned.runtime.tuned_files.moe_json import Rows, read_moe, write_moe
from retuned.runtime.tuned_files.rules import MAX_ADDED, Run, pin, runs_of
from retuned.runtime.tuned_files.strict import MAX_M

TOP = 8192
CONFIGS = [{"BLOCK_SIZE_M": 16 << n} for n in range(4)]
NEW = [{"BLOCK_SIZE_M": 1024}, {"BLOCK_SIZE_M": 2048}]
sizes = st.one_of(
    st.integers(1, 70), st.sampled_from([2**n for n in range(14)]), st.integers(1, TOP)
)
tables = st.lists(
    st.tuples(sizes, st.sampled_from(CONFIGS)),
    min_size=1,
    max_size=12,
    unique_by=lambda row: row[0],
).map(tuple)


def server(rows: Rows, m: int) -> Any:
    """The rule as both servers have it: `min` over a dict's keys, so of two the first."""
    configs = dict(rows)
    return configs[min(configs.keys(), key=lambda x: abs(x - m))]


@st.composite
def guards(draw: st.DrawFn) -> tuple[tuple[tuple[int, int], ...], Rows]:
    """Up to three ranges with new rows in each."""
    ends = sorted(draw(st.sets(sizes, min_size=2, max_size=6)))
    ranges: list[tuple[int, int]] = []
    new: list[tuple[int, Any]] = []
    for low, high in zip(ends[::2], ends[1::2], strict=False):
        if ranges and low <= ranges[-1][1]:
            continue
        low, high = (low, low) if draw(st.booleans()) else (low, high)
        ranges.append((low, high))
        for m in draw(st.sets(st.integers(low, high), min_size=1, max_size=3)):
            new.append((m, draw(st.sampled_from(NEW))))
    if draw(st.booleans()):
        low, _ = ranges[-1]
        ranges[-1] = (low, MAX_M)
    return tuple(ranges), tuple(new)


def _sorted(rows: Rows) -> Rows:
    return tuple(sorted(rows, key=lambda row: row[0]))


@settings(max_examples=60, deadline=None)
@given(tables, guards())
def test_every_size_outside_the_guard_is_served_as_before(
    old: Rows, change: tuple[tuple[tuple[int, int], ...], Rows]
) -> None:
    guard, new = change
    rows = pin(old, new, guard=guard).rows
    for m in (*range(1, TOP + 1), 3 * TOP, 2**20):
        inside = [(low, high) for low, high in guard if low <= m <= high]
        if not inside:
            assert server(rows, m) == server(old, m), m
            continue
        (low, high), *_ = inside
        mine = _sorted(tuple(row for row in new if low <= row[0] <= high))
        assert server(rows, m) == server(mine, m), m


@settings(max_examples=60, deadline=None)
@given(tables)
def test_the_steps_are_what_the_servers_rule_gives(rows: Rows) -> None:
    runs = runs_of(rows)
    assert (runs[0].first, runs[-1].last) == (1, MAX_M)
    for m in (*range(1, 300), *range(300, TOP, 7)):
        (found,) = [run.config for run in runs if run.first <= m <= run.last]
        assert found == server(rows, m), m


@settings(max_examples=60, deadline=None)
@given(tables, guards())
def test_no_pin_is_there_for_nothing(
    old: Rows, change: tuple[tuple[tuple[int, int], ...], Rows]
) -> None:
    guard, new = change
    pinned = pin(old, new, guard=guard)
    for m in pinned.pins:
        assert runs_of(tuple(row for row in pinned.rows if row[0] != m)) != pinned.after


@settings(max_examples=40, deadline=None)
@given(tables, guards(), st.sampled_from([None, 2, 4]), st.booleans())
def test_what_is_written_is_read_again_in_the_same_order(
    old: Rows, change: tuple[tuple[tuple[int, int], ...], Rows], indent: int | None, version: bool
) -> None:
    guard, new = change
    body: dict[str, Any] = {"triton_version": "3.9.0"} if version else {}
    body |= {str(m): config for m, config in old}
    data = json.dumps(body, indent=indent).encode()
    file = read_moe("x.json", data, version_key=True)
    assert file.rows == old
    assert write_moe(file, file.rows) == data
    rows = pin(old, new, guard=guard).rows
    again = read_moe("x.json", write_moe(file, rows), version_key=True)
    assert (again.rows, again.version) == (rows, file.version)
    assert json.loads(write_moe(file, rows)).keys() == {
        *(("triton_version",) if version else ()),
        *(str(m) for m, _ in rows),
    }


def test_a_single_new_row_is_pinned_where_its_pull_would_be_felt() -> None:
    old = tuple((2**n, {"BLOCK_SIZE_M": 16 << (n % 3)}) for n in range(13))
    pinned = pin(old, ((24, {"BLOCK_SIZE_M": 256}),), guard=((20, 28),))
    assert [m for m, _ in pinned.rows if 8 < m < 64] == [16, 19, 20, 24, 32]
    assert pinned.pins == (19, 20)  # 28 is as near to 24 as to 32, and 24 comes first


def test_without_a_file_what_the_server_picks_must_be_known_for_every_size() -> None:
    new = ((24, NEW[0]),)
    runs = (Run(1, 64, CONFIGS[0]), Run(65, MAX_M, CONFIGS[1]))
    rows = pin((), new, guard=((17, 32),), defaults=runs).rows
    for m in range(1, 300):
        expected = NEW[0] if 17 <= m <= 32 else CONFIGS[0] if m <= 64 else CONFIGS[1]
        assert server(rows, m) == expected
    for told in ((), runs[:1], runs[1:], (runs[0], Run(70, MAX_M, CONFIGS[1]))):
        with raises_code(Refused, "default-unknown"):
            pin((), new, guard=((17, 32),), defaults=told)


def test_a_guard_without_a_row_and_a_row_without_a_guard_are_refused() -> None:
    old = ((1, CONFIGS[0]),)
    with raises_code(Refused, "guard-without-row"):
        pin(old, ((3, NEW[0]),), guard=((2, 4), (9, 12)))
    with raises_code(Refused, "row-outside-guard"):
        pin(old, ((5, NEW[0]),), guard=((2, 4),))


def test_a_change_that_would_need_a_book_of_rows_is_refused() -> None:
    old = tuple((m, CONFIGS[m % 2]) for m in range(1, 4 * MAX_ADDED, 4))
    new = tuple((m, NEW[0]) for m in range(2, 4 * MAX_ADDED, 4))
    with raises_code(Refused, "too-many-rows"):
        pin(old, new, guard=tuple((m, m) for m, _ in new))
