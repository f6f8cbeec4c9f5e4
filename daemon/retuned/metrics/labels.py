"""Labels that several metrics have, and the closed sets behind them."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from retuned.metrics.records import Exporter, Label
from retuned.stages.gate import DecisionKind, GateReason
from retuned.stages.proposal import Risk
from retuned.stages.verdict import Reason
from retuned.stages.watch import CanaryAction, EndToEndReason, WatchReason

DAEMON = frozenset({Exporter.DAEMON})
SIDECAR = frozenset({Exporter.SIDECAR})
OPERATOR = frozenset({Exporter.OPERATOR})
BESIDE = DAEMON | SIDECAR
"""Whoever stands beside a server."""
JUDGES = DAEMON | OPERATOR
"""Whoever decides on proposals."""
ALL = BESIDE | OPERATOR

KERNEL = Label(name="kernel", most=64, meaning="definition, or what the trace calls the kernel")
NAMESPACE = Label(name="namespace", most=256, meaning="of the object; empty on one machine")
PROPOSAL = Label(name="proposal", most=256, meaning="name of the proposal")
TARGET = Label(name="target", most=256, meaning="name of the server or TuningTarget")
GPU = Label(name="gpu", most=64, meaning="vendor and number, such as nvidia-0")

PHASES = frozenset(
    {
        "pending", "validating", "awaiting-approval", "approved", "scheduled", "swapping", "canary",
        "analyzing", "promoting", "paused", "watching", "promoted", "rolling-back",
        "rollback-failed", "rolled-back", "invalid", "rejected", "expired", "aborted", "refused",
        "superseded",
    }
)  # fmt: skip
"""Phases of proposals; on one machine what is under way is ``swapping``."""
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


def kebab(word: str) -> str:
    """Return a word of an API as reason codes are written.

    Examples
    --------
    >>> kebab("AwaitingApproval"), kebab("Paused"), kebab("rolled-back")
    ('awaiting-approval', 'paused', 'rolled-back')
    """
    found = "".join(f"-{each.lower()}" if each.isupper() else each for each in word)
    return found.lstrip("-")


def closed(
    name: str, values: Iterable[str], meaning: str = "", *, strangers: bool = False
) -> Label:
    """Return a label of known values."""
    return Label(name=name, values=frozenset(values), meaning=meaning, strangers=strangers)


PHASE = closed("phase", PHASES)
DECISION = closed("decision", (kebab(str(each)) for each in DecisionKind))
CHANNEL = closed(
    "channel",
    ("kubectl", "review-page", "cli", "slack", "webhook"),
    "way the decision came in",
    strangers=True,
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
    strangers=True,
)  # fmt: skip
