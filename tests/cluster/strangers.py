"""Who speaks to the agent API from the outside, with a token of somebody."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import httpx
from tests.cluster.fleet import NAMESPACE, Fleet
from tests.cluster.images import PAUSE
from tests.cluster.installing import NAMESPACE as SYSTEM

from retuned.api.agent import PodRef, WatchPost


@contextmanager
def other_pod(fleet: Fleet) -> Iterator[PodRef]:
    """Make a pod beside the server that no target selects."""
    container = {"name": "pause", "image": PAUSE, "imagePullPolicy": "Never"}
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "stranger", "namespace": NAMESPACE},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0},
    }
    fleet.cluster.kubectl("apply", "-f", "-", given=[body])
    try:
        uid = fleet.cluster.get("pod", "stranger", "-n", NAMESPACE)["metadata"]["uid"]
        yield PodRef(namespace=NAMESPACE, name="stranger", uid=uid)
    finally:
        fleet.cluster.kubectl("delete", "pod", "stranger", "-n", NAMESPACE, "--wait=false")


def token_of(fleet: Fleet, pod: str) -> str:
    """Return a token of our audience as the kubelet puts it into a pod."""
    return fleet.cluster.kubectl(
        "create", "token", "default", "-n", NAMESPACE, "--audience=retuned.dev",
        "--bound-object-kind=Pod", f"--bound-object-name={pod}",
    ).strip()  # fmt: skip


def said_by(fleet: Fleet, token: str, *, about: PodRef) -> tuple[int, str]:
    """Tell the operator something about a pod; return status and code of the answer."""
    post = WatchPost(pod=about, target=f"{NAMESPACE}/demo", at=datetime.now(UTC), slots=())
    authority = fleet.cluster.get("configmap", "retuned-agent-ca", "-n", NAMESPACE)["data"]
    context = ssl.create_default_context(cadata=authority["ca.crt"])
    context.check_hostname = False  # it is asked by its address
    agent = fleet.cluster.get("service", "retuned-agent", "-n", SYSTEM)["spec"]
    answer = httpx.post(
        f"https://{agent['clusterIP']}:{agent['ports'][0]['port']}/v1/watch",
        content=post.model_dump_json(),
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        verify=context,
        trust_env=False,
        timeout=100,
    )
    return answer.status_code, str(answer.json()["error"]["code"])
