"""Enforcement of a policy on one machine: the limits that apply, and the fields for clusters only.

One state machine reads a policy in both worlds. `CLUSTER_ONLY` lists the few fields that need a
cluster; the policy check, the daemon's start and the docs use it, and a test compares it with the
fields that are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType

from retuned.stages.gate.limits import BatchInvariance, Canary, EndToEndRule, LiveProof, Pauses
from retuned.stages.gate.policy import KernelTuningPolicy
from retuned.stages.gate.values import PolicyModel

Place = tuple[str | int, ...]

_NO_REPLICAS = "one machine has no replicas; such a swap is held"

CLUSTER_ONLY: Mapping[str, str] = MappingProxyType(
    {
        "spec.experiments.budget.trialDeadline": (
            "the setting max_experiment_s limits a whole experiment"
        ),
        "spec.experiments.priorityClassName": "experiments have no pods, and run at low priority",
        "spec.liveProof.canaryLeaveOut": _NO_REPLICAS,
        "spec.liveProof.canaryPairs": _NO_REPLICAS,
        "spec.liveProof.canaryWindow": _NO_REPLICAS,
        "spec.experiments.pauseWhen": "no alerts are read; `retuned freeze` pauses",
        "spec.validation.maxVRAMIncrease": "device memory of variants is not compared",
        "spec.rollout.analysis.metrics.query": (
            "no query is made; a measurement has no data, and it never passes"
        ),
    }
)
"""What applies on one machine instead, by field; a name includes all fields below it. List indices
are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOnlyField:
    """A field that a policy gives and that acts in a cluster only."""

    place: Place
    """Path of the field, for example ``("spec", "windows", 0, "overrun")``."""
    instead: str
    """What applies instead."""

    @property
    def path(self) -> str:
        """The place as text, for example ``spec.windows.0.overrun``."""
        return ".".join(map(str, self.place))


def cluster_only_fields(policy: KernelTuningPolicy) -> tuple[ClusterOnlyField, ...]:
    """Return the fields of a policy that one machine ignores, in the order of the schema.

    Only fields that the file sets count, not defaults.
    """
    found = {}
    for place in _given(policy, ()):
        row = _row(place)
        if row is not None:
            found[row] = ClusterOnlyField(place=row, instead=CLUSTER_ONLY[_name(row)])
    return tuple(found.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLimits:
    """Limits of a policy for the loop outside the gate."""

    experiments: bool
    """Whether experiments may start."""
    experiment_time_per_day: timedelta
    """Device time of all experiments in 24 hours."""
    max_trials: int
    """Most variants in one experiment."""
    quarantine: timedelta
    """How long an artifact that was rolled back is not proposed again."""
    canary: Canary
    """Over which shares of launches a swap spreads."""
    shadow_share: float
    """Most time of shadow checks over time passed."""
    end_to_end: EndToEndRule
    """Whether a swap must be measured on the whole server."""
    live_proof: LiveProof
    """Whether a swap must be proven on live traffic."""
    batch_invariant: bool
    """Whether rows must keep their bits in batches of other sizes, where the incumbent's do."""
    pauses: Pauses
    """When the server may be paused."""
    capture: bool
    """Whether samples of the server's inputs may be taken."""
    capture_bytes: int
    """Most bytes of them, for one kernel."""
    capture_retention: timedelta
    """How long an experiment may keep them."""


def limits_of(policy: KernelTuningPolicy) -> PolicyLimits:
    """Return the limits for experiments and quarantines.

    Parameters
    ----------
    policy
        The one that decides about the kernel, see `policy_for`.
    """
    experiments, capture = policy.spec.experiments, policy.spec.capture
    budget = experiments.budget
    return PolicyLimits(
        experiments=experiments.max_concurrent > 0 and budget.gpu_hours_per_day > 0,
        experiment_time_per_day=timedelta(hours=budget.gpu_hours_per_day),
        max_trials=budget.max_trials,
        quarantine=policy.spec.rollout.auto_rollback.quarantine,
        canary=policy.spec.rollout.canary,
        shadow_share=policy.spec.rollout.shadow.max_share,
        end_to_end=policy.spec.validation.end_to_end,
        live_proof=policy.spec.live_proof,
        batch_invariant=policy.spec.validation.batch_invariance is not BatchInvariance.OFF,
        pauses=policy.spec.pauses,
        capture=capture.enabled and capture.max_bytes > 0,
        capture_bytes=capture.max_bytes,
        capture_retention=capture.retention,
    )


def _given(model: PolicyModel, place: Place) -> Iterator[Place]:
    """Yield the places of all values that were written, leaves only."""
    for name, info in type(model).model_fields.items():
        if name not in model.model_fields_set:
            continue
        here = (*place, info.serialization_alias or name)
        value = getattr(model, name)
        if isinstance(value, PolicyModel):
            yield from _given(value, here)
        elif isinstance(value, tuple) and any(isinstance(item, PolicyModel) for item in value):
            for index, item in enumerate(value):
                yield from _given(item, (*here, index))
        else:
            yield here


def _row(place: Place) -> Place | None:
    """Return the part of a place that is in the table."""
    for length in range(len(place), 0, -1):
        if _name(place[:length]) in CLUSTER_ONLY:
            return place[:length]
    return None


def _name(place: Place) -> str:
    return ".".join(part for part in place if isinstance(part, str))
