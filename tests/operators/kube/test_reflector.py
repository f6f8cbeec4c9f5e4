"""A reflector's store becomes what the server has, whatever goes wrong on the way."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.fakeapi.faults import Fault
from tests.fakeapi.server import FakeApi
from tests.operators.kube.running import WITHIN_S, eventually, in_thread

from retuned_operator.kube.backoff import Backoff
from retuned_operator.kube.client import Api
from retuned_operator.kube.informer import Change, ObjectCache, Reflector, Selection
from retuned_operator.kube.resources import CONFIG_MAPS, Obj
from retuned_operator.kube.transport import Timeouts

QUICK = Backoff(first_s=0.02, most_s=0.2)
WATCHED = Selection(resource=CONFIG_MAPS, namespace="serving", labels="is=watched")


class Kept:
    """A reflector with what it said."""

    def __init__(self, api: Api, selection: Selection = WATCHED, **more: Any) -> None:
        self.store = ObjectCache()
        self.changes: list[Change] = []
        self.restarts: list[str] = []
        more.setdefault("backoff", QUICK)
        self.reflector = Reflector(
            api,
            selection,
            store=self.store,
            on_change=self.changes.append,
            on_restart=self.restarts.append,
            **more,
        )

    @contextmanager
    def running(self) -> Iterator[Kept]:
        with in_thread(self.reflector.run, self.reflector.interrupt):
            yield self

    def has(self, *names: str) -> None:
        eventually(lambda: self.store.keys() == tuple(f"serving/{name}" for name in names))


def make(fake: FakeApi, name: str, **data: str) -> Obj:
    metadata = {"name": name, "namespace": "serving", "labels": {"is": "watched"}}
    return fake.make(CONFIG_MAPS, {"metadata": metadata, "data": data})


def test_what_was_there_and_what_comes_is_kept(fake: FakeApi) -> None:
    make(fake, "a")
    fake.make(CONFIG_MAPS, {"metadata": {"name": "other", "namespace": "serving"}})
    api = fake.api()
    with Kept(api).running() as kept:
        kept.has("a")
        make(fake, "b")
        kept.has("a", "b")
        api.patch(CONFIG_MAPS, "a", change={"data": {"x": "1"}}, namespace="serving")
        eventually(lambda: (kept.store.get("serving/a") or {}).get("data") == {"x": "1"})
        api.delete(CONFIG_MAPS, "b", namespace="serving")
        kept.has("a")
        assert [(c.key[8:], c.gone) for c in kept.changes] == [
            ("a", False),
            ("b", False),
            ("a", False),
            ("b", True),
        ]
    assert kept.restarts == []
    assert len(fake.faults.seen("list")) == len(fake.faults.seen("watch")) == 1


def test_it_is_synced_only_after_the_first_whole_list(fake: FakeApi) -> None:
    fake.faults.add(Fault(verb="list", status=500, times=3))
    make(fake, "a")
    kept = Kept(fake.api())
    assert kept.reflector.silent_s() == float("inf")
    with kept.running():
        assert kept.reflector.synced.wait(WITHIN_S)
        assert kept.store.keys() == ("serving/a",)
        assert kept.restarts == ["api-unavailable"] * 3


@pytest.mark.parametrize(
    "fault",
    [
        Fault(verb="watch", status=500, times=3),
        Fault(verb="watch", status=429, retry_after="0", times=3),
        Fault(verb="watch", drop="before", times=3),
        Fault(verb="list", drop="after", times=3),
        Fault(verb="watch", status=403, times=3),
        Fault(latency_s=0.2, times=5),
    ],
    ids=["fails", "has too much to do", "hangs up", "hangs up late", "forbids", "is slow"],
)
def test_a_server_that_does_that_for_a_while_is_followed_in_the_end(
    fake: FakeApi, fault: Fault
) -> None:
    fault = fake.faults.add(fault)
    times = fault.times
    make(fake, "a")
    with Kept(fake.api()).running() as kept:
        eventually(lambda: fault.hits == times or fault.latency_s > 0)
        make(fake, "b")
        kept.has("a", "b")


def test_a_watch_that_stalls_is_begun_again_from_where_it_was(fake: FakeApi) -> None:
    timeouts = Timeouts(connect_s=5.0, answer_s=60.0, watch_s=600.0, stall_s=0.5)
    fault = fake.faults.add(Fault(verb="watch", stall=True))
    with Kept(fake.api(timeouts=timeouts)).running() as kept:
        assert kept.reflector.synced.wait(WITHIN_S)
        eventually(lambda: fault.hits == 1)
        make(fake, "unheard")
        kept.has("unheard")
    assert kept.restarts[0] == "api-unavailable"
    assert len(fake.faults.seen("list")) == 1


def test_a_stalled_watch_is_recovered_within_eighty_seconds_as_it_is_set_by_default() -> None:
    timeouts = Timeouts()
    worst_s = timeouts.stall_s + Backoff().delay_s(1, draw=lambda: 1.0) + timeouts.connect_s
    assert worst_s <= 80.0
    assert timeouts.stall_s > timeouts.watch_s + 5.0  # a healthy server ends it before


def test_silence_shows_and_ends_with_a_bookmark(fake: FakeApi) -> None:
    fault = fake.faults.add(Fault(verb="watch", stall=True, times=-1))
    kept = Kept(fake.api())
    with kept.running():
        eventually(lambda: fault.hits == 1)
        eventually(lambda: kept.reflector.silent_s() > 0.4)
        fake.faults.clear()
        fake.disconnect()
        eventually(lambda: len(fake.faults.seen("watch")) > 1)
        eventually(lambda: kept.reflector.silent_s() < 0.4)


def test_a_version_that_is_gone_leads_to_a_new_list_which_also_shows_what_went(
    fake: FakeApi,
) -> None:
    make(fake, "stays")
    make(fake, "goes")
    api = fake.api()
    with Kept(api).running() as kept:
        kept.has("goes", "stays")
        blocked = fake.faults.add(Fault(verb="watch", status=503, times=-1))
        fake.disconnect()
        eventually(lambda: blocked.hits > 0)
        api.delete(CONFIG_MAPS, "goes", namespace="serving")
        make(fake, "new")
        fake.expire()
        fake.faults.clear()
        kept.has("new", "stays")
        assert kept.changes[-1].gone or kept.changes[-2].gone
        assert "version-gone" in kept.restarts


def test_a_server_whose_versions_are_always_gone_is_not_asked_without_pause(
    fake: FakeApi,
) -> None:
    fake.faults.add(Fault(verb="watch", status=410, times=-1))
    backoff = Backoff(first_s=0.2, most_s=0.4)
    began = time.monotonic()
    with Kept(fake.api(), backoff=backoff).running() as kept:
        eventually(lambda: len(kept.restarts) >= 6)
        assert time.monotonic() - began >= 5 * 0.1
        assert set(kept.restarts) == {"version-gone"}


def test_a_watch_that_ends_at_once_is_not_begun_again_without_pause(fake: FakeApi) -> None:
    fake.faults.add(Fault(verb="watch", drop="after", times=-1))
    backoff = Backoff(first_s=0.2, most_s=0.4)
    began = time.monotonic()
    with Kept(fake.api(), backoff=backoff).running() as kept:
        eventually(lambda: len(kept.restarts) >= 6)
        assert time.monotonic() - began >= 5 * 0.1
    assert len(fake.faults.seen("list")) == 1


def test_a_watch_that_ends_by_itself_goes_on_without_a_new_list(fake: FakeApi) -> None:
    timeouts = Timeouts(connect_s=5.0, answer_s=60.0, watch_s=1.0, stall_s=60.0)
    with Kept(fake.api(timeouts=timeouts)).running() as kept:
        eventually(lambda: kept.restarts[:2] == ["watch-ended", "watch-ended"])
        make(fake, "a")
        kept.has("a")
    assert len(fake.faults.seen("list")) == 1


def test_objects_that_leave_the_selection_leave_the_store(fake: FakeApi) -> None:
    make(fake, "a")
    api = fake.api()
    with Kept(api).running() as kept:
        kept.has("a")
        change = {"metadata": {"labels": {"is": "other"}}}
        api.patch(CONFIG_MAPS, "a", change=change, namespace="serving")
        kept.has()


def test_reflectors_of_two_namespaces_share_a_store_and_leave_each_others_objects(
    fake: FakeApi,
) -> None:
    api = fake.api()
    mine = Kept(api, Selection(resource=CONFIG_MAPS, namespace="serving"))
    mine.store.put({"metadata": {"name": "there", "namespace": "default"}})
    with mine.running():
        make(fake, "a")
        eventually(lambda: mine.store.keys() == ("default/there", "serving/a"))


def test_it_ends_when_it_is_told_to_also_in_the_middle_of_a_silent_watch(fake: FakeApi) -> None:
    fault = fake.faults.add(Fault(verb="watch", stall=True, times=-1))
    with Kept(fake.api()).running():
        eventually(lambda: fault.hits == 1)


def test_an_answer_that_nobody_expected_does_not_end_the_work(
    fake: FakeApi, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The store is not like the server's then, and its silence says so."""
    make(fake, "a")
    kept = Kept(fake.api())
    whole = ObjectCache.put

    def put(store: ObjectCache, body: Obj) -> bool:
        if body["metadata"]["name"] == "strange":
            raise OverflowError("a number that nobody can write")
        return whole(store, body)

    monkeypatch.setattr(ObjectCache, "put", put)
    with kept.running():
        kept.has("a")
        make(fake, "strange")
        eventually(lambda: kept.restarts.count("bug") >= 3)
        eventually(lambda: kept.reflector.silent_s() > 0.3)
        fake.api().delete(CONFIG_MAPS, "strange", namespace="serving")
        make(fake, "b")
        kept.has("a", "b")
        eventually(lambda: kept.reflector.silent_s() < 0.3)
    assert "an unexpected answer" in caplog.text
