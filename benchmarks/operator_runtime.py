"""The whole operator on a real control plane at scale: start, answers, memory over time, a stall.

    scripts/cluster-tools
    python -m benchmarks.operator_runtime [--targets 1000] [--objects 10000] [--seconds 120]

etcd, API server and controllers are real, on loopback; kwok plays nodes. There are `--targets`
TuningTargets with three server pods and a SwapProposal each, and SwapDecisions up to `--objects`.
The operator is ``python -m retuned_operator``, a separate process with all controllers, agent API
and certificates, behind a relay. Then targets change their mode, `--rate` a second, evenly. At the
end every connection that the operator has falls silent without an end, and one target changes.

Measured: time from the operator's start until every target has its status, and until nothing waits
to be looked at; per change the time from the answer to it until a watch of this process sees
`observedGeneration` reach it; the operator's own histograms of looks and waits (the bound of the
bucket in which p99 lies), until the changes and during them; the cores that it used meanwhile; its
resident memory, every second, and the medians of the first and last third of the changes; and how
long after the silence the change was acted on. Writes benchmarks/results/operator_runtime.json.

With the defaults it takes about six minutes on two quiet cores.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

import httpx
import yaml
from benchmarks.operator_relay import Relay
from benchmarks.slots import processor
from prometheus_client.parser import text_string_to_metric_families
from tests.operators import examples
from tests.operators.world import POLICY
from tests.plane.conftest import DEFINITIONS as FILES
from tests.plane.control_plane import ControlPlane, free_ports, tools
from tests.plane.servers import real_api

from retuned_operator.kube.client import Api
from retuned_operator.kube.errors import NotFound, Unavailable
from retuned_operator.kube.informer import key_of
from retuned_operator.kube.resources import (
    DECISIONS,
    NAMESPACES,
    NODES,
    PODS,
    POLICIES,
    PROPOSALS,
    SERVICE_ACCOUNTS,
    TARGETS,
    Obj,
)
from retuned_operator.manifests.sidecar import SIDECAR

HERE = Path(__file__).resolve().parent
PLACE, HOME = "serving", "retuned"
_PODS = 3
_NODE_PODS = 500
_MODES = ("Observe", "Recommend")
_PATIENCE_S = 240.0
_STALL_S = 150.0
_HISTOGRAMS = {
    "retuned_operator_reconcile_duration_seconds": "look_s_p99_below",
    "retuned_operator_queue_wait_seconds": "wait_s_p99_below",
}
_DEPTH = "retuned_operator_queue_depth"
Counted = dict[str, dict[str, dict[float, float]]]
"""By histogram, controller and bound: how many were below."""


class Noted:
    """When a watch first saw that the operator had looked at each generation of a target."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._version = api.list(TARGETS).version
        self.done: dict[tuple[str, int], float] = {}

    def run(self, stop: threading.Event) -> None:
        """Watch until `stop` is set or the server goes away."""
        while not stop.is_set():
            with suppress(Unavailable), self._api.watch(TARGETS, version=self._version) as watch:
                for event in watch:
                    self._version = event.version or self._version
                    seen = (event.body.get("status") or {}).get("observedGeneration", 0)
                    if seen:
                        self.done.setdefault((key_of(event.body), seen), time.monotonic())
                    if stop.is_set():
                        return


class Operator:
    """The operator as a process.

    Parameters
    ----------
    folder
        For its state and its log.
    kubeconfig
        How it reaches the API server.
    """

    def __init__(self, folder: Path, kubeconfig: Path) -> None:
        (port,) = free_ports(1)
        self._metrics = f"http://127.0.0.1:{port}/metrics"
        self.resident_mib: list[float] = []
        names = {
            "KUBECONFIG": str(kubeconfig),
            "STATE_DIR": str(folder / "operator"),
            "ADDRESS": "127.0.0.1",
            "AGENT_PORT": "0",
            "METRICS_PORT": str(port),
            "POD_NAMESPACE": HOME,
            "LOG_LEVEL": "warning",
        }
        environment = {f"RETUNED_OPERATOR_{name}": value for name, value in names.items()}
        self.log = folder / "operator.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "retuned_operator"],
                env=os.environ | environment,
                stdout=log,
                stderr=log,
            )

    def must_live(self) -> None:
        """Raise if it has ended."""
        if self.process.poll() is not None:
            raise SystemExit(f"the operator ended:\n{self.log.read_text()[-3000:]}")

    def sample(self, stop: threading.Event) -> None:
        """Note its memory every second."""
        while not stop.wait(1.0):
            with suppress(OSError, IndexError):
                statm = Path(f"/proc/{self.process.pid}/statm").read_text()
                pages = int(statm.split()[1])
                self.resident_mib.append(round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1))

    def waiting(self) -> int:
        """Return how many keys wait to be looked at."""
        families = text_string_to_metric_families(self._shown())
        return int(sum(s.value for f in families for s in f.samples if s.name == _DEPTH))

    def _shown(self) -> str:
        return httpx.get(self._metrics, timeout=30.0, trust_env=False).text

    def counted(self) -> Counted:
        """Return its histograms as they are now."""
        found: Counted = {name: {} for name in _HISTOGRAMS}
        for family in text_string_to_metric_families(self._shown()):
            for sample in family.samples:
                name = sample.name.removesuffix("_bucket")
                if name in found and sample.name != name:
                    buckets = found[name].setdefault(sample.labels["controller"], {})
                    bound = float(sample.labels["le"])
                    buckets[bound] = buckets.get(bound, 0.0) + sample.value
        return found

    def cpu_s(self) -> float:
        """Return the processor time that it has used, seconds."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def p99_below_s(before: Counted | None, after: Counted) -> dict[str, dict[str, float]]:
    """Return the bound of the bucket in which p99 lies, by what was counted and controller.

    Parameters
    ----------
    before, after
        What was counted at the beginning and the end of what is looked at; None means nothing.
    """
    found: dict[str, dict[str, float]] = {}
    for name, controllers in after.items():
        short = found[_HISTOGRAMS[name]] = {}
        for controller, buckets in sorted(controllers.items()):
            known = before[name].get(controller, {}) if before else {}
            fresh = {bound: count - known.get(bound, 0.0) for bound, count in buckets.items()}
            if fresh[math.inf]:
                short[controller] = min(b for b, n in fresh.items() if n >= 0.99 * fresh[math.inf])
    return found


def fill(api: Api, *, targets: int, objects: int) -> None:
    """Make what the operator finds when it starts."""
    for name in (PLACE, HOME):
        api.create(NAMESPACES, {"metadata": {"name": name}})
    policy = yaml.safe_load(POLICY) | {"metadata": _named("prod")}
    api.create(POLICIES, policy)
    nodes = -(-targets * _PODS // _NODE_PODS)
    offers = {"cpu": "512", "memory": "4Ti", "pods": str(2 * _NODE_PODS)}
    for n in range(nodes):
        status = {"allocatable": offers, "capacity": offers}
        api.create(NODES, {"metadata": {"name": f"node-{n}"}, "status": status})
    _await_account(api)
    expires = (datetime.now(UTC) + timedelta(days=2)).isoformat()
    made = [
        *((TARGETS, a_target(n)) for n in range(targets)),
        *((PODS, a_pod(n, targets=targets)) for n in range(targets * _PODS)),
        *((PROPOSALS, a_proposal(n, expires=expires)) for n in range(targets)),
    ]
    made += [(DECISIONS, a_decision(n, targets=targets)) for n in range(objects - len(made))]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda each: api.create(*each), made))


def a_target(n: int) -> Obj:
    spec = examples.a_target()["spec"] | {"selector": {"matchLabels": {"app": f"t{n}"}}}
    return {"metadata": _named(f"t{n}"), "spec": spec | {"mode": _MODES[0]}}


def a_pod(n: int, *, targets: int) -> Obj:
    of = n % targets
    containers = [{"name": name, "image": "nothing/runs:here"} for name in ("server", SIDECAR)]
    spec = {"containers": containers, "nodeName": f"node-{n // _NODE_PODS}"}
    return {"metadata": _named(f"t{of}-{n // targets}", labels={"app": f"t{of}"}), "spec": spec}


def a_proposal(n: int, *, expires: str) -> Obj:
    about = {"targetRef": {"name": f"t{n}"}, "expiresAt": expires}
    return examples.a_swap(**about) | {"metadata": _named(f"swp-{n}")}


def a_decision(n: int, *, targets: int) -> Obj:
    about = {"name": f"swp-{n % targets}", "uid": f"uid-{n}"}
    return examples.a_decision(proposalRef=about) | {"metadata": _named(f"swd-{n}")}


def _await_account(api: Api) -> None:
    """Wait for the account that pods of a namespace are given."""
    end = time.monotonic() + 60.0
    while time.monotonic() < end:
        with suppress(NotFound):
            api.get(SERVICE_ACCOUNTS, "default", namespace=PLACE)
            return
        time.sleep(0.2)
    raise SystemExit("the namespace got no account in a minute")


def change(api: Api, n: int, *, targets: int) -> tuple[str, int]:
    """Change a target; return which, and its generation."""
    mode = _MODES[(n // targets + 1) % len(_MODES)]
    body = api.patch(TARGETS, f"t{n % targets}", change={"spec": {"mode": mode}}, namespace=PLACE)
    return key_of(body), int(body["metadata"]["generation"])


def changes(api: Api, *, targets: int, seconds: float, rate: float) -> dict[tuple[str, int], float]:
    """Change targets evenly; return when each change was answered."""
    answered: dict[tuple[str, int], float] = {}
    began = time.monotonic()
    for n in range(max(1, int(seconds * rate))):
        time.sleep(max(0.0, began + n / rate - time.monotonic()))
        answered[change(api, n, targets=targets)] = time.monotonic()
    return answered


def measure(plane: ControlPlane, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Fill the cluster, start the operator, change things, silence its connections."""
    api = real_api(plane)
    began = time.monotonic()
    fill(api, targets=options.targets, objects=options.objects)
    found: dict[str, Any] = {"filled_s": round(time.monotonic() - began, 1)}
    noted, stop = Noted(api), threading.Event()
    threading.Thread(target=noted.run, args=(stop,), daemon=True).start()
    with Relay(urlsplit(plane.url).port or 0) as relay:
        began = time.monotonic()
        with _running(Operator(folder, _through(plane, relay, folder)), stop) as operator:
            _until(noted, options.targets, operator)
            found["all_have_a_status_s"] = round(time.monotonic() - began, 2)
            _settle(operator)
            found["nothing_waits_s"] = round(time.monotonic() - began, 2)
            first, counted = len(operator.resident_mib), operator.counted()
            found["at_the_start"] = p99_below_s(None, counted)
            used, since = operator.cpu_s(), time.monotonic()
            answered = changes(
                api, targets=options.targets, seconds=options.seconds, rate=options.rate
            )
            time.sleep(2.0)
            memory = operator.resident_mib[first:]
            reacted = [noted.done[key] - at for key, at in answered.items() if key in noted.done]
            found |= {
                "changes": len(answered),
                "overtaken": len(answered) - len(reacted),
                "reaction_s": quantiles([max(0.0, each) for each in reacted]),
                "cores_used": round((operator.cpu_s() - used) / (time.monotonic() - since), 2),
                **p99_below_s(counted, operator.counted()),
                "resident_mib": _memory(memory),
                "stall": _stall(api, noted, relay, operator, options, after=len(answered)),
            }
            found["resident_mib"]["most"] = max(operator.resident_mib)
    return found


@contextmanager
def _running(operator: Operator, stop: threading.Event) -> Iterator[Operator]:
    threading.Thread(target=operator.sample, args=(stop,), daemon=True).start()
    try:
        yield operator
    finally:
        stop.set()
        operator.process.terminate()
        try:
            operator.process.wait(30.0)
        except subprocess.TimeoutExpired:
            operator.process.kill()


def _until(noted: Noted, targets: int, operator: Operator) -> None:
    end = time.monotonic() + _PATIENCE_S
    while len({key for key, _ in tuple(noted.done)}) < targets:
        operator.must_live()
        if time.monotonic() > end:
            raise SystemExit(f"{len(noted.done)} of {targets} targets have a status by now")
        time.sleep(0.05)


def _settle(operator: Operator) -> None:
    """Wait until all that there is was looked at; what changes then is looked at on its own."""
    end = time.monotonic() + _PATIENCE_S
    while operator.waiting():
        operator.must_live()
        if time.monotonic() > end:
            raise SystemExit(f"{operator.waiting()} keys wait still")
        time.sleep(0.5)  # an answer is work for the operator, too


def _stall(
    api: Api,
    noted: Noted,
    relay: Relay,
    operator: Operator,
    options: argparse.Namespace,
    *,
    after: int,
) -> dict[str, Any]:
    """Silence what the operator is connected by, change a target, and wait until that is seen."""
    silenced = relay.freeze()
    began = time.monotonic()
    key = change(api, after, targets=options.targets)
    while key not in noted.done and time.monotonic() < began + _STALL_S:
        if operator.process.poll() is not None:  # it gave its lease up: the next one goes on
            return {"connections": silenced, "ended_with": operator.process.returncode}
        time.sleep(0.05)
    at = noted.done.get(key)
    return {"connections": silenced, "recovered_s": None if at is None else round(at - began, 2)}


def _memory(samples: Sequence[float]) -> dict[str, Any]:
    third = max(1, len(samples) // 3)
    return {
        "first_third": median(samples[:third]),
        "last_third": median(samples[-third:]),
        "every_second": list(samples),
    }


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """Return median, 99th percentile and maximum, in the unit of the values."""
    ordered = sorted(values)
    at = [ordered[min(len(ordered) - 1, int(len(ordered) * q))] for q in (0.5, 0.99, 1.0)]
    return dict(zip(("p50", "p99", "max"), at, strict=True)) | {"samples": len(ordered)}


def _through(plane: ControlPlane, relay: Relay, folder: Path) -> Path:
    """Return the administrator's kubeconfig with the relay in the API server's place."""
    body = yaml.safe_load(plane.admin().read_text())
    body["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{relay.port}"
    path = folder / "relayed.kubeconfig"
    path.write_text(yaml.safe_dump(body))
    return path


def _named(name: str, *, labels: Mapping[str, str] | None = None) -> dict[str, Any]:
    return {"name": name, "namespace": PLACE, "labels": dict(labels or {})}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--targets", type=int, default=1000)
    parser.add_argument("--objects", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--rate", type=float, default=20.0)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "operator_runtime.json")
    options = parser.parse_args()
    programs = tools()
    if programs is None:
        raise SystemExit("Kubernetes is not built here: scripts/cluster-tools")
    before = round(os.getloadavg()[0], 1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with ControlPlane(folder, programs, definitions=FILES) as plane:
            found = measure(plane, options, folder)
    body = {
        "machine": {
            "processor": processor(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "load_1m_before": before,
            "load_1m_after": round(os.getloadavg()[0], 1),
        },
        "targets": options.targets,
        "objects": options.objects,
        "rate_per_s": options.rate,
        **found,
    }
    options.out.write_text(json.dumps(body, indent=1) + "\n")
    body["resident_mib"] = {k: v for k, v in found["resident_mib"].items() if k != "every_second"}
    print(json.dumps(body, indent=1))


if __name__ == "__main__":
    main()
