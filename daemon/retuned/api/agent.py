"""Messages between sidecar and operator: the bodies of the agent API.

Both sides parse strictly. Every message of a sidecar names its pod and its target, so that a
misdirected record is refused and not attributed to another pod. Times come from the sender's clock:
neither side compares its clock with the other's, except to report that they differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, TypeVar

from pydantic import AwareDatetime, Field

from retuned.contract import Digest, Name, Record, digest_of
from retuned.stages.drift import DriftReport, GpuObservation
from retuned.stages.gate import LiveProof
from retuned.stages.profile import WorkloadProfile
from retuned.stages.swap import SwapOrder
from retuned.stages.verdict import ServerEnvironment
from retuned.stages.watch import WatchReport, WatchSample
from retuned.stages.watch.proof import Arm, BootWindow, Phase, ProofClaim

AUDIENCE = "retuned.dev"
"""Audience of the token by which a sidecar proves its pod."""
VERSION = 3
"""Version of this protocol; it grows when a body changes so that an older side cannot parse it.

Version 2 has the state of GPUs, version 3 the times of kernels in place in a claim; `older` removes
them for an operator of an older version."""

MAX_PROCESSES = 256
"""Most processes of one server."""
MAX_GPUS = 16
"""Most accelerators in a report of one pod."""
MAX_SLOTS = 1024
"""Most slots of one server."""
MAX_COUNTED = 128
"""Most lengths of one slot with separate counts."""
MAX_DEFINITIONS = 256
"""Most live kernels that one pod reports."""
MAX_DEFINITION_CHARS = 256 << 10
"""Longest text of one: an experiment's task must hold it and a variant's source."""
MAX_PROOFS = 16
"""Most live proofs in one answer to a pod, or in one report of it."""
MAX_ALARMS = 64
"""Most swaps of a pod that alarms may try off."""
MAX_WAIT_S = 30.0
"""Longest time that a request for orders is held, seconds."""
MAX_ARTIFACT_BYTES = 16 << 20
"""Largest artifact, all its files: a sidecar holds one in memory during delivery."""

MAX_ARTIFACT_FILES = 8
"""Most files of one artifact."""
MAX_BUNDLE_LINE_BYTES = 8 << 10
"""Longest first line of an artifact on the wire."""

FileName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_][a-zA-Z0-9_.-]{0,127}$")]
PodName = Annotated[str, Field(min_length=1, max_length=253)]
Code = Annotated[str, Field(max_length=64, pattern=r"^([a-z0-9]+(-[a-z0-9]+)*)?$")]
Lengths = Annotated[str, Field(pattern=r"^[0-9]{1,12}(x[0-9]{1,12}){0,7}$")]
Launches = Annotated[int, Field(ge=0, le=1 << 53)]
Text = Annotated[str, Field(max_length=2048)]
Short = Annotated[str, Field(max_length=300)]
Traceparent = Annotated[str, Field(max_length=64)]
Gpus = Annotated[tuple[GpuObservation, ...], Field(max_length=MAX_GPUS)]
AxisName = Annotated[str, Field(pattern=r"^[a-z_]{1,32}$")]
EngineName = Annotated[str, Field(max_length=200)]
OrderId = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9:._-]+$")]


class PodRef(Record):
    """One pod; another one of the same name has another uid."""

    namespace: Annotated[str, Field(min_length=1, max_length=63)]
    name: PodName
    uid: Annotated[str, Field(min_length=1, max_length=64)]


class AgentMessage(Record):
    """Base of a sidecar's messages."""

    pod: PodRef
    """Sender; must match the token."""
    target: Annotated[str, Field(min_length=1, max_length=320)]
    """TuningTarget of the pod, as ``namespace/name``."""


class ProcessEnvironment(Record):
    """What one process of the server runs on; fields as in `ServerEnvironment`."""

    process: Short
    cpu: Short = ""
    device: Short = ""
    device_name: Short = ""
    driver: Short = ""
    runtime: Short = ""
    torch: Short = ""
    triton: Short = ""
    numerics: dict[Short, Short] = Field(default_factory=dict, max_length=64)

    def environment(self) -> ServerEnvironment:
        """Return it as stage 6's record."""
        return ServerEnvironment(**self.model_dump())


class Hello(AgentMessage):
    """A sidecar's first message, repeated every few minutes."""

    target: Annotated[str, Field(max_length=320)] = ""
    """TuningTarget that it serves; empty if unknown, and then the reply has it."""
    version: int = Field(ge=1)
    release: Short
    """Version of Retuned in the sidecar."""
    at: AwareDatetime
    """Its wall time, only to show differences of clocks."""
    environments: tuple[ProcessEnvironment, ...] = Field(default=(), max_length=MAX_PROCESSES)
    """What the server's processes run on; empty while they do not answer."""
    spool: int = Field(default=0, ge=0)
    """Reports that wait to be sent."""
    lost: int = Field(default=0, ge=0)
    """Reports that were dropped since the pod began, because the spool was full."""


class Welcome(Record):
    """The operator's reply."""

    version: int = Field(ge=1)
    at: AwareDatetime
    target: Annotated[str, Field(min_length=1, max_length=320)]
    """TuningTarget that selects the pod, as ``namespace/name``."""
    key: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""
    """Public key that artifacts are signed with, Ed25519, hex; empty if the operator has none to
    offer."""


class ProfileReport(AgentMessage):
    """One window of the pod's workload."""

    id: Short
    """Id of the window; sending it again changes nothing."""
    profile: WorkloadProfile
    """The window; its times are the pod's."""
    counts: dict[Name, Annotated[dict[Lengths, Launches], Field(max_length=MAX_COUNTED)]] = Field(
        default_factory=dict, max_length=MAX_SLOTS
    )
    """Launches that slots counted in it, by slot and lengths; empty without counters."""
    gpus_traced: int = Field(default=0, ge=0, le=MAX_PROCESSES)
    """Accelerators whose launches the traces have; 0 if unknown."""
    gpus: Gpus = ()
    """State of the pod's accelerators at its end; empty if unknown."""


class DriftPost(AgentMessage):
    """Stage 3's report of a window with a finding."""

    id: Short
    """Id of the window; sending it again changes nothing."""
    report: DriftReport
    gpus: Gpus = ()
    """State of the pod's accelerators at that time; empty if unknown."""


class DefinitionPost(AgentMessage):
    """A live kernel lifted in the pod's server; sent once, and again with more information."""

    name: Name
    text: Annotated[str, Field(min_length=2, max_length=MAX_DEFINITION_CHARS)]
    """JSON of the definition with its live shapes (`retuned.lifting.store_records`); untrusted."""


class TunableClass(Record):
    """One size class of a tunable over the observed time."""

    axes: dict[AxisName, Annotated[int, Field(ge=0, le=1 << 40)]] = Field(max_length=16)
    """Upper end of each axis."""
    launches: Annotated[float, Field(ge=0.0, le=1e15, allow_inf_nan=False)]
    time_us: Annotated[float, Field(ge=0.0, le=1e15, allow_inf_nan=False)]
    """Device time of these launches; an estimate for replays of graphs."""
    how: Code = ""
    """How the server chose its configuration; ``table`` under a table."""
    ready: bool = True
    """Whether an experiment can repeat a launch of it."""


class TunablePost(AgentMessage):
    """A tunable of the pod's server, and what its launches took lately; sent once a window."""

    name: Annotated[str, Field(pattern=r"^tunable:[a-zA-Z0-9_.:-]{1,119}$")]
    family: Annotated[str, Field(min_length=1, max_length=64)]
    kernel: Short
    module: Short
    source: Short
    """Digest of the kernel's source."""
    block: bool = False
    """Whether weights are scaled by blocks, of experts."""
    frozen: Annotated[str, Field(max_length=4096)] = ""
    """Configuration that an autotuner chose once for all sizes, as JSON; empty without one."""
    refused: Code = ""
    """Why the server cannot change it; empty if it can."""
    facts: ProcessEnvironment
    """What the process runs on that the report is from."""
    differs: bool = False
    """Whether processes of the server run different sources, or on different devices."""
    observed_s: Annotated[float, Field(ge=0.0, le=1e9, allow_inf_nan=False)]
    """Length of the observed time, seconds."""
    busy_us: Annotated[float, Field(ge=0.0, le=1e15, allow_inf_nan=False)]
    """Time in which the server computed, all processes together."""
    used: tuple[TunableClass, ...] = Field(default=(), max_length=256)
    text: Annotated[str, Field(min_length=2, max_length=MAX_DEFINITION_CHARS)]
    """JSON for an experiment: ``report``, ``environment`` and ``recipes`` of the runtime;
    untrusted."""


class SlotWatch(Record):
    """State of one slot, and stage 10's report on it."""

    definition: Name
    active: Digest | None
    """Artifact in use; None is the original."""
    epoch: int = Field(ge=0)
    """Last order that all processes have committed."""
    newest_epoch: int = Field(ge=0)
    """Last order that any process has committed."""
    tripped: Short = ""
    """Why the runtime's circuit breaker stopped the order; empty if it did not."""
    proposal: Short = ""
    """Proposal that `report` is about; empty without an order."""
    sample: WatchSample | None = None
    """Counters since the last order; None if the server does not report them."""
    report: WatchReport | None = None
    """Judged by the sidecar, which has every sample; it stays after a rollback, until the next
    order."""


class BlockedOrder(Record):
    """Why a pod has not committed the newest order of a slot; sent repeatedly."""

    order: OrderId
    proposal: Short
    definition: Name
    """Slot; the server may not have it yet."""
    epoch: int = Field(ge=1)
    final: bool
    """Whether the order is refused permanently; otherwise it waits and may be committed later."""
    reason: Code
    detail: Text = ""


class WatchPost(AgentMessage):
    """State of a pod's server."""

    at: AwareDatetime
    """Time of the observation, by the pod's clock."""
    slots: tuple[SlotWatch, ...] = Field(max_length=MAX_SLOTS)
    held: tuple[BlockedOrder, ...] = Field(default=(), max_length=MAX_SLOTS)
    """Newest uncommitted orders, at most one for each slot."""


class PodProof(Record):
    """A live proof in a pod; sent repeatedly."""

    order: OrderId
    proposal: Short
    definition: Name
    epoch: int = Field(ge=1)
    phase: Phase
    pairs: int = Field(ge=0, lt=1 << 53)
    """Pairs so far, sham and void pairs included."""
    claim: ProofClaim | None = None
    """Its verdict with its pairs; None before. The operator computes the verdict again."""


class PodOverhead(Record):
    """What a pod has measured of Retuned's own cost; sent until the operator has it."""

    at: AwareDatetime
    """When it ended, by the pod's clock; it identifies the measurement."""
    engine: EngineName = ""
    """Name and version of the server's engine; empty if unknown."""
    claim: ProofClaim
    """Verdict with its pairs. The operator computes the verdict again."""


class LevelsState(StrEnum):
    """Whether a sidecar reads the service levels of its server."""

    ABSENT = "absent"
    """It has no address of the server's metrics, or it is of an older release."""
    UNREADABLE = "unreadable"
    """It has an address, and the metrics cannot be read there now."""
    READ = "read"
    """It reads them."""


class BootPhase(StrEnum):
    """State of the measurement of one boot in a replica."""

    WAITING = "waiting"
    """The server has made no step yet, or does not run what it must hold."""
    RECORDING = "recording"
    """Its steps are recorded, those that are left out included."""
    DONE = "done"
    """Its window is complete."""
    FAILED = "failed"
    """It leads to no window; the reason is a code."""


class PodBoot(Record):
    """One boot of a replica; sent repeatedly."""

    proposal: Short
    definition: Name
    replica: PodName
    """The pod, as the operator named it in `BootOrder`."""
    phase: BootPhase
    reason: Code = ""
    """Why it failed, or what it waits for; empty if unknown."""
    window: BootWindow | None = None
    """What was measured; None before. The operator checks it."""


class ProofPost(AgentMessage):
    """Whether a pod's server allows live proofs, and the state of those that are ordered."""

    unavailable: Code = ""
    """Why steps of the server cannot be timed; empty if they can."""
    temporary: bool = False
    """Whether the server only does not answer now, or has not begun its first step."""
    levels: LevelsState = LevelsState.ABSENT
    """Whether service levels of the server can be read, which `LiveProof.slo` needs."""
    engine: EngineName = ""
    """Name and version of the server's engine; empty if unknown."""
    proofs: tuple[PodProof, ...] = Field(default=(), max_length=MAX_PROOFS)
    days: tuple[PodProof, ...] = Field(default=(), max_length=MAX_PROOFS)
    """The newest day of each sentinel that has ended."""
    trials: tuple[PodProof, ...] = Field(default=(), max_length=MAX_PROOFS)
    """The newest trial of each swap that an alarm has tried off. Sent on request."""
    overhead: PodOverhead | None = None
    """The last measurement of Retuned's own cost; None once the operator has it. Sent on request.
    """
    boot: PodBoot | None = None
    """The boot that the operator asks a replica for; None if it asks for none."""


class Ack(Record):
    """The operator's reply to a report."""

    unheard: bool = False
    """Whether the operator has no `Hello` of this sidecar, because it has just started."""


class Outcome(StrEnum):
    """Result of an order in one pod."""

    DONE = "done"
    """Every process has committed it."""
    REFUSED = "refused"
    """It will not be committed here; the reason has a code."""
    ROLLED_BACK = "rolled-back"
    """It was active, did harm, and the pod has rolled it back."""


class OrderDone(AgentMessage):
    """Result of an order."""

    order: OrderId
    proposal: Short
    definition: Name
    epoch: int = Field(ge=1)
    outcome: Outcome
    reason: Code = ""
    """Stable code; empty if it is done."""
    detail: Text = ""
    at: AwareDatetime
    """Time by the pod's clock."""
    took_ns: int | None = Field(default=None, ge=0)
    """Duration of the slowest flip; None if not measured."""


class ProofOrder(Record):
    """A swap of the pod that is to be proven on live traffic."""

    order: OrderId
    proposal: Short
    definition: Name
    epoch: int = Field(ge=1)
    rule: LiveProof
    """Rule of the policy when the proof was asked for."""
    sentinel: bool = False
    """Whether a promoted swap is to be measured, a pair in each period, instead of a proof."""


class AlarmOrder(Record):
    """A swap of the pod that may be tried off when an alarm asks what its cause is."""

    order: OrderId
    name: Annotated[str, Field(min_length=1, max_length=320)]
    """Its SwapProposal as ``namespace/name``, for people."""
    rule: LiveProof
    """Rule of the policy."""


class OverheadOrder(Record):
    """What a pod is to do about Retuned's own cost."""

    measure: bool = False
    """Whether this pod measures, for all pods of its environment."""
    heard: AwareDatetime | None = None
    """`PodOverhead.at` of the last measurement of this pod that the operator has; None without."""
    shares: dict[Annotated[str, Field(max_length=71)], Annotated[float, Field(gt=0.0, le=1.0)]] = (
        Field(default_factory=dict, max_length=16)
    )
    """Share of the time in which launches are counted, by digest of the environment; where an
    environment has none, all launches are counted."""


class BootOrder(Record):
    """What a canary replica is to measure of its boot."""

    proposal: Short
    definition: Name
    replica: PodName
    """Name of the pod."""
    arm: Arm
    """What the server must hold: `on` is the swap."""
    order: Annotated[str, Field(max_length=128, pattern=r"^[A-Za-z0-9:._-]*$")] = ""
    """Order that must be in force before the window begins; empty without the swap."""
    leave_out_s: Annotated[float, Field(ge=0.0, le=1e5)]
    """Time that is left out after the first step, seconds."""
    window_s: Annotated[float, Field(gt=0.0, le=1e5)]
    """Length of the window after that, seconds."""


class Orders(Record):
    """The wanted state of a pod: the newest order of each slot."""

    revision: int = Field(ge=1)
    """Identifies this very set; see `revision_of`."""
    orders: tuple[SwapOrder, ...] = Field(max_length=MAX_SLOTS)
    proofs: tuple[ProofOrder, ...] = Field(default=(), max_length=MAX_PROOFS)
    """Swaps to prove on live traffic. Sent on request."""
    alarms: tuple[AlarmOrder, ...] = Field(default=(), max_length=MAX_ALARMS)
    """Swaps that an alarm may try off. Sent on request."""
    overhead: OverheadOrder | None = None
    """What to do about Retuned's own cost; None does nothing. Sent on request."""
    boot: BootOrder | None = None
    """What a canary replica is to measure. Sent on request."""
    traces: dict[OrderId, Traceparent] = Field(default_factory=dict, max_length=MAX_SLOTS)
    """Parent spans of orders, by id, if tracing is on.

    Sent on request, and not part of the revision."""


class BundleFile(Record):
    """One file of an artifact."""

    size_bytes: int = Field(ge=0, le=MAX_ARTIFACT_BYTES)
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """Of its bytes, hex."""


class Bundle(Record):
    """First line of a transferred artifact; the bytes of its files follow in this order."""

    digest: Digest
    files: dict[FileName, BundleFile] = Field(min_length=1, max_length=MAX_ARTIFACT_FILES)

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files.values())


Report = ProfileReport | DriftPost | WatchPost | DefinitionPost | TunablePost | ProofPost
"""A message to post; its kind gives the path."""


_SINCE_2 = frozenset({"gpus", "gpus_traced"})
_OMITTED = _SINCE_2 | {"boot", "overhead", "trials"}
"""Fields that an operator of an older release does not know and does not ask for."""
_OF_PROOFS = ("proofs", "days", "trials")


SaidT = TypeVar("SaidT", bound=AgentMessage)


def older(report: SaidT, *, version: int) -> SaidT:
    """Return the report as a side of an older version can parse it.

    Version 1 has no GPUs, and versions 1 and 2 have no times of kernels in place.
    """
    fields, update = type(report).model_fields, dict[str, Any]()
    if version < 2:
        update |= {each: fields[each].default for each in _SINCE_2 & fields.keys()}
    if version < 3 and isinstance(report, ProofPost):
        for each in _OF_PROOFS:
            update[each] = tuple(map(_without_kernels, getattr(report, each)))
    return report.model_copy(update=update) if update else report


def _without_kernels(proof: PodProof) -> PodProof:
    claim = proof.claim
    if claim is None or not claim.kernels:
        return proof
    return proof.model_copy(update={"claim": claim.model_copy(update={"kernels": ()})})


def wire_json(report: Record) -> str:
    """Return a report in its transfer format.

    Fields that an older side lacks are omitted unless they are set.

    Examples
    --------
    >>> pod = PodRef(namespace="serving", name="chat-0", uid="u-1")
    >>> wire_json(AgentMessage(pod=pod, target="serving/chat"))
    '{"pod":{"namespace":"serving","name":"chat-0","uid":"u-1"},"target":"serving/chat"}'
    """
    unset = {each for each in _OMITTED if not getattr(report, each, None)}
    return report.model_dump_json(exclude=unset)


def environment_digest(environments: Sequence[ProcessEnvironment]) -> Digest | None:
    """Return the common environment digest of all processes; None if they differ.

    Examples
    --------
    >>> one = ProcessEnvironment(process="1", cpu="a")
    >>> two = ProcessEnvironment(process="2", cpu="a")
    >>> environment_digest([one, two]) == environment_digest([one])
    True
    >>> environment_digest([one, ProcessEnvironment(process="2", cpu="b")]) is None
    True
    """
    found = {digest_of(each.model_dump(exclude={"process"})) for each in environments}
    return found.pop() if len(found) == 1 else None


def revision_of(orders: Sequence[Record]) -> int:
    """Return a number that identifies a set of orders.

    It depends only on the orders, so a restarted operator or another leader computes the same
    number. It does not order sets in time.

    Examples
    --------
    >>> revision_of([]) == revision_of([]) and 1 <= revision_of([]) < 2**53
    True
    """
    bodies = sorted(digest_of(order.model_dump(mode="json")) for order in orders)
    return 1 + int(digest_of(bodies).removeprefix("sha256:")[:13], 16)


def as_orders(
    orders: Sequence[SwapOrder],
    proofs: Sequence[ProofOrder] = (),
    boot: BootOrder | None = None,
    *,
    alarms: Sequence[AlarmOrder] = (),
    overhead: OverheadOrder | None = None,
) -> Orders:
    """Return the message for a set of orders and of all that goes with them."""
    ordered = sorted(orders, key=lambda order: (order.definition, order.epoch))
    asked = (each for each in (overhead, boot) if each is not None)
    return Orders(
        revision=revision_of([*ordered, *proofs, *alarms, *asked]),
        orders=tuple(ordered),
        proofs=tuple(proofs),
        alarms=tuple(alarms),
        overhead=overhead,
        boot=boot,
    )


def skew_s(hello: Hello, *, now: datetime) -> float:
    """Return how far a pod's clock is ahead, seconds, for display."""
    return (hello.at - now).total_seconds()
