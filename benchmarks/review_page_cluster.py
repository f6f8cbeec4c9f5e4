"""How fast the operator's review page answers with 500 open proposals and 10,000 past ones.

``python -m benchmarks.review_page_cluster``. The objects lie in the stores that the operator's
reflectors keep, with their indices; evidence and sources in its record store; who may see what is
asked of a fake API server. The page is served over a real connection to one client behind the
proxy's secret, which asks for one page after the other, in random order, on one core that all of
it shares. The client requests "past, cold" when the cached order of ended proposals is too old.
Writes benchmarks/results/review_page_cluster.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
from benchmarks.review_page import deep, measure
from tests.fakeapi.access import Identity
from tests.fakeapi.server import FakeApi
from tests.operators.examples import a_swap, a_target
from tests.operators.kubectl.conftest import PEOPLE, POLICY, ROLES
from tests.operators.review.conftest import ACCOUNT, SECRET, proxied
from tests.review.conftest import H200, SHAPES, solution
from tests.standalone.proofs import interval, proof

from retuned.clock import FakeClock
from retuned.contract import Workload
from retuned.review.server import PageServer
from retuned.store.envelopes import seal
from retuned.store.keys import FakeNotary
from retuned.store.memory import MemoryStore
from retuned_operator.controllers.caches import INDICES, StoreCaches
from retuned_operator.kube.informer import ObjectCache
from retuned_operator.kube.resources import (
    DECISIONS,
    FREEZES,
    PODS,
    POLICIES,
    PROPOSALS,
    TARGETS,
    Resource,
)
from retuned_operator.manifests.roles import reviewing_rules, watching_rules
from retuned_operator.review.settings import review_app, review_settings
from retuned_operator.review.source import KEEP_S
from retuned_operator.store.kernels import CatalogKernels
from retuned_operator.store.reports import SOLUTION
from retuned_operator.store.review import StoredReviews

HERE = Path(__file__).resolve().parent
_ENDS = ("Rejected", "Expired", "Superseded", "RolledBack", "Aborted")
_IN_FORCE = 40
_NAMESPACES = 20
_OPENED = 30
"""Proposals that are opened, with evidence and sources."""
_STEPS = ("Validating", "AwaitingApproval")
_SWAPPED = ("Approved", "Canary", "Watching")


class Filled:
    """The operator's copies of a cluster, and its store.

    Parameters
    ----------
    open_, past
        Proposals that wait for people, and that have ended.
    rng
        Orders them.
    """

    def __init__(self, *, open_: int, past: int, rng: random.Random) -> None:
        self.now = datetime.now(UTC).replace(microsecond=0)
        self.clock, self.notary = FakeClock(self.now), FakeNotary()
        self.store = MemoryStore(self.clock)
        kinds = (TARGETS, POLICIES, PROPOSALS, DECISIONS, FREEZES, PODS)
        self._stores = {kind: ObjectCache(INDICES.get(kind)) for kind in kinds}
        self.caches = StoreCaches(self._stores, current=lambda _plural: True)
        self.opened: list[str] = []
        self._proofs = self._prove()
        policy = {"apiVersion": "retuned.dev/v1alpha1", "kind": "KernelTuningPolicy"}
        for number in range(_NAMESPACES):
            place = f"serving-{number}"
            self._put(TARGETS, a_target(), name="chat", namespace=place)
            self._put(POLICIES, {**policy, "spec": POLICY}, name="prod", namespace=place)
        phases = ["AwaitingApproval"] * open_ + ["Promoted"] * _IN_FORCE
        phases += [rng.choice(_ENDS) for _ in range(past)]
        rng.shuffle(phases)
        for number, phase in enumerate(phases):
            self._propose(number, phase=phase)

    def _prove(self) -> dict[str, str]:
        """Write evidence and sources of one win; return the spec that names them."""
        candidate, incumbent = solution("wide", num_warps=8), solution("stock")
        document = proof(
            candidate,
            incumbent=incumbent.digest,
            plan="sha256:" + "1" * 64,
            speedup=interval(1.6),
            at=self.now,
            environment=H200,
            workloads=[
                Workload(definition="rmsnorm_n4096", axes={"M": m}, weight=4000.0 / m)
                for m in SHAPES
            ],
        )
        for each in (candidate, incumbent):
            self.store.add(SOLUTION, each.digest, each.model_dump(mode="json"), phase="kept")
        data = document.model_dump_json().encode()
        evidence = self.store.put_blob(seal(data, notary=self.notary))
        return {"evidence": evidence, "artifact": candidate.digest, "baseline": incumbent.digest}

    def _propose(self, number: int, *, phase: str) -> None:
        at = self.now - timedelta(minutes=10 + number)
        body = a_swap(expiresAt=(self.now + timedelta(hours=20)).isoformat())
        if phase in ("AwaitingApproval", "Promoted") and len(self.opened) < _OPENED:
            body["spec"] |= {
                "evidence": self._proofs["evidence"],
                "artifact": body["spec"]["artifact"] | {"digest": self._proofs["artifact"]},
                "baselineDigest": self._proofs["baseline"],
            }
            self.opened.append(f"serving-{number % _NAMESPACES}/swp-{number:020d}")
        steps = [*_STEPS, *(_SWAPPED if phase in ("Promoted", "RolledBack") else ()), phase]
        before, history = "Pending", []
        for step in dict.fromkeys(steps):
            history.append({"from": before, "to": step, "at": at.isoformat(), "by": "retuned"})
            before = step
        gate = {
            "state": "waiting",
            "reason": "missing-approvals",
            "sentence": "Waiting: 0 of 2 approvals.",
            "name": "two",
            "policy": f"serving-{number % _NAMESPACES}/prod",
            "policyGeneration": 1,
            "policyDigest": "sha256:" + "2" * 64,
            "required": 2,
            "missing": 2,
            "missingFrom": ["group gpu-platform", "group sre-oncall"],
        }
        body["status"] = {"phase": phase, "history": history, "gate": gate}
        namespace = f"serving-{number % _NAMESPACES}"
        self._put(PROPOSALS, body, name=f"swp-{number:020d}", namespace=namespace, at=at)

    def _put(
        self,
        kind: Resource,
        body: dict[str, Any],
        *,
        name: str,
        namespace: str,
        at: datetime | None = None,
    ) -> None:
        metadata = {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{namespace}-{name}",
            "resourceVersion": "1",
            "generation": 1,
            "creationTimestamp": (at or self.now).isoformat(),
        }
        self._stores[kind].put({**body, "metadata": metadata})


@contextmanager
def served(filled: Filled, folder: Path) -> Iterator[str]:
    """Serve the page; give its address."""
    (folder / "secret").write_text(SECRET + "\n")
    server = PageServer("127.0.0.1", 0)
    host = f"127.0.0.1:{server.port}"
    groups = sorted({group for found in PEOPLE.values() for group in found})
    settings = review_settings(
        {"hosts": [host], "secretFile": str(folder / "secret"), "groups": groups}
    )
    shelf = StoredReviews(filled.store, filled.notary, kernels=CatalogKernels())
    with FakeApi() as fake:
        fake.access.add("operator", Identity(name=ACCOUNT, groups=("system:authenticated",)))
        fake.access.bind(ACCOUNT, [*reviewing_rules(), *watching_rules()])
        for group in groups:
            fake.access.bind(group, ROLES["retuned-approver"])
        app = review_app(
            settings, fake.api("operator"), caches=filled.caches, shelf=shelf, clock=filled.clock
        )
        server.start(app)
        try:
            yield f"http://{host}"
        finally:
            server.stop()


def asked(address: str, filled: Filled, *, rounds: int) -> dict[str, Any]:
    """Ask for all pages and return milliseconds by kind of page."""
    headers = proxied("ada")
    with httpx.Client(base_url=address, headers=headers, timeout=60.0) as http:
        paths = {
            "inbox": ["/"],
            "inbox, page 8": [deep(http, "/", pages=7)],
            "past": ["/past"],
            "past, page 40": [deep(http, "/past", pages=39)],
            "proposal": [f"/proposals/{name}" for name in filled.opened],
            "swaps": ["/swaps"],
            "drift": ["/drift"],
        }
        assert len(set(map(tuple, paths.values()))) == len(paths), "there are so many pages"
        measure(http, paths, rounds=2)  # templates are compiled once
        found = measure(http, paths, rounds=rounds)
        cold = [_cold(http, filled) for _ in range(max(2, rounds // 4))]
    return found | {"past, cold": cold_summary(cold)}


def _cold(http: httpx.Client, filled: Filled) -> dict[str, Any]:
    filled.clock.advance(KEEP_S + 1.0)
    return measure(http, {"past, cold": ["/past"]}, rounds=2)


def cold_summary(found: list[dict[str, Any]]) -> dict[str, float]:
    """Summarise first answers after the kept order had grown old: the slower of each two."""
    slowest = sorted(each["past, cold"]["max_ms"] for each in found)
    at = min(len(slowest) - 1, int(0.95 * len(slowest)))
    return {"n": len(slowest), "p50_ms": slowest[len(slowest) // 2], "p95_ms": slowest[at]}


def main() -> None:
    """Fill, ask, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--open", type=int, default=500)
    parser.add_argument("--past", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=200, help="of each kind of page")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "review_page_cluster.json")
    given = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    filled = Filled(open_=given.open, past=given.past, rng=random.Random(1))
    with tempfile.TemporaryDirectory() as folder, served(filled, Path(folder)) as address:
        found = asked(address, filled, rounds=given.rounds)
    for kind, row in found.items():
        print(f"{kind:16} {row['p50_ms']:8.1f} ms {row['p95_ms']:8.1f} ms p95 {row['n']:6}")
    body = {
        "machine": {"cpu": platform.processor() or platform.machine(), "cores": 1},
        "method": " ".join((__doc__ or "").split()),
        "open": given.open,
        "past": given.past,
        "pages": found,
    }
    given.out.write_text(json.dumps(body, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
