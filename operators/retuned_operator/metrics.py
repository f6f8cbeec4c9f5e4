"""Metrics of the current state of the cluster, read from the caches. Nothing is decided here.

Only the leader serves them: with two replicas each series would count twice.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime

from retuned.errors import UnreadableInput
from retuned.ports import Clock, Telemetry
from retuned.stages.gate import GateReason
from retuned.telemetry import Row
from retuned.telemetry.labels import (
    EXPERIMENT_PHASES,
    NEWS,
    PHASES,
    SwapLabels,
    Waiting,
    failing_rows,
    kebab,
    pod_rows,
    standing,
    waiting_rows,
    waits_for_person,
)
from retuned_operator.controllers.ports import Caches
from retuned_operator.controllers.statements import is_standing
from retuned_operator.controllers.writer import is_waiting
from retuned_operator.kube.informer import key_of
from retuned_operator.kube.resources import EXPERIMENTS, FREEZES, POLICIES, PROPOSALS, TARGETS, Obj
from retuned_operator.schema import ExperimentPhase, SwapProposal, TuningFreeze, read
from retuned_operator.store.kernels import DefinitionLoad

log = logging.getLogger(__name__)

_AWAITING = "AwaitingApproval"
_OPEN = frozenset({"AwaitingApproval", "Approved", "Scheduled"})
_STUCK = "RollbackFailed"
_BACK = frozenset({"RollingBack", _STUCK, "RolledBack"})


class ClusterMetrics:
    """Updates the metrics at each pass.

    Parameters
    ----------
    caches
        Objects of the API server.
    telemetry
        Where it is shown.
    clock
        Time.
    learnt
        What came of the folder of definitions.
    """

    def __init__(
        self,
        caches: Caches,
        telemetry: Telemetry,
        *,
        clock: Clock,
        learnt: DefinitionLoad | None = None,
    ) -> None:
        self._caches = caches
        self._telemetry = telemetry
        self._clock = clock
        self._learnt = learnt or DefinitionLoad()

    def show(self) -> None:
        """Show everything that is known; a kind that is not known is left as it was."""
        targets = self._caches.list(TARGETS)
        proposals = self._caches.list(PROPOSALS)
        if targets is not None:
            self._targets(targets)
        if proposals is not None and targets is not None:
            self._proposals(proposals, targets)
        self._experiments()
        self._policies()
        self._freezes(self._clock.now())
        files = Counter({"known": len(self._learnt.names), "left-out": len(self._learnt.left_out)})
        rows = standing(files, "state", known=("known", "left-out"))
        self._telemetry.table("retuned_definition_files", rows)

    def _targets(self, targets: Sequence[Obj]) -> None:
        pods: list[Row] = []
        ready: list[Row] = []
        for body in targets:
            names, status = _names(body), body.get("status", {})
            all_of, heard = int(status.get("pods", 0)), int(status.get("reportingPods", 0))
            pods += [
                ({**names, "state": "reporting"}, float(heard)),
                ({**names, "state": "silent"}, float(max(0, all_of - heard))),
            ]
            is_ready = _condition(body, "Ready")
            if is_ready is not None:
                ready.append((names, float(is_ready)))
        self._telemetry.table("retuned_target_pods", pods)
        self._telemetry.table("retuned_target_ready", ready)

    def _proposals(self, proposals: Sequence[Obj], targets: Sequence[Obj]) -> None:
        table = self._telemetry.table
        phases = Counter(_phase(body) for body in proposals)
        table("retuned_proposals", standing(phases, "phase", known=PHASES))
        reasons = Counter(
            str(body["status"].get("gate", {}).get("reason", ""))
            for body in proposals
            if _phase_word(body) in _OPEN
        )
        known = tuple(str(each) for each in GateReason)
        table("retuned_gate_standing", standing(reasons, "reason", known=known))
        pods = {key_of(body): int(body.get("status", {}).get("pods", 0)) for body in targets}
        waiting = [*_waiting(proposals, pods)]
        for name, rows in waiting_rows(waiting).items():
            table(name, rows)
        table("retuned_swap_proposal_pods", pod_rows(waiting))
        table("retuned_swap_in_force_saving_ratio", _in_force(proposals, targets))
        table("retuned_swap_paused", _paused(proposals))
        failing = failing_rows(
            {_subject(b): _late(b) for b in proposals if _phase_word(b) == _STUCK}
        )
        table("retuned_swap_rollback_failed", failing)
        table("retuned_swap_rolled_back", _rolled_back(proposals, self._clock.now()))

    def _experiments(self) -> None:
        found = self._caches.list(EXPERIMENTS)
        if found is None:
            return
        phases = Counter(_phase(body) for body in found)
        rows = standing(phases, "phase", known=EXPERIMENT_PHASES)
        self._telemetry.table("retuned_experiments", rows)
        waiting = sum(phases[kebab(str(each))] for each in ExperimentPhase if is_waiting(each))
        self._telemetry.gauge("retuned_experiments_waiting", waiting)

    def _policies(self) -> None:
        found = self._caches.list(POLICIES)
        if found is None:
            return
        rows: list[Row] = []
        for body in found:
            valid = _condition(body, "Ready")
            if valid is not None:
                metadata = body["metadata"]
                names = {"namespace": metadata.get("namespace", ""), "policy": metadata["name"]}
                rows.append((names, float(valid)))
        self._telemetry.table("retuned_policy_valid", rows)

    def _freezes(self, now: datetime) -> None:
        found = self._caches.list(FREEZES)
        if found is None:
            return
        rows: list[Row] = []
        for body in found:
            try:
                freeze = read(TuningFreeze, body)
            except UnreadableInput as error:
                log.debug("not shown: %s", error)
                continue
            since = freeze.metadata.creation_timestamp
            if since is not None and is_standing(freeze, now=now):
                rows.append(({"freeze": freeze.metadata.name}, since.timestamp()))
        self._telemetry.table("retuned_freeze_since_timestamp_seconds", rows)


def _waiting(proposals: Sequence[Obj], pods: dict[str, int]) -> Iterable[Waiting]:
    """Return the proposals that a person could move on; those alone are read whole."""
    for body in proposals:
        if _phase_word(body) != _AWAITING:
            continue
        try:
            resource = read(SwapProposal, body)
            proposal = resource.stage_proposal()
        except (UnreadableInput, ValueError) as error:
            log.debug("not shown: %s", error)
            continue
        gate = resource.status.gate
        if gate is None or not waits_for_person(gate.state, gate.reason):
            continue
        yield Waiting(
            namespace=resource.metadata.namespace,
            name=resource.metadata.name,
            proposal=proposal,
            missing=gate.missing,
            gpu_model=resource.spec.gpu_model,
            pods=pods.get(resource.target, 0),
        )


def _in_force(proposals: Sequence[Obj], targets: Sequence[Obj]) -> list[Row]:
    """Return what each variant that ought to be in force was proven to save."""
    known = {key_of(body): body for body in proposals}
    rows: list[Row] = []
    for target in targets:
        names = _names(target)
        for entry in target.get("status", {}).get("activeKernels", ()):
            by = known.get(f"{names['namespace']}/{entry.get('proposal', '')}")
            if by is not None:
                saving = float(by["spec"].get("expectedSaving", 0.0))
                rows.append(({**names, "kernel": str(entry.get("kernel", ""))}, saving))
    return rows


def _paused(proposals: Sequence[Obj]) -> list[Row]:
    """Return each rollout that is paused, with what a decision on it has to name."""
    return [
        ({**_subject(body).labels, "digest": str(body["spec"]["artifact"]["digest"])}, 1.0)
        for body in proposals
        if _phase_word(body) == "Paused"
    ]


def _rolled_back(proposals: Sequence[Obj], now: datetime) -> list[Row]:
    """Return rollbacks that started recently, with their reasons."""
    rows: list[Row] = []
    for body in proposals:
        if _phase_word(body) not in _BACK:
            continue
        steps = [each for each in body["status"].get("history", ()) if each["to"] == "RollingBack"]
        if steps and datetime.fromisoformat(steps[-1]["at"]) >= now - NEWS:
            reason = str(steps[-1].get("reason", ""))
            rows.append(({**_subject(body).labels, "reason": reason}, 1.0))
    return rows


def _late(body: Obj) -> list[str]:
    """Return the pods with an order that they have not executed."""
    told = (body["status"].get("rollout") or {}).get("pods", ())
    return [str(each["name"]) for each in told if not each.get("done", False)]


def _subject(body: Obj) -> SwapLabels:
    spec, metadata = body["spec"], body["metadata"]
    return SwapLabels(
        namespace=metadata.get("namespace", ""),
        proposal=metadata["name"],
        target=str(spec["targetRef"]["name"]),
        kernel=str(spec["kernel"]),
    )


def _names(body: Obj) -> dict[str, str]:
    metadata = body["metadata"]
    return {"namespace": metadata.get("namespace", ""), "target": metadata["name"]}


def _phase_word(body: Obj) -> str:
    return str(body.get("status", {}).get("phase", "Pending"))


def _phase(body: Obj) -> str:
    return kebab(_phase_word(body))


def _condition(body: Obj, type: str) -> bool | None:
    """Return whether a condition holds; None if it is absent or unknown."""
    for each in body.get("status", {}).get("conditions", ()):
        if each.get("type") == type and each.get("status") in ("True", "False"):
            return bool(each["status"] == "True")
    return None
