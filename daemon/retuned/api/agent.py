"""What a sidecar and the operator say to each other: the bodies of the agent API.

Both sides read strictly. Everything that a sidecar says names its pod and its target, so that a
record that went astray is refused and not believed of another. Times are those of whoever says
them: nobody compares its clock with the other's, except to tell people that they differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated, TypeVar

from pydantic import AwareDatetime, Field

from retuned.contract import Digest, Name, Record, digest_of
from retuned.stages.drift import DriftReport, GpuObservation
from retuned.stages.profile import WorkloadProfile
from retuned.stages.swap import SwapOrder
from retuned.stages.verdict import ServerEnvironment
from retuned.stages.watch import WatchReport, WatchSample

AUDIENCE = "retuned.dev"
"""Audience of the token by which a sidecar proves which pod it is in."""
VERSION = 2
"""Of this language; grows when a body changes so that an older side cannot read it. Version 2 has
what GPUs do beside the work: `older` takes it out of what an operator of version 1 is told."""

MAX_PROCESSES = 256
"""Most processes of one server."""
MAX_GPUS = 16
"""Most accelerators of one pod that are told of."""
MAX_SLOTS = 1024
"""Most slots of one server."""
MAX_COUNTED = 128
"""Most lengths of one slot that are counted apart."""
MAX_DEFINITIONS = 256
"""Most live kernels that one pod tells."""
MAX_DEFINITION_CHARS = 256 << 10
"""Longest text of one: an experiment's task has to hold it beside a variant's source."""
MAX_WAIT_S = 30.0
"""Longest time that a question for orders is held, seconds."""
MAX_ARTIFACT_BYTES = 16 << 20
"""Largest artifact, all its files: a sidecar holds one in memory while it delivers it."""

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
OrderId = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9:._-]+$")]


class PodRef(Record):
    """One pod; another one of the same name has another uid."""

    namespace: Annotated[str, Field(min_length=1, max_length=63)]
    """Its namespace."""
    name: PodName
    """Its name."""
    uid: Annotated[str, Field(min_length=1, max_length=64)]
    """Its uid."""


class AgentMessage(Record):
    """Base of what a sidecar says."""

    pod: PodRef
    """Who speaks; must be who the token says."""
    target: Annotated[str, Field(min_length=1, max_length=320)]
    """TuningTarget of the pod, as ``namespace/name``."""


class ProcessEnvironment(Record):
    """What one process of the server runs on; as `ServerEnvironment`."""

    process: Short
    """Its name, for messages."""
    cpu: Short = ""
    """Processor."""
    device: Short = ""
    """Architecture of its GPU."""
    device_name: Short = ""
    """As the vendor calls it."""
    driver: Short = ""
    """Kernel driver of the GPU."""
    runtime: Short = ""
    """CUDA or ROCm version of PyTorch."""
    torch: Short = ""
    """PyTorch."""
    triton: Short = ""
    """Triton."""
    numerics: dict[Short, Short] = Field(default_factory=dict, max_length=64)
    """Variables that change what Triton compiles."""

    def environment(self) -> ServerEnvironment:
        """Return it as stage 6 reads it."""
        return ServerEnvironment(**self.model_dump())


class Hello(AgentMessage):
    """The first thing that a sidecar says, and again every few minutes."""

    target: Annotated[str, Field(max_length=320)] = ""
    """TuningTarget that it believes to serve; empty where nobody told it, and the answer does."""
    version: int = Field(ge=1)
    """Of this language."""
    release: Short
    """Version of Retuned in the sidecar."""
    at: AwareDatetime
    """Its wall time: only for people, to see clocks that differ."""
    environments: tuple[ProcessEnvironment, ...] = Field(default=(), max_length=MAX_PROCESSES)
    """What the server's processes run on; empty while they do not answer."""
    spool: int = Field(default=0, ge=0)
    """Reports that wait to be told."""
    lost: int = Field(default=0, ge=0)
    """Reports that were thrown away since the pod began, because the spool was full."""


class Welcome(Record):
    """The operator's answer."""

    version: int = Field(ge=1)
    """Of this language."""
    at: AwareDatetime
    """Its wall time."""
    target: Annotated[str, Field(min_length=1, max_length=320)]
    """TuningTarget that selects the pod, as ``namespace/name``."""
    key: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""
    """Public key that artifacts are signed with, Ed25519, hex; empty shows none."""


class ProfileReport(AgentMessage):
    """One window of the pod's workload."""

    id: Short
    """Of the window; telling it again changes nothing."""
    profile: WorkloadProfile
    """The window; its times are the pod's."""
    counts: dict[Name, Annotated[dict[Lengths, Launches], Field(max_length=MAX_COUNTED)]] = Field(
        default_factory=dict, max_length=MAX_SLOTS
    )
    """Launches that slots counted in it, by slot and lengths; empty where nobody counts."""
    gpus_traced: int = Field(default=0, ge=0, le=MAX_PROCESSES)
    """Accelerators whose launches traces have; 0 where that is not known."""
    gpus: Gpus = ()
    """How the pod's accelerators stood at its end; empty where nobody could say."""


class DriftPost(AgentMessage):
    """What stage 3 says of a window in which it has found something."""

    id: Short
    """Of the window; telling it again changes nothing."""
    report: DriftReport
    """What was found."""
    gpus: Gpus = ()
    """How the pod's accelerators stood when it was found; empty where nobody could say."""


class DefinitionPost(AgentMessage):
    """A live kernel of the pod's server, lifted there; told once, and again when more is known."""

    name: Name
    """Of the definition."""
    text: Annotated[str, Field(min_length=2, max_length=MAX_DEFINITION_CHARS)]
    """JSON of the definition with its live shapes (`retuned.lifting.store_records`); untrusted."""


class SlotWatch(Record):
    """One slot: what is in force, and what stage 10 makes of it."""

    definition: Name
    """Slot."""
    active: Digest | None
    """Artifact in use; None is the original."""
    epoch: int = Field(ge=0)
    """Last order that every process has carried out."""
    newest_epoch: int = Field(ge=0)
    """Last order that any process has carried out."""
    tripped: Short = ""
    """Why the runtime took the order back by itself; empty if it did not."""
    proposal: Short = ""
    """Proposal that `report` is about; empty where nothing was ordered."""
    sample: WatchSample | None = None
    """What was counted since the last order; None where the server does not say."""
    report: WatchReport | None = None
    """Judged here, where every sample was seen; stays after a way back, until the next order."""


class BlockedOrder(Record):
    """Why a pod has not carried out the newest order of a slot, told again and again."""

    order: OrderId
    """Id of the order."""
    proposal: Short
    """Proposal that it carries out."""
    definition: Name
    """Slot; the server may not have it yet."""
    epoch: int = Field(ge=1)
    """Of the order."""
    final: bool
    """Whether the order is refused for good; otherwise it waits, and may be carried out later."""
    reason: Code
    """Why, stable code."""
    detail: Text = ""
    """For people."""


class WatchPost(AgentMessage):
    """How the server of a pod stands."""

    at: AwareDatetime
    """When it was looked at, by the pod's clock."""
    slots: tuple[SlotWatch, ...] = Field(max_length=MAX_SLOTS)
    """Every slot."""
    held: tuple[BlockedOrder, ...] = Field(default=(), max_length=MAX_SLOTS)
    """Newest orders that are not carried out, at most one a slot."""


class Ack(Record):
    """The operator's answer to what it was told."""

    unheard: bool = False
    """Whether it has not heard who is here: it has just begun, and knows no `Hello` of before."""


class Outcome(StrEnum):
    """What became of an order in one pod."""

    DONE = "done"
    """Every process has carried it out."""
    REFUSED = "refused"
    """It will not be carried out here; the reason says why."""
    ROLLED_BACK = "rolled-back"
    """It was in force, did harm, and the pod has gone back by itself."""


class OrderDone(AgentMessage):
    """What became of an order."""

    order: OrderId
    """Id of the order."""
    proposal: Short
    """Proposal that it carries out."""
    definition: Name
    """Slot."""
    epoch: int = Field(ge=1)
    """Of the order."""
    outcome: Outcome
    """What became of it."""
    reason: Code = ""
    """Why, stable code; empty where it is done."""
    detail: Text = ""
    """For people."""
    at: AwareDatetime
    """When, by the pod's clock."""
    took_ns: int | None = Field(default=None, ge=0)
    """How long the slowest flip took; None where nobody measured it."""


class Orders(Record):
    """All that a pod is to have: the newest order of each slot."""

    revision: int = Field(ge=1)
    """Names this very set; see `revision_of`."""
    orders: tuple[SwapOrder, ...] = Field(max_length=MAX_SLOTS)
    """By slot."""
    traces: dict[OrderId, Traceparent] = Field(default_factory=dict, max_length=MAX_SLOTS)
    """Spans that orders go on from, by id, where traces are on; told to who asks for them, and no
    part of the revision."""


class BundleFile(Record):
    """One file of an artifact."""

    size_bytes: int = Field(ge=0, le=MAX_ARTIFACT_BYTES)
    """Its length."""
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """Of its bytes, hex."""


class Bundle(Record):
    """First line of an artifact on the wire; the bytes of its files follow in this order."""

    digest: Digest
    """Which artifact."""
    files: dict[FileName, BundleFile] = Field(min_length=1, max_length=MAX_ARTIFACT_FILES)
    """By name."""

    @property
    def size_bytes(self) -> int:
        """All files together."""
        return sum(file.size_bytes for file in self.files.values())


Report = ProfileReport | DriftPost | WatchPost | DefinitionPost
"""What is posted; the path follows from the kind."""


_SINCE_2 = frozenset({"gpus", "gpus_traced"})


SaidT = TypeVar("SaidT", bound=AgentMessage)


def older(report: SaidT, *, version: int) -> SaidT:
    """Return what a side of a version can read of a report: version 1 knows nothing of GPUs."""
    known = _SINCE_2 & type(report).model_fields.keys()
    if version >= VERSION or not known:
        return report
    return report.model_copy(
        update={each: type(report).model_fields[each].default for each in known}
    )


def wire_json(report: Record) -> str:
    """Return a report as it is sent: what an older side does not know is there only if it is set.

    Examples
    --------
    >>> pod = PodRef(namespace="serving", name="chat-0", uid="u-1")
    >>> wire_json(AgentMessage(pod=pod, target="serving/chat"))
    '{"pod":{"namespace":"serving","name":"chat-0","uid":"u-1"},"target":"serving/chat"}'
    """
    unset = {each for each in _SINCE_2 if not getattr(report, each, None)}
    return report.model_dump_json(exclude=unset)


def environment_digest(environments: Sequence[ProcessEnvironment]) -> Digest | None:
    """Return the digest of what all processes of a server run on; None where they differ.

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


def revision_of(orders: Sequence[SwapOrder]) -> int:
    """Return a number that names a set of orders.

    It follows from what is ordered, so an operator that starts anew, or another one that leads now,
    names the same set alike. It says nothing of earlier or later.

    Examples
    --------
    >>> revision_of([]) == revision_of([]) and 1 <= revision_of([]) < 2**53
    True
    """
    bodies = sorted(digest_of(order.model_dump(mode="json")) for order in orders)
    return 1 + int(digest_of(bodies).removeprefix("sha256:")[:13], 16)


def as_orders(orders: Sequence[SwapOrder]) -> Orders:
    """Return the answer for a set of orders."""
    ordered = sorted(orders, key=lambda order: (order.definition, order.epoch))
    return Orders(revision=revision_of(ordered), orders=tuple(ordered))


def skew_s(hello: Hello, *, now: datetime) -> float:
    """Return how far a pod's clock is ahead, seconds; for people."""
    return (hello.at - now).total_seconds()
