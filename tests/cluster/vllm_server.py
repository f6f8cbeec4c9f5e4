"""A real vLLM in a pod: its image, its template as its owner writes it, and its state.

It is the build for CPUs of tests/servers/vllm_cpu, and Triton's interpreter runs its one tunable.
All that it needs is in its image, because the pod of an experiment has the image and no volume of
the server.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from tests.cluster.cluster import Cluster
from tests.cluster.conftest import TAG
from tests.cluster.fleet import ASKING, asked
from tests.cluster.images import BASE_PYTHON, REGISTRY, images
from tests.cluster.serving import PORT, Counted, server_pod
from tests.servers.vllm_cpu.server import (
    HERE,
    OPTIONS,
    PROMPTS,
    VARIABLES,
    environment,
    greedy_answer,
    install_plugin,
)

NAMESPACE, NAME = "vllm", "demo"
_DEBIAN = ("python3", "libnuma1", "g++")
_PACKAGES, _OWN = "/opt/packages", "/opt/vllm"


def archive(folder: Path) -> Path:
    """Make the image of the server and return its archive: six gigabytes.

    Parameters
    ----------
    folder
        Gets the archive.
    """
    python, own = environment() / "bin" / "python", folder / "own"
    subprocess.run([str(python), str(HERE / "tiny_model.py"), str(own / "model")], check=True)
    site = own / "site"
    site.mkdir()
    install_plugin(site, "fake_tunable", "fake_tunable:register")
    shutil.copy(HERE / "fake_tunable.py", site)
    for each in (own, *own.rglob("*")):  # the server is another user
        each.chmod(0o755)
    library = python.parents[1] / "lib" / f"python{BASE_PYTHON[0]}.{BASE_PYTHON[1]}"
    base = f"{REGISTRY}/vllm-packages:{environment().name}"
    with images() as kept:
        kept.with_packages(base, debian=_DEBIAN, python=library / "site-packages", to=_PACKAGES)
        kept.with_folder(image(), base=base, copied=own, to=_OWN)
        return kept.archive(image(), folder / "vllm.tar")


def image() -> str:
    """Return the name of the image."""
    return f"{REGISTRY}/vllm:{TAG}"


def deployment(name: str) -> dict[str, Any]:
    """Return the server as its owner writes it: with an annotation, and without Retuned.

    Parameters
    ----------
    name
        Of the image, by digest.
    """
    template = server_pod(TAG)
    template["metadata"]["annotations"] = dict(ASKING)
    spec = template["spec"]
    (container,) = spec["containers"]
    variables = VARIABLES | {
        "HOME": "/tmp",
        "TMPDIR": "/tmp",
        "USER": "vllm",
        "PYTHONPATH": f"{_OWN}/site:{_PACKAGES}",
    }
    container |= {
        "image": name,
        "command": ["python3", "-m", "vllm.entrypoints.cli.main", "serve", f"{_OWN}/model"],
        "args": [*OPTIONS, "--host", "0.0.0.0", "--port", str(PORT)],
        "env": [{"name": name, "value": value} for name, value in variables.items()],
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
    }
    container["readinessProbe"]["failureThreshold"] = 600
    spec["volumes"] = [
        {"name": "tmp", "emptyDir": {}},
        # vLLM's workers share 160 MiB
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
    ]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": NAME}},
            "template": template,
        },
    }


@dataclass(frozen=True, slots=True)
class Server:
    """The pod that serves, behind its service."""

    cluster: Cluster
    pod: str
    url: str

    def digest(self) -> list[str]:
        """Return answers to fixed prompts, one request at a time."""
        return [greedy_answer(self.url, prompt) for prompt in PROMPTS]

    @contextmanager
    def traffic(self) -> Iterator[Counted]:
        """Keep requests of 32 tokens coming on two threads."""
        counted, stop, lock = Counted(), threading.Event(), threading.Lock()

        def send() -> None:
            while not stop.is_set():
                try:
                    greedy_answer(self.url, "nora vipi gele", tokens=32)
                    wrong = []
                except httpx.HTTPError as error:
                    wrong = [repr(error)]
                with lock:
                    counted.sent += 1
                    counted.tokens += 0 if wrong else 32
                    counted.failed += wrong

        threads = [threading.Thread(target=send) for _ in range(2)]
        for each in threads:
            each.start()
        try:
            yield counted
        finally:
            stop.set()
            for each in threads:
                each.join(180.0)

    def status(self) -> dict[str, Any]:
        """Return what the operator says of the target."""
        found = self.cluster.get("tuningtarget", "llm", "-n", NAMESPACE)
        status: dict[str, Any] = found.get("status", {})
        return status

    def state(self) -> Mapping[str, Any]:
        """Return what the operator says of the tunable; empty before it has heard of it."""
        found: list[dict[str, Any]] = self.status().get("tunables", [])
        return next((each for each in found if "_copied" in each["name"]), {})

    def proposal(self) -> dict[str, Any]:
        """Return the one proposal; empty before there is one."""
        found: list[dict[str, Any]] = self.cluster.get("swapproposals", "-n", NAMESPACE)["items"]
        assert len(found) < 2, [each["metadata"]["name"] for each in found]
        return found[0] if found else {}

    def phase(self) -> str:
        """Return where the proposal is."""
        return str(self.proposal().get("status", {}).get("phase", ""))

    def hooks(self) -> set[str]:
        """Return what the runtime of each process says of its steps."""
        said = asked(self.cluster, self.pod, "steps", namespace=NAMESPACE)
        return {str(each.get("hook")) for each in said}

    def table(self) -> Mapping[str, Any]:
        """Return the table in force, as the server's own runtime reports it; empty without one."""
        said = asked(self.cluster, self.pod, "tunables", namespace=NAMESPACE)
        found = [
            tunable.get("table") or {}
            for each in said
            for tunable in each["tunables"]
            if tunable["kernel"] == "_copied"
        ]
        (table,) = found
        return dict(table)
