"""The demo's server as pods, and traffic for it."""

from __future__ import annotations

import importlib.util
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from tests.cluster.images import BASE_PYTHON, REGISTRY

from retuned_operator.manifests.pod_security import container_security
from retuned_operator.manifests.sidecar import SOCKET_DIR, TRACE_DIR

PORT = 8000
OWN_FOLDERS = ("/tmp/sockets", "/tmp/traces")
SHARED_FOLDERS = (SOCKET_DIR, TRACE_DIR)
_USER = 10001
"""Another one than the sidecar's, as in real pods."""


def image(target: str, tag: str) -> str:
    """Return the name of one of our images."""
    return f"{REGISTRY}/retuned/{target}:{tag}"


def torch_folder() -> Path | None:
    """Return where this machine's PyTorch lies, if images can use it; None if they need their own.

    Copying its five gigabytes into an image takes longer than all else of a run: a read-only
    volume is free.
    """
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None or sys.version_info[:2] != BASE_PYTHON:
        return None
    return Path(found.origin).parents[1]


def server_pod(
    tag: str, *, folders: tuple[str, str] = OWN_FOLDERS, model: str = "tiny"
) -> dict[str, Any]:
    """Return a pod template of the demo's server, as its owner would write it: without us.

    Parameters
    ----------
    tag
        Of our images.
    folders
        Where its control socket and its traces go; `SHARED_FOLDERS` with the sidecar beside it.
    model
        Of the demo.
    """
    sockets, traces = folders
    container: dict[str, Any] = {
        "name": "server",
        "image": image("server", tag),
        "imagePullPolicy": "Never",
        "args": [
            "--host=0.0.0.0",
            f"--port={PORT}",
            f"--model={model}",
            "--window-every-s=2",
            "--window-steps=25",
            f"--socket-dir={sockets}",
            f"--trace-dir={traces}",
            "--cache-dir=/tmp/cache",
            "--allow-fault",
        ],
        "ports": [{"containerPort": PORT}],
        "env": [{"name": "HOME", "value": "/tmp"}, {"name": "TMPDIR", "value": "/tmp"}],
        "readinessProbe": {
            "httpGet": {"path": "/health", "port": PORT},
            "periodSeconds": 1,
            "failureThreshold": 120,
        },
        "resources": {"requests": {"cpu": "200m", "memory": "512Mi"}},
        "securityContext": container_security(_USER),
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }
    volumes: list[dict[str, Any]] = [{"name": "tmp", "emptyDir": {}}]
    folder = torch_folder()
    if folder is not None:
        container["env"].append({"name": "PYTHONPATH", "value": "/opt/packages"})
        mount = {"name": "packages", "mountPath": "/opt/packages", "readOnly": True}
        container["volumeMounts"].append(mount)
        volumes.append({"name": "packages", "hostPath": {"path": str(folder)}})
    return {
        "metadata": {"labels": {"app": "demo"}},
        "spec": {
            "terminationGracePeriodSeconds": 5,
            "automountServiceAccountToken": False,
            "securityContext": {"fsGroup": _USER},
            "containers": [container],
            "volumes": volumes,
        },
    }


def service(namespace: str) -> dict[str, Any]:
    """Return the service in front of the server's pods."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "demo", "namespace": namespace},
        "spec": {"selector": {"app": "demo"}, "ports": [{"port": PORT}]},
    }


@dataclass(slots=True)
class Counted:
    """What became of the requests."""

    sent: int = 0
    tokens: int = 0
    failed: list[str] = field(default_factory=list)
    """One line for each that did not get all its tokens."""


def ask(url: str, *, prompt: int, tokens: int, seed: int = 0) -> int:
    """Send one request and return how many tokens came.

    Raises
    ------
    httpx.HTTPError
        If it was not answered, or by a refusal.
    """
    draw = random.Random(seed)
    body = {
        "prompt_tokens": [draw.randrange(100) for _ in range(prompt)],
        "max_tokens": tokens,
        "stream": False,
    }
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=180, trust_env=False)
    answer.raise_for_status()
    return len(answer.json()["tokens"])


def answers(url: str) -> bool:
    """Return whether a request is answered: the way to a new service takes the node a moment."""
    try:
        return ask(url, prompt=8, tokens=4) == 4
    except httpx.HTTPError:
        return False


@contextmanager
def traffic(url: Callable[[], str], *, clients: int = 2, tokens: int = 4) -> Iterator[Counted]:
    """Ask without a pause, by several clients, until the block ends.

    Each request has a connection of its own: a Service balances connections, not requests.
    """
    counted, over, lock = Counted(), threading.Event(), threading.Lock()

    def client(number: int) -> None:
        turn = 0
        while not over.is_set():
            turn += 1
            try:
                seed = number * 10_000 + turn
                came = ask(url(), prompt=4 + turn % 12, tokens=tokens, seed=seed)
                wrong = "" if came == tokens else f"{came} of {tokens} tokens"
            except httpx.HTTPError as error:
                came, wrong = 0, f"{type(error).__name__}: {error}"
            with lock:
                counted.sent += 1
                counted.tokens += came
                if wrong:
                    counted.failed.append(f"{time.strftime('%H:%M:%S')} {wrong}")

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for each in threads:
        each.start()
    try:
        yield counted
    finally:
        over.set()
        for each in threads:
            each.join(200)
