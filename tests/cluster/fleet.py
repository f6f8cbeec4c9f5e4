"""What the story is about: a target, its policy, the demo's server, traffic, and looks at it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.cluster import MODEL, Cluster
from tests.cluster.conftest import TAG
from tests.cluster.installing import OPERATOR, Volume, installed, values
from tests.cluster.installing import volume as store_volume
from tests.cluster.reporting import Report
from tests.cluster.serving import PORT, SHARED_FOLDERS, Counted, answers, server_pod, service

from retuned.api.agent import PodRef
from retuned.contract import digest_of
from retuned.demo.processes import Child
from retuned_operator.manifests.names import INJECT, REPLICA_OF
from retuned_operator.manifests.sidecar import SIDECAR, SOCKET_DIR

NAMESPACE = "chat"
EXPERIMENTS = "retuned-experiments"
POLICY = "two-persons"
ASKING: Mapping[str, str] = {INJECT: "true"}
"""Annotations of a pod that wants a sidecar."""
TARGET: Mapping[str, Any] = {
    "apiVersion": "retuned.dev/v1alpha1",
    "kind": "TuningTarget",
    "metadata": {"name": "demo", "namespace": NAMESPACE, "labels": {"env": "prod"}},
    "spec": {
        "selector": {"matchLabels": {"app": "demo"}},
        "container": "server",
        "framework": "torch",
        # kernels in C++; what stands for a processor here is offered as accelerators are
        "gpu": {"vendor": "cpu", "model": "MI300X"},
        "mode": "Swap",
    },
}
ROLLOUT: Mapping[str, Any] = {
    "canary": {
        "pods": 1,
        "bake": "5s",
        "shadowFirst": True,
        "steps": [
            {"fraction": 0.1, "minChecks": 20, "minSeconds": 5},
            # so long that it is seen under way, and over before the API server is back
            {"fraction": 0.5, "minChecks": 20, "minSeconds": 20},
        ],
        "lease": "10m",
        "orphan": "rollback",
    },
    "shadow": {"maxShare": 0.3},
    "waves": ["100%"],
    "minInterval": "0s",
    "analysis": {"interval": "5s", "inconclusiveLimit": 1000},
    "autoRollback": {"quarantine": "1h"},
    "postPromotionWatch": "5s",
}
"""Every stage of a rollout, each but one as short as it may be."""


IN_REPLICAS: Mapping[str, Any] = {
    "mode": "required",
    "switching": False,
    "whenNotSwitchable": "canary",
    "canaryLeaveOut": "2s",
    "canaryWindow": "20s",
}
"""A live proof by boots of canary replicas, each of seconds: 200 steps take ten on two cores."""
OBSERVED: Mapping[str, Any] = {"mode": "observe", "longBlocks": 0, "maxDuration": "5m"}
"""A live proof in serving pods whose verdict is not asked for: two cores are shared by all."""


def story_values(volume: str, *, live_proof: Mapping[str, Any] = OBSERVED) -> Mapping[str, Any]:
    """Return values of the chart: two people decide, windows are seconds long.

    Parameters
    ----------
    volume
        Storage class of the volume that the store is on.
    live_proof
        The policy's rule.
    """
    given = dict(values(TAG))
    lab = {"cpu": "1", "memory": "2Gi", "work": "2Gi"}
    given["sidecar"] = given["sidecar"] | {
        "cpuLimit": "1",
        "windowSeconds": 5,
        "settleSeconds": 1,
        "baselineWindows": 5,
        "detector": "demo",
    }
    given["experiments"] = given["experiments"] | {
        "gpuResources": {"cpu": "amd.com/gpu"},
        "gpuModels": {"MI300X": dict(MODEL)},
        "sizes": {"compile": lab, "search": lab, "verify": lab},
    }
    given["canaryReplicas"] = {"enabled": True}
    given["store"] = {"persistent": True, "storageClassName": volume, "size": "1Gi"}
    given["policies"] = [
        {
            "name": POLICY,
            "namespace": NAMESPACE,
            "shipped": "production-two-person",
            "spec": {
                "experiments": {
                    "maxConcurrent": 1,
                    "budget": {"gpuHoursPerDay": 4, "maxTrials": 6, "trialDeadline": "5m"},
                    # nobody watches a service level here
                    "pauseWhen": {"sloAlertFiring": False},
                },
                "kernels": {"include": ["linear_w8_n2816_k512"]},
                "liveProof": dict(live_proof),
                "rollout": dict(ROLLOUT),
            },
        }
    ]
    return given


def like(experiment: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return an experiment on the same kernel by another plan, as somebody would ask for it."""
    spec = experiment["spec"] | {"plan": digest_of([experiment["spec"]["plan"], name])}
    about = {"name": name, "namespace": experiment["metadata"]["namespace"]}
    kind = {key: experiment[key] for key in ("apiVersion", "kind")}
    return kind | {"metadata": about, "spec": spec}


def deployment() -> dict[str, Any]:
    """Return the server as its owner writes it: with an annotation, and without us."""
    template = server_pod(TAG, folders=SHARED_FOLDERS, model="demo")
    template["metadata"]["annotations"] = dict(ASKING)
    # beside an experiment on the same two cores it keeps a third; three of them fit on two cores
    template["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "500m"
    # a replica that is deleted gets no new request once the node knows
    template["spec"]["containers"][0]["lifecycle"] = {"preStop": {"sleep": {"seconds": 5}}}
    template["spec"]["terminationGracePeriodSeconds"] = 60
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "demo", "namespace": NAMESPACE},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": "demo"}},
            "template": template,
        },
    }


class Client:
    """The demo's client, a process: traffic of a phase until the end.

    Parameters
    ----------
    child
        ``python -m retuned.demo.client``.
    """

    def __init__(self, child: Child) -> None:
        self._child = child
        child.answer(timeout_s=300)

    def ask(self, line: str) -> dict[str, Any]:
        """Say one line and return the answer."""
        self._child.say(line)
        return self._child.answer(timeout_s=400)

    def served(self, count: int) -> Callable[[], bool]:
        """Return whether so many more requests were answered, when asked."""
        wanted = int(self.ask("mark")["ok"]) + count
        return lambda: int(self.ask("mark")["ok"]) >= wanted

    def serves(self, count: int, *, at_least_s: float) -> None:
        """Wait until so many more requests were answered and so much time has passed."""
        began, served = time.monotonic(), self.served(count)
        while not served() or time.monotonic() - began < at_least_s:
            time.sleep(0.5)


@contextmanager
def traffic_of(url: str, *, folder: Path, counted: Counted) -> Iterator[Client]:
    """Ask like people of a chat service; count everything in at the end."""
    # a machine with other work on two cores is slow, and that is no failure
    patience = ["--timeout-s", "180"]
    arguments = ["-m", "retuned.demo.client", "--url", url, "--in-flight", "4", *patience]
    with Child("client", arguments, log_dir=folder, cores=sorted(os.sched_getaffinity(0))) as child:
        client = Client(child)
        try:
            yield client
        finally:
            totals = client.ask("stop")
            counted.sent += int(totals["sent"])
            counted.tokens += int(totals["output_tokens"])
            counted.failed += [f"{n} of {why}" for why, n in totals["failures"].items()]


@dataclass(frozen=True, slots=True)
class Fleet:
    """One target with one pod, and traffic that began when the pod was ready."""

    cluster: Cluster
    ref: PodRef
    url: str
    client: Client
    store: Volume

    @property
    def pod(self) -> str:
        """Name of the pod."""
        return self.ref.name

    def server(self) -> dict[str, Any]:
        """Return the pod of the server, as the cluster tells it."""
        return self.cluster.get("pod", self.pod, "-n", NAMESPACE)

    def status(self) -> dict[str, Any]:
        """Return what the operator says of the target."""
        found = self.cluster.get("tuningtarget", "demo", "-n", NAMESPACE)
        status: dict[str, Any] = found.get("status", {})
        return status

    def all(self, kind: str) -> list[dict[str, Any]]:
        """Return the objects of a kind beside the target, oldest first."""
        found: list[dict[str, Any]] = self.cluster.get(kind, "-n", NAMESPACE)["items"]
        return sorted(found, key=lambda each: each["metadata"]["creationTimestamp"])

    def proposal(self) -> dict[str, Any]:
        """Return the oldest proposal."""
        return self.all("swapproposals")[0]

    def approve(self, name: str, group: str) -> None:
        """Say yes to the oldest proposal, as somebody of a group.

        Raises
        ------
        subprocess.CalledProcessError
            If that is refused.
        """
        person = self.cluster.person(name, "retuned-approver", namespace=NAMESPACE, groups=(group,))
        proposal = self.proposal()
        self.cluster.retuned(
            "approve", proposal["metadata"]["name"], "-n", NAMESPACE, "--yes",
            "--digest", proposal["spec"]["artifact"]["digest"], "-m", "measured, and guarded",
            kubeconfig=person,
        )  # fmt: skip

    def replicas(self, *, going: bool = False) -> list[dict[str, Any]]:
        """Return the canary replicas, with `going` also those that are on their way out."""
        found = self.cluster.get("pods", "-n", NAMESPACE, "-l", REPLICA_OF)["items"]
        return [each for each in found if going or "deletionTimestamp" not in each["metadata"]]

    def experiment(self, name: str) -> dict[str, Any]:
        """Return an experiment."""
        return self.cluster.get("kernelexperiment", name, "-n", NAMESPACE)

    def phase(self) -> str:
        """Return where it is."""
        return str(self.proposal().get("status", {}).get("phase", ""))

    def jobs(self) -> list[dict[str, Any]]:
        """Return the Jobs of experiments."""
        found: list[dict[str, Any]] = self.cluster.get("jobs", "-n", EXPERIMENTS)["items"]
        return found

    def running(self) -> list[dict[str, Any]]:
        """Return the pods of experiments that run."""
        found = self.cluster.get("pods", "-n", EXPERIMENTS)["items"]
        return [each for each in found if each["status"]["phase"] == "Running"]

    def operators_pod(self) -> dict[str, Any]:
        """Return the pod of the one operator; one that is on its way out is none."""
        found = self.cluster.get("pods", *OPERATOR)["items"]
        (pod,) = [each for each in found if "deletionTimestamp" not in each["metadata"]]
        told: dict[str, Any] = pod
        return told

    def operator(self) -> dict[str, Any]:
        """Return how the container of the one operator stands."""
        (status,) = self.operators_pod()["status"]["containerStatuses"]
        found: dict[str, Any] = status
        return found

    def said_anew(self, *words: str) -> Callable[[], bool]:
        """Return whether the operator has said one of some words again since now, when asked."""

        def count() -> int:
            said = self.cluster.kubectl("logs", *OPERATOR, "--tail=-1")
            return sum(said.count(each) for each in words)

        before = count()
        return lambda: count() > before

    def operators_last_words(self) -> str:
        """Return the end of what the operator said before it was started again."""
        return self.cluster.kubectl("logs", *OPERATOR, "--previous", "--tail=40")

    def log(self) -> str:
        """Return what the sidecar says."""
        return self.cluster.kubectl("logs", "-n", NAMESPACE, self.pod, "-c", SIDECAR)

    def slots(self, kind: str = "slots") -> dict[str, dict[str, Any]]:
        """Return what the server's own runtime says of its slots, by definition.

        Parameters
        ----------
        kind
            ``slots`` or ``samples``.
        """
        (answer,) = asked(self.cluster, self.pod, kind, namespace=NAMESPACE)
        return {each["definition"]: each for each in answer[kind]}


def asked(cluster: Cluster, pod: str, op: str, *, namespace: str) -> list[dict[str, Any]]:
    """Return what the runtime in each process of a pod's server answers to a question.

    Parameters
    ----------
    op
        The question, such as ``slots``.
    """
    # no program of ours: its memory would not fit beside the sidecar's into the container's
    text = (
        "import pathlib, socket, sys\n"
        f"for path in sorted(pathlib.Path('{SOCKET_DIR}').glob('*.sock')):\n"
        "    link = socket.socket(socket.AF_UNIX); link.settimeout(100); link.connect(str(path))\n"
        "    link.sendall(('{\"op\": \"' + sys.argv[1] + '\"}\\n').encode())\n"
        "    print(link.makefile().readline())\n"
    )
    said = cluster.kubectl(
        "exec", "-n", namespace, pod, "-c", SIDECAR, "--", "python3", "-S", "-c", text, op
    )
    answers = [json.loads(line) for line in said.splitlines() if line.strip()]
    assert all(each["ok"] for each in answers), answers
    return answers


@contextmanager
def fleet_in(
    cluster: Cluster, given: Mapping[str, Any], *, volume: str, folder: Path, report: Report
) -> Iterator[Fleet]:
    """Install the chart, start the server with its sidecar and traffic, and take all away again.

    Parameters
    ----------
    cluster
        A cluster without the chart.
    given
        Values of the chart.
    volume
        Storage class of the volume that the store is on.
    folder
        Of the client.
    report
        Gets how long things took, and what became of requests.
    """
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    cluster.kubectl("apply", "-f", "-", given=[namespace])
    counted = Counted()
    with store_volume(cluster, volume) as store, installed(cluster, given):
        cluster.kubectl("apply", "-f", "-", given=[service(NAMESPACE), TARGET])
        authority = ("get", "configmap", "retuned-agent-ca", "-n", NAMESPACE)
        cluster.eventually(lambda: cluster.succeeds(*authority), "the authority is there")
        # ready is who answers; that the address leads there takes the node a moment more
        cluster.eventually(lambda: injected(cluster) != "", "who asks gets a sidecar")
        cluster.kubectl("apply", "-f", "-", given=[deployment()])
        ready = ("rollout", "status", "deployment/demo", "-n", NAMESPACE, "--timeout=1s")
        took = cluster.eventually(lambda: cluster.succeeds(*ready), "it is ready", within_s=600)
        report.seconds["injected server ready"] = took
        (pod,) = cluster.get("pods", "-n", NAMESPACE, "-l", "app=demo")["items"]
        address = cluster.get("service", "demo", "-n", NAMESPACE)["spec"]["clusterIP"]
        url = f"http://{address}:{PORT}"
        cluster.eventually(lambda: answers(url), "the service answers")
        about = pod["metadata"]
        with traffic_of(url, folder=folder, counted=counted) as client:
            ref = PodRef(namespace=NAMESPACE, name=about["name"], uid=about["uid"])
            yield Fleet(cluster, ref, url, client, store)
        report.add(counted)
    cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def injected(
    cluster: Cluster,
    *,
    annotations: Mapping[str, str] = ASKING,
    namespace: str = NAMESPACE,
) -> str:
    """Return the names of the init containers that a new pod would have."""
    pod = server_pod(TAG)
    about = {"name": "tried", "namespace": namespace, "annotations": dict(annotations)}
    tried = {"apiVersion": "v1", "kind": "Pod", "metadata": pod["metadata"] | about}
    fields = "jsonpath={.spec.initContainers[*].name}"
    arguments = ("create", "--dry-run=server", "-f", "-", "-o", fields)
    return cluster.kubectl(*arguments, given=[tried | {"spec": pod["spec"]}])
