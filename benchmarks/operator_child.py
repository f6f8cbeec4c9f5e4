"""What benchmarks/operator_runtime.py measures: an operator as small as can be, in its process."""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry

from retuned_operator.crds.values import GROUP
from retuned_operator.runtime.client import connect
from retuned_operator.runtime.manager import Controller, Manager, itself
from retuned_operator.runtime.resources import DECISIONS, TARGETS, Obj
from retuned_operator.runtime.store import split

MARK = f"{GROUP}/change"
"""Annotation whose number the status is to show."""
NAMESPACE = "default"


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """Return median, 99th percentile and maximum, in the unit of the values."""
    ordered = sorted(values)
    at = [ordered[min(len(ordered) - 1, int(len(ordered) * q))] for q in (0.5, 0.99, 1.0)]
    return dict(zip(("p50", "p99", "max"), at, strict=True)) | {"samples": len(ordered)}


def resident_mib() -> float:
    """Return the resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def operate(kubeconfig: Path) -> None:
    """Run until stdin ends; then print what was measured."""
    api = connect(kubeconfig)
    registry = CollectorRegistry()
    manager = Manager(api, registry=registry)
    targets = manager.store(TARGETS)
    decisions = manager.store(
        DECISIONS, indices={"target": lambda body: (body["spec"]["proposalRef"]["name"],)}
    )
    looks: list[float] = []
    memory: list[float] = []

    def reconcile(key: str) -> None:
        began = time.monotonic()
        body = targets.get(key)
        if body is None:
            return
        namespace, name = split(key)
        wanted = {"pods": len(decisions.by("target", name)), "sampledKernels": mark(body)}
        if any(body.get("status", {}).get(field) != value for field, value in wanted.items()):
            version = body["metadata"]["resourceVersion"]
            manager.writer.patch_status(
                TARGETS, name, namespace=namespace, status=wanted, version=version
            )
        looks.append(time.monotonic() - began)

    manager.add(
        Controller(
            name="noting",
            primary=TARGETS.plural,
            watches={
                TARGETS.plural: itself,
                DECISIONS.plural: lambda body: (
                    f"{NAMESPACE}/{body['spec']['proposalRef']['name']}",
                ),
            },
            reconcile=reconcile,
        )
    )
    stop = threading.Event()
    running = threading.Thread(target=manager.run, args=(stop,))
    running.start()
    watcher = threading.Thread(target=_sample, args=(stop, memory))
    watcher.start()
    sys.stdin.read()
    stop.set()
    running.join()
    watcher.join()
    found = {"look_s": quantiles(looks), "wait_s_p99_below": waited(registry)}
    print(json.dumps(found | {"resident_mib": memory}))


def waited(registry: CollectorRegistry, quantile: float = 0.99) -> float:
    """Return the bound of the bucket in which a quantile of the waits of keys lies, seconds."""
    name = "retuned_operator_queue_wait_seconds_bucket"
    samples = [each for metric in registry.collect() for each in metric.samples]
    buckets = {float(e.labels["le"]): e.value for e in samples if e.name == name}
    return min(bound for bound, count in buckets.items() if count >= quantile * buckets[math.inf])


def mark(body: Obj) -> int:
    """Return the number of the change that an object shows."""
    return int(body["metadata"].get("annotations", {}).get(MARK, "0"))


def _sample(stop: threading.Event, memory: list[float]) -> None:
    while not stop.wait(1.0):
        memory.append(round(resident_mib(), 1))


if __name__ == "__main__":
    operate(Path(sys.argv[1]))
