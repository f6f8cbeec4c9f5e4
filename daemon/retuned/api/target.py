"""TuningTarget: the servers that Retuned looks after, and what runs in them."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import AwareDatetime, Field

from retuned.api.values import ApiModel, Code, Condition, KernelName, Model, ObjectMeta, ObjectName
from retuned.contract import Digest, Guard
from retuned.stages.gate.policy import Selector


class Framework(StrEnum):
    """What serves."""

    VLLM = "vllm"
    SGLANG = "sglang"
    TORCH = "torch"
    GENERIC = "generic"


class Vendor(StrEnum):
    """Who made the accelerator."""

    AMD = "amd"
    NVIDIA = "nvidia"
    CPU = "cpu"


class TargetMode(StrEnum):
    """How far Retuned goes with these servers; a policy may hold it back further."""

    OBSERVE = "Observe"
    """Profiles and drift, and nothing else."""
    RECOMMEND = "Recommend"
    """Experiments and proposals; nothing is swapped."""
    SWAP = "Swap"
    """Swaps, as far as a policy lets them."""


class InjectionMode(StrEnum):
    """How the sidecar comes into the pods."""

    WEBHOOK = "Webhook"
    """At their creation, where the annotation asks for it."""
    MANUAL = "Manual"
    """With their own manifests: by the Helm library template or ``kubectl retuned inject``."""


class Gpu(ApiModel):
    """The accelerator of the servers."""

    vendor: Vendor
    """Who made it."""
    model: Model
    """Model, such as ``MI300X``; experiments run on the same one only."""


class TuningTargetSpec(ApiModel):
    """Which servers, and how far to go."""

    selector: Selector
    """Pods of the same namespace."""
    container: ObjectName
    """Container that serves."""
    framework: Framework = Framework.GENERIC
    """What serves."""
    gpu: Gpu
    """Its accelerator."""
    mode: TargetMode = TargetMode.OBSERVE
    """How far to go."""
    injection: InjectionMode = InjectionMode.WEBHOOK
    """How the sidecar comes into the pods."""


class ActiveKernel(ApiModel):
    """A variant that ought to be in force in every pod."""

    kernel: KernelName
    """Slot."""
    digest: Digest
    """Artifact."""
    guard: Guard = Guard()
    """Shapes that it serves."""
    epoch: int = Field(ge=1)
    """Order that put it in force."""
    proposal: ObjectName
    """Proposal that brought it."""
    since: AwareDatetime
    """When it was promoted."""


class Quarantined(ApiModel):
    """An artifact that did harm here, and is not proposed again for a while."""

    digest: Digest
    """Artifact."""
    until: AwareDatetime
    """When it may be proposed again."""
    reason: Code
    """What it did."""


class TuningTargetStatus(ApiModel):
    """What was seen of the servers."""

    observed_generation: int = Field(default=0, ge=0)
    """Generation of the spec that this is about."""
    pods: int = Field(default=0, ge=0)
    """Pods that the selector matches."""
    reporting_pods: int = Field(default=0, ge=0)
    """Of those, pods whose sidecar reports."""
    sampled_kernels: int = Field(default=0, ge=0)
    """Kernels in the newest profile."""
    last_sample: AwareDatetime | None = None
    """When the newest profile came; None before the first."""
    environment: Digest | None = None
    """Digest of what all pods run on; None while they differ or are not known."""
    active_kernels: tuple[ActiveKernel, ...] = Field(
        default=(), max_length=256, json_schema_extra={"x-map-key": "kernel"}
    )
    """Variants that ought to be in force."""
    quarantine: tuple[Quarantined, ...] = Field(
        default=(), max_length=256, json_schema_extra={"x-map-key": "digest"}
    )
    """Artifacts that are not proposed again."""
    conditions: tuple[Condition, ...] = Field(
        default=(), max_length=16, json_schema_extra={"x-map-key": "type"}
    )
    """What is true of it."""


class TuningTarget(ApiModel):
    """Servers whose kernels are kept tuned."""

    api_version: Literal["retuned.dev/v1alpha1"]
    kind: Literal["TuningTarget"]
    metadata: ObjectMeta
    """Name and labels; policies select by these labels, and ``env`` is the environment."""
    spec: TuningTargetSpec
    """Which servers, and how far to go."""
    status: Annotated[TuningTargetStatus, Field()] = TuningTargetStatus()
    """What was seen of them."""

    @property
    def full_name(self) -> str:
        """Namespace and name, as proposals and freezes name it."""
        return f"{self.metadata.namespace}/{self.metadata.name}"
