"""The whole operator against a fake cluster, with the rights of the chart; a node for its pods."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.fakeapi.access import Identity
from tests.fakeapi.server import FakeApi
from tests.operators import examples
from tests.operators.program.kubelet import Kubelet
from tests.operators.program.test_program import ACCOUNT, eventually
from tests.operators.world import POLICY

from retuned_operator.assembly import ApiConnections, Operator
from retuned_operator.kube.resources import POLICIES, TARGETS
from retuned_operator.manifests.roles import (
    experiment_rules,
    own_rules,
    reviewing_rules,
    watching_rules,
)
from retuned_operator.settings import Settings, load_settings

MODEL = "epyc"


@contextmanager
def a_cluster(**spec: Any) -> Iterator[FakeApi]:
    """Run an API server with a target on processors and a policy; `spec` changes the policy."""
    with FakeApi(namespaces=("default", "serving", "retuned", "lab")) as fake:
        fake.access.add("operator", Identity(name=ACCOUNT, groups=("system:authenticated",)))
        fake.access.bind(ACCOUNT, [*reviewing_rules(), *watching_rules()])
        fake.access.bind(ACCOUNT, experiment_rules(), namespace="lab")
        fake.access.bind(ACCOUNT, own_rules(), namespace="retuned")
        target = examples.a_target()
        target["spec"]["gpu"] = {"vendor": "cpu", "model": MODEL}
        fake.make(TARGETS, target)
        policy = yaml.safe_load(POLICY) | {"metadata": {"name": "prod", "namespace": "serving"}}
        policy["spec"] |= spec
        fake.make(POLICIES, policy)
        yield fake


def settings_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Return the operator's settings, with its state in a folder."""
    file = folder / "operator.yaml"
    jobs = {
        "image": "lab",
        "namespace": "lab",
        "gpuResources": {"cpu": "amd.com/gpu"},
        "gpuModels": {MODEL: {"processor": MODEL}},
    }
    sidecar = {"image": "sidecar", "agentUrl": "https://localhost:8443"}
    file.write_text(yaml.safe_dump({"jobs": jobs, "sidecar": sidecar}))
    for name, value in {
        "STATE_DIR": str(folder / "state"),
        "AGENT_PORT": "0",
        "METRICS_PORT": "0",
        "ADDRESS": "127.0.0.1",
    }.items():
        monkeypatch.setenv(f"RETUNED_OPERATOR_{name}", value)
    return load_settings(file)


@contextmanager
def a_node(fake: FakeApi, *, packages: Path | None = None) -> Iterator[Kubelet]:
    """Run the pods of experiments; see `Kubelet`."""
    place = Path(tempfile.mkdtemp(prefix="retuned-node-"))
    place.chmod(0o755)  # the pods' user is another one than ours
    try:
        with Kubelet(fake, place, namespace="lab", packages=packages) as made:
            yield made
    finally:
        shutil.rmtree(place)


@contextmanager
def running(fake: FakeApi, settings: Settings) -> Iterator[Operator]:
    """Run the operator until it leads, and for the length of a block."""
    reach = ApiConnections(api=fake.api("operator"), election=fake.api("operator"))
    lost: list[str] = []
    operator = Operator(settings, reach=reach, on_lost=lambda: lost.append("lost"))
    stop = threading.Event()
    thread = threading.Thread(target=operator.run, args=(stop,))
    thread.start()
    try:
        eventually(operator.manager.is_acting)
        yield operator
    finally:
        stop.set()
        thread.join(150.0)
        assert not thread.is_alive()
        assert lost == []
