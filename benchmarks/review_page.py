"""How fast the review page answers with 500 open proposals and 10,000 past ones, on one core.

``python -m benchmarks.review_page``. The store is SQLite on disk, filled as the daemon fills it:
proposals with their gate's answer, events, orders, decisions, findings with sources, and signed
evidence for those that are opened. The page is served over a real connection to one client that
asks for one page after the other, in random order, on one core that both share. Writes
benchmarks/results/review_page.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import httpx
from tests.review.browsing import HeaderDoor
from tests.review.conftest import NOON, Site9476, made, ran_body

from retuned.clock import FakeClock
from retuned.ports import Event
from retuned.review.server import PageServer, names_of
from retuned.stages.proposal import Proposal
from retuned.stages.swap import order_swap
from retuned.standalone.review_source import key_of

HERE = Path(__file__).resolve().parent
_ENDS = ("Rejected", "Expired", "Superseded", "RolledBack", "Invalid", "Aborted")
_IN_FORCE = 40
_OPENED = 40
"""Proposals that are opened, with evidence and sources."""


def fill(site: Site9476, *, open_: int, past: int, rng: random.Random) -> list[Proposal]:
    """Write the proposals and return those that are opened."""
    model = site.propose(phase="Superseded")
    site.window(16)
    for _ in range(100):
        site.window(rng.choice((16, 64, 256)), detected=rng.random() < 0.1)
    phases = ["AwaitingApproval"] * open_ + ["Promoted"] * _IN_FORCE
    phases += [rng.choice(_ENDS) for _ in range(past)]
    rng.shuffle(phases)
    shown: list[Proposal] = []
    for start in range(0, len(phases), 500):
        with site.store.transaction():
            for number, phase in enumerate(phases[start : start + 500], start=start):
                _write(site, model, number, phase=phase, rng=rng)
    for phase in ("AwaitingApproval", "Promoted", "RolledBack"):
        shown += [site.propose(phase=phase, target=f"t{n}") for n in range(_OPENED // 3)]
    return shown


def _write(site: Site9476, model: Proposal, number: int, *, phase: str, rng: random.Random) -> None:
    id = f"sha256:{rng.getrandbits(256):064x}"
    one = model.model_copy(update={"id": id, "target": f"server-{number % 50}"})
    store = site.store
    store.add("proposal", id, one.model_dump(mode="json"), phase=phase)
    gate = store.get("gate", model.id)
    assert gate is not None, "the model was judged"
    store.add("gate", id, {**gate.body, "proposal": id}, phase="current")
    for what in ("proposed", "gate-waiting", "decision-approve", "swapped", phase):
        store.record(Event(at=NOON, kind="proposal", id=id, what=what, who="retuned"))
    if phase in ("Promoted", "RolledBack"):
        order = order_swap(one, epoch=number + 1)
        store.add("order", order.id, order.model_dump(mode="json"), phase="done")
        body = ran_body(one, month="2026-02", gpu_ns=10**12)
        store.add("savings", f"{id}/2026-02", body, phase="current")


def deep(http: httpx.Client, path: str, *, pages: int) -> str:
    """Follow "older ones" so often and return the address of that page."""
    for _ in range(pages):
        text = http.get(path).text
        found = text.partition('class="more"><a href="')[2].partition('"')[0]
        if not found:
            break
        path = found
    return path


def measure(http: httpx.Client, paths: dict[str, list[str]], *, rounds: int) -> dict[str, Any]:
    """Ask for pages in random order and return milliseconds by kind of page."""
    rng = random.Random(2)
    times: dict[str, list[float]] = defaultdict(list)
    kinds = [kind for kind in paths for _ in range(rounds)]
    rng.shuffle(kinds)
    for kind in kinds:
        path = rng.choice(paths[kind])
        began = time.perf_counter()
        answer = http.get(path)
        times[kind].append((time.perf_counter() - began) * 1e3)
        assert answer.status_code == 200, (path, answer.status_code)
    every = [each for one in times.values() for each in one]
    return {kind: _summary(found) for kind, found in times.items()} | {"all": _summary(every)}


def _summary(times: list[float]) -> dict[str, float]:
    ranked = statistics.quantiles(times, n=100)
    return {
        "n": len(times),
        "p50_ms": round(ranked[49], 2),
        "p95_ms": round(ranked[94], 2),
        "p99_ms": round(ranked[98], 2),
        "max_ms": round(max(times), 2),
    }


def main() -> None:
    """Fill, ask, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--open", type=int, default=500)
    parser.add_argument("--past", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=200, help="of each kind of page")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "review_page.json")
    given = parser.parse_args()
    core = min(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    server = PageServer("127.0.0.1", 0)
    with tempfile.TemporaryDirectory() as folder:
        clock = FakeClock(NOON)
        worlds = made(
            Path(folder), clock, hosts=names_of("127.0.0.1", server.port), door=HeaderDoor()
        )
        site = next(worlds)
        shown = fill(site, open_=given.open, past=given.past, rng=random.Random(1))
        server.start(site.app)
        address = f"http://127.0.0.1:{server.port}"
        with httpx.Client(base_url=address, headers={"x-test-user": "ada"}, timeout=60.0) as http:
            paths = {
                "inbox": ["/"],
                "inbox, page 8": [deep(http, "/", pages=7)],
                "past": ["/past"],
                "past, page 40": [deep(http, "/past", pages=39)],
                "proposal": [f"/proposals/{key_of(one.id)}" for one in shown],
                "swaps": ["/swaps"],
                "drift": ["/drift"],
                "savings": ["/savings"],
            }
            measure(http, paths, rounds=2)  # templates are compiled once
            found = measure(http, paths, rounds=given.rounds)
        server.stop()
        worlds.close()
    body = {
        "machine": {"cpu": platform.processor() or platform.machine(), "cores": 1},
        "method": " ".join((__doc__ or "").split()),
        "open": given.open,
        "past": given.past,
        "pages": found,
    }
    for kind, row in found.items():
        print(f"{kind:16} {row['p50_ms']:8.1f} ms {row['p95_ms']:8.1f} ms p95 {row['n']:6}")
    given.out.write_text(json.dumps(body, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
