"""The whole program against a fake API server, with the rights that the chart gives it."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
import yaml
from tests.fakeapi.access import Identity
from tests.fakeapi.server import FakeApi
from tests.operators import examples
from tests.operators.world import POLICY

from retuned_operator import certificates
from retuned_operator.assembly import ApiConnections, Operator
from retuned_operator.kube.resources import (
    CONFIG_MAPS,
    DECISIONS,
    FREEZES,
    LEASES,
    PODS,
    POLICIES,
    PROPOSALS,
    TARGETS,
    Obj,
    Resource,
)
from retuned_operator.manifests.report import REPORT
from retuned_operator.manifests.roles import (
    LEASE,
    experiment_rules,
    own_rules,
    reviewing_rules,
    watching_rules,
)
from retuned_operator.manifests.sidecar import SIDECAR
from retuned_operator.settings import Settings, load_settings

pytestmark = pytest.mark.slow
ACCOUNT = "system:serviceaccount:retuned:retuned-operator"
_PATIENCE_S = 120.0


def eventually(found: Callable[[], object], *, seconds: float = _PATIENCE_S) -> object:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = found()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError("it did not come to that in time")


@pytest.fixture
def fake() -> Iterator[FakeApi]:
    with FakeApi(namespaces=("default", "serving", "retuned", "lab")) as fake:
        fake.access.add("operator", Identity(name=ACCOUNT, groups=("system:authenticated",)))
        fake.access.bind(ACCOUNT, [*reviewing_rules(), *watching_rules()])
        fake.access.bind(ACCOUNT, experiment_rules(), namespace="lab")
        fake.access.bind(ACCOUNT, own_rules(), namespace="retuned")
        fake.make(TARGETS, examples.a_target())
        policy = yaml.safe_load(POLICY) | {"metadata": {"name": "prod", "namespace": "serving"}}
        fake.make(POLICIES, policy)
        pod = {
            "metadata": {"name": "chat-0", "namespace": "serving", "labels": {"app": "chat"}},
            "spec": {"containers": [{"name": "server"}, {"name": SIDECAR}]},
        }
        ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        fake.make(PODS, pod, **ready)
        yield fake


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    file = tmp_path / "operator.yaml"
    file.write_text(
        yaml.safe_dump(
            {
                "namespaces": [],
                "jobs": {"image": "lab", "namespace": "lab", "keepSeconds": 60},
                "sidecar": {"image": "sidecar", "agentUrl": "https://localhost:8443"},
            }
        )
    )
    for name, value in {
        "STATE_DIR": str(tmp_path / "state"),
        "AGENT_PORT": "0",
        "METRICS_PORT": "0",
        "ADDRESS": "127.0.0.1",
        "POD_NAME": "retuned-0",
    }.items():
        monkeypatch.setenv(f"RETUNED_OPERATOR_{name}", value)
    return load_settings(file)


@contextmanager
def running(fake: FakeApi, settings: Settings, lost: list[str]) -> Iterator[Operator]:
    reach = ApiConnections(api=fake.api("operator"), election=fake.api("operator"))
    operator = Operator(settings, reach=reach, on_lost=lambda: lost.append("lost"))
    stop = threading.Event()
    thread = threading.Thread(target=operator.run, args=(stop,))
    thread.start()
    try:
        yield operator
    finally:
        stop.set()
        thread.join(_PATIENCE_S)
        assert not thread.is_alive()


def stored(fake: FakeApi, resource: Resource, name: str, namespace: str = "serving") -> Obj:
    return fake.api().get(resource, name, namespace=namespace)


def asked(operator: Operator, path: str) -> httpx.Response:
    return httpx.get(f"http://127.0.0.1:{operator.health.port}{path}", timeout=60.0)


def test_it_leads_says_what_it_sees_serves_sidecars_and_ends_in_order(
    fake: FakeApi, settings: Settings, tmp_path: Path
) -> None:
    lost: list[str] = []
    with running(fake, settings, lost) as operator:
        eventually(lambda: stored(fake, TARGETS, "chat").get("status", {}).get("pods") == 1)
        eventually(lambda: stored(fake, POLICIES, "prod").get("status", {}).get("digest"))
        eventually(lambda: asked(operator, "/readyz").status_code == 200)
        assert json.loads(asked(operator, "/livez").content) == {"running": True, "agent": True}
        assert asked(operator, "/secret").status_code == 404
        metrics = asked(operator, "/metrics").text
        assert "retuned_operator_leading 1.0" in metrics
        port = eventually(lambda: operator.agent_port)
        authority = ssl.create_default_context(cafile=_authority(fake, tmp_path))
        said = httpx.get(f"https://localhost:{port}/healthz", verify=authority, timeout=60.0)
        assert said.status_code == 200
        refused = httpx.get(f"https://localhost:{port}/v1/orders", verify=authority, timeout=60.0)
        assert refused.status_code == 401
    lease = stored(fake, LEASES, LEASE, "retuned")
    assert lease["spec"]["holderIdentity"] == ""
    assert lost == []


def test_a_pod_that_is_injected_where_no_target_is_finds_the_authority(
    fake: FakeApi, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates, "_LOOK_AGAIN", timedelta(days=1))  # not by the next look
    pod = {
        "metadata": {"name": "chat-0", "namespace": "lab"},
        "spec": {"initContainers": [{"name": SIDECAR}], "containers": [{"name": "server"}]},
    }
    with running(fake, settings, []) as operator:
        eventually(lambda: operator.agent_port)
        fake.make(PODS, pod, phase="Pending")

        def published() -> bool:
            found = fake.api().list(CONFIG_MAPS, namespace="lab")
            return any(each["metadata"]["name"] == "retuned-agent-ca" for each in found.items)

        eventually(published)


def test_what_was_spent_and_saved_is_told_where_targets_are(
    fake: FakeApi, settings: Settings
) -> None:
    with running(fake, settings, []):

        def told() -> bool:
            found = fake.api().list(CONFIG_MAPS, namespace="serving")
            return any(each["metadata"]["name"] == REPORT for each in found.items)

        eventually(told)


def _authority(fake: FakeApi, folder: Path) -> str:
    import base64

    from retuned_operator.kube.resources import SECRETS

    secret = stored(fake, SECRETS, "retuned-webhook-cert", "retuned")
    path = folder / "ca.crt"
    path.write_bytes(base64.b64decode(secret["data"]["ca.crt"]))
    return str(path)


def test_a_proposal_is_judged_approved_and_told_and_a_freeze_is_seen_at_once(
    fake: FakeApi, settings: Settings
) -> None:
    with running(fake, settings, []) as operator:
        fake.make(FREEZES, examples.a_freeze())
        fake.make(PROPOSALS, examples.a_swap(expiresAt="2099-01-01T00:00:00Z"))
        status = eventually(lambda: stored(fake, PROPOSALS, "swp-1").get("status"))
        assert isinstance(status, dict)
        # its evidence is in nobody's store
        eventually(
            lambda: stored(fake, PROPOSALS, "swp-1")["status"]["phase"] in ("Invalid", "Superseded")
        )
        frozen = eventually(lambda: stored(fake, FREEZES, "stop", "").get("status"))
        assert isinstance(frozen, dict)
        assert frozen["conditions"][0]["status"] == "True"
        fake.make(DECISIONS, examples.a_decision())
        eventually(lambda: stored(fake, DECISIONS, "swd-1").get("status"))
        assert operator.manager.is_acting()


def test_who_loses_the_lease_is_gone(fake: FakeApi, settings: Settings) -> None:
    lost: list[str] = []
    with running(fake, settings, lost) as operator:
        eventually(operator.manager.is_acting)
        lease = stored(fake, LEASES, LEASE, "retuned")
        spec = {**lease["spec"], "holderIdentity": "another"}
        fake.api().replace(LEASES, {**lease, "spec": spec})
        eventually(lambda: lost == ["lost"])


def command(fake: FakeApi, folder: Path, *words: str) -> subprocess.Popen[str]:
    """Start the operator's command with an API server; its settings lie in a folder."""
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "fake",
        "clusters": [{"name": "fake", "cluster": {"server": fake.url}}],
        "users": [{"name": "fake", "user": {"token": "operator"}}],
        "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake"}}],
    }
    (folder / "kubeconfig").write_text(yaml.safe_dump(kubeconfig))
    file = ["--config", str(folder / "operator.yaml")]
    return subprocess.Popen(
        [sys.executable, "-m", "retuned_operator", *file, *words],
        env=os.environ | {"RETUNED_OPERATOR_KUBECONFIG": str(folder / "kubeconfig")},
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.usefixtures("settings")  # its environment is what counts
def test_the_command_of_an_uninstall_ends_once_no_swap_is_in_force(
    fake: FakeApi, tmp_path: Path
) -> None:
    _, said = (process := command(fake, tmp_path, "rollback-all")).communicate(timeout=_PATIENCE_S)
    assert (process.returncode, "no swap is in force; 0" in said) == (0, True), said[-2000:]


@pytest.mark.usefixtures("settings")
def test_the_command_ends_with_zero_when_it_is_told_to(fake: FakeApi, tmp_path: Path) -> None:
    process = command(fake, tmp_path)
    try:
        eventually(lambda: stored(fake, TARGETS, "chat").get("status", {}).get("pods") == 1)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=_PATIENCE_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, said[-2000:]


def test_settings_that_are_wrong_are_refused_with_exit_code_two(tmp_path: Path) -> None:
    file = tmp_path / "operator.yaml"
    file.write_text("jobs: {imagee: lab}\n")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RETUNED_")}
    found = subprocess.run(
        [sys.executable, "-m", "retuned_operator", "--config", str(file)],
        env=environment | {"RETUNED_OPERATOR_STATE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=_PATIENCE_S,
    )
    assert found.returncode == 2
    assert "jobs.imagee is unknown" in found.stderr or "no way to an API server" in found.stderr
