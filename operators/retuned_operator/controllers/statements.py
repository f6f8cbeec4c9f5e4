"""SwapDecisions and TuningFreezes, and the status that the operator writes for them."""

from __future__ import annotations

from datetime import datetime

from retuned.api.values import with_condition
from retuned.errors import UnreadableInput
from retuned.ports import Telemetry
from retuned.stages.gate import DecisionKind
from retuned.telemetry.labels import kebab
from retuned_operator.controllers.cluster_view import ClusterView
from retuned_operator.controllers.conditions import condition
from retuned_operator.controllers.writer import ClusterWriter
from retuned_operator.kube.resources import DECISIONS, FREEZES, PROPOSALS
from retuned_operator.schema import SwapDecision, SwapProposal, TuningFreeze, read

_COUNTS_ALWAYS = (DecisionKind.REJECT, DecisionKind.ABORT)


class Decisions:
    """Controller; its keys are decisions, ``namespace/name``. It copies the gate's answer.

    Parameters
    ----------
    world
        What is observed.
    acting
        What is done.
    telemetry
        Numbers.
    """

    def __init__(self, world: ClusterView, acting: ClusterWriter, *, telemetry: Telemetry) -> None:
        self._world = world
        self._acting = acting
        self._telemetry = telemetry

    def reconcile(self, key: str) -> float | None:
        """Note on a decision whether it counts.

        Raises
        ------
        RetunedError
            If it cannot be read, or the write was refused.
        """
        body = self._world.caches.get(DECISIONS, key)
        if body is None:
            return None
        decision = read(SwapDecision, body)
        if not decision.status.conditions:
            kind, channel = kebab(str(decision.spec.decision)), decision.spec.channel
            self._telemetry.count("retuned_swap_decisions_total", decision=kind, channel=channel)
        counts, reason = counted(decision, self._proposal(decision))
        self._note(decision, counts, reason)
        return None

    def _note(self, decision: SwapDecision, counts: bool, reason: str) -> None:
        """Write whether a decision counts; its spec never changes, so its generation is 1."""
        known = condition(
            "Counted", counts, reason=reason, message="", generation=1, now=self._world.clock.now()
        )
        conditions = with_condition(decision.status.conditions, known)
        status = decision.status.model_copy(update={"conditions": conditions})
        self._acting.status(DECISIONS, decision, status)

    def _proposal(self, decision: SwapDecision) -> SwapProposal | None:
        key = f"{decision.metadata.namespace}/{decision.spec.proposal_ref.name}"
        body = self._world.caches.get(PROPOSALS, key)
        try:
            return None if body is None else read(SwapProposal, body)
        except UnreadableInput:
            return None


def counted(decision: SwapDecision, proposal: SwapProposal | None) -> tuple[bool, str]:
    """Return whether a decision counts, as far as the proposal's status shows, and why not."""
    spec = decision.spec
    if proposal is None or proposal.metadata.uid != spec.proposal_ref.uid:
        return False, "proposal-unknown"
    if spec.digest != proposal.spec.artifact.digest:
        return False, "other-artifact"
    if spec.decision in _COUNTS_ALWAYS:
        return True, "said-no"
    gate = proposal.status.gate
    if gate is not None and spec.user in gate.received:
        return True, "counted"
    return False, "not-counted"


class Freezes:
    """Controller; its keys are freezes, by name.

    Parameters
    ----------
    world
        What is observed.
    acting
        What is done.
    """

    def __init__(self, world: ClusterView, acting: ClusterWriter) -> None:
        self._world = world
        self._acting = acting

    def reconcile(self, key: str) -> float | None:
        """Write into a freeze whether it is in force; return when it ends, seconds.

        Raises
        ------
        RetunedError
            If it cannot be read, in which case it is in force, or the write was refused.
        """
        body = self._world.caches.get(FREEZES, key)
        if body is None:
            return None
        freeze, now = read(TuningFreeze, body), self._world.clock.now()
        stands, until = is_standing(freeze, now=now), freeze.spec.until
        self._note(freeze, stands, now=now)
        return (until - now).total_seconds() if stands and until is not None else None

    def _note(self, freeze: TuningFreeze, stands: bool, *, now: datetime) -> None:
        """Write whether a freeze is in force."""
        known = condition(
            "Active",
            stands,
            reason="standing" if stands else "over",
            message=freeze.spec.reason,
            generation=freeze.metadata.generation,
            now=now,
        )
        conditions = with_condition(freeze.status.conditions, known)
        status = freeze.status.model_copy(update={"conditions": conditions})
        self._acting.status(FREEZES, freeze, status)


def is_standing(freeze: TuningFreeze, *, now: datetime) -> bool:
    """Whether a freeze is in force now."""
    return freeze.spec.until is None or now < freeze.spec.until
