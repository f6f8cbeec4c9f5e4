"""One step of a proposal: its data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from retuned.api.proposal import ProposalPhase, Step, SwapProposal, SwapProposalStatus
from retuned.api.target import ActiveKernel
from retuned.control import gate_facts
from retuned.control.facts import RolloutFacts
from retuned.control.gate_facts import GateResult
from retuned.stages.gate import Rollout
from retuned.stages.watch.proof import ReplicaState

_HISTORY = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalStep:
    """One step: the object, the observations, the gate decision, and the status so far."""

    resource: SwapProposal
    facts: RolloutFacts
    asked: GateResult | None
    now: datetime
    status: SwapProposalStatus
    replica_state: ReplicaState | None = None
    """State of a proof by canary replicas after the step; None if it has not changed."""

    @property
    def phase(self) -> ProposalPhase:
        return self.status.phase

    @property
    def rule(self) -> Rollout | None:
        """How the policy lets it spread; None without a policy."""
        chosen = self.asked.chosen if self.asked else None
        return chosen.policy.spec.rollout if chosen else None

    def to(
        self, phase: ProposalPhase, reason: str, detail: str = "", by: str = "retuned"
    ) -> ProposalStep:
        """Return the step in a phase, with its reason; a change is added to the history."""
        status = self.status.model_copy(update={"reason": reason, "detail": detail[:2048]})
        if phase is not status.phase:
            step = Step(from_=status.phase, to=phase, at=self.now, by=by, reason=reason)
            history = (*status.history, step)[-_HISTORY:]
            status = status.model_copy(update={"phase": phase, "history": history})
        return replace(self, status=status)

    def having(self, **update: object) -> ProposalStep:
        """Return the step with other fields in its status."""
        return replace(self, status=self.status.model_copy(update=update))


def noted(case: ProposalStep) -> ProposalStep:
    """Record the gate decision; after the first order, the decision that allowed it stays."""
    if case.asked is None:
        return case
    return case.having(
        gate=gate_facts.gate_status(case.asked), window=gate_facts.window_status(case.asked)
    )


def entry_of(case: ProposalStep) -> ActiveKernel | None:
    """Return the target's active variant of the slot; None is the original."""
    target = case.facts.target
    entries = target.status.active_kernels if target else ()
    return next((each for each in entries if each.kernel == case.resource.spec.kernel), None)


def is_quarantined(case: ProposalStep) -> bool:
    """Whether the artifact is quarantined on these servers."""
    target = case.facts.target
    return target is not None and any(
        each.digest == case.resource.spec.artifact.digest and case.now < each.until
        for each in target.status.quarantine
    )


def cause_of(status: SwapProposalStatus) -> str:
    """Return why the rollback began, whatever happened since."""
    causes = (s.reason for s in reversed(status.history) if s.to is ProposalPhase.ROLLING_BACK)
    return next(causes, status.reason)
