"""Shared parts of the custom resources: names, references, conditions, metadata, base model.

Names and durations are those of the policies (`retuned.stages.gate.values`), so that each has one
format. Untrusted input is bounded here: sizes of texts and lists are part of the schema that the
API server enforces, and of the cost of its rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import AwareDatetime, ConfigDict, Field

from retuned.contract import Digest
from retuned.stages.gate.values import DNS, PolicyModel

GROUP = "retuned.dev"
"""API group of every kind."""
VERSION = "v1alpha1"
"""The only version."""
API_VERSION: Literal["retuned.dev/v1alpha1"] = "retuned.dev/v1alpha1"
"""Group and version, as objects write it."""

ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern=DNS)]
"""Name of an object in Kubernetes."""
Uid = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9._-]+$")]
"""Unique id of an object in Kubernetes; another object of the same name has another one."""
KernelName = Annotated[str, Field(max_length=128, pattern=r"^[a-zA-Z0-9][a-zA-Z0-9_.:-]{0,127}$")]
"""Name of a definition, as `retuned.contract.Name`."""
Id = Annotated[str, Field(max_length=71, pattern=r"^sha256:[0-9a-f]{64}$")]
"""Content digest that names a record of a stage."""
User = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f]+$")]
"""User or group as the API server names them."""
Code = Annotated[str, Field(max_length=64, pattern=r"^([a-z0-9]+(-[a-z0-9]+)*)?$")]
"""Stable reason code, kebab-case; may be empty."""
Traceparent = Annotated[str, Field(max_length=64)]
"""A W3C ``traceparent``; any other text is ignored."""
Note = Annotated[str, Field(max_length=2048)]
"""Text for people."""
Model = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
"""Model of an accelerator, such as ``MI300X``; also usable as a label's value."""


class ApiModel(PolicyModel):
    """Part of a custom resource: camelCase in YAML, frozen, no unknown fields, finite numbers."""


class ObjectMeta(ApiModel):
    """The part of Kubernetes' metadata that decisions use; the rest is ignored."""

    model_config = ConfigDict(extra="ignore")

    name: ObjectName
    """Name, unique in its namespace and kind."""
    namespace: Annotated[str, Field(max_length=63)] = ""
    """Namespace; empty for kinds that have none."""
    uid: Annotated[str, Field(max_length=64)] = ""
    """Unique id; empty before the API server assigns one."""
    generation: int = Field(default=0, ge=0)
    """Grows with every change of the spec; 0 before the API server assigns one."""
    resource_version: Annotated[str, Field(max_length=64)] = ""
    """Version of the whole object; writes name it, so that no write overwrites another."""
    creation_timestamp: AwareDatetime | None = None
    """When the API server created it. Unset before."""
    deletion_timestamp: AwareDatetime | None = None
    """When its deletion was requested. Unset before."""
    labels: Mapping[str, str] = Field(default_factory=dict)
    """Labels."""
    annotations: Mapping[str, str] = Field(default_factory=dict)
    """Annotations."""


TRACEPARENT = f"{GROUP}/traceparent"
"""Annotation with the span in which an object was made, a W3C ``traceparent``."""


class LocalRef(ApiModel):
    """An object of the same namespace, by name."""

    name: ObjectName
    """Name of the object."""


class UidRef(ApiModel):
    """An object of the same namespace that must be this very one."""

    name: ObjectName
    """Name of the object."""
    uid: Uid
    """Uid of the object."""


class PolicyRef(ApiModel):
    """A policy at one generation."""

    name: ObjectName
    """Name of the policy, in the namespace of the referring object."""
    generation: int = Field(ge=1)
    """Generation of the policy."""
    digest: Digest
    """Digest of the policy, see `KernelTuningPolicy.digest`."""


class Abort(ApiModel):
    """A request to end an object's work; never gated and never withdrawn."""

    requested: bool = False
    """Whether to end it; it must stay true once it is."""
    reason: Note = ""
    """Reason for the abort."""


class ConditionStatus(StrEnum):
    """Truth values of Kubernetes."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(ApiModel):
    """One condition of an object, as in Kubernetes."""

    type: str = Field(
        max_length=316, pattern=r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z][A-Za-z0-9]*$"
    )
    """Name in CamelCase."""
    status: ConditionStatus
    """Whether it is true."""
    observed_generation: int = Field(default=0, ge=0)
    """Generation of the spec that it describes."""
    last_transition_time: AwareDatetime
    """When `status` last changed."""
    reason: str = Field(
        min_length=1, max_length=1024, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"
    )
    """Stable code in CamelCase."""
    message: str = Field(max_length=32768)
    """Explanation of the status."""


def camel(code: str) -> str:
    """Return a stable code as the reason of a condition.

    Examples
    --------
    >>> camel("window-closed")
    'WindowClosed'
    """
    return "".join(part.capitalize() for part in code.split("-")) or "Unknown"


def with_condition(
    conditions: tuple[Condition, ...],
    new: Condition,
) -> tuple[Condition, ...]:
    """Return the conditions with one set; its time changes only if its status does.

    The order stays, so that an unchanged status compares equal.
    """
    known = next((each for each in conditions if each.type == new.type), None)
    if known is None:
        return (*conditions, new)
    if known.status is new.status:
        new = new.model_copy(update={"last_transition_time": known.last_transition_time})
    return tuple(new if each.type == new.type else each for each in conditions)
