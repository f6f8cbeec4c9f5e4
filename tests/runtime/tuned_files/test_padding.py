"""AITER's lookups: what is outside the guard finds the row that it found before."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.expect import raises_code

from retuned.runtime.schema import Refused
from retuned.runtime.tuned_files.rules import (
    GEMM_RULES,
    MOE_RULES,
    Chain,
    gemm_chain,
    moe_chain,
    plan_padded,
)

TOP = 8192
REASONS = {"default-unknown", "guard-splits-padding", "too-many-rows", "cannot-pin"}
sizes = st.one_of(st.integers(1, 40), st.sampled_from([16, 32, 64, 128, 1024, 4096, 8192]))


def next_power(m: int) -> int:
    power = 1
    while power < m:
        power *= 2
    return power


def looked_up(table: dict[int, str], m: int, n: int, rule: str) -> str | None:
    """As the library does it: M itself, padded finely, padded coarsely; the first that is there."""
    for level in (None, 0, 1):
        key = m
        if level == 0:
            for limit, step in ((256, 16), (1024, 32), (4096, 64), (2**40, 128)):
                if m <= limit:
                    key = (m + step - 1) // step * step
                    break
            if rule == "small-power-then-capped" and m < 16:
                key = next_power(m)
        if level == 1:
            capped = rule != "fine-then-power" and m > 8192 and n > 4096
            key = 8192 if capped else next_power(m)
        if key in table:
            return table[key]
    return None


@settings(max_examples=60, deadline=None)
@given(
    st.sets(sizes, max_size=10),
    st.tuples(sizes, sizes).map(sorted),
    st.data(),
    st.sampled_from(GEMM_RULES),
    st.sampled_from([1024, 8192]),
)
def test_every_size_outside_the_guard_finds_what_it_found(
    old: set[int], ends: list[int], data: st.DataObject, rule: str, n: int
) -> None:
    low, high = ends
    new = data.draw(st.sets(st.sampled_from([low, high]), min_size=1))
    try:
        plan = plan_padded(old, new, guard=((low, high),), chain=gemm_chain(rule, n))
    except Refused as error:
        if error.reason in REASONS:
            return
        raise
    before = {m: f"old:{m}" for m in old}
    after = before | plan.rows
    for m in (*range(1, TOP + 1), 9000, 12288, 65536, 2**20):
        found = looked_up(after, m, n, rule)
        if low <= m <= high:
            assert found == f"new:{min((x for x in new if x >= m), default=max(new))}", m
        else:
            assert found == looked_up(before, m, n, rule), m


@settings(max_examples=100, deadline=None)
@given(st.sets(sizes, max_size=8), st.tuples(sizes, sizes).map(sorted), st.sampled_from(MOE_RULES))
def test_an_experts_table_changes_whole_classes_of_sizes_or_nothing(
    old: set[int], ends: list[int], rule: str
) -> None:
    low, high = ends
    chain = moe_chain(rule)
    try:
        plan = plan_padded(old, {high}, guard=((low, high),), chain=chain)
    except Refused as error:
        if error.reason in REASONS:
            return
        raise
    before = {m: f"old:{m}" for m in old}
    after = before | plan.rows
    for m in (*range(1, 40_000), 2**17, 2**20):
        (key,) = chain(m)
        expected = f"new:{high}" if low <= m <= high else before.get(key)
        assert after.get(key) == expected, m


@pytest.mark.parametrize(
    ("rule", "m", "expected"),
    [
        ("tiers-1024-2048-16384", 17, 32),
        ("tiers-1024-2048-16384", 2047, 1024),
        ("tiers-1024-2048-16384", 16383, 2048),
        ("power-to-131072", 16385, 32768),
        ("power-to-131072", 20480, 20480),
        ("power-to-131072", 2**20, 131072),
        ("power-then-tiers", 32767, 32768),
        ("power-then-tiers", 131071, 32768),
        ("power-then-tiers", 131072, 131072),
    ],
)
def test_experts_are_looked_up_as_each_version_does(rule: str, m: int, expected: int) -> None:
    assert moe_chain(rule)(m) == (expected,)


def test_a_row_that_draws_in_smaller_sizes_pins_them() -> None:
    chain: Chain = gemm_chain("fine-then-power", 1024)
    plan = plan_padded({32, 64}, {32}, guard=((32, 32),), chain=chain)
    assert plan.affected == tuple(range(17, 32))
    assert plan.rows == {32: "new:32"} | dict.fromkeys(plan.affected, "old:32")


def test_sizes_that_had_no_row_cannot_be_kept_from_a_new_one() -> None:
    chain = gemm_chain("fine-then-power", 1024)
    with raises_code(Refused, "default-unknown"):
        plan_padded(set(), {32}, guard=((32, 32),), chain=chain)
    plan = plan_padded(set(), {32}, guard=((17, 32),), chain=chain)
    assert plan.rows == {32: "new:32"}
    assert plan_padded({16}, {16}, guard=((1, 16),), chain=chain).rows == {16: "new:16"}
    kept = plan_padded({16}, {16}, guard=((9, 16),), chain=chain)
    assert kept.affected == (1, 2, 3, 4, 5, 6, 7, 8)


def test_the_row_that_all_sizes_beyond_a_cap_share_is_left_alone() -> None:
    chain = gemm_chain("fine-then-capped", 8192)
    with raises_code(Refused, "cannot-pin"):
        plan_padded({8192}, {8192}, guard=((4097, 8192),), chain=chain)
    free = gemm_chain("fine-then-power", 8192)
    assert plan_padded({8192}, {8192}, guard=((4097, 8192),), chain=free).rows == {8192: "new:8192"}
