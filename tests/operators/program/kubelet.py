"""A node of a fake cluster that really runs the pods of experiments, and what controllers do of it.

Jobs that were let go get a pod; its containers are child processes behind a pod's walls, its log is
what they write, and its end becomes the Job's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from tests.fakeapi.server import FakeApi
from tests.operators.program.experiment_pod import ExperimentPod

from retuned_operator.kube.resources import CONFIG_MAPS, JOBS, PODS, Obj
from retuned_operator.manifests.jobs import RUNNER, TELLER


class Kubelet:
    """Runs the pods of one namespace, one after the other, for the length of a block.

    Parameters
    ----------
    fake
        The API server.
    place
        Folder for what is mounted, which every user may enter.
    namespace
        Of the experiments.
    packages
        What the server's image has at `SERVER_PACKAGES`; None where no pod runs it.
    """

    def __init__(
        self, fake: FakeApi, place: Path, *, namespace: str, packages: Path | None = None
    ) -> None:
        self._fake = fake
        self._api = fake.api()
        self._place = place
        self._namespace = namespace
        self._packages = packages
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kubelet")
        self.pods: list[ExperimentPod] = []
        """Those that have ended."""
        self.spoil: Callable[[bytes], bytes] = lambda log: log
        """What becomes of a log before anybody reads it."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        done: set[str] = set()
        while not self._over.wait(0.1):
            for job in self._api.list(JOBS, namespace=self._namespace).items:
                if job["metadata"]["uid"] not in done and not job["spec"]["suspend"]:
                    done.add(job["metadata"]["uid"])
                    self._carry_out(job)

    def _carry_out(self, job: Obj) -> None:
        name = job["metadata"]["name"]
        task = self._api.get(CONFIG_MAPS, name, namespace=self._namespace)
        seen = self._fake.make(PODS, _pod_of(job), phase="Running")
        place = self._place / name
        place.mkdir()
        uid = seen["metadata"]["uid"]
        pod = ExperimentPod(place, (task, job), uid=uid, packages=self._packages)
        codes = pod.run_all()
        self.pods.append(pod)
        key = (self._namespace, seen["metadata"]["name"])
        self._fake.logs[*key, TELLER] = self.spoil(pod.log)
        self._fake.logs[*key, RUNNER] = pod.stdout.encode()
        at = datetime.now(UTC).isoformat(timespec="seconds")
        failed = any(codes.values())
        self._fake.set_status(
            PODS,
            seen,
            phase="Failed" if failed else "Succeeded",
            containerStatuses=[
                {"name": name, "state": {"terminated": {"exitCode": code, "finishedAt": at}}}
                for name, code in codes.items()
            ],
        )
        how = {"type": "Failed" if failed else "Complete", "status": "True"}
        self._fake.set_status(JOBS, job, conditions=[how])


def _pod_of(job: Obj) -> dict[str, Any]:
    metadata, template = job["metadata"], job["spec"]["template"]
    owner = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
    }
    return {
        "metadata": {
            "name": f"{metadata['name']}-x7k2p",
            "namespace": metadata["namespace"],
            "labels": template["metadata"]["labels"],
            "ownerReferences": [owner],
        },
        "spec": template["spec"],
    }
