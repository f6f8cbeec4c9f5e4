"""The operator's runtime on a real control plane at scale: start, answers, memory over time.

    make cluster-tools
    python -m benchmarks.operator_runtime [--targets 1000] [--objects 10000] [--seconds 120]

etcd and the API server are real, on loopback. There are `--targets` TuningTargets, and
SwapDecisions up to `--objects`. A child process (`operator_child`) runs a `Manager` as the operator
does: stores of both kinds with an index, and one controller that looks at a target with its
decisions and writes its status. Then targets change, `--rate` a second, evenly.

Measured: time from the child's start until every target has its status; per change the time from
the answer to the change until a watch of the parent sees the status that it led to; in the child
how long keys waited (the bucket of the metric) and how long a look took, with its write; the
child's resident memory, every second. Quantiles are of all samples but where a bucket is named.
Writes benchmarks/results/operator_runtime.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.operator_child import MARK, NAMESPACE, quantiles
from benchmarks.slots import processor
from tests.operators import examples
from tests.plane.conftest import DEFINITIONS
from tests.plane.control_plane import ControlPlane, tools
from tests.plane.servers import real_api

from retuned_operator.runtime.client import Api
from retuned_operator.runtime.errors import Unavailable
from retuned_operator.runtime.resources import DECISIONS, TARGETS
from retuned_operator.runtime.store import key_of

HERE = Path(__file__).resolve().parent


class Noted:
    """When a watch first saw the status of each change."""

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
                    shown = event.body.get("status", {}).get("sampledKernels")
                    if shown is not None:
                        key = (key_of(event.body), shown)
                        self.done.setdefault(key, time.monotonic())
                    if stop.is_set():
                        return


def fill(api: Api, *, targets: int, objects: int) -> None:
    """Make what the operator finds when it starts."""
    spec = examples.a_target()["spec"]
    decision = examples.a_decision()["spec"]

    def make(n: int) -> None:
        if n < targets:
            api.create(TARGETS, {"metadata": _named(f"t{n}"), "spec": spec})
            return
        about = {"name": f"t{n % targets}", "uid": f"u{n % targets}"}
        api.create(
            DECISIONS, {"metadata": _named(f"d{n}"), "spec": decision | {"proposalRef": about}}
        )

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(make, range(objects)))


def change(api: Api, *, targets: int, seconds: float, rate: float) -> dict[tuple[str, int], float]:
    """Change targets evenly; return when each change was answered."""
    answered: dict[tuple[str, int], float] = {}
    began = time.monotonic()
    for n in range(1, max(2, int(seconds * rate) + 1)):
        time.sleep(max(0.0, began + n / rate - time.monotonic()))
        name = f"t{n % targets}"
        note = {"metadata": {"annotations": {MARK: str(n)}}}
        api.patch(TARGETS, name, change=note, namespace=NAMESPACE)
        answered[(f"{NAMESPACE}/{name}", n)] = time.monotonic()
    return answered


def measure(plane: ControlPlane, options: argparse.Namespace) -> dict[str, Any]:
    """Fill the cluster, start the operator, change things."""
    api = real_api(plane)
    began = time.monotonic()
    fill(api, targets=options.targets, objects=options.objects)
    filled_s = time.monotonic() - began
    noted, stop = Noted(api), threading.Event()
    watching = threading.Thread(target=noted.run, args=(stop,), daemon=True)
    watching.start()
    began = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.operator_child", str(plane.admin())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        while len(noted.done) < options.targets:
            assert child.poll() is None, "the operator ended"
            time.sleep(0.05)
        started_s = time.monotonic() - began
        answered = change(api, targets=options.targets, seconds=options.seconds, rate=options.rate)
        time.sleep(2.0)
        out, _ = child.communicate("", timeout=120)
    stop.set()
    reacted = [noted.done[key] - at for key, at in answered.items() if key in noted.done]
    told = json.loads(out)
    memory = told.pop("resident_mib")
    found: dict[str, Any] = told | {
        "filled_s": round(filled_s, 1),
        "all_have_a_status_s": round(started_s, 2),
        "reaction_s": quantiles([max(0.0, each) for each in reacted]),
        "changes": len(answered),
        "overtaken": len(answered) - len(reacted),
        "resident_mib": {"most": max(memory), "last": memory[-1], "every_second": memory},
    }
    return found


def _named(name: str) -> dict[str, str]:
    return {"name": name, "namespace": NAMESPACE}


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
        raise SystemExit("Kubernetes is not built here: make cluster-tools")
    with (
        tempfile.TemporaryDirectory() as folder,
        ControlPlane(Path(folder), programs, definitions=DEFINITIONS) as plane,
    ):
        found = measure(plane, options)
    body = {
        "machine": {
            "processor": processor(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
        },
        "targets": options.targets,
        "objects": options.objects,
        "rate_per_s": options.rate,
        **found,
    }
    options.out.write_text(json.dumps(body, indent=1) + "\n")
    shown = {key: value for key, value in body.items() if key != "resident_mib"}
    print(json.dumps(shown | {"resident_mib_most": body["resident_mib"]["most"]}, indent=1))


if __name__ == "__main__":
    main()
