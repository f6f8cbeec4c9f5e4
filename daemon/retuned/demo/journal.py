"""What the daemon wrote, read back for the demo: the store is the only thing they share."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from retuned.api.proposal import ProposalPhase
from retuned.ports import Event, Store
from retuned.report.live_proof import sentence_of
from retuned.stages.watch.proof import ProofReport, ProofState, Verdict

_LIVE_PROOF = "live-proof"
_REFUSED = "refused"
"""Phase of an order that the server did not carry out."""


class Journal:
    """Read-only view of a daemon's store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def event(self, what: str, *, after: datetime | None = None) -> Event | None:
        """Return the first event of a kind, or None while there is none."""
        for event in self._store.events():
            if event.what == what and (after is None or event.at > after):
                return event
        return None

    def events(self, what: str) -> list[Event]:
        """Return all events of a kind, oldest first."""
        return [event for event in self._store.events() if event.what == what]

    def undecided(self) -> list[Mapping[str, Any]]:
        """Return the bodies of proposals that wait for people, a policy or the server."""
        return self._those(lambda phase: phase.is_before_swap or phase is ProposalPhase.CANARY)

    def open(self) -> list[Mapping[str, Any]]:
        """Return the bodies of proposals that wait for people or the server, or go back."""
        return self._those(lambda phase: not phase.is_terminal)

    def promoted(self) -> list[Mapping[str, Any]]:
        """Return the bodies of proposals whose swap is kept."""
        return self._those(lambda phase: phase is ProposalPhase.PROMOTED)

    def withdrawn(self) -> bool:
        """Whether a swap was rolled back after its live proof had found harm."""
        return any(
            swap["rolled_back"] and swap["live_proof"]["report"]["verdict"] == Verdict.HARMS
            for swap in self.swaps()
            if swap["live_proof"] is not None
        )

    def progress(self) -> object:
        """Return a value that changes with each phase of a proposal and each pair of a proof."""
        proofs = self._store.list(_LIVE_PROOF)
        return (
            [(s.id, s.phase) for s in self._store.list("proposal")],
            [(s.id, s.body["state"]["planned"]) for s in proofs],
        )

    def verdicts(self) -> list[tuple[str, str]]:
        """Return id and sentence of each live proof with a verdict."""
        return [(id, body["sentence"]) for id, body in self._proofs().items()]

    def _proofs(self) -> dict[str, dict[str, Any]]:
        """Return each live proof with a verdict, by proposal."""
        found = {}
        for stored in self._store.list(_LIVE_PROOF):
            if stored.body.get("report") is not None:
                state = ProofState.model_validate(stored.body["state"])
                report = ProofReport.model_validate(stored.body["report"])
                found[stored.id] = live_proof_of(report, confidence=state.settings.confidence)
        return found

    def in_force(self) -> list[Mapping[str, Any]]:
        """Return the bodies of proposals whose swap the server has committed."""
        return self._those(
            lambda phase: (
                phase is ProposalPhase.PROMOTED
                or (phase.is_under_way and phase is not ProposalPhase.CANARY)
            )
        )

    def _those(self, wanted: Callable[[ProposalPhase], bool]) -> list[Mapping[str, Any]]:
        return [s.body for s in self._store.list("proposal") if wanted(ProposalPhase(s.phase))]

    def gated(self) -> list[Mapping[str, Any]]:
        """Return the bodies of proposals that the gate has looked at and that wait for people.

        An approval names the policy it was given under, so it cannot come before the gate.
        """
        gates = {s.id for s in self._store.list("gate")}
        waiting = self._store.list("proposal", phase=ProposalPhase.AWAITING_APPROVAL)
        return [s.body for s in waiting if s.id in gates]

    def busy(self) -> bool:
        """Whether an experiment runs, which disturbs what is measured, or is to be proposed."""
        return any(self._store.list("experiment", phase=phase) for phase in ("running", "won"))

    def drift(self) -> dict[str, Any] | None:
        """Return the first report that asked for a retune, with when it was written."""
        for stored in self._store.list("drift"):
            if stored.body["action"] == "retune":
                return {**stored.body, "at": stored.created_at.timestamp()}
        return None

    def drift_windows(self, *, origin_s: float) -> list[dict[str, Any]]:
        """Return every window: distance, CUSUM and action over time; why where not judged."""
        return [
            {
                "t_s": s.created_at.timestamp() - origin_s,
                "distance": s.body["distance"],
                "cusum": s.body["cusum"],
                "action": s.body["action"],
                "skipped": s.body.get("skipped", ""),
            }
            for s in self._store.list("drift")
        ]

    def hypotheses(self) -> list[dict[str, Any]]:
        """Return the hypotheses, oldest first."""
        keys = ("definition", "share", "expected_gain_ratio", "expected_saving", "because")
        return [
            {**{key: s.body[key] for key in keys}, "attempt": len(s.body["attempts"]) + 1}
            for s in self._store.list("hypothesis")
        ]

    def experiments(self) -> list[dict[str, Any]]:
        """Return every experiment with every candidate and why it won or lost."""
        by_plan: dict[str, list[Mapping[str, Any]]] = {}
        for stored in self._store.list("finding"):
            by_plan.setdefault(str(stored.body["experiment"]), []).append(stored.body)
        return [
            _experiment(stored.body, by_plan.get(stored.id, []))
            for stored in self._store.list("experiment")
        ]

    def swaps(self) -> list[dict[str, Any]]:
        """Return every swap that was carried out, with its claim and its live proof."""
        took = {e.detail.get("epoch"): e.detail.get("took_ns") for e in self.events("swapped")}
        proposals = {s.id: s for s in self._store.list("proposal")}
        proofs = self._proofs()
        # an order that a rollback has superseded was carried out if the server said so
        done = [
            s.body
            for s in self._store.list("order")
            if s.phase in ("done", "undone") or s.body["epoch"] in took
        ]
        return [
            {
                "kernel": order["definition"],
                "guard": order["guard"],
                "digest": order["artifact"],
                "epoch": order["epoch"],
                "proposal": order["proposal"],
                "speedup": proposals[order["proposal"]].body["speedup"],
                "swap_us": (took.get(order["epoch"]) or 0) / 1e3,
                "live_proof": proofs.get(order["proposal"]),
                "rolled_back": proposals[order["proposal"]].phase == ProposalPhase.ROLLED_BACK,
            }
            for order in done
            if order["kind"] == "swap"
        ]

    def reverted(self, slot: str, *, active: str | None) -> bool:
        """Whether a slot is rolled back: it runs the original, or the artifact before.

        Parameters
        ----------
        active
            Artifact that the server runs in the slot; None is the original.
        """
        orders = [
            s
            for s in self._store.list("order")
            if s.body["definition"] == slot and s.phase != _REFUSED
        ]
        newest = max(orders, key=lambda s: int(s.body["epoch"]), default=None)
        if newest is None or newest.body["kind"] != "rollback":
            return False
        return newest.phase == "done" and newest.body["artifact"] == active

    def decided(self) -> list[dict[str, Any]]:
        """Return every proposal with its gate and who decided."""
        deciders = {s.body["proposal"]: s.body["user"] for s in self._store.list("decision")}
        gates = {s.id: s.body for s in self._store.list("gate")}
        return [
            {
                "id": s.id,
                "kernel": s.body["definition"],
                "risk": s.body["risk"],
                "guard": s.body["guard"],
                "gate": gates.get(s.id, {}).get("policy", ""),
                "decided_by": deciders.get(s.id, ""),
                "phase": s.phase,
            }
            for s in self._store.list("proposal")
        ]


def live_proof_of(report: ProofReport, *, confidence: float) -> dict[str, Any]:
    """Return a verdict, with its interval as a speedup of the server: above 1, steps are faster.

    So it can be read beside the claim of an experiment. A bound is None where the interval is open.
    """
    ends = {"lower": report.high, "point": report.effect, "upper": report.low}
    speedup = {key: None if end is None else math.exp(-end) for key, end in ends.items()}
    return {
        "sentence": sentence_of(report),
        "speedup": {**speedup, "confidence": confidence},
        "report": report.facts(),
    }


def _experiment(plan: Mapping[str, Any], found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    floors = [f["verdict"]["noise_floor_ratio"] for f in found if f["verdict"]["noise_floor_ratio"]]
    return {
        "kernel": plan["definition"],
        "candidates": len(found),
        "verdicts": dict(Counter(f["verdict"]["reason"] for f in found)),
        "findings": [_finding(f) for f in found],
        "noise_floor_ratio": max(floors, default=None),
        "seconds": sum(float(f["seconds"]) for f in found),
    }


def _finding(found: Mapping[str, Any]) -> dict[str, Any]:
    verdict, solution = found["verdict"], found["solution"]
    return {
        "name": solution["name"],
        "structure": solution["structure"],
        "params": solution["params"],
        **{key: verdict[key] for key in ("status", "reason", "gate", "detail", "speedup")},
        "seconds": found["seconds"],
    }
