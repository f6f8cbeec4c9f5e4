"""A whole proof by canary replicas in a real Kubernetes, with the demo's server as pods.

    python -m benchmarks.live_proof_replicas_cluster [--pairs 1] [--window 20s] [--hours 2]

It needs what `make e2e` needs. The cluster, the chart, the images and the demo's server are those
of the end-to-end tests: drift, an experiment, a proposal, two approvals. The policy has
`switching: false`, so that pairs of replicas, A/A pairs first, prove the swap beside the serving
pod. Each request has a separate connection, because a Service balances connections. The status
with the verdict, every pair of the signed state, and the requests that failed are written to
benchmarks/results/live_proof_replicas_cluster.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.cluster.cluster import Cluster
from tests.cluster.conftest import TAG
from tests.cluster.fleet import IN_REPLICAS, Fleet, fleet_in, story_values
from tests.cluster.images import archives
from tests.cluster.needs import lacks
from tests.cluster.reporting import Report
from tests.cluster.serving import Counted, torch_folder, traffic
from tests.plane.control_plane import tools

RESULT = Path(__file__).resolve().parent / "results" / "live_proof_replicas_cluster.json"
_STORE = "by-hand"
_CLIENTS, _TOKENS = 6, 24


def main(arguments: Sequence[str]) -> int:
    """Run one proof and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=1, help="pairs at one time")
    parser.add_argument("--window", default="20s", help="time of a replica that is measured")
    parser.add_argument("--hours", type=float, default=2.0, help="longest time of the proof")
    options = parser.parse_args(arguments)
    programs, missing = tools(), lacks()
    if missing or programs is None:
        sys.stderr.write(f"this machine lacks {'; '.join(missing)}: run make cluster-lacks\n")
        return 4
    rule = {**IN_REPLICAS, "canaryPairs": options.pairs, "canaryWindow": options.window}
    report = Report()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        torch = "none" if torch_folder() is not None else "locked"
        images = archives(folder, tag=TAG, torch=torch)
        with Cluster(folder / "cluster", programs) as cluster:
            for archive in images.values():
                cluster.load(archive)
                archive.unlink()
            given = story_values(_STORE, live_proof=rule)
            with fleet_in(cluster, given, volume=_STORE, folder=folder, report=report) as fleet:
                _approved(fleet)
                proof = _proof(fleet, within_s=3600.0 * options.hours)
    body = {"machine": report.body()["machine"], "method": _METHOD, "rule": rule, **proof}
    RESULT.write_text(json.dumps(body, indent=1) + "\n", "utf-8")
    return 0


_METHOD = {
    "replicas": "pods of the demo's server beside the serving pod, on one node of two cores",
    "traffic": f"{_CLIENTS} clients without a pause, {_TOKENS} tokens a request, a connection each",
    "swap": "what the experiment in the same cluster found",
}


def _approved(fleet: Fleet) -> None:
    """Bring a proposal to its approval by two people."""
    fleet.cluster.eventually(
        lambda: "baseline learned" in fleet.log(), "a baseline is learned", within_s=900
    )
    fleet.client.ask("phase code")
    fleet.cluster.eventually(
        lambda: bool(fleet.all("swapproposals")), "a swap is proposed", within_s=2400
    )
    fleet.cluster.eventually(lambda: fleet.phase() == "AwaitingApproval", "people are asked")
    fleet.approve("ada", "gpu-platform")
    fleet.approve("ben", "sre-oncall")
    fleet.cluster.eventually(lambda: fleet.phase() == "Proving", "replicas prove")


def _proof(fleet: Fleet, *, within_s: float) -> dict[str, Any]:
    """Wait for the verdict; without one in its time write what there is."""
    began = time.monotonic()
    with traffic(lambda: fleet.url, clients=_CLIENTS, tokens=_TOKENS) as counted:
        while fleet.phase() == "Proving" and time.monotonic() - began < within_s:
            time.sleep(10.0)
            sys.stderr.write(f"{_replicas(fleet).get('sentence')}\n")
        took_s = time.monotonic() - began
    proposal = fleet.proposal()
    return {
        "seconds": round(took_s),
        "phase": proposal["status"]["phase"],
        "reason": proposal["status"]["reason"],
        "replicas": _replicas(fleet),
        "pairs": _pairs(fleet),
        "requests": _requests(counted),
    }


def _replicas(fleet: Fleet) -> dict[str, Any]:
    found: dict[str, Any] = fleet.proposal()["status"].get("replicas", {})
    return found


def _pairs(fleet: Fleet) -> list[dict[str, Any]]:
    """Return every pair of the state that the operator has signed."""
    digest = _replicas(fleet)["state"].removeprefix("sha256:")
    find = 'cat "$(find "$0" -name "*$1*" | head -1)"'
    text = fleet.cluster.node.run("sh", "-c", find, str(fleet.store.folder), digest)
    state = json.loads(json.loads(text)["payload"])["state"]
    return [
        {
            "sham": each["plan"]["sham"],
            "d": each["d"],
            "noise": each["scale"],
            "steps": [each[arm]["steps"] for arm in ("off", "on")],
            "void": each["void"],
        }
        for each in state["pairs"]
    ]


def _requests(counted: Counted) -> dict[str, Any]:
    return {"sent": counted.sent, "tokens": counted.tokens, "failed": counted.failed}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
