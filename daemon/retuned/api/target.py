"""TuningTarget: the servers that Retuned tunes, and their active variants."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import AwareDatetime, Field

from retuned.api.values import (
    ApiModel,
    Code,
    Condition,
    KernelName,
    Model,
    Note,
    ObjectMeta,
    ObjectName,
    Uid,
)
from retuned.contract import Digest, Guard
from retuned.stages.gate.policy import Selector


class Framework(StrEnum):
    """Inference server."""

    VLLM = "vllm"
    SGLANG = "sglang"
    TORCH = "torch"
    GENERIC = "generic"


class Vendor(StrEnum):
    """Vendor of the accelerator."""

    AMD = "amd"
    NVIDIA = "nvidia"
    CPU = "cpu"


class TargetMode(StrEnum):
    """How far Retuned may go with these servers; a policy may limit it further."""

    OBSERVE = "Observe"
    """Profiles and drift only."""
    RECOMMEND = "Recommend"
    """Experiments and proposals, but no swaps."""
    SWAP = "Swap"
    """Swaps, as far as a policy allows them."""


class InjectionMode(StrEnum):
    """How pods get the sidecar."""

    WEBHOOK = "Webhook"
    """At their creation, if they have the annotation."""
    MANUAL = "Manual"
    """In their own manifests: by the Helm library template or ``kubectl retuned inject``."""


class Gpu(ApiModel):
    """The accelerator of the servers."""

    vendor: Vendor
    """Vendor of the accelerator."""
    model: Model
    """Model, such as ``MI300X``; experiments run only on the same model."""


class LiftedLessons(ApiModel):
    """Lessons of live proofs on a kernel that a person has lifted."""

    kernel: KernelName
    """Name of the slot."""
    at: AwareDatetime
    """Lessons that are not newer than this do not hold any more."""
    reason: Note = ""
    """Why they were lifted."""


class TuningTargetSpec(ApiModel):
    """Selection of the servers, and how far Retuned may go."""

    selector: Selector
    """Selects pods of the same namespace."""
    container: ObjectName
    """Name of the container that serves."""
    framework: Framework = Framework.GENERIC
    """Inference server."""
    gpu: Gpu
    """Accelerator of the servers."""
    mode: TargetMode = TargetMode.OBSERVE
    """How far Retuned may go."""
    injection: InjectionMode = InjectionMode.WEBHOOK
    """How pods get the sidecar."""
    lifted_lessons: tuple[LiftedLessons, ...] = Field(
        default=(), max_length=64, json_schema_extra={"x-map-key": "kernel"}
    )
    """Lessons of live proofs that do not hold any more; `kubectl retuned rearm --lessons` adds one.
    """


class ActiveKernel(ApiModel):
    """A variant that every pod must run."""

    kernel: KernelName
    """Name of the slot."""
    digest: Digest
    """Digest of the artifact."""
    guard: Guard = Guard()
    """Shapes that it serves."""
    epoch: int = Field(ge=1)
    """Epoch of the order that activated it."""
    proposal: ObjectName
    """Name of its proposal."""
    since: AwareDatetime
    """When it was promoted."""


class Quarantined(ApiModel):
    """An artifact that did harm here and may not be proposed for a while."""

    digest: Digest
    """Digest of the artifact."""
    until: AwareDatetime
    """End of the quarantine."""
    reason: Code
    """The harm that it did."""


class TargetLesson(ApiModel):
    """What a live proof has shown against a swap: a like claim is not proposed again here."""

    kernel: KernelName
    """Name of the slot."""
    guard: Guard = Guard()
    """Shapes that the swap was for."""
    kind: Code
    """What was shown: `harms` or `no-measurable-effect`."""
    sentence: Note = ""
    """The proof in one sentence."""
    claimed_saving: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of kernel time that the experiment claimed to save."""
    at: AwareDatetime
    """Time of the verdict."""


class OwnOverheadState(ApiModel):
    """What Retuned itself costs the servers of one environment, as one pod has measured it."""

    environment: str = Field(default="", max_length=71)
    """Digest of what its servers run on; empty if processes of a server differ."""
    name: ObjectName
    """Pod that measures."""
    uid: Uid
    """Its uid."""
    measures: bool = False
    """Whether the operator has it measure now."""
    reported: AwareDatetime | None = None
    """End of its last measurement, by the pod's clock. Unset before."""
    at: AwareDatetime | None = None
    """When the last measurement of the environment arrived. Unset before."""
    outcome: Code = ""
    """What was found: `within-budget`, `lowered`, `over-budget` or `unknown`; empty before."""
    share: float = Field(default=1.0, gt=0.0, le=1.0)
    """Share of the time in which launches are counted."""
    sentence: Note = ""
    """What was found, in one sentence."""
    engine: str = Field(default="", max_length=200)
    """Name and version of the engine that was measured; empty if unknown."""
    effect: float | None = None
    """Logarithm of step time with Retuned's wrappers over that without. Unset without pairs."""
    low: float | None = None
    """Lower end of its interval. Unset if it is open."""
    high: float | None = None
    """Upper end. Unset if it is open."""
    pairs: int = Field(default=0, ge=0)
    """Pairs that count."""


class TunableState(ApiModel):
    """A tunable of the servers, and why it gets no experiment."""

    name: KernelName
    """Id of the tunable."""
    reason: Code = ""
    """Why the operator made no experiment, a stable code. Empty if it made one."""
    detail: Note = ""
    """Explanation of the reason, from when it began."""


class TuningTargetStatus(ApiModel):
    """Observed state of the servers."""

    observed_generation: int = Field(default=0, ge=0)
    """Generation of the spec that this status describes."""
    pods: int = Field(default=0, ge=0)
    """Pods that the selector matches."""
    reporting_pods: int = Field(default=0, ge=0)
    """Selected pods whose sidecar reports."""
    sampled_kernels: int = Field(default=0, ge=0)
    """Kernels in the newest profile."""
    last_sample: AwareDatetime | None = None
    """When the newest profile arrived. Unset before the first."""
    environment: Digest | None = None
    """Digest of the common environment of all pods. Unset while they differ or are unknown."""
    active_kernels: tuple[ActiveKernel, ...] = Field(
        default=(), max_length=256, json_schema_extra={"x-map-key": "kernel"}
    )
    """Variants that every pod must run."""
    quarantine: tuple[Quarantined, ...] = Field(
        default=(), max_length=256, json_schema_extra={"x-map-key": "digest"}
    )
    """Artifacts in quarantine."""
    tunables: tuple[TunableState, ...] = Field(
        default=(), max_length=64, json_schema_extra={"x-map-key": "name"}
    )
    """Tunables of the servers."""
    lessons: tuple[TargetLesson, ...] = Field(default=(), max_length=64)
    """The newest lessons of live proofs in force, oldest first."""
    own_overhead: tuple[OwnOverheadState, ...] = Field(default=(), max_length=16)
    """What Retuned itself adds to a step of the servers, by environment."""
    conditions: tuple[Condition, ...] = Field(
        default=(), max_length=16, json_schema_extra={"x-map-key": "type"}
    )
    """Conditions of the target."""


class TuningTarget(ApiModel):
    """Servers whose kernels are kept tuned."""

    api_version: Literal["retuned.dev/v1alpha1"]
    kind: Literal["TuningTarget"]
    metadata: ObjectMeta
    """Name and labels; policies select by these labels, and ``env`` is the environment."""
    spec: TuningTargetSpec
    """Selection of the servers, and how far Retuned may go."""
    status: Annotated[TuningTargetStatus, Field()] = TuningTargetStatus()
    """Observed state of the servers."""

    @property
    def full_name(self) -> str:
        """Target as proposals and freezes name it; on one machine without a namespace."""
        namespace, name = self.metadata.namespace, self.metadata.name
        return f"{namespace}/{name}" if namespace else name
