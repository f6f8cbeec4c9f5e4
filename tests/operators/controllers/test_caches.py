from __future__ import annotations

from typing import Any

import pytest
from tests.operators import examples

from retuned_operator.controllers import caches
from retuned_operator.controllers.caches import INDICES, StoreCaches
from retuned_operator.controllers.ports import BY_PHASE, BY_SELECTOR, BY_TARGET
from retuned_operator.kube import informer
from retuned_operator.kube.informer import ObjectCache, key_of, made_of
from retuned_operator.kube.resources import PROPOSALS, TARGETS, Obj


def a_swap(version: int, **more: Any) -> Obj:
    body = examples.a_swap()
    body["metadata"] |= {"resourceVersion": str(version)} | more
    return body


class Kept:
    def __init__(self) -> None:
        self.stores = {kind: ObjectCache(INDICES.get(kind)) for kind in (PROPOSALS, TARGETS)}
        self.known = True
        self.caches = StoreCaches(self.stores, current=lambda _: self.known)

    def versions(self) -> list[str]:
        found = self.caches.by(PROPOSALS, BY_TARGET, "serving/chat")
        dated = self.caches.dated(PROPOSALS, BY_TARGET, "serving/chat")
        assert found is not None
        assert dated == {key_of(body): made_of(body) for body in found}
        return [body["metadata"]["resourceVersion"] for body in found]


def test_what_was_written_counts_until_the_watch_has_brought_it_or_something_newer() -> None:
    kept = Kept()
    kept.stores[PROPOSALS].put(a_swap(9))
    kept.caches.wrote(PROPOSALS, a_swap(10))
    assert kept.versions() == ["10"]
    kept.stores[PROPOSALS].put(a_swap(8))  # the watch is behind
    assert kept.versions() == ["10"]
    kept.stores[PROPOSALS].put(a_swap(12))
    assert kept.versions() == ["12"]
    kept.stores[PROPOSALS].put(a_swap(11))
    assert kept.versions() == ["11"]  # nothing older is remembered


def test_another_object_of_the_same_name_is_not_mistaken_for_what_was_written() -> None:
    kept = Kept()
    kept.caches.wrote(PROPOSALS, a_swap(10))
    kept.stores[PROPOSALS].put(a_swap(3, uid="another"))
    assert kept.versions() == ["3"]


def test_what_is_gone_is_gone_although_it_was_written() -> None:
    kept = Kept()
    kept.stores[PROPOSALS].put(a_swap(9))
    kept.caches.wrote(PROPOSALS, a_swap(10))
    kept.stores[PROPOSALS].drop("serving/swp-1")
    assert kept.versions() == []
    assert kept.caches.get(PROPOSALS, "serving/swp-1") is None


def test_what_is_not_current_is_not_known() -> None:
    kept = Kept()
    kept.stores[PROPOSALS].put(a_swap(9))
    kept.known = False
    assert kept.caches.list(PROPOSALS) is None
    assert kept.caches.by(PROPOSALS, BY_TARGET, "serving/chat") is None
    assert kept.caches.dated(PROPOSALS, BY_TARGET, "serving/chat") is None


def test_what_was_just_written_is_dated_in_the_phase_that_it_has_now() -> None:
    kept = Kept()
    made = {"creationTimestamp": "2026-03-02T12:00:00Z"}
    kept.stores[PROPOSALS].put(a_swap(9, **made) | {"status": {"phase": "AwaitingApproval"}})
    kept.caches.wrote(PROPOSALS, a_swap(10, **made) | {"status": {"phase": "Approved"}})
    assert kept.caches.dated(PROPOSALS, BY_PHASE, "AwaitingApproval") == {}
    found = kept.caches.dated(PROPOSALS, BY_PHASE, "Approved")
    assert found == {"serving/swp-1": "2026-03-02T12:00:00Z"}


def test_a_target_is_found_by_a_label_of_its_pods() -> None:
    kept = Kept()
    kept.stores[TARGETS].put(examples.a_target())
    found = kept.caches.by(TARGETS, BY_SELECTOR, "serving/app=chat")
    assert found is not None
    assert len(found) == 1
    assert kept.caches.by(TARGETS, BY_SELECTOR, "other/app=chat") == []


def test_what_was_written_and_never_seen_again_does_not_pile_up() -> None:
    kept = Kept()
    for n in range(9000):
        body = a_swap(n)
        body["metadata"]["name"] = f"swp-{n}"
        kept.caches.wrote(PROPOSALS, body)
    assert len(kept.caches._written) <= 4096


def test_what_is_looked_for_costs_no_more_for_what_was_written_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = Kept()
    for n in range(300):
        body = a_swap(9, name=f"swp-{n}", uid=f"uid-{n}")
        body["spec"]["targetRef"] = {"name": f"t{n}"}
        kept.stores[PROPOSALS].put(body)
        after = {**body, "metadata": {**body["metadata"], "resourceVersion": "10"}}
        kept.caches.wrote(PROPOSALS, after)
    decoded: list[bytes] = []
    whole = informer._decoded

    def counted(text: bytes) -> Obj:
        decoded.append(text)
        return whole(text)

    monkeypatch.setattr(informer, "_decoded", counted)
    found = kept.caches.by(PROPOSALS, BY_TARGET, "serving/t7")
    assert found is not None
    assert [body["metadata"]["resourceVersion"] for body in found] == ["10"]
    assert len(decoded) == 1
    assert kept.caches.dated(PROPOSALS, BY_TARGET, "serving/t7") is not None
    assert len(decoded) == 2


def test_what_has_arrived_is_forgotten_together_and_not_looked_for_with_every_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(caches, "_MOST", 50)
    kept = Kept()
    asked: list[str] = []
    whole = kept.stores[PROPOSALS].get

    def counted(key: str) -> Obj | None:
        asked.append(key)
        return whole(key)

    monkeypatch.setattr(kept.stores[PROPOSALS], "get", counted)
    for n in range(1000):  # the watch has brought every second one
        body = a_swap(9 + n % 2, name=f"swp-{n}", uid=f"uid-{n}")
        kept.stores[PROPOSALS].put(body)
        after = {**body, "metadata": {**body["metadata"], "resourceVersion": "10"}}
        kept.caches.wrote(PROPOSALS, after)
    assert len(kept.caches._written) < 1000
    assert len(asked) <= 4 * 1000
    for n in range(0, 1000, 2):
        found = kept.caches.get(PROPOSALS, f"serving/swp-{n}")
        assert found is not None
        assert found["metadata"]["resourceVersion"] == "10"
