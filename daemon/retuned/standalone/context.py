"""What the steps of the loop share: the ports, and the names under which records are kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, Protocol

from retuned.contract import Definition, Digest, Solution
from retuned.lifting.lift import Lifted
from retuned.node import context as observing
from retuned.node import live_proof, order_context
from retuned.node.own_overhead import OWN_OVERHEAD, OverheadKeeper
from retuned.ports import (
    Bench,
    Clock,
    Devices,
    EndToEnd,
    InputTap,
    KernelTap,
    LiveSteps,
    Notary,
    ServiceCounts,
    Spans,
    StepObserver,
    Store,
    Swapper,
    Telemetry,
    TraceSource,
)
from retuned.runtime_client.tunables import TunableMemory, TunableTap
from retuned.runtime_client.tuned_files import FileTap
from retuned.stages.drift import DriftSettings
from retuned.stages.experiment import Budget
from retuned.stages.gate import (
    GPU_MODEL_LABEL,
    KernelTuningPolicy,
    PolicyLimits,
    limits_of,
    policy_for,
)
from retuned.stages.hypothesis import HypothesisSettings
from retuned.stages.profile import ProfileSettings
from retuned.stages.swap import MixedEpochs
from retuned.stages.watch import EndToEndSettings, WatchSettings
from retuned.telemetry.spans import NoSpans
from retuned.tuned_files.records import Format, Look


class RecordKind(StrEnum):
    """Kinds of records in the store."""

    BATCH = observing.BATCH
    """One trace file, folded: new -> folded."""
    WINDOW = observing.WINDOW
    """One window of the workload: new -> baseline | judged | skipped."""
    DETECTOR = observing.DETECTOR
    """State of the drift detector: current."""
    DRIFT = observing.DRIFT
    """One drift report: new -> explained | noted; an alarm may be held -> noted."""
    HYPOTHESIS = "hypothesis"
    """open -> testing -> tested | refined | abandoned; open -> outdated by a newer belief."""
    EXPERIMENT = "experiment"
    """running -> done -> won -> proposed | refused; running -> failed.

    Where the proposal expired: proposed -> lapsed -> proposed | refused. A win that a lesson
    or the host defers: won -> deferred -> proposed | refused.
    """
    FINDING = "finding"
    """One candidate's verdict in one experiment: final."""
    TURNS = "turns"
    """Who was asked for the candidates of one experiment, under the experiment's id: final."""
    PROPOSAL = "proposal"
    """A win that needs a decision, in a phase of `retuned.api.proposal.ProposalPhase`."""
    STATUS = "proposal-status"
    """`SwapProposalStatus` of a proposal, under its id: current."""
    TARGET = "target"
    """Active kernels and quarantine of the server, a `TuningTargetStatus`: current."""
    GATE = "gate"
    """The last decision of the gate about a proposal, under its id: current."""
    ORDER = order_context.ORDER
    """An order of the node agent, see `retuned.node.order_context.ORDER`."""
    DECISION = "decision"
    """What a person said; immutable."""
    FREEZE = "freeze"
    """active -> lifted."""
    REQUEST = "request"
    """Rollback or abort asked for by a person: new -> done."""
    LIVE_PROOF = live_proof.LIVE_PROOF
    """The live proof of a proposal's swap, see `retuned.node.live_proof.LIVE_PROOF`."""
    REPEATED_PROOF = "repeated-proof"
    """Pairs of a swap that was kept, for an alarm or a day of its sentinel, see
    `retuned.standalone.proofs.repeated_proof`: proving -> a verdict."""
    SENTINEL = "sentinel"
    """When the next pair of a promoted swap runs, under its proposal's id: current."""
    ATTRIBUTION = "attribution"
    """Whether a swap is the cause of an alarm, under the id of its drift report: trying -> swap |
    not-swaps | unknown."""
    LESSON = "lesson"
    """What a live proof has shown against a swap, under its proposal's id: holds <-> lifted."""
    OWN_OVERHEAD = OWN_OVERHEAD
    """See `retuned.node.own_overhead.OWN_OVERHEAD`."""
    PACE = "pace"
    """Newest looks at the server's steps: current."""
    CALIBRATION = "calibration"
    """A proven swap beside its claim, under its proposal's id: agrees | differs."""
    FORECAST = "forecast"
    """Predicted gain of a step from a proposal's swap, under its id: current."""
    END_TO_END = "end-to-end"
    """Gate G7 on a proposal's swap, under its id: measuring -> pass | fail | not-measured."""
    LIFTED = "lifted"
    """A live kernel: lifted <-> outdated, with its definition; or kept, with the reason, ->
    settled. When what was seen changed last: seen."""
    FILE = "file"
    """A kernel that the server configures by a file, under its definition: tuned, with the step
    that experiments are about, <-> left, with the reason."""
    FILE_CHANGE = "file-change"
    """What a proposal writes into such a file, or the table that it puts in force, under the
    proposal's id: current."""
    TUNABLE = "tunable"
    """A tunable of the server, under its id: tuned, where a hypothesis was made, <-> left, with the
    reason."""
    HOUSEKEEPING = "housekeeping"
    """When old things were cleared away last: current; experiments whose evidence went: cleared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long records and files are kept after their last use."""

    things: timedelta = timedelta(days=30)
    """Compiled variants and raw samples."""
    evidence: timedelta = timedelta(days=365)
    """Signed documents."""
    windows: timedelta = timedelta(days=7)
    """Windows in which nothing asked for anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSettings:
    """Numbers of the loop; everything a person may set is in `retuned.settings`."""

    target: str
    """Name of the server that is watched."""
    window: timedelta
    """Length of a window."""
    kernel_bounds: Mapping[str, Mapping[str, tuple[int, int | str]]] = field(default_factory=dict)
    """By live kernel and parameter: least and largest of numbers that are places."""
    settle: timedelta
    """How long after a window's end its files may still land."""
    baseline_windows: int
    """Windows that make the baseline."""
    explain_windows: int = 2
    """Windows after a drift report that show what the new traffic is."""
    profile: ProfileSettings = field(default_factory=ProfileSettings)
    """How launches are folded."""
    drift: DriftSettings = field(default_factory=DriftSettings)
    """The detector."""
    budget: Budget = field(default_factory=Budget)
    """Of one experiment."""
    generators: tuple[str, ...] = ("search",)
    """Who proposes variants."""
    watch: WatchSettings = field(default_factory=WatchSettings)
    """When to keep and when to roll back."""
    end_to_end: EndToEndSettings = field(default_factory=EndToEndSettings)
    """How much is measured on the whole server."""
    end_to_end_time: timedelta = timedelta(minutes=30)
    """Most time that this may take for one swap."""
    observes_only: str = ""
    """Why no experiment begins here at all; empty where they do."""
    experiments_per_day: int = 24
    """Most experiments that begin within 24 hours."""
    experiment_s_per_day: float = 4 * 3600.0
    """No experiment begins when those of the last 24 hours took so long, seconds."""
    hypothesis: HypothesisSettings = field(default_factory=HypothesisSettings)
    """How gains are guessed, and when trying again no longer pays."""
    shadow_every: int = 50
    """One swapped launch in so many is checked."""
    shadow_later: tuple[tuple[float, int], ...] = ((600.0, 1_000), (86_400.0, 10_000))
    """(From this age of a shape bucket in seconds, one in so many); never more than at first."""
    min_saving: float = 0.002
    """Smallest share of all GPU time that a swap must save to be proposed."""
    proposal_ttl: timedelta = timedelta(hours=24)
    """After this an undecided proposal expires; it rests as long before it is proposed again."""
    max_proposals: int = 3
    """How often a win is proposed before a new experiment has to find it again."""
    evidence_max_age: timedelta = timedelta(days=7)
    """What was measured longer ago than this is not proposed again."""
    quarantine: timedelta = timedelta(days=7)
    """How long a rolled-back digest may not be proposed again."""
    environment_mismatch: Literal["refuse", "warn"] = "refuse"
    """What happens where a server runs on something else than what was measured."""
    mixed_epochs: MixedEpochs = MixedEpochs.REFUSE
    """Whether processes of one server may differ in what they run."""
    catch_up_s: float = 300.0
    """How long a process that came late may take to follow, before all go back, seconds."""
    retention: Retention = field(default_factory=Retention)
    """How long records and files are kept after their last use."""


class KernelCatalog(Protocol):
    """What the loop asks about kernels."""

    def recognise(
        self, kernel: str, dims: tuple[tuple[int, ...], ...], dtypes: tuple[str, ...]
    ) -> tuple[str, Mapping[str, int]] | None:
        """Return definition and variable axes of a launch; None if the catalog has none for it."""
        ...

    def incumbent(self, definition: str) -> Solution:
        """Return the variant that the server comes with."""
        ...

    def family(self, definition: str) -> str:
        """Return the operator type: what is learned on one of its sizes helps the others."""
        ...

    def audited(self, definition: str) -> tuple[str, ...]:
        """Return structures whose source runs in production: tried first, by parameters."""
        ...

    def structures(self, definition: str) -> tuple[str, ...]:
        """Return all source structures."""
        ...

    def floor_ns(self, definition: str, axes: Mapping[str, int]) -> int:
        """Return the roofline time; 0 where unknown."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Captures:
    """What the loop samples inputs with; part of a `Context`."""

    tap: InputTap
    """The server's end."""
    folder: Path
    """Where experiments find them, a folder per plan."""
    definition: Callable[[str], Definition | None]
    """What a kernel computes; None if unknown."""
    enabled: bool = False
    """Whether this machine's owner permits it at all."""
    every: int = 100_000
    """One launch in so many, per shape."""
    max_bytes: int = 64 << 20
    """Most bytes of one kernel, whatever a policy permits."""
    keep: timedelta = timedelta(days=1)
    """Longest time that an experiment's samples are kept, whatever a policy permits."""
    told: dict[str, bool] = field(default_factory=dict)
    """Slots that were told not to sample: once is enough, a new server does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """What the loop asks about files that a server configures kernels by; part of a `Context`."""

    tap: FileTap
    """The server's end."""
    measured: frozenset[Format] = frozenset({"moe-vllm", "moe-sglang"})
    """Files whose rows the lab can measure. Rows of tables name solutions of the server's own
    libraries, which no lab of ours launches: such files are looked at, and left."""

    def formats(self) -> frozenset[Format]:
        """Return the files that the server reads; see `FileTap.formats`."""
        return self.tap.formats()

    def look(self, format: Format, lookup: Mapping[str, Any]) -> Look:
        """Return what is picked today; see `FileTap.look`."""
        return self.tap.look(format, lookup)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tunables:
    """What the loop asks about tunables; part of a `Context`."""

    tap: TunableTap
    """The server's end."""
    free_device: Callable[[str], str | None] = lambda _: None
    """Returns another GPU of a model on which nothing runs, as ``CUDA_VISIBLE_DEVICES`` names it.
    """
    sleep: Callable[[float], object] = time.sleep
    """Waits between two pauses, seconds."""
    memory: TunableMemory = field(default_factory=TunableMemory)
    pauses: dict[str, Any] = field(default_factory=dict)
    """Pauses of running experiments, by plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Ports and settings, passed to every step."""

    store: Store
    clock: Clock
    telemetry: Telemetry
    traces: TraceSource
    swapper: Swapper
    bench: Bench
    notary: Notary
    """Signs evidence, and verifies it before anything is built on it."""
    settings: LoopSettings
    environment: Digest
    """Digest of this machine's Environment."""
    catalog: KernelCatalog
    """What is known of each definition."""
    policies: Callable[[], Sequence[KernelTuningPolicy]]
    """Gate policies in force; an invalid file gives none, and none means wait."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of the target, for policy selectors."""
    spans: Spans = field(default_factory=NoSpans)
    """What is being done, for traces and logs."""
    lab: Path | None = None
    """Folder of the lab, whose old files are removed; None removes nothing."""
    end_to_end: EndToEnd | None = None
    """The server as its users reach it; None if its address is not set."""
    live_steps: LiveSteps | None = None
    """Steps of the server, for live proofs; None proves none."""
    own_overhead: OverheadKeeper | None = None
    """What Retuned costs the server; None does not measure it."""
    service_counts: ServiceCounts | None = None
    """Counts of the server's requests; None if their address is not set."""
    step_observer: StepObserver | None = None
    """Steps of the server outside of proofs; None predicts nothing."""
    captures: Captures | None = None
    """What inputs are sampled with; None samples none."""
    kernels: KernelTap | None = None
    """Shows what is launched in the server; None lifts no live kernel."""
    structures: Callable[[Lifted], Lifted] | None = None
    """Adds the catalog's structures to a live kernel that computes what the catalog knows, by
    asking the kernel; None adds none."""
    files: Files | None = None
    """Files that the server configures kernels by; None changes none."""
    tunables: Tunables | None = None
    """Tunables of the server; None changes none."""
    changes: Path | None = None
    """Folder of signed changes of files and tables, for the server."""
    devices: Devices | None = None
    """Reads the state of accelerators; None where no reader works."""
    server_processes: Callable[[], frozenset[int]] = frozenset
    """Processes of the watched servers, as far as they can be seen."""

    @property
    def gpu_model(self) -> str:
        """Model of the accelerator that the server uses, for policy selectors."""
        return self.labels.get(GPU_MODEL_LABEL, "cpu")

    def policy_limits(self, definition: str) -> PolicyLimits | None:
        """Return the limits of the policy that decides about a kernel; None without one.

        Without a policy nothing is swapped, but experiments may find what would be gained.
        """
        policy = policy_for(self.policies(), definition, labels=self.labels).policy
        return limits_of(policy) if policy is not None else None
