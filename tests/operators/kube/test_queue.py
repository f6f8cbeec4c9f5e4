"""The work queue: nothing is lost, nothing is looked at twice at the same time."""

from __future__ import annotations

import threading

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.operators.kube.running import Clock, eventually

from retuned_operator.kube.backoff import Backoff
from retuned_operator.kube.queue import WorkQueue


def taken(queue: WorkQueue) -> list[str]:
    """Take everything there is now."""
    found = []
    while (key := queue.get(timeout_s=0)) is not None:
        found.append(key)
    return found


def test_a_key_that_is_added_often_is_given_out_once() -> None:
    queue = WorkQueue()
    for _ in range(3):
        queue.add("a")
    queue.add("b")
    assert len(queue) == 2
    assert taken(queue) == ["a", "b"]


def test_a_key_that_is_added_while_a_worker_has_it_comes_again_after() -> None:
    queue = WorkQueue()
    queue.add("a")
    assert taken(queue) == ["a"]
    queue.add("a")
    queue.add("a")
    assert taken(queue) == []
    queue.done("a")
    assert taken(queue) == ["a"]
    queue.done("a")
    assert taken(queue) == []


def test_a_key_for_later_comes_when_it_is_due_and_the_earliest_time_counts() -> None:
    clock = Clock()
    queue = WorkQueue(clock=clock)
    queue.add_after("a", 10.0)
    queue.add_after("a", 5.0)
    queue.add_after("a", 7.0)
    clock.now += 4.9
    assert taken(queue) == []
    clock.now += 0.1
    assert taken(queue) == ["a"]
    queue.done("a")
    clock.now += 100.0
    assert taken(queue) == []


def test_a_key_that_is_added_does_not_also_wait() -> None:
    clock = Clock()
    queue = WorkQueue(clock=clock)
    queue.add_after("a", 10.0)
    queue.add("a")
    assert taken(queue) == ["a"]
    queue.done("a")
    clock.now += 20.0
    assert taken(queue) == []


def test_a_key_that_fails_waits_longer_each_time_until_it_is_forgotten() -> None:
    clock = Clock()
    queue = WorkQueue(clock=clock, backoff=Backoff(first_s=1.0, most_s=60.0))
    waits = [queue.retry("a") for _ in range(8)]
    assert all(0.5 * 2**n <= wait <= 2**n for n, wait in enumerate(waits[:6]))
    assert waits[-1] <= 60.0
    queue.forget("a")
    assert queue.retry("a") <= 1.0
    assert queue.retry("b", at_least_s=30.0) == 30.0
    assert queue.retry("a", at_least_s=0.1, at_most_s=0.2) == 0.2


def test_a_queue_that_is_closed_gives_out_nothing_and_wakes_who_waits() -> None:
    queue = WorkQueue()
    found: list[str | None] = []
    waiting = threading.Thread(target=lambda: found.append(queue.get()))
    waiting.start()
    queue.close()
    waiting.join(90)
    assert found == [None]
    queue.add("a")
    queue.add_after("b", 0.0)
    assert queue.get(timeout_s=0) is None


def test_who_waits_is_woken_by_a_key_and_by_the_time_of_one() -> None:
    queue = WorkQueue()
    found: list[str | None] = []

    def work() -> None:
        for _ in range(2):
            found.append(queue.get(timeout_s=100))

    waiting = threading.Thread(target=work)
    waiting.start()
    queue.add("now")
    eventually(lambda: found == ["now"])
    queue.add_after("later", 0.2)
    waiting.join(90)
    assert found == ["now", "later"]


def test_how_long_keys_wait_is_told() -> None:
    clock, waits = Clock(), list[float]()
    queue = WorkQueue(clock=clock, observe=waits.append)
    queue.add("a")
    clock.now += 3.0
    assert queue.oldest_s() == pytest.approx(3.0)
    assert taken(queue) == ["a"]
    assert waits == [pytest.approx(3.0)]
    assert queue.oldest_s() == 0.0


KEYS = st.sampled_from("abc")


class Model(RuleBasedStateMachine):
    """Says the same without a heap, locks or versions: what is owed, and by when."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.queue = WorkQueue(clock=self.clock)
        self.owed: dict[str, float] = {}
        """When a key is to be given out at the latest."""
        self.held: set[str] = set()

    @rule(key=KEYS)
    def add(self, key: str) -> None:
        self.queue.add(key)
        self.owed[key] = self.clock.now

    @rule(key=KEYS, delay_s=st.integers(1, 9))
    def add_after(self, key: str, delay_s: int) -> None:
        self.queue.add_after(key, float(delay_s))
        self.owed[key] = min(self.owed.get(key, float("inf")), self.clock.now + delay_s)

    @rule(seconds=st.integers(1, 9))
    def wait(self, seconds: int) -> None:
        self.clock.now += seconds

    @rule()
    def get(self) -> None:
        key = self.queue.get(timeout_s=0)
        due = {k for k, at in self.owed.items() if at <= self.clock.now and k not in self.held}
        if key is None:
            assert not due
            return
        assert key in due
        del self.owed[key]
        self.held.add(key)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def done(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.held)))
        self.queue.done(key)
        self.held.remove(key)

    @invariant()
    def is_as_deep_as_what_is_owed(self) -> None:
        due = {k for k, at in self.owed.items() if at <= self.clock.now and k not in self.held}
        assert len(self.queue) == len(due)


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
