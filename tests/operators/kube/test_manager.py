"""Controllers are called until things are as they should be, and only by who leads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from tests.expect import raises_naming
from tests.fakeapi.faults import Fault
from tests.fakeapi.server import FakeApi
from tests.operators.kube.running import WITHIN_S, Clock, eventually, in_thread

from retuned.errors import HarnessError, TemporaryError
from retuned_operator.kube.backoff import Backoff
from retuned_operator.kube.client import Api
from retuned_operator.kube.errors import Conflict, Unavailable
from retuned_operator.kube.informer import ObjectCache, split
from retuned_operator.kube.lease import Leader, LeaseTimes
from retuned_operator.kube.manager import Controller, Manager, ManagerSettings, itself
from retuned_operator.kube.resources import CONFIG_MAPS, SECRETS, Obj

SETTINGS = ManagerSettings(
    stale_s=5.0,
    watch_backoff=Backoff(first_s=0.02, most_s=0.2),
    key_backoff=Backoff(first_s=0.02, most_s=0.2),
)


class Copier:
    """Keeps a Secret like each ConfigMap that asks for one: a controller as small as can be."""

    def __init__(self, api: Api, *, leader: Leader | None = None, **more: Any) -> None:
        self.registry = CollectorRegistry()
        self.manager = Manager(
            api, leader=leader, registry=self.registry, settings=more.pop("settings", SETTINGS)
        )
        self.maps: ObjectCache = self.manager.store(CONFIG_MAPS, namespaces=["serving"])
        self.secrets: ObjectCache = self.manager.store(SECRETS, namespaces=["serving"])
        self.looked: list[str] = []
        self.before: Callable[[str], float | None] = lambda _: None
        self.queue = self.manager.add(
            Controller(
                name="copier",
                primary="configmaps",
                watches={"configmaps": itself, "secrets": more.pop("concerns", itself)},
                reconcile=self.reconcile,
            )
        )

    def reconcile(self, key: str) -> float | None:
        self.looked.append(key)
        after_s = self.before(key)
        body, copy = self.maps.get(key), self.secrets.get(key)
        namespace, name = split(key)
        if body is None:
            return after_s
        data = {"stringData": body.get("data", {}), "metadata": {"name": name}}
        if copy is None or copy.get("stringData") != data["stringData"]:
            data["metadata"] |= {"namespace": namespace}
            self.manager.writer.apply(SECRETS, data)
        return after_s

    @contextmanager
    def running(self) -> Iterator[Copier]:
        with in_thread(self.manager.run):
            yield self

    def sample(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0


def make(fake: FakeApi, name: str, **data: str) -> Obj:
    return fake.make(
        CONFIG_MAPS, {"metadata": {"name": name, "namespace": "serving"}, "data": data}
    )


def copied(fake: FakeApi, name: str) -> dict[str, str] | None:
    for each in fake.api().list(SECRETS, namespace="serving").items:
        if each["metadata"]["name"] == name:
            return dict(each["stringData"])
    return None


def test_what_is_there_and_what_changes_is_brought_about(fake: FakeApi) -> None:
    make(fake, "a", x="1")
    api = fake.api()
    with Copier(api).running() as copier:
        eventually(lambda: copied(fake, "a") == {"x": "1"})
        api.patch(CONFIG_MAPS, "a", change={"data": {"x": "2"}}, namespace="serving")
        eventually(lambda: copied(fake, "a") == {"x": "2"})
        assert copier.manager.is_acting()
        assert copier.manager.is_current("configmaps")
    assert not copier.manager.is_acting()


def test_what_somebody_destroys_is_brought_about_again(fake: FakeApi) -> None:
    make(fake, "a", x="1")
    with Copier(fake.api()).running():
        eventually(lambda: copied(fake, "a") == {"x": "1"})
        fake.api().delete(SECRETS, "a", namespace="serving")
        eventually(lambda: copied(fake, "a") == {"x": "1"})


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Conflict("old"), "conflict"),
        (TemporaryError("soon", delay_s=0.01), "temporary"),
        (HarnessError("broken"), "harness-failed"),
        (ZeroDivisionError("mistake"), "bug"),
    ],
)
def test_what_fails_is_tried_again_and_others_do_not_wait_for_it(
    fake: FakeApi, error: Exception, code: str
) -> None:
    make(fake, "bad", x="1")
    make(fake, "good", x="1")
    copier = Copier(fake.api())
    repaired = threading.Event()

    def fail(key: str) -> None:
        if key == "serving/bad" and not repaired.is_set():
            raise error

    copier.before = fail
    with copier.running():
        eventually(lambda: copied(fake, "good") is not None)
        eventually(lambda: copier.looked.count("serving/bad") > 3)  # three have failed
        assert copied(fake, "bad") is None
        repaired.set()
        eventually(lambda: copied(fake, "bad") is not None)
    found = copier.sample(
        "retuned_operator_reconcile_duration_seconds_count", controller="copier", result=code
    )
    assert found >= 3


def test_a_key_that_got_no_answer_comes_soon_and_one_that_was_refused_waits_its_time(
    fake: FakeApi,
) -> None:
    make(fake, "unheard", x="1")
    make(fake, "refused", x="1")
    slow = ManagerSettings(key_backoff=Backoff(first_s=600.0, most_s=600.0), away_s=0.05)
    copier = Copier(fake.api(), settings=slow)

    def fail(key: str) -> None:
        if copier.looked.count(key) < 3:
            status = 0 if key == "serving/unheard" else 503
            raise Unavailable("away", status=status, delay_s=0.01)

    copier.before = fail
    with copier.running():
        eventually(lambda: copied(fake, "unheard") is not None)
        assert copied(fake, "refused") is None


def test_a_key_is_looked_at_again_when_its_time_has_come(fake: FakeApi) -> None:
    make(fake, "a")
    copier = Copier(fake.api())
    copier.before = lambda _: 0.05
    with copier.running():
        eventually(lambda: copier.looked.count("serving/a") >= 6)


def test_everything_is_looked_at_again_now_and_then(fake: FakeApi) -> None:
    make(fake, "a")
    settings = ManagerSettings(resync_s=0.2)
    with Copier(fake.api(), settings=settings).running() as copier:
        eventually(lambda: copier.looked.count("serving/a") >= 5)


def test_a_mistake_about_whom_an_object_concerns_makes_all_be_looked_at(fake: FakeApi) -> None:
    make(fake, "a")

    def concerns(_: Obj) -> list[str]:
        raise KeyError("spec")

    with Copier(fake.api(), concerns=concerns).running() as copier:
        eventually(lambda: copied(fake, "a") is not None)
        count = copier.looked.count("serving/a")
        fake.make(SECRETS, {"metadata": {"name": "strange", "namespace": "serving"}})
        eventually(lambda: copier.looked.count("serving/a") > count)
        make(fake, "b", x="1")
        eventually(lambda: copied(fake, "b") == {"x": "1"})


def test_nothing_is_done_before_everything_was_seen_once(fake: FakeApi) -> None:
    make(fake, "a")
    fake.faults.add(Fault(verb="list", plural="secrets", status=403, times=-1))
    with Copier(fake.api()).running() as copier:
        eventually(lambda: len(copier.maps) == 1)
        eventually(lambda: len(fake.faults.seen("list", "secrets")) > 3)
        assert copier.looked == []
        assert not copier.manager.is_current("secrets")
        fake.faults.clear()
        eventually(lambda: copied(fake, "a") is not None)


def test_a_store_that_hears_nothing_is_not_current_any_more(fake: FakeApi) -> None:
    settings = ManagerSettings(stale_s=0.6, watch_backoff=SETTINGS.watch_backoff)
    with Copier(fake.api(), settings=settings).running() as copier:
        eventually(lambda: copier.manager.is_current("secrets"))
        fake.faults.add(Fault(verb="watch", plural="secrets", status=503, times=-1))
        fake.disconnect()
        eventually(lambda: not copier.manager.is_current("secrets"))
        fake.faults.clear()
        eventually(lambda: copier.manager.is_current("secrets"))
        restarts = copier.sample(
            "retuned_operator_watch_restarts_total", resource="secrets", reason="api-unavailable"
        )
        assert restarts > 0


QUICK = LeaseTimes(duration_s=3.0, renew_deadline_s=2.0, renew_s=0.1, fresh_s=0.5)


def a_leader(
    fake: FakeApi, identity: str, on_lost: Callable[[], None], *, clock: Clock | None = None
) -> Leader:
    return Leader(
        fake.api(),
        "retuned-operator",
        namespace="default",
        identity=identity,
        times=QUICK,
        on_lost=on_lost,
        clock=clock or Clock(),
    )


def test_only_the_leader_acts_and_the_next_one_goes_on_where_it_ended(fake: FakeApi) -> None:
    make(fake, "a", x="1")
    one = Copier(fake.api(), leader=a_leader(fake, "one", lambda: None))
    two = Copier(fake.api(), leader=a_leader(fake, "two", lambda: None))
    with in_thread(two.manager.run):
        with in_thread(one.manager.run):
            eventually(lambda: one.manager.is_acting() or two.manager.is_acting())
            eventually(lambda: copied(fake, "a") == {"x": "1"})
            leading = one if one.manager.is_acting() else two
            idle = two if leading is one else one
            assert idle.looked == []
            assert leading.sample("retuned_operator_leading") == 1.0
        eventually(two.manager.is_acting)
        make(fake, "b", x="1")
        eventually(lambda: copied(fake, "b") == {"x": "1"})


def test_who_lost_the_lease_writes_nothing_any_more(fake: FakeApi) -> None:
    lost, clock = threading.Event(), Clock()
    copier = Copier(fake.api(), leader=a_leader(fake, "one", lost.set, clock=clock))
    with copier.running():
        eventually(copier.manager.is_acting)
        fake.faults.add(Fault(plural="leases", status=500, times=-1))
        clock.now += QUICK.renew_deadline_s
        assert lost.wait(WITHIN_S)
        make(fake, "late", x="1")
        eventually(lambda: copier.looked.count("serving/late") >= 2)
        assert copied(fake, "late") is None
        assert not [each for each in fake.faults.seen("patch") if each.name == "late"]


def test_a_controller_that_watches_what_nobody_keeps_is_refused(fake: FakeApi) -> None:
    manager = Manager(fake.api())
    with raises_naming(ValueError, "['jobs']"):
        manager.add(Controller(name="c", primary="jobs", watches={}, reconcile=lambda _: None))
    manager.store(CONFIG_MAPS)
    with raises_naming(ValueError, "'configmaps'"):
        manager.store(CONFIG_MAPS)
