"""Stores: copies that nobody can spoil, found by what they are about."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from tests.expect import raises_naming

from retuned_operator.kube.informer import ObjectCache
from retuned_operator.kube.resources import Obj


def a_decision(name: str, proposal: str, *, namespace: str = "serving") -> Obj:
    return {
        "metadata": {"name": name, "namespace": namespace, "resourceVersion": "1"},
        "spec": {"proposalRef": {"name": proposal}},
    }


def about(body: Obj) -> Iterable[str]:
    yield body["spec"]["proposalRef"]["name"]


def names(found: Iterable[Obj]) -> list[str]:
    return [each["metadata"]["name"] for each in found]


def test_what_is_read_is_a_copy() -> None:
    store = ObjectCache()
    store.put(a_decision("one", "p"))
    found = store.get("serving/one")
    assert found is not None
    found["spec"].clear()
    assert store.get("serving/one") == a_decision("one", "p")


def test_only_what_changes_counts_and_the_managers_of_fields_do_not() -> None:
    store, body = ObjectCache(), a_decision("one", "p")
    assert store.put(body)
    body["metadata"]["managedFields"] = [{"manager": "kubectl"}]
    assert not store.put(body)
    body["metadata"]["resourceVersion"] = "2"
    assert store.put(body)


def test_objects_are_found_by_an_index_which_follows_them() -> None:
    store = ObjectCache({"about": about})
    store.put(a_decision("one", "p"))
    store.put(a_decision("two", "p"))
    store.put(a_decision("three", "q"))
    assert names(store.by("about", "p")) == ["one", "two"]
    store.put(a_decision("one", "q"))
    assert names(store.by("about", "q")) == ["one", "three"]
    store.drop("serving/two")
    assert store.by("about", "p") == ()
    assert store.words("about") == ("q",)
    with raises_naming(KeyError, "'by whom'", "'about'"):
        store.by("by whom", "p")


def test_an_object_that_an_index_cannot_read_is_still_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = ObjectCache({"about": about})
    strange = a_decision("one", "p") | {"spec": {}}
    assert store.put(strange)
    assert names(store.list()) == ["one"]
    assert "serving/one is not to be found by about" in caplog.text


def test_objects_are_listed_by_namespace() -> None:
    store = ObjectCache()
    for namespace in ("a", "ab"):
        store.put(a_decision("one", "p", namespace=namespace))
    assert store.keys(namespace="a") == ("a/one",)
    assert [e["metadata"]["namespace"] for e in store.list(namespace="ab")] == ["ab"]
    assert len(store) == 2
    assert store.drop("a/none") is None
