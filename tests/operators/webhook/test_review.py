from __future__ import annotations

import base64
import copy
import json
from typing import Any

import kubernetes_validate
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.expect import raises_code
from tests.operators.security import violations
from tests.operators.test_injection import applied
from tests.operators.test_manifests import SIDECAR, server_pod
from tests.operators.versions import VERSIONS
from tests.operators.webhook.pods import PODS

from retuned.errors import UnreadableInput
from retuned_operator.manifests import inject
from retuned_operator.manifests.injection import SITE
from retuned_operator.webhook.review import admitted, answer, parse


def review(pod: Any, **changes: Any) -> dict[str, Any]:
    request = {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "operation": "CREATE",
        "namespace": "serving",
        "object": pod,
    }
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": request | changes,
    }


def asked(pod: Any, **changes: Any) -> tuple[str, dict[str, Any]]:
    body = parse(json.dumps(review(pod, **changes)).encode())
    found = answer(body, settings=SIDECAR)
    return found.outcome, dict(found.body["response"])


def patched(pod: dict[str, Any]) -> dict[str, Any]:
    _, response = asked(pod)
    if "patch" not in response:
        return pod
    return applied(pod, json.loads(base64.b64decode(response["patch"])))


def test_the_answer_names_the_question_and_carries_the_patch() -> None:
    outcome, response = asked(server_pod())
    assert outcome == "injected"
    assert response["uid"] == "705ab4f5-6393-11e8-b7cc-42010a800002"
    assert response["allowed"] is True
    assert response["patchType"] == "JSONPatch"
    assert response["auditAnnotations"] == {"sidecar": "injected"}
    assert "warnings" not in response
    assert patched(server_pod()) == inject(server_pod(), settings=SIDECAR).pod


def test_a_pod_that_did_not_ask_is_admitted_without_a_word() -> None:
    outcome, response = asked(server_pod() | {"metadata": {"name": "other"}})
    assert outcome == "not-asked"
    assert response["allowed"] is True
    assert not {"warnings", "patch"} & set(response)


def test_a_second_call_for_the_same_pod_changes_nothing() -> None:
    once = patched(server_pod())
    outcome, response = asked(once)
    assert (outcome, "patch" in response, "warnings" in response) == (
        "already-there",
        False,
        False,
    )


def test_a_pod_that_asks_and_cannot_take_it_is_admitted_with_a_warning_and_a_note() -> None:
    pod = server_pod(containers=[{"name": "a"}, {"name": "b"}])
    outcome, response = asked(pod)
    assert outcome == "no-container"
    assert response["allowed"] is True
    assert "patch" not in response
    assert response["warnings"][0].endswith("[no-container]")
    assert response["auditAnnotations"] == {"sidecar": "no-container"}


def test_a_warning_carries_no_strangers_control_characters_and_is_short() -> None:
    names = [f"retuned-token\x1b[31m{n}" for n in range(40)]
    pod = server_pod(volumes=[{"name": "retuned-token"}, *({"name": n} for n in names)])
    _, response = asked(pod)
    (warning,) = response["warnings"]
    assert warning.isascii()
    assert warning.isprintable()
    assert len(warning) <= 256


@pytest.mark.parametrize(
    "changes",
    [
        {"operation": "UPDATE"},
        {"operation": "DELETE", "object": None},
        {"subResource": "ephemeralcontainers"},
        {"kind": {"group": "apps", "version": "v1", "kind": "Deployment"}},
        {"kind": None},
        {"object": ["not", "a", "pod"]},
    ],
)
def test_what_is_no_new_pod_is_admitted_untouched(changes: dict[str, Any]) -> None:
    outcome, response = asked(server_pod(), **changes)
    assert outcome == "not-a-pod"
    assert response["allowed"] is True
    assert "patch" not in response


NO_REVIEW: list[dict[str, Any]] = [
    {"apiVersion": "admission.k8s.io/v1beta1", "request": {"uid": "1"}},
    {"apiVersion": "admission.k8s.io/v1", "request": {}},
    {"apiVersion": "admission.k8s.io/v1", "request": {"uid": ""}},
    {"apiVersion": "admission.k8s.io/v1", "request": {"uid": "x" * 300}},
]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b"", "not-json"),
        (b"\xff", "not-json"),
        (b"[" * 100_000, "not-json"),
        (b"[]", "no-review"),
        (b"{}", "no-review"),
        *((json.dumps(body).encode(), "no-review") for body in NO_REVIEW),
    ],
)
def test_what_is_no_review_is_refused_with_a_code(text: bytes, code: str) -> None:
    with raises_code(UnreadableInput, code, "admission review"):
        parse(text)


def test_our_own_fault_admits_the_pod_and_says_so() -> None:
    body = admitted(review(server_pod())).body
    assert body["response"]["allowed"] is True
    assert body["response"]["auditAnnotations"] == {"sidecar": "failed"}
    assert "patch" not in body["response"]


@pytest.mark.parametrize("name", sorted(PODS))
def test_pods_of_all_sorts_are_valid_afterwards(name: str) -> None:
    pod = patched(PODS[name])
    assert pod != PODS[name]
    for version in (VERSIONS[0], VERSIONS[-1]):
        kubernetes_validate.validate(pod, version, strict=True)
    own = violations(PODS[name]["spec"], only=set())  # what the pod itself asks for
    assert violations(pod["spec"], only={"retuned", "retuned-runtime"}) == own


@pytest.mark.parametrize("name", sorted(PODS))
def test_twice_is_once_for_pods_of_all_sorts(name: str) -> None:
    once = patched(PODS[name])
    assert patched(once) == once


@pytest.mark.parametrize("name", sorted(PODS))
def test_the_path_of_the_server_stays_behind_ours(name: str) -> None:
    def path(pod: dict[str, Any]) -> list[str]:
        return [
            e["value"]
            for c in pod["spec"]["containers"]
            for e in c.get("env", ())
            if e["name"] == "PYTHONPATH"
        ]

    before = "".join(path(PODS[name]))
    assert path(patched(PODS[name])) == [f"{SITE}:{before}" if before else SITE]


def dropped(before: Any, after: Any, place: str = "") -> list[str]:
    """Return what of a pod is no longer there; lists may be longer and in another order."""
    if isinstance(before, dict) and isinstance(after, dict):
        missing = [f"{place}/{k}" for k in before if k not in after]
        return missing + [
            each
            for k in before
            if k in after
            for each in dropped(before[k], after[k], f"{place}/{k}")
        ]
    if isinstance(before, list) and isinstance(after, list):
        named = {e["name"]: e for e in after if isinstance(e, dict) and "name" in e}
        found: list[str] = []
        for each in before:
            name = each.get("name") if isinstance(each, dict) else None
            if name in named:
                found += dropped(each, named[name], f"{place}/{name}")
            elif each not in after:
                found.append(f"{place}[{each!r}]")
        return found
    return [] if before == after or place.endswith("/PYTHONPATH/value") else [place]


words = st.text(alphabet="abcxyz-", min_size=1, max_size=8).map(lambda w: f"x{w}x")
things = st.dictionaries(words, st.text(max_size=5) | st.integers() | st.booleans(), max_size=3)
listed = st.lists(
    st.builds(lambda n, t: {**t, "name": n}, words, things),
    max_size=3,
    unique_by=lambda e: e["name"],
)
containers = st.builds(
    lambda rest, env, mounts: {
        **rest,
        "name": "server",
        "env": env,
        "volumeMounts": [m | {"mountPath": f"/m/{m['name']}"} for m in mounts],
    },
    things,
    listed,
    listed,
)


@given(containers, listed, listed, listed, things, things)
def test_nothing_of_a_pod_is_ever_dropped(
    server: Any, others: Any, first: Any, volumes: Any, labels: Any, rest: Any
) -> None:
    pod = server_pod(containers=[*others, server], initContainers=first, volumes=volumes)
    pod["spec"] |= {k: v for k, v in rest.items() if k not in pod["spec"]}
    pod["metadata"]["labels"] = labels
    pod["metadata"]["annotations"]["retuned.dev/container"] = "server"
    before = copy.deepcopy(pod)
    after = patched(pod)
    assert pod == before
    assert after != before
    assert dropped(before, after) == []
    assert [c["name"] for c in after["spec"]["containers"]] == [
        c["name"] for c in before["spec"]["containers"]
    ]
