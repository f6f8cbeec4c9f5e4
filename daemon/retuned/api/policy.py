"""KernelTuningPolicy as a custom resource: the very schema that the local files have.

What is added is a status, and how an object of the API server becomes the policy that the gate
reads. Labels and annotations are left out of it: tools write them, and the digest that approvals
name must not change with them.
"""

from __future__ import annotations

from typing import Literal

from pydantic import AwareDatetime, Field

from retuned.api.values import ApiModel, Condition, Note, ObjectMeta
from retuned.contract import Digest
from retuned.stages import gate
from retuned.stages.gate import PolicySpec


class EffectiveWindows(ApiModel):
    """Whether swaps may start under this policy."""

    open: bool
    """Whether they may now."""
    next_change: AwareDatetime | None = None
    """When that changes by itself; None where no change is foreseen."""
    why: Note = ""
    """Which window says so."""


class PolicyStatus(ApiModel):
    """What the operator makes of it."""

    observed_generation: int = Field(default=0, ge=0)
    """Generation of the spec that this is about."""
    digest: Digest | None = None
    """What approvals name; None while the policy cannot be used."""
    effective_windows: EffectiveWindows | None = None
    """Whether swaps may start; None while the policy cannot be used."""
    conditions: tuple[Condition, ...] = Field(
        default=(), max_length=16, json_schema_extra={"x-map-key": "type"}
    )
    """What is true of it; ``Ready`` is false while it cannot be used, and then nothing moves."""


class PolicyObject(ApiModel):
    """What may be tried, what must be proven, who must agree, and when."""

    api_version: Literal["retuned.dev/v1alpha1"]
    kind: Literal["KernelTuningPolicy"]
    metadata: ObjectMeta
    """Name."""
    spec: PolicySpec
    """What it says."""
    status: PolicyStatus = PolicyStatus()
    """What the operator makes of it."""

    def stage_policy(self) -> gate.KernelTuningPolicy:
        """Return the policy that the gate reads; only name and spec are part of it."""
        metadata = gate.Metadata(name=self.metadata.name, namespace=self.metadata.namespace)
        return gate.KernelTuningPolicy(
            api_version=self.api_version, kind=self.kind, metadata=metadata, spec=self.spec
        )
