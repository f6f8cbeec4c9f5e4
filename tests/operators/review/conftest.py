"""A fake cluster with people in it, and the review page of the operator over it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.fakeapi.access import Identity
from tests.fakeapi.server import FakeApi
from tests.operators.kubectl.conftest import PEOPLE, ROLES, Cluster

from retuned.clock import FakeClock
from retuned.store.keys import FakeNotary
from retuned.store.memory import MemoryStore
from retuned_operator.controllers.caches import INDICES
from retuned_operator.kube.informer import key_of, made_of
from retuned_operator.kube.resources import Obj, Resource
from retuned_operator.manifests.roles import reviewing_rules, speaking_rules, watching_rules
from retuned_operator.review.settings import review_app, review_settings
from retuned_operator.store.kernels import CatalogKernels
from retuned_operator.store.review import StoredReviews

HOST = "tuning.example.com"
SECRET = "correct-horse-battery"
ACCOUNT = "system:serviceaccount:retuned:retuned-operator"
GROUPS = ("gpu-platform", "sre-oncall", "sre-leads", "interns")


class Looking:
    """The `Caches` of a test: never old, because it asks each time."""

    def __init__(self, fake: FakeApi) -> None:
        self._api = fake.api()

    def knows(self, resource: Resource) -> bool:
        return True

    def get(self, resource: Resource, key: str) -> Obj | None:
        namespace, _, name = key.rpartition("/")
        found = [b for b in self.list(resource, namespace=namespace) if _name(b) == name]
        return found[0] if found else None

    def list(self, resource: Resource, *, namespace: str = "") -> Sequence[Obj]:
        namespace = namespace if resource.namespaced else ""
        return self._api.list(resource, namespace=namespace).items

    def by(self, resource: Resource, index: str, word: str) -> Sequence[Obj]:
        words = INDICES[resource][index]
        return [body for body in self.list(resource) if word in words(body)]

    def dated(self, resource: Resource, index: str, word: str) -> Mapping[str, str]:
        return {key_of(body): made_of(body) for body in self.by(resource, index, word)}


def _name(body: Mapping[str, Any]) -> str:
    return str(body["metadata"]["name"])


@dataclass
class Page:
    """The operator's page, and the proxy in front of it."""

    cluster: Cluster
    store: MemoryStore
    app: Any
    clock: FakeClock
    notary: FakeNotary
    client: tuple[str, int] = ("10.0.3.7", 40_000)
    cookies: dict[str, httpx.Cookies] = field(default_factory=dict)

    def ask(
        self,
        method: str,
        path: str,
        *,
        headers: Sequence[tuple[str, str]],
        data: Mapping[str, str] | None = None,
        host: str = HOST,
        jar: str = "",
    ) -> httpx.Response:
        """Send one request as it comes from the proxy, or from elsewhere."""

        async def answered() -> httpx.Response:
            transport = httpx.ASGITransport(app=self.app, client=self.client)
            async with httpx.AsyncClient(
                transport=transport,
                base_url=f"https://{host}",
                cookies=self.cookies.get(jar),
            ) as http:
                sent = [(name.encode(), value.encode("latin-1")) for name, value in headers]
                answer = await http.request(method, path, headers=sent, data=data)
                self.cookies[jar] = http.cookies
                return answer

        return asyncio.run(answered())

    def get(self, path: str, *, who: str = "ada") -> httpx.Response:
        return self.ask("GET", path, headers=proxied(who), jar=who)

    def say(self, name: str, act: str, *, who: str = "ada", **fields: str) -> httpx.Response:
        """Load a proposal's page and send its form."""
        path = f"/proposals/{name}"
        text = self.get(path, who=who).text
        found: dict[str, str] = {}
        for key, value in re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', text):
            found.setdefault(key, value)
        return self.post(path, found | {"act": act} | fields, who=who)

    def post(self, path: str, fields: Mapping[str, str], *, who: str = "ada") -> httpx.Response:
        headers = [*proxied(who), ("origin", f"https://{HOST}"), ("sec-fetch-site", "same-origin")]
        return self.ask("POST", path, headers=headers, data=fields, jar=who)


def proxied(who: str, *, secret: str = SECRET) -> list[tuple[str, str]]:
    """Return what a proxy adds once somebody has logged in."""
    return [
        ("x-retuned-proxy-secret", secret),
        ("x-forwarded-user", who),
        ("x-forwarded-groups", ",".join(PEOPLE.get(who, ()))),
    ]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with FakeApi() as fake:
        fake.access.add("operator", Identity(name=ACCOUNT, groups=("system:authenticated",)))
        fake.access.bind(ACCOUNT, [*reviewing_rules(), *watching_rules()])
        fake.access.bind(ACCOUNT, speaking_rules(tuple(PEOPLE), GROUPS))
        fake.access.bind("gpu-platform", ROLES["retuned-approver"])
        fake.access.bind("sre-oncall", ROLES["retuned-approver"])
        fake.access.bind("sre-leads", ROLES["retuned-break-glass"])
        fake.access.bind("interns", ROLES["retuned-viewer"])
        yield Cluster(fake, tmp_path)


@pytest.fixture
def page(cluster: Cluster, tmp_path: Path) -> Page:
    (tmp_path / "secret").write_text(SECRET + "\n")
    settings = review_settings(
        {
            "hosts": [HOST],
            "place": "prod-eu",
            "secretFile": str(tmp_path / "secret"),
            "proxyAddresses": ["10.0.3.0/24"],
            "groups": list(GROUPS),
        }
    )
    store, clock = MemoryStore(), FakeClock(datetime.now(UTC))
    notary = FakeNotary()
    shelf = StoredReviews(store, notary, kernels=CatalogKernels())
    app = review_app(
        settings,
        cluster.fake.api("operator"),
        caches=Looking(cluster.fake),
        shelf=shelf,
        clock=clock,
        gpu_resources={"amd.com/gpu"},
    )
    return Page(cluster=cluster, store=store, app=app, clock=clock, notary=notary)
