"""Gate facts: stage 8 applied to the facts of a proposal, on one machine and in a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from retuned.api.decision import SwapDecision
from retuned.api.proposal import GateStatus, SwapProposal, WindowStatus
from retuned.api.target import TuningTarget
from retuned.contract import Digest
from retuned.control.facts import PolicyFact, RolloutFacts
from retuned.stages import gate
from retuned.stages.gate import GateDecision, GateReason, WindowState
from retuned.stages.gate.quorum import count
from retuned.stages.proposal import Proposal


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """The gate decision with its inputs."""

    answer: GateDecision
    chosen: PolicyFact | None
    """Policy that decides; None if none does."""
    windows: WindowState | None
    """Whether a swap may start; None without a policy."""
    frozen_by: tuple[gate.TuningFreeze, ...]
    """Active freezes that cover the proposal."""


def labels_of(target: TuningTarget) -> dict[str, str]:
    """Return the labels that policies select by; the accelerator always comes from the spec."""
    return {**target.metadata.labels, gate.GPU_MODEL_LABEL: target.spec.gpu.model}


def choose(
    policies: tuple[PolicyFact, ...], kernel: str, *, labels: Mapping[str, str]
) -> tuple[PolicyFact | None, GateReason | None]:
    """Return the policy that decides about a kernel, or why none does."""
    choice = gate.policy_for([each.policy for each in policies], kernel, labels=labels)
    found = next((each for each in policies if each.policy is choice.policy), None)
    return found, choice.reason


def words_on(
    resource: SwapProposal,
    proposal: Proposal,
    decisions: tuple[SwapDecision, ...],
    *,
    generation: int,
) -> tuple[gate.SwapDecision, ...]:
    """Return the decisions about this very object, in the gate's format.

    A decision about an object of the same name with another uid is about something else. An
    approval under another generation of the policy loses the policy digest, so that it does not
    count.
    """
    found = []
    for each in decisions:
        spec = each.spec
        ref = spec.proposal_ref
        if (ref.name, ref.uid) != (resource.metadata.name, resource.metadata.uid):
            continue
        word = each.stage_decision(proposal.id)
        if spec.policy_generation != generation:
            word = word.model_copy(update={"policy_digest": None})
        found.append(word)
    return tuple(found)


def ask(resource: SwapProposal, facts: RolloutFacts, *, now: datetime) -> GateResult | None:
    """Make the gate decision; None if an input that could prevent approval cannot be read."""
    target, policies, freezes = facts.target, facts.policies, facts.freezes
    if target is None or policies is None or freezes is None or facts.decisions is None:
        return None
    proposal = resource.stage_proposal()
    labels = labels_of(target)
    chosen, absent = choose(policies, proposal.definition, labels=labels)
    generation = chosen.generation if chosen else 0
    answer = gate.decide(
        proposal,
        policy=chosen.policy if chosen else None,
        policy_digest=chosen.policy.digest if chosen else None,
        decisions=words_on(resource, proposal, facts.decisions, generation=generation),
        freezes=freezes,
        env=labels.get("env", ""),
        now=now,
        absent=absent,
    )
    return GateResult(
        answer=answer,
        chosen=chosen,
        windows=gate.windows_of(chosen.policy, now=now) if chosen else None,
        frozen_by=standing(freezes, proposal, now=now),
    )


def agreed_without_glass(resource: SwapProposal, facts: RolloutFacts, *, now: datetime) -> bool:
    """Whether the quorum was reached after a break-glass."""
    quorum = tuple(
        each
        for each in facts.decisions or ()
        if each.spec.decision is not gate.DecisionKind.BREAK_GLASS
    )
    asked = ask(resource, replace(facts, decisions=quorum), now=now)
    return asked is not None and asked.answer.state is gate.GateState.APPROVED


def standing(
    freezes: tuple[gate.TuningFreeze, ...], proposal: Proposal, *, now: datetime
) -> tuple[gate.TuningFreeze, ...]:
    """Return the active freezes that cover a proposal."""
    return tuple(
        each
        for each in freezes
        if (each.until is None or now < each.until)
        and each.scope.covers(target=proposal.target, kernel=proposal.definition)
    )


def resumes(
    resource: SwapProposal,
    facts: RolloutFacts,
    chosen: PolicyFact | None,
    *,
    since: datetime,
    now: datetime,
) -> str | None:
    """Return the uid of an approval that ends a pause, or None.

    It must have been given after the pause began, by a user whom the gate counts. Each approval
    ends one pause.
    """
    if chosen is None or facts.decisions is None or resource.status.gate is None:
        return None
    named = resource.status.gate.name
    own = next((each for each in chosen.policy.spec.gates if each.name == named), None)
    if own is None:
        return None
    proposal = resource.stage_proposal()
    digest: Digest = chosen.policy.digest
    people = own.approvals.model_copy(
        update={"allow_service_accounts": False, "distinct_groups": False}
    )
    for each in facts.decisions:
        at = each.metadata.creation_timestamp
        if at is None or at < since or each.metadata.uid in resource.status.resumed:
            continue
        words = words_on(resource, proposal, (each,), generation=chosen.generation)
        counted = count(
            words, proposal=proposal, approvals=people, required=1, policy_digest=digest, now=now
        )
        if counted.counted:
            return each.metadata.uid
    return None


def gate_status(asked: GateResult) -> GateStatus:
    """Return the gate decision as the status of an object."""
    answer = asked.answer
    return GateStatus(
        state=answer.state,
        reason=answer.reason,
        sentence=gate.explain(answer)[:2048],
        name=answer.gate,
        policy=answer.policy,
        policy_generation=asked.chosen.generation if asked.chosen else 0,
        policy_digest=answer.policy_digest,
        required=answer.required,
        received=answer.received[:64],
        missing=answer.missing,
        missing_from=answer.missing_from[:64],
    )


def window_status(asked: GateResult) -> WindowStatus | None:
    """Return the windows as the status of an object; None without a policy."""
    if asked.windows is None:
        return None
    return WindowStatus(open=asked.windows.allowed, next_change=asked.windows.next_change_at)
