"""The webhook behind a real API server: certificates, patches, reinvocation, and its absence."""

from __future__ import annotations

import copy
import json
import subprocess
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.operators.test_manifests import SIDECAR
from tests.operators.webhook.pods import PODS
from tests.plane.control_plane import ControlPlane
from tests.plane.servers import eventually, real_api

from retuned_operator.kube import resources
from retuned_operator.kube.client import Api
from retuned_operator.kube.resources import CONFIG_MAPS, MUTATING_WEBHOOKS, SECRETS
from retuned_operator.webhook.app import PATH, application
from retuned_operator.webhook.certificate_secret import CertificateRotator
from retuned_operator.webhook.certificates import CA_LIFE
from retuned_operator.webhook.server import WebhookServer

pytestmark = pytest.mark.plane

PLACE = "injecting"
NAMES = ("localhost",)


def configuration(port: int) -> dict[str, Any]:
    """Return the webhook's configuration, reached by address instead of a service."""
    inside = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": [PLACE]}
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "retuned-sidecar"},
        "webhooks": [
            {
                "name": "sidecar.retuned.dev",
                "admissionReviewVersions": ["v1"],
                "clientConfig": {"url": f"https://localhost:{port}{PATH}"},
                "failurePolicy": "Ignore",
                "reinvocationPolicy": "IfNeeded",
                "sideEffects": "None",
                "timeoutSeconds": 30,
                "namespaceSelector": {"matchExpressions": [inside]},
                "rules": [
                    {
                        "apiGroups": [""],
                        "apiVersions": ["v1"],
                        "operations": ["CREATE"],
                        "resources": ["pods"],
                    }
                ],
            }
        ],
    }


class Webhook:
    """The webhook as an operator runs it."""

    def __init__(self, api: Api) -> None:
        self.outcomes: list[str] = []
        self.server = WebhookServer(
            application(SIDECAR, count=self.outcomes.append), host="127.0.0.1", port=0
        )
        self._keeper = CertificateRotator(
            api=api, namespace=PLACE, names=NAMES, servers=lambda: (PLACE,)
        )

    def keep(self, *, now: datetime) -> None:
        self.server.serve_with(self._keeper.step(now=now).pair)


@pytest.fixture(scope="module")
def api(plane: ControlPlane, admin: Path) -> Iterator[Api]:
    bodies = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": PLACE}},
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": "default", "namespace": PLACE},
        },
    ]
    given = json.dumps({"apiVersion": "v1", "kind": "List", "items": bodies})
    force = ("--server-side", "--force-conflicts")  # a controller makes the account as well
    plane.kubectl("apply", *force, "-f", "-", kubeconfig=admin, given=given)
    found = real_api(plane)
    yield found
    found.close()
    plane.kubectl("delete", "namespace", PLACE, "--wait=false", kubeconfig=admin)


@pytest.fixture
def webhook(api: Api) -> Iterator[Webhook]:
    made = Webhook(api)
    made.server.start()
    body = configuration(made.server.port)
    api.create(MUTATING_WEBHOOKS, body)  # as a chart does, which is another manager
    made.keep(now=datetime.now(UTC))
    # the API server asks whom its cache names, which is a moment behind
    eventually(lambda: names(created(api, pod("own-path"))))
    made.outcomes.clear()
    yield made
    made.server.stop()
    api.delete(MUTATING_WEBHOOKS, "retuned-sidecar")


def pod(name: str) -> dict[str, Any]:
    body = copy.deepcopy(PODS[name])
    body["metadata"]["namespace"] = PLACE
    return body


def created(api: Api, body: dict[str, Any]) -> dict[str, Any]:
    name = f"{body['metadata']['name']}-{uuid.uuid4().hex[:10]}"  # one that ends keeps its name
    made = api.create(resources.PODS, body | {"metadata": body["metadata"] | {"name": name}})
    api.delete(resources.PODS, name, namespace=PLACE)
    return made


def names(made: dict[str, Any]) -> list[str]:
    return [each["name"] for each in made["spec"].get("initContainers", ())]


@pytest.mark.parametrize("name", sorted(PODS))
def test_the_api_server_takes_every_pod_with_the_sidecar(
    webhook: Webhook, api: Api, name: str
) -> None:
    made = created(api, pod(name))
    assert names(made)[:2] == ["retuned-runtime", "retuned"]
    assert webhook.outcomes[0] == "injected"


def test_a_pod_with_limits_stays_guaranteed(webhook: Webhook, api: Api) -> None:
    assert created(api, pod("limited"))["status"]["qosClass"] == "Guaranteed"


def test_a_pod_that_cannot_take_it_starts_with_a_warning(
    webhook: Webhook, plane: ControlPlane, admin: Path
) -> None:
    body = pod("own-path")
    body["spec"]["os"] = {"name": "windows"}
    done = subprocess.run(
        [plane.programs / "kubectl", "--kubeconfig", str(admin), "create", "-f", "-"],
        input=json.dumps(body),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "[windows-pod]" in done.stderr
    plane.kubectl("delete", "pod", "own-path", "-n", PLACE, "--wait=false", kubeconfig=admin)


def test_without_the_webhook_pods_start_as_they_are(webhook: Webhook, api: Api) -> None:
    webhook.server.stop()
    assert names(created(api, pod("own-path"))) == []


def test_the_api_server_believes_every_authority_in_turn(webhook: Webhook, api: Api) -> None:
    now = datetime.now(UTC)
    first = now - CA_LIFE * 0.7
    api.patch(CONFIG_MAPS, "retuned-agent-ca", change={"data": None}, namespace=PLACE)
    # as if the operator had begun long ago, and looked every day since the authority was late
    made = Webhook(api)
    api.delete(SECRETS, "retuned-webhook-cert", namespace=PLACE)
    for at in (first, now - timedelta(days=2), now):
        made.keep(now=at)
    webhook.keep(now=now)
    given = eventually(lambda: names(created(api, pod("vllm"))))
    assert given[:2] == ["retuned-runtime", "retuned"]
    bundle = api.get(CONFIG_MAPS, "retuned-agent-ca", namespace=PLACE)["data"]["ca.crt"]
    assert bundle.count("BEGIN CERTIFICATE") == 2
