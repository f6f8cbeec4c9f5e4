"""KernelTuningPolicy as a custom resource, with the schema of the local files.

It adds a status, and the conversion of an object of the API server to the policy that the gate
reads. Labels and annotations are not converted: tools write them, and the digest that approvals
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
    """Whether a swap may start now."""
    next_change: AwareDatetime | None = None
    """When `open` changes without an edit. Unset if no change is predicted."""
    why: Note = ""
    """The window that decides."""


class PolicyStatus(ApiModel):
    """The operator's evaluation of the policy."""

    observed_generation: int = Field(default=0, ge=0)
    """Generation of the spec that this status describes."""
    digest: Digest | None = None
    """Digest that approvals name. Unset while the policy is invalid."""
    effective_windows: EffectiveWindows | None = None
    """Whether swaps may start. Unset while the policy is invalid."""
    conditions: tuple[Condition, ...] = Field(
        default=(), max_length=16, json_schema_extra={"x-map-key": "type"}
    )
    """Conditions of the policy; ``Ready`` is false while it is invalid, and then nothing is
    swapped."""


class PolicyObject(ApiModel):
    """Rules for experiments, validation, approval and rollout."""

    api_version: Literal["retuned.dev/v1alpha1"]
    kind: Literal["KernelTuningPolicy"]
    metadata: ObjectMeta
    """Name of the policy."""
    spec: PolicySpec
    """Rules of the policy."""
    status: PolicyStatus = PolicyStatus()
    """The operator's evaluation of the policy."""

    def stage_policy(self) -> gate.KernelTuningPolicy:
        """Return the policy that the gate reads; only name and spec are part of it."""
        metadata = gate.Metadata(name=self.metadata.name, namespace=self.metadata.namespace)
        return gate.KernelTuningPolicy(
            api_version=self.api_version, kind=self.kind, metadata=metadata, spec=self.spec
        )
