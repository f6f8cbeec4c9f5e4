"""Labels that several metrics have, and their closed sets of values.

Also the rows of tables of open proposals and failing rollbacks, the same for daemon and operator.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import chain, zip_longest

from retuned.api.proposal import ProposalPhase
from retuned.stages.gate import DecisionKind, GateDecision, GateReason, GateState
from retuned.stages.proposal import Proposal, Risk
from retuned.stages.verdict import Reason
from retuned.stages.watch import CanaryAction, EndToEndReason, WatchReason
from retuned.telemetry.metric_types import Exporter, Label, Row

DAEMON = frozenset({Exporter.DAEMON})
SIDECAR = frozenset({Exporter.SIDECAR})
OPERATOR = frozenset({Exporter.OPERATOR})
BESIDE = DAEMON | SIDECAR
"""Programs that run beside a server."""
JUDGES = DAEMON | OPERATOR
"""Programs that decide on proposals."""
ALL = BESIDE | OPERATOR

KERNEL = Label(name="kernel", most=64, meaning="definition, or what the trace calls the kernel")
NAMESPACE = Label(name="namespace", most=256, meaning="of the object; empty on one machine")
PROPOSAL = Label(name="proposal", most=256, meaning="name of the proposal")
TARGET = Label(name="target", most=256, meaning="name of the server or TuningTarget")
GPU = Label(name="gpu", most=64, meaning="vendor and number, such as nvidia-0")


def kebab(word: str) -> str:
    """Return a word of an API as reason codes are written.

    Examples
    --------
    >>> kebab("AwaitingApproval"), kebab("Paused"), kebab("rolled-back")
    ('awaiting-approval', 'paused', 'rolled-back')
    """
    found = "".join(f"-{each.lower()}" if each.isupper() else each for each in word)
    return found.lstrip("-")


PHASES = frozenset(kebab(str(each)) for each in ProposalPhase)
"""Phases of proposals."""
EXPERIMENT_PHASES = frozenset(
    {
        "pending", "queued", "running", "verifying", "preempted", "succeeded", "no-improvement",
        "failed", "aborted", "outdated", "refused",
    }
)  # fmt: skip
"""Phases of experiments."""
EXPERIMENT_OUTCOMES = EXPERIMENT_PHASES - {
    "pending", "queued", "running", "verifying", "preempted"
}  # fmt: skip
"""Phases that end one."""
HYPOTHESIS_PHASES = frozenset({"open", "testing", "tested", "refined", "abandoned", "outdated"})


def words(kinds: Iterable[StrEnum]) -> frozenset[str]:
    """Return the values of an enumeration."""
    return frozenset(str(each) for each in kinds)


def closed(
    name: str, values: Iterable[str], meaning: str = "", *, allows_other: bool = False
) -> Label:
    """Return a label of known values."""
    return Label(name=name, values=frozenset(values), meaning=meaning, allows_other=allows_other)


PHASE = closed("phase", PHASES)
DECISION = closed("decision", (kebab(str(each)) for each in DecisionKind))
CHANNEL = closed(
    "channel",
    ("kubectl", "review-page", "cli", "slack", "webhook"),
    "way the decision came in",
    allows_other=True,
)
RISK = closed("risk", words(Risk))
GATE_REASON = closed("reason", words(GateReason))
VERDICT = closed("reason", words(Reason))
CANARY = closed("action", words(CanaryAction))
GOING_BACK = closed(
    "reason",
    words(WatchReason)
    | words(EndToEndReason)
    | {
        "requested", "freeze", "aborted", "rank-behind", "partial-commit", "orphaned",
        "said-no", "analysis-failed", "window-closed", "swap-timeout", "rollout-lost", "pod-crash",
        "slo-alert", "order-refused", "target-gone", "withdrawn",
    },
    "code of what was wrong",
    allows_other=True,
)  # fmt: skip

NEWS = timedelta(minutes=15)
"""How long a rollback is shown after its start."""
_SERVERS = 16
"""Most servers with a separate row for a failing rollback."""
_PERSON = frozenset({GateReason.MISSING_APPROVALS, GateReason.NEEDS_PERSON})


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A proposal that waits for a person."""

    namespace: str
    """Of the object; empty on one machine."""
    name: str
    """Name of the object, or the proposal's id: what commands take."""
    proposal: Proposal
    """What is proposed."""
    missing: int
    """Approvals that are still missing."""
    gpu_model: str = ""
    """Accelerator that it was measured on; empty if it was not recorded."""
    pods: int | None = None
    """Server pods that it would change; None outside a cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapLabels:
    """Which swap something is about."""

    namespace: str
    """Of the object; empty on one machine, and where the scrape adds it."""
    proposal: str
    """What commands take; empty where that is not known."""
    target: str
    """Server or TuningTarget."""
    kernel: str
    """Slot."""

    @property
    def labels(self) -> dict[str, str]:
        """The labels that every table about swaps has."""
        return {
            "namespace": self.namespace,
            "proposal": self.proposal,
            "target": self.target,
            "kernel": self.kernel,
        }


def failing_rows(found: Mapping[SwapLabels, Sequence[str]]) -> list[Row]:
    """Return a row for each server whose rollback fails; the first of each subject come first.

    Parameters
    ----------
    found
        By swap: pods that are not rolled back. A swap without known pods has one row too.

    Examples
    --------
    >>> one = SwapLabels(namespace="s", proposal="p", target="chat", kernel="gemm")
    >>> [labels["server"] for labels, _ in failing_rows({one: ["chat-0", "chat-1"]})]
    ['chat-0', 'chat-1']
    >>> [labels["server"] for labels, _ in failing_rows({one: []})]
    ['']
    """
    by_subject = [
        [({**subject.labels, "server": server}, 1.0) for server in (servers or ("",))[:_SERVERS]]
        for subject, servers in found.items()
    ]
    return [row for row in chain.from_iterable(zip_longest(*by_subject)) if row is not None]


def waits_for_person(state: GateState, reason: GateReason) -> bool:
    """Whether a decision of a person would continue a proposal; without a policy none would.

    Examples
    --------
    >>> waits_for_person(GateState.WAITING, GateReason.MISSING_APPROVALS)
    True
    >>> waits_for_person(GateState.WAITING, GateReason.NO_POLICY)
    False
    """
    return state is GateState.WAITING and reason in _PERSON


def is_waiting(answer: GateDecision) -> bool:
    """Whether the gate's answer is that a person is needed."""
    return waits_for_person(answer.state, answer.reason)


def waiting_rows(waiting: Sequence[Waiting]) -> Mapping[str, Sequence[Row]]:
    """Return the rows of every table about proposals that wait, the first to expire first."""
    ordered = sorted(waiting, key=lambda each: (each.proposal.expires_at, each.name))
    found: dict[str, list[Row]] = {
        f"retuned_swap_proposal_{what}": []
        for what in (
            "awaiting_approval", "approvals_missing", "created_timestamp_seconds",
            "expires_timestamp_seconds", "speedup_ratio", "gpu_time_ratio", "saving_ratio",
        )
    }  # fmt: skip
    for each in ordered:
        for what, labels, value in _about(each):
            found[f"retuned_swap_proposal_{what}"].append((labels, value))
    return found


def pod_rows(waiting: Sequence[Waiting]) -> list[Row]:
    """Return how many pods each proposal that waits would change."""
    return [(_key(each), float(each.pods)) for each in waiting if each.pods is not None]


def standing(found: Mapping[str, int], label: str, *, known: Iterable[str]) -> list[Row]:
    """Return a row for each word, with 0 for words without an object.

    Examples
    --------
    >>> standing({"open": 2}, "phase", known=("open", "tested"))
    [({'phase': 'open'}, 2.0), ({'phase': 'tested'}, 0.0)]
    """
    return [({label: word}, float(found.get(word, 0))) for word in sorted(known)]


def _key(waiting: Waiting) -> Mapping[str, str]:
    return {"namespace": waiting.namespace, "proposal": waiting.name}


def _about(waiting: Waiting) -> Iterable[tuple[str, Mapping[str, str], float]]:
    proposal, key = waiting.proposal, _key(waiting)
    names = {
        "target": _short(proposal.target, waiting.namespace),
        "kernel": proposal.definition,
        "gpu_model": waiting.gpu_model,
        "digest": proposal.artifact,
        "risk": str(proposal.risk),
    }
    yield "awaiting_approval", {**key, **names}, 1.0
    yield "approvals_missing", key, float(waiting.missing)
    yield "created_timestamp_seconds", key, _unix(proposal.created_at)
    yield "expires_timestamp_seconds", key, _unix(proposal.expires_at)
    yield "gpu_time_ratio", key, proposal.share
    yield "saving_ratio", key, proposal.expected_saving
    for bound in ("lower", "point", "upper"):
        value = float(getattr(proposal.speedup, bound))
        yield "speedup_ratio", {**key, "bound": bound}, value


def _short(target: str, namespace: str) -> str:
    return target.removeprefix(f"{namespace}/") if namespace else target


def _unix(at: datetime) -> float:
    return at.timestamp()
