from __future__ import annotations

import base64
import copy
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from retuned_operator.kube.errors import Conflict, Forbidden, NotFound
from retuned_operator.kube.resources import CONFIG_MAPS, MUTATING_WEBHOOKS, SECRETS, Resource
from retuned_operator.webhook.certificate_secret import CertificateRotator, mounted
from retuned_operator.webhook.certificates import CA_LIFE, LIFE, read_material, renewed

NOW = datetime(2026, 3, 2, 10, 0, tzinfo=UTC)
NAMES = ("retuned-webhook.retuned.svc",)
Key = tuple[str, str, str]


class Objects:
    """As much of an API server as is needed: versions, conflicts, and lists by name."""

    def __init__(self) -> None:
        self.kept: dict[Key, dict[str, Any]] = {}
        self.writes: list[Key] = []
        self.before_write: list[Any] = []

    def get(self, resource: Resource, name: str, *, namespace: str = "") -> dict[str, Any]:
        found = self.kept.get((resource.plural, namespace, name))
        if found is None:
            raise NotFound(f"{resource.plural} {name}")
        return copy.deepcopy(found)

    def apply(
        self, resource: Resource, body: Mapping[str, Any], *, force: bool = True
    ) -> dict[str, Any]:
        for act in self.before_write[:1]:
            self.before_write.remove(act)
            act()
        metadata = dict(body["metadata"])
        key = (resource.plural, metadata.get("namespace", ""), metadata["name"])
        found = self.kept.setdefault(key, {"metadata": {"uid": "u", "resourceVersion": "0"}})
        version = metadata.pop("resourceVersion", None)
        if version is not None and version != found["metadata"]["resourceVersion"]:
            raise Conflict("somebody else wrote")
        count = int(found["metadata"]["resourceVersion"]) + 1
        found["metadata"] |= metadata | {"resourceVersion": str(count)}
        for name, value in body.items():
            if name == "webhooks":
                for said in value:
                    known = next(w for w in found["webhooks"] if w["name"] == said["name"])
                    known["clientConfig"] |= said["clientConfig"]
            elif name != "metadata":
                found[name] = copy.deepcopy(value)
        self.writes.append(key)
        return copy.deepcopy(found)


@pytest.fixture
def api() -> Objects:
    made = Objects()
    made.kept["mutatingwebhookconfigurations", "", "retuned-sidecar"] = {
        "metadata": {"name": "retuned-sidecar", "uid": "hook", "resourceVersion": "1"},
        "webhooks": [
            {"name": "sidecar.retuned.dev", "clientConfig": {"service": {"name": "w"}}, "x": 1}
        ],
    }
    return made


def keeper(api: Objects, *namespaces: str, **more: Any) -> CertificateRotator:
    return CertificateRotator(
        api=api,
        namespace="retuned",
        names=NAMES,
        servers=lambda: namespaces or ("serving",),
        **more,
    )


def bundle(api: Objects, namespace: str = "serving") -> str:
    text: str = api.get(CONFIG_MAPS, "retuned-agent-ca", namespace=namespace)["data"]["ca.crt"]
    return text


def test_the_secret_is_written_before_anybody_is_told(api: Objects) -> None:
    pair = keeper(api, "serving", "staging").step(now=NOW).pair
    assert [kind for kind, _, _ in api.writes] == [
        "secrets",
        "mutatingwebhookconfigurations",
        "configmaps",
        "configmaps",
    ]
    secret = api.get(SECRETS, "retuned-webhook-cert", namespace="retuned")
    assert base64.b64decode(secret["data"]["tls.crt"]) == pair.certificate
    assert "BEGIN CERTIFICATE" in bundle(api, "staging")
    (hook,) = api.get(MUTATING_WEBHOOKS, "retuned-sidecar")["webhooks"]
    assert base64.b64decode(hook["clientConfig"]["caBundle"]).decode() == bundle(api)
    assert hook["clientConfig"]["service"] == {"name": "w"}


def test_looking_again_writes_nothing(api: Objects) -> None:
    first = keeper(api).step(now=NOW)
    api.writes.clear()
    assert keeper(api).step(now=NOW + timedelta(days=1)) == first
    assert api.writes == []


def test_no_key_leaves_the_secret(api: Objects) -> None:
    keeper(api).step(now=NOW)
    for (kind, _, _), body in api.kept.items():
        if kind != "secrets":
            assert "PRIVATE" not in str(body)
            assert base64.b64encode(b"PRIVATE KEY").decode()[:12] not in str(body)


def test_a_new_certificate_changes_nothing_that_others_were_told(api: Objects) -> None:
    keeper(api).step(now=NOW)
    told = bundle(api)
    api.writes.clear()
    keeper(api).step(now=NOW + LIFE * 0.8)
    assert [kind for kind, _, _ in api.writes] == ["secrets"]
    assert bundle(api) == told


def test_a_new_authority_is_told_to_all(api: Objects) -> None:
    before = keeper(api).step(now=NOW)
    told = bundle(api)
    late = NOW + CA_LIFE * 0.7
    keeper(api).step(now=late)
    assert bundle(api).startswith(told)
    assert bundle(api) != told
    after = keeper(api).step(now=late + timedelta(days=2))
    assert after != before


def test_of_two_operators_one_writes_and_the_other_takes_what_was_written(api: Objects) -> None:
    other: list[Any] = []
    api.kept["secrets", "retuned", "retuned-webhook-cert"] = {
        "metadata": {"name": "retuned-webhook-cert", "uid": "s", "resourceVersion": "5"}
    }
    api.before_write.append(lambda: other.append(keeper(api).step(now=NOW)))
    assert keeper(api).step(now=NOW) == other[0]


def test_who_may_not_write_serves_what_was_written(api: Objects) -> None:
    assert keeper(api).served() is None
    assert api.writes == []
    pair = keeper(api).step(now=NOW).pair
    api.writes.clear()
    assert keeper(api).served() == pair
    assert api.writes == []


def test_a_secret_that_was_damaged_is_made_anew(api: Objects) -> None:
    keeper(api).step(now=NOW)
    secret = api.kept["secrets", "retuned", "retuned-webhook-cert"]
    secret["data"]["tls.key"] = "not base64!"
    pair = keeper(api).step(now=NOW).pair
    data = api.get(SECRETS, "retuned-webhook-cert", namespace="retuned")["data"]
    material = read_material({k: base64.b64decode(v) for k, v in data.items()})
    assert material is not None
    assert material.serving == pair


def test_without_a_webhook_sidecars_are_told_all_the_same(api: Objects) -> None:
    api.kept.clear()
    keeper(api).step(now=NOW)
    assert "BEGIN" in bundle(api)
    keeper(api, "other", webhook=False).step(now=NOW)
    assert "BEGIN" in bundle(api, "other")


def test_what_others_were_told_goes_with_the_webhooks_configuration(api: Objects) -> None:
    keeper(api).step(now=NOW)
    owners = api.get(CONFIG_MAPS, "retuned-agent-ca", namespace="serving")["metadata"]
    assert [each["uid"] for each in owners["ownerReferences"]] == ["hook"]


def test_a_namespace_that_cannot_be_told_keeps_no_other_waiting(
    api: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply = api.apply

    def refuse(resource: Any, body: Any, **more: Any) -> Any:
        if body["metadata"].get("namespace") == "leaving":
            raise Forbidden("namespace leaving is being terminated")
        return apply(resource, body, **more)

    monkeypatch.setattr(api, "apply", refuse)
    kept = keeper(api, "leaving", "serving").step(now=NOW)
    assert kept.untold == ("leaving",)
    assert "BEGIN CERTIFICATE" in bundle(api)


def test_a_refusal_is_not_hidden(api: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise Forbidden("no")

    monkeypatch.setattr(api, "apply", refuse)
    with pytest.raises(Forbidden):
        keeper(api).step(now=NOW)


def test_a_mounted_secret_is_read_once_it_is_whole(tmp_path: Path) -> None:
    made = renewed(None, NAMES, now=NOW)
    assert mounted(tmp_path) is None
    (tmp_path / "tls.crt").write_bytes(made.serving.certificate)
    (tmp_path / "tls.key").write_bytes(made.serving.key)
    assert mounted(tmp_path) is None
    (tmp_path / "ca.crt").write_bytes(made.authority.certificate)
    assert mounted(tmp_path) == (made.serving, made.authority.certificate)
