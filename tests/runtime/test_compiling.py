"""Compiling for a running server takes a share of the time, and no more."""

from __future__ import annotations

import pytest
from tests.expect import raises_naming

from retuned.runtime.artifacts.compile_budget import SHARE, CompileBudget


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def slow(clock: Clock, seconds: float) -> int:
    clock.now_s += seconds
    return 1


def test_over_any_long_time_compiling_takes_its_share_at_most() -> None:
    clock = Clock()
    compiling = CompileBudget(clock=clock)
    spent_s = 0.0
    for _ in range(20_000):  # a tick of 50 ms each: 1000 s, with something to compile always
        begun_s = clock.now_s
        compiling.do(lambda: slow(clock, 0.4), waiting=1)
        spent_s += clock.now_s - begun_s
        clock.now_s += 0.05
    assert spent_s <= SHARE * clock.now_s + 0.4
    assert spent_s >= 0.9 * SHARE * clock.now_s, "the share is used"
    state = compiling.state()
    assert state["compiles"] == round(spent_s / 0.4)
    assert state["compile_s"] == pytest.approx(spent_s)
    assert state["longest_s"] == pytest.approx(0.4)
    assert state["put_off"] > 0


def test_what_is_found_without_compiling_holds_nothing_back() -> None:
    clock = Clock()
    compiling = CompileBudget(clock=clock)
    for _ in range(10):
        compiling.do(lambda: slow(clock, 0.0001), waiting=1)
        clock.now_s += 0.05
    assert (compiling.state()["compiles"], compiling.state()["put_off"]) == (10, 0)


def test_a_compiler_that_fails_has_taken_its_time() -> None:
    clock = Clock()
    compiling = CompileBudget(clock=clock)

    def fails() -> int:
        clock.now_s += 1.0
        raise OSError("no room")

    with raises_naming(OSError, "no room"):
        compiling.do(fails, waiting=1)
    compiling.do(fails, waiting=1)
    assert compiling.state() == {"compiles": 0, "compile_s": 1.0, "longest_s": 1.0, "put_off": 1}


def test_where_nobody_waits_for_code_the_rest_is_done_and_not_counted() -> None:
    clock = Clock()
    compiling = CompileBudget(clock=clock)
    compiling.do(lambda: slow(clock, 1.0), waiting=1)
    done: list[int] = []
    compiling.do(lambda: done.append(1) or 0, waiting=0)  # type: ignore[func-returns-value]
    assert done == [1]
    assert compiling.state()["compiles"] == 1
