"""A fake cluster with people in it, and the program run as one of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.fakeapi.access import Identity
from tests.fakeapi.server import FakeApi
from tests.operators.examples import a_swap, a_target, an_experiment
from typer.testing import CliRunner

from retuned.errors import RetunedError
from retuned_operator.kube.resources import EXPERIMENTS, POLICIES, PROPOSALS, TARGETS
from retuned_operator.kubectl.commands import app
from retuned_operator.manifests.roles import people_roles
from retuned_operator.schema import PolicyObject, SwapProposal, read

ROLES = {each["metadata"]["name"]: each["rules"] for each in people_roles()}
POLICY: dict[str, Any] = {
    "mode": "Enforce",
    "gates": [
        {
            "name": "two",
            "approvals": {
                "required": 2,
                "from": [{"group": "gpu-platform"}, {"group": "sre-oncall"}],
                "distinctGroups": True,
                "requireComment": True,
            },
        }
    ],
    "breakGlass": {"enabled": True, "group": "sre-leads"},
}
PEOPLE = {
    "ada": ("gpu-platform",),
    "grace": ("sre-oncall", "sre-leads"),
    "eve": ("interns",),
}
Answer = Any


class Cluster:
    """What a test says about the cluster, and how it looks at it."""

    def __init__(self, fake: FakeApi, folder: Path) -> None:
        self.fake = fake
        self._folder = folder

    def kubeconfig(self, who: str, *, namespace: str = "serving", url: str = "") -> Path:
        path = self._folder / f"{who}.yaml"
        context = {"cluster": "fake", "user": who, "namespace": namespace}
        body = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "clusters": [{"name": "fake", "cluster": {"server": url or self.fake.url}}],
            "users": [{"name": who, "user": {"token": who}}],
            "contexts": [{"name": "here", "context": context}],
        }
        path.write_text(yaml.safe_dump(body))
        return path

    def policy(self, **changes: Any) -> PolicyObject:
        body = {"metadata": {"name": "prod", "namespace": "serving"}, "spec": POLICY | changes}
        return read(PolicyObject, self.fake.make(POLICIES, body))

    def proposal(
        self,
        policy: PolicyObject | None,
        *,
        name: str = "swp-0123456789abcdef0123",
        phase: str = "AwaitingApproval",
        gate: dict[str, Any] | None = None,
        status: dict[str, Any] | None = None,
        **spec: Any,
    ) -> SwapProposal:
        now = datetime.now(UTC)
        body = a_swap(expiresAt=(now + timedelta(hours=20)).isoformat(), **spec)
        body["metadata"] = {"name": name, "namespace": "serving"}
        said: dict[str, Any] = {"phase": phase} | (status or {})
        if policy is not None:
            said["gate"] = {
                "state": "waiting",
                "reason": "missing-approvals",
                "sentence": "Waiting: 0 of 2 approvals.",
                "name": "two",
                "policy": "serving/prod",
                "policyGeneration": policy.metadata.generation,
                "policyDigest": policy.stage_policy().digest,
                "required": 2,
                "missing": 2,
                "missingFrom": ["group gpu-platform", "group sre-oncall"],
            } | (gate or {})
        return read(SwapProposal, self.fake.make(PROPOSALS, body, **said))

    def target(self, **status: Any) -> None:
        body = a_target()
        body["metadata"] = {"name": "chat", "namespace": "serving", "labels": {"env": "prod"}}
        self.fake.make(TARGETS, body, **status)

    def experiment(self, phase: str = "Running", **status: Any) -> None:
        body = an_experiment()
        body["metadata"] = {"name": "exp-1", "namespace": "serving"}
        self.fake.make(EXPERIMENTS, body, phase=phase, **status)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    with FakeApi() as fake:
        for name, groups in PEOPLE.items():
            fake.access.add(name, Identity(name=name, groups=groups))
        fake.access.bind("gpu-platform", ROLES["retuned-approver"])
        fake.access.bind("sre-oncall", ROLES["retuned-approver"])
        fake.access.bind("sre-leads", ROLES["retuned-break-glass"])
        fake.access.bind("sre-leads", ROLES["retuned-admin"])
        fake.access.bind("interns", ROLES["retuned-viewer"])
        yield Cluster(fake, tmp_path)


Run = Callable[..., Answer]


@pytest.fixture
def run(cluster: Cluster) -> Run:
    """Return what runs a command as somebody: its output, or its JSON."""

    def invoke(*args: str, who: str = "ada", code: int = 0, given: str = "") -> Answer:
        env = {"COLUMNS": "400", "KUBECONFIG": str(cluster.kubeconfig(who))}
        result = CliRunner().invoke(app, list(args), env=env, input=given)
        if isinstance(result.exception, RetunedError):
            assert code == result.exception.exit_code, result.exception
            return result.output + str(result.exception)
        assert result.exit_code == code, (result.output, result.exception)
        return json.loads(result.stdout) if "json" in args else result.output

    return invoke
