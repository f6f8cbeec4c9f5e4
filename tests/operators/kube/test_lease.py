"""One leads; who cannot renew stops before another begins."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.expect import raises_naming
from tests.fakeapi.faults import Fault
from tests.fakeapi.server import FakeApi
from tests.operators.kube.running import WITHIN_S, Clock, eventually, in_thread

from retuned_operator.kube.client import Api
from retuned_operator.kube.errors import Unavailable
from retuned_operator.kube.lease import (
    Leader,
    LeaseTimes,
    NotLeading,
    ObservedLease,
    may_take,
    observed,
)
from retuned_operator.kube.resources import LEASES, Obj

QUICK = LeaseTimes(duration_s=3.0, renew_deadline_s=2.0, renew_s=0.1, fresh_s=0.5)
LONG = LeaseTimes(duration_s=600.0, renew_deadline_s=500.0, renew_s=0.1, fresh_s=0.5)
NEVER = threading.Event()


def a_leader(
    fake: FakeApi,
    identity: str,
    *,
    clock: Callable[[], float] = time.monotonic,
    lost: threading.Event | None = None,
    times: LeaseTimes = QUICK,
) -> Leader:
    return Leader(
        fake.api(),
        "retuned-operator",
        namespace="default",
        identity=identity,
        times=times,
        on_lost=(lost or threading.Event()).set,
        clock=clock,
    )


def lease(fake: FakeApi) -> Obj:
    return fake.api().get(LEASES, "retuned-operator", namespace="default")


def stopped() -> threading.Event:
    event = threading.Event()
    event.set()
    return event


def test_the_first_leads_and_the_second_waits(fake: FakeApi) -> None:
    # for neither time passes: nobody renews the lease
    one, two = (a_leader(fake, name, clock=Clock()) for name in ("one", "two"))
    assert one.acquire(NEVER)
    one.confirm()
    assert lease(fake)["spec"]["holderIdentity"] == "one"
    with in_thread(two.acquire):
        eventually(lambda: len(fake.faults.seen("get", "leases")) > 4)
        assert not two.is_leading()
    with pytest.raises(NotLeading):
        two.confirm()


def test_who_ends_gives_the_lease_away_and_the_next_one_need_not_wait(fake: FakeApi) -> None:
    one = a_leader(fake, "one")
    two = a_leader(fake, "two", clock=Clock())  # for it no time passes
    assert one.acquire(NEVER)
    one.hold(stopped())
    with pytest.raises(NotLeading):
        one.confirm()
    assert two.acquire(NEVER)
    spec = lease(fake)["spec"]
    assert spec["holderIdentity"] == "two"
    assert spec["leaseTransitions"] == 1


def test_who_holds_it_renews_it(fake: FakeApi) -> None:
    one = a_leader(fake, "one", times=LONG)
    assert one.acquire(NEVER)
    first = lease(fake)["spec"]
    with in_thread(one.hold):
        eventually(lambda: lease(fake)["spec"].get("renewTime") != first["renewTime"])
        assert lease(fake)["spec"]["acquireTime"] == first["acquireTime"]


def test_a_lease_that_nobody_renews_is_taken_after_its_time_on_ones_own_clock(
    fake: FakeApi,
) -> None:
    clock = Clock()
    one, two = a_leader(fake, "one"), a_leader(fake, "two", clock=clock)
    assert one.acquire(NEVER)
    taken = threading.Event()

    def take(stop: threading.Event) -> None:
        if two.acquire(stop):
            taken.set()

    with in_thread(take):
        eventually(lambda: len(fake.faults.seen("get", "leases")) > 3)
        clock.now += QUICK.duration_s - 0.1
        seen = len(fake.faults.seen("get", "leases"))
        eventually(lambda: len(fake.faults.seen("get", "leases")) > seen + 2)
        assert not taken.is_set()
        clock.now += 0.2
        assert taken.wait(WITHIN_S)


@pytest.mark.parametrize(
    "fault",
    [Fault(plural="leases", status=500, times=-1), Fault(plural="leases", drop="before", times=-1)],
    ids=["fails", "hangs up"],
)
def test_who_cannot_renew_stops_before_another_may_begin(fake: FakeApi, fault: Fault) -> None:
    lost = threading.Event()
    one = a_leader(fake, "one", lost=lost)
    began = time.monotonic()
    assert one.acquire(NEVER)
    fake.faults.add(fault)
    with in_thread(one.hold):
        assert lost.wait(WITHIN_S)
        assert time.monotonic() - began >= QUICK.renew_deadline_s
    assert not one.is_leading()


def test_a_renewal_is_one_request(fake: FakeApi) -> None:
    one = a_leader(fake, "one", times=LONG)
    assert one.acquire(NEVER)
    reads, writes = (len(fake.faults.seen(verb, "leases")) for verb in ("get", "update"))
    with in_thread(one.hold):
        eventually(lambda: len(fake.faults.seen("update", "leases")) >= writes + 5)
        assert len(fake.faults.seen("get", "leases")) == reads


class Slow:
    """An API server that takes its time, on a clock that only moves when it is told to."""

    def __init__(self, api: Api, clock: Clock, *, took_s: float) -> None:
        self._api, self._clock, self._took_s = api, clock, took_s

    def __getattr__(self, verb: str) -> Callable[..., Obj]:
        def asked(*what: Any, **more: Any) -> Obj:
            self._clock.now += self._took_s
            found: Obj = getattr(self._api, verb)(*what, **more)
            return found

        return asked


class Turns:
    """A sign to stop after some waits, which take no time but on a clock of one's own."""

    def __init__(self, clock: Clock, *, turns: int) -> None:
        self._clock, self._turns = clock, turns
        self.waits: list[float] = []

    def wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        self._clock.now += seconds
        return len(self.waits) > self._turns


@pytest.mark.parametrize(
    ("took_s", "wait_s"), [(0.5, 1.5), (1.75, 0.25), (8.0, 0.1)], ids=["quick", "slow", "late"]
)
def test_renewals_begin_evenly_however_long_each_takes(
    fake: FakeApi, took_s: float, wait_s: float
) -> None:
    clock = Clock()
    slow: Any = Slow(fake.api(), clock, took_s=took_s)
    one = Leader(slow, "retuned-operator", namespace="default", identity="one", clock=clock)
    turns: Any = Turns(clock, turns=4)
    assert one.acquire(NEVER)
    one.hold(turns)
    assert turns.waits == [2.0, *[pytest.approx(wait_s)] * 4]
    assert lease(fake)["spec"]["holderIdentity"] == ""  # it was its own to give away


class Door:
    """A lock that knows how many have come to it."""

    def __init__(self) -> None:
        self.came = 0
        self._counting, self._lock = threading.Lock(), threading.Lock()

    def __enter__(self) -> None:
        with self._counting:
            self.came += 1
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_of_all_who_are_about_to_write_one_reads_the_lease(
    fake: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, door, writers = Clock(), Door(), 12
    one = a_leader(fake, "one", clock=clock)
    assert one.acquire(NEVER)
    clock.now += QUICK.fresh_s + 0.1
    whole, reads = one._read, list[int]()

    def read() -> Obj | None:
        reads.append(len(reads))
        eventually(lambda: door.came == writers)
        return whole()

    monkeypatch.setattr(one, "_reading", door)
    monkeypatch.setattr(one, "_read", read)
    passed: list[int] = []

    def write(n: int) -> None:
        one.confirm()
        passed.append(n)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(writers)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(WITHIN_S)
    assert len(passed) == writers
    assert len(reads) <= 2  # the first, and one for those who came while it was under way


def test_a_failure_that_passes_does_not_cost_the_lease(fake: FakeApi) -> None:
    lost = threading.Event()
    one = a_leader(fake, "one", lost=lost, times=LONG)
    assert one.acquire(NEVER)
    fault = fake.faults.add(Fault(plural="leases", status=500, times=3))
    with in_thread(one.hold):
        eventually(lambda: fault.hits == 3)
        writes = len(fake.faults.seen("update", "leases"))
        eventually(lambda: len(fake.faults.seen("update", "leases")) > writes)
        assert not lost.is_set()
        one.confirm()


def test_who_finds_another_in_the_lease_stops_at_once(fake: FakeApi) -> None:
    lost = threading.Event()
    one = a_leader(fake, "one", lost=lost)
    assert one.acquire(NEVER)
    body = lease(fake)
    fake.api().replace(LEASES, body | {"spec": {**body["spec"], "holderIdentity": "two"}})
    with in_thread(one.hold):
        assert lost.wait(WITHIN_S)
    with pytest.raises(NotLeading):
        one.confirm()


def test_who_slept_reads_the_lease_again_before_it_writes(fake: FakeApi) -> None:
    clock = Clock()
    one = a_leader(fake, "one", clock=clock)
    assert one.acquire(NEVER)
    reads = len(fake.faults.seen("get", "leases"))
    one.confirm()
    assert len(fake.faults.seen("get", "leases")) == reads
    clock.now += QUICK.fresh_s + 0.1
    one.confirm()
    assert len(fake.faults.seen("get", "leases")) == reads + 1
    body = lease(fake)
    fake.api().replace(LEASES, body | {"spec": {**body["spec"], "holderIdentity": "two"}})
    with pytest.raises(NotLeading):
        one.confirm()


def test_who_slept_too_long_or_cannot_read_the_lease_writes_nothing(fake: FakeApi) -> None:
    clock = Clock()
    one = a_leader(fake, "one", clock=clock)
    assert one.acquire(NEVER)
    clock.now += QUICK.fresh_s + 0.1
    fake.faults.add(Fault(verb="get", plural="leases", status=500))
    with pytest.raises(Unavailable):
        one.confirm()
    clock.now += QUICK.renew_deadline_s
    with pytest.raises(NotLeading):
        one.confirm()


def test_a_renewal_without_an_answer_is_found_to_have_been_done(fake: FakeApi) -> None:
    lost = threading.Event()
    one = a_leader(fake, "one", lost=lost, clock=Clock())
    assert one.acquire(NEVER)
    fault = fake.faults.add(Fault(verb="update", plural="leases", drop="after", times=2))
    with in_thread(one.hold):
        eventually(lambda: fault.hits == 2)
        writes = len(fake.faults.seen("update", "leases"))
        eventually(lambda: len(fake.faults.seen("update", "leases")) > writes)
        one.confirm()
    assert not lost.is_set()


def test_a_lease_that_nobody_can_understand_is_lost(
    fake: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    lost = threading.Event()
    one = a_leader(fake, "one", lost=lost)
    assert one.acquire(NEVER)
    body = lease(fake)
    fake.api().replace(LEASES, body | {"spec": {**body["spec"], "leaseTransitions": "many"}})
    fake.api().patch(
        LEASES, "retuned-operator", change={"spec": {"holderIdentity": ""}}, namespace="default"
    )
    with in_thread(one.hold):
        assert lost.wait(WITHIN_S)
    assert "cannot be understood" in caplog.text
    assert not one.is_leading()


def test_two_that_begin_at_the_same_moment_do_not_both_lead(fake: FakeApi) -> None:
    # for none time passes: who leads here does not renew
    leaders = [a_leader(fake, f"l{n}", clock=Clock()) for n in range(4)]
    stop, led = threading.Event(), list[Leader]()

    def contend(leader: Leader) -> None:
        if leader.acquire(stop):
            led.append(leader)

    threads = [threading.Thread(target=contend, args=(each,)) for each in leaders]
    for each in threads:
        each.start()
    eventually(lambda: bool(led))
    stop.set()
    for each in threads:
        each.join(WITHIN_S)
    assert len(led) == 1
    assert lease(fake)["spec"]["holderIdentity"] == led[0].identity


@pytest.mark.parametrize(
    "times",
    [
        {"renew_deadline_s": 30.0},
        {"renew_s": 6.0},
        {"fresh_s": 21.0},
        {"renew_s": 0.0},
    ],
)
def test_times_that_would_let_two_lead_are_refused(times: dict[str, float]) -> None:
    ((name, value),) = times.items()
    with raises_naming(ValueError, "renew < fresh <= deadline < duration", f"{name}={value}"):
        LeaseTimes(**times)


@given(
    renewals=st.lists(st.floats(0.1, 19.9), max_size=8),
    skew_s=st.floats(-1e6, 1e6),
    their_duration=st.one_of(st.none(), st.integers(-5, 60)),
    after_s=st.floats(0.0, 100.0),
)
def test_nobody_takes_a_lease_within_its_time_after_a_renewal_was_seen(
    renewals: list[float], skew_s: float, their_duration: int | None, after_s: float
) -> None:
    times, now, seen = LeaseTimes(), 1000.0 + skew_s, None
    for n, gap_s in enumerate([0.0, *renewals]):
        now += gap_s
        body = {
            "metadata": {"resourceVersion": str(n)},
            "spec": {"holderIdentity": "a", "leaseDurationSeconds": their_duration},
        }
        seen = observed(body, seen, now_s=now)
        seen = observed(body, seen, now_s=now + 0.01)
    assert isinstance(seen, ObservedLease)
    allowed = may_take(seen, "b", now_s=now + after_s, times=times)
    longest = max(times.duration_s, float(their_duration or 0))
    assert allowed is (now + after_s - now >= longest)
    assert not (allowed and after_s < times.renew_deadline_s)
