"""Everything outside, as one small Protocol each.

Beside every real adapter ships a fake, and one conformance suite in ``tests/conformance`` runs over
both. A port says what may go wrong by the errors it names; it never says how it is done.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Protocol

from retuned.agent_wire import Hello, OrderDone, Orders, Report, Welcome
from retuned.contract import Definition, Digest, Solution, Workload, digest_of
from retuned.metrics import Row
from retuned.spans import NOTHING, Value
from retuned.stages.experiment import ExperimentPlan, Turn
from retuned.stages.swap import SwapOrder
from retuned.stages.trace import LaunchRecord
from retuned.stages.verdict import EvidenceFault, ServerEnvironment, Verdict
from retuned.stages.watch import Served, WatchSample


class Clock(Protocol):
    """Time, passed in so that tests own it."""

    def now(self) -> datetime:
        """Wall time, always with a zone."""
        ...

    def monotonic_s(self) -> float:
        """Seconds that never go back; only differences mean anything."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceBatch:
    """One complete trace file, read."""

    origin: str
    """Path of the file, for messages."""
    digest: Digest
    """Content digest; the same file is never counted twice."""
    format: str
    """Format found by content, such as ``rocprofv3-csv`` or ``kineto-json``."""
    launches: Sequence[LaunchRecord]
    """Every launch that could be believed, in order of start."""
    span_ns: int
    """Last end minus first start."""
    skipped: Mapping[str, int] = field(default_factory=dict)
    """Rows that were left out, by stable reason."""
    size_bytes: int = 0
    """Size of the file as it lies on disk; 0 where it never lay there."""
    completed_at_ns: int = 0
    """Wall time of the file's last change, ns since the epoch: places the batch in a window."""


class TraceSource(Protocol):
    """Where launches come from: watched folders, a profiler in the server, a replay."""

    def poll(self) -> Sequence[TraceBatch]:
        """Return batches completed since the last call, oldest first.

        A file that cannot be read becomes a `failures` entry, never an exception.
        """
        ...

    def give_back(self, batches: Sequence[TraceBatch]) -> None:
        """Take batches back that could not be kept; the next `poll` returns them again."""
        ...

    def failures(self) -> Sequence[tuple[str, str]]:
        """Return (path, message) of files refused since the last call."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotState:
    """One slot of one server, as the runtime reports it."""

    definition: str
    """Name of the definition, also the slot's name."""
    active: Digest | None
    """Artifact in use; None is the original."""
    epoch: int
    """Last order carried out; 0 before the first."""
    newest_epoch: int = 0
    """Last order that any process carried out; 0 says no more than `epoch`."""
    launches: Mapping[tuple[int, ...], int]
    """Launches since start, per lengths of the variable axes in declaration order."""
    other_launches: int = 0
    """Launches of shapes beyond those counted one by one, and of inputs without a shape."""
    tripped: str = ""
    """Why the runtime took the order back by itself; empty if it did not."""
    bypassed: bool = False
    """Whether the original serves for a while although an order is in force."""
    counted: bool = True
    """Whether launches pass it; of a kernel that a file configures none does."""


class Swapper(Protocol):
    """A running server's control socket. Every order is idempotent by epoch."""

    def slots(self) -> Sequence[SlotState]:
        """Report every slot.

        Raises
        ------
        TemporaryError
            If the server does not answer; it may be starting or gone.
        """
        ...

    def environments(self) -> Sequence[ServerEnvironment]:
        """Return what each process says that it runs on.

        Raises
        ------
        TemporaryError
            If the server, or one of its processes that listen, does not answer.
        """
        ...

    def prepare(self, order: SwapOrder, *, artifact_dir: Path) -> None:
        """Fetch, verify, load, repack and self-check; nothing is active yet.

        Raises
        ------
        CandidateError
            If the runtime refuses the artifact; the incumbent stays.
        TemporaryError
            If the server does not answer.
        """
        ...

    def commit(self, order: SwapOrder) -> int:
        """Make a prepared order active and return how long the flip took, ns.

        A rollback to the original, or to an artifact still loaded, needs no prepare.

        Raises
        ------
        CandidateError
            If the runtime refuses: ``not-prepared``, ``stale-epoch``, ``unknown-slot``.
        PartialCommit
            If some processes have carried it out and others have not.
        TemporaryError
            If the server does not answer; it may or may not have carried the order out.
        """
        ...

    def abort(self, order: SwapOrder) -> None:
        """Drop what was prepared for an order that will not be committed; the rest stays.

        Processes that do not answer drop it by themselves after a while.
        """
        ...

    def bypass(self, definition: str, *, on: bool) -> None:
        """Serve the original for a while (`on`), or the order in force again, for comparison.

        The order, its epoch and its counts stay; where no variant is in force nothing happens.

        Raises
        ------
        CandidateError
            ``unknown-slot``.
        TemporaryError
            If the server does not answer.
        """
        ...

    def ramp(
        self, order: SwapOrder, *, fraction: float, excluded: Sequence[tuple[int, ...]]
    ) -> None:
        """Change the share of launches that run an order in force, and the buckets left out.

        Parameters
        ----------
        order
            In force; another epoch is refused.
        fraction
            Share of launches, 0 to 1; 0 only shadows the artifact.
        excluded
            All shape buckets that the original serves although they are within the guard.

        Raises
        ------
        CandidateError
            ``stale-epoch`` if another order is in force.
        TemporaryError
            If the server, or one of its processes, does not answer.
        """
        ...

    def samples(self) -> Sequence[WatchSample]:
        """Return what was counted per slot since its last order.

        Raises
        ------
        TemporaryError
            If the server does not answer.
        """
        ...


class Operator(Protocol):
    """The operator of a cluster, as a sidecar asks it; it may be away for hours.

    Every method may raise `TemporaryError`: it does not answer, is busy, or does not know the
    token; and `Refused` with the operator's stable code: asking the same again is of no use.
    """

    def hello(self, hello: Hello) -> Welcome:
        """Say who is here, and learn which key signs artifacts.

        Raises
        ------
        TemporaryError
            If it does not answer.
        Refused
            ``not-your-pod``, ``pod-unknown``, ``pod-replaced``, ``no-target``, ``body-invalid``.
        UnreadableInput
            If its answer cannot be read.
        """
        ...

    def post(self, report: Report, *, traceparent: str = "") -> None:
        """Tell a profile, a drift or how the slots stand; telling it again changes nothing.

        Parameters
        ----------
        traceparent
            Span in which it was found; empty where traces are off.

        Raises
        ------
        TemporaryError
            If it does not answer or cannot keep it now.
        Refused
            As `hello`, and ``body-too-large``.
        """
        ...

    def orders(self, *, after: int, wait_s: float) -> Orders:
        """Return all that this pod is to have, once it is not what `after` names.

        Parameters
        ----------
        after
            Revision that is known; 0 knows none, and is answered at once.
        wait_s
            Longest wait, seconds; then the set is returned as it is.

        Raises
        ------
        TemporaryError
            If it does not answer.
        Refused
            As `hello`.
        UnreadableInput
            If its answer cannot be read.
        """
        ...

    def artifact(self, digest: Digest, *, folder: Path) -> None:
        """Write the files of an artifact into an empty folder; what it claims to be is unproven.

        Raises
        ------
        TemporaryError
            If it does not answer, or stops in the middle.
        Refused
            ``artifact-unknown``, ``artifact-damaged``, ``artifact-too-large``.
        UnreadableInput
            ``bundle-invalid`` or ``bundle-corrupt``: what came is not what was announced.
        OSError
            If the folder cannot be written.
        """
        ...

    def done(self, said: OrderDone, *, traceparent: str = "") -> None:
        """Tell what became of an order; telling it again changes nothing.

        Parameters
        ----------
        traceparent
            Span in which that happened; empty where traces are off.

        Raises
        ------
        TemporaryError
            If it does not answer or cannot keep it now.
        Refused
            As `hello`.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureRule:
    """How much is taken of the inputs of one slot."""

    every: int
    """One launch in so many, per shape."""
    samples: int
    """Kept per shape."""
    max_bytes: int
    """Kept in one process of the server."""
    sample_bytes: int
    """Largest sample; launches with larger inputs give none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedTensor:
    """One activation, as a stranger's server sent it."""

    dtype: str
    """Element type without the ``torch.`` prefix."""
    shape: tuple[int, ...]
    """Lengths."""
    data: bytes
    """Its bytes, contiguous."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedInputs:
    """Activations of one launch."""

    axes: Mapping[str, int]
    """Lengths of the variable axes."""
    tensors: Mapping[str, CapturedTensor]
    """By input; weights are never taken."""


class KernelTap(Protocol):
    """What a server's runtime saw of Triton launches; nothing of it is believed unread."""

    def observed(self) -> Sequence[Mapping[str, Any]]:
        """Return one record per kind of launch; see `retuned.lifting.records`.

        Raises
        ------
        TemporaryError
            If the server does not answer.
        """
        ...


class InputTap(Protocol):
    """Samples of what launches are given, for experiments; nothing is taken unless asked for."""

    def listen(self, definition: str, rule: CaptureRule | None) -> None:
        """Begin to sample a slot; None ends it and forgets what was taken. Safe to call again.

        Raises
        ------
        CandidateError
            ``unknown-slot``, ``unknown-op`` (an older runtime) or ``capture-forbidden``.
        TemporaryError
            If the server does not answer.
        """
        ...

    def captured(self, definition: Definition, *, max_bytes: int) -> Sequence[CapturedInputs]:
        """Return what was taken, of at most so many bytes; what does not fit is left out.

        Raises
        ------
        CandidateError
            As `listen`.
        TemporaryError
            If the server does not answer.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One candidate's way through the lab."""

    solution: Solution
    """What was tried."""
    verdict: Verdict
    """What the judge said."""
    seconds: float
    """Wall time it cost."""
    definition: Digest | None = None
    """Content of the definition that it was tried against; None where nobody wrote it down."""


class Bench(Protocol):
    """A lab that carries out a plan: this machine's child processes, or pods."""

    def run(self, plan: ExperimentPlan, *, known: Mapping[Digest, Finding]) -> Iterator[Finding]:
        """Yield a finding per candidate as soon as it is final, so that each is paid once.

        `known` holds findings of an earlier, interrupted run of the same plan: they are not
        measured again.

        Raises
        ------
        HarnessError
            If the lab itself failed; nothing may be concluded.
        MissingDependency
            If this machine lacks a compiler or device.
        """
        ...

    def build(self, solution: Solution) -> Path:
        """Return the folder of the compiled artifact, ready for `Swapper.prepare`."""
        ...

    def evidence(self, digest: Digest) -> bytes | None:
        """Return the raw numbers that a verdict names; None if the lab has none of that name."""
        ...

    def turns(self, plan: str) -> Sequence[Turn]:
        """Return which generators were asked for candidates of a plan, oldest first.

        Parameters
        ----------
        plan
            The plan's id. Turns may be forgotten once the daemon starts anew after the plan's end.
        """
        ...

    def stop(self) -> None:
        """End the run in flight, from another thread, and begin none any more.

        The run raises `TemporaryError`: what it has yielded is kept, the rest is resumed later.
        """
        ...


class EndToEnd(Protocol):
    """A running server as its users see it: the same requests, sent again and again."""

    def serve(self) -> Served:
        """Send every request once, several at a time, and return all answers with their times.

        A request that fails is an answer that failed.

        Raises
        ------
        TemporaryError
            If the server answers none of them.
        """
        ...


class Generator(Protocol):
    """Proposes variants; never judges them."""

    name: str

    def propose(
        self,
        definition: Definition,
        workloads: Sequence[Workload],
        *,
        history: Sequence[Finding],
        count: int,
    ) -> Sequence[Solution]:
        """Return up to `count` variants not in `history`; empty means the space is exhausted."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage:
    """One message to a language model."""

    role: Literal["system", "user"]
    """Who speaks."""
    content: str
    """The text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """One question to a language model."""

    messages: tuple[ChatMessage, ...]
    """The conversation; everything that is sent."""
    purpose: Mapping[str, int | str] = field(default_factory=dict)
    """What the asker wants to find again in `ChatModel.exchanges`; never sent."""
    max_tokens: int = 4096
    """Longest answer, tokens."""

    @property
    def digest(self) -> Digest:
        """Content digest: the same question is asked, and paid, once."""
        messages = [[message.role, message.content] for message in self.messages]
        purpose = sorted(self.purpose.items())
        return digest_of([messages, [list(pair) for pair in purpose], self.max_tokens])


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatAnswer:
    """What the model said; a stranger's text, whatever it says."""

    request: Digest
    """Digest of the question as it was sent; transcripts name it."""
    text: str
    """The answer, with secrets taken out."""
    finish: str
    """Why it ended: ``stop``, or ``length`` where it was cut off."""
    prompt_tokens: int
    """What was read, as reported, or else the most it can have been."""
    completion_tokens: int
    """What was written, as reported, or else the most it can have been."""
    usd: float
    """What it cost."""
    replayed: bool = False
    """Whether it was paid for earlier."""


class ChatModel(Protocol):
    """A language model behind a budget, and what was said so far in one conversation."""

    def ask(self, request: ChatRequest) -> ChatAnswer:
        """Return the model's answer; one that was paid for earlier is not asked for again.

        Raises
        ------
        Refused
            With the code ``budget-spent``, ``transcript-full``, ``endpoint-refused`` or
            ``redirected``: asking again is of no use.
        TemporaryError
            If the model did not answer after all tries.
        UnreadableInput
            If no try brought an answer that can be read.
        """
        ...

    def exchanges(self) -> Sequence[tuple[ChatRequest, ChatAnswer]]:
        """Return every question that was answered, oldest first."""
        ...


class Verifier(Protocol):
    """Says whether somebody signed something."""

    def check(self, payload: bytes, *, key: str, signature: bytes) -> EvidenceFault | None:
        """Return what is wrong: ``evidence-key-unknown``, ``-key-revoked``, ``evidence-altered``.

        Raises
        ------
        UnreadableInput
            If the keys cannot be read; treat that as doubt.
        """
        ...


class Notary(Verifier, Protocol):
    """Signs what was measured, and knows its own signatures."""

    def sign(self, payload: bytes) -> tuple[str, bytes]:
        """Return the name of the key and the signature; a first key is made where there is none.

        Raises
        ------
        UnreadableInput
            If the key is there and cannot be used.
        TemporaryError
            If no key can be kept.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One record in the store."""

    kind: str
    """For example ``proposal``."""
    id: str
    """Unique within the kind."""
    phase: str
    """Where it is in its life."""
    body: Mapping[str, Any]
    """The record as JSON data."""
    created_at: datetime
    """When it was first written."""
    updated_at: datetime
    """When it was last written."""
    traceparent: str = ""
    """Span in which it was last written; empty where traces are off. A hint, never required."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line of the audit trail; never changed, never removed."""

    at: datetime
    """When."""
    kind: str
    """Kind of the record it is about."""
    id: str
    """Id of the record it is about."""
    what: str
    """Stable code, such as ``approved``."""
    who: str
    """``retuned`` or a person."""
    detail: Mapping[str, Any] = field(default_factory=dict)
    """Numbers and text."""


class Store(Protocol):
    """Durable state. Every method is one transaction unless inside `transaction()`."""

    def add(self, kind: str, id: str, body: Mapping[str, Any], *, phase: str) -> bool:
        """Insert; False if the id is already there, which is left as it was."""
        ...

    def advance(
        self, kind: str, id: str, *, expect: str, to: str, body: Mapping[str, Any] | None = None
    ) -> bool:
        """Compare and set the phase (and body); False if the phase is not `expect`."""
        ...

    def get(self, kind: str, id: str) -> Stored | None:
        """Return one record."""
        ...

    def list(
        self,
        kind: str,
        *,
        phase: str | None = None,
        prefix: str = "",
        above: str = "",
        proposal: str = "",
        limit: int | None = None,
    ) -> Sequence[Stored]:
        """Return records of a kind, oldest first (`limit` keeps the newest).

        `prefix` and `above` keep ids that begin so, and ids that sort after, `proposal` those whose
        body names that proposal: what else there is of the kind is not read. Only decisions and
        orders are found by their proposal.
        """
        ...

    def ids(
        self, kind: str, *, phase: str | None = None, prefix: str = "", above: str = ""
    ) -> Sequence[str]:
        """Return what `list` would, as ids only: cheap however large the bodies are."""
        ...

    def page(
        self, kind: str, *, phases: Sequence[str], before: str = "", limit: int
    ) -> Sequence[Stored]:
        """Return the newest records of a kind in any of some phases, newest first.

        Cheap however many there are. `before` keeps those that were added before the record of
        that id; where there is none of that id, nothing is returned.
        """
        ...

    def counts(self, kind: str) -> Mapping[str, int]:
        """Return how many records of a kind are in each phase; cheap as `ids` is."""
        ...

    def record(self, event: Event) -> None:
        """Append to the audit trail."""
        ...

    def events(self, *, id: str | None = None, limit: int | None = None) -> Sequence[Event]:
        """Return the trail, oldest first (`limit` keeps the newest)."""
        ...

    def put_blob(self, data: bytes) -> Digest:
        """Keep bytes under their digest."""
        ...

    def get_blob(self, digest: Digest) -> bytes:
        """Return bytes; verifies them.

        Raises
        ------
        UnreadableInput
            If they are absent or do not match their digest.
        """
        ...

    def drop_blob(self, digest: Digest) -> bool:
        """Forget bytes for good; False if they are not here. Outside transactions, like `put_blob`.

        Raises
        ------
        TemporaryError
            If they cannot be removed now.
        UnreadableInput
            If it is no digest.
        """
        ...

    def transaction(self) -> AbstractContextManager[None]:
        """All writes inside happen together or not at all."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceState:
    """One accelerator at one moment; None is what nobody says."""

    gpu: str
    """Vendor and number, such as ``nvidia-0``."""
    core_hz: float | None = None
    """Clock of what computes."""
    core_max_hz: float | None = None
    """The highest that it can have."""
    memory_hz: float | None = None
    """Clock of the memory."""
    power_w: float | None = None
    """Draw, watts."""
    power_limit_w: float | None = None
    """Most that it may draw, watts."""
    temperature_c: float | None = None
    """Degrees Celsius."""
    throttled: frozenset[str] | None = None
    """Why it is slower than it could be: ``power``, ``thermal``, ``hardware``, ``software``."""
    busy_ratio: float | None = None
    """Share of time in which it did something."""
    memory_used_bytes: int | None = None
    """Memory in use."""
    processes: tuple[int, ...] | None = None
    """Processes that compute on it, as this process numbers them."""


class Devices(Protocol):
    """The accelerators of this machine, as their driver shows them. Context, never a decision."""

    def read(self) -> Sequence[DeviceState]:
        """Return how each stands now; nothing where the driver does not answer. Never raises."""
        ...

    def close(self) -> None:
        """Let the driver's library go."""
        ...


class Telemetry(Protocol):
    """Metrics and traces out; `retuned.metrics` says which there are."""

    def count(self, name: str, amount: float = 1.0, **labels: str) -> None:
        """Add to a counter."""
        ...

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""
        ...

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Add to a histogram."""
        ...

    def table(self, name: str, rows: Iterable[Row]) -> None:
        """Replace all series of a metric: what is not among the rows is no more."""
        ...


class Spans(Protocol):
    """What is being done now, for traces and logs. Nothing here raises or waits."""

    def span(
        self,
        stage: str,
        *,
        after: str = "",
        links: Sequence[str] = (),
        since_s: float = 0.0,
        about: Mapping[str, Value] = NOTHING,
    ) -> AbstractContextManager[None]:
        """Do something as one span; where nothing is written down in it, it was nothing.

        Parameters
        ----------
        stage
            What is done, a word such as ``gate``.
        after
            ``Stored.traceparent`` of what is worked on: the span goes on from there. Empty, or what
            is no traceparent, goes on from the span around this one.
        links
            The same of whatever else led here.
        since_s
            How long ago the work began, seconds.
        about
            What it is about; ``proposal``, ``experiment``, ``kernel`` are repeated in logs.
        """
        ...

    def carried(self) -> str:
        """Return the traceparent of the span that is open; what is written down carries it."""
        ...

    def say(self, **about: Value) -> None:
        """Add to what the open span is about."""
        ...

    def close(self) -> None:
        """Send what waits, as far as that takes a few seconds."""
        ...
