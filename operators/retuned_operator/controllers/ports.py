"""What controllers need of the outside, one small Protocol each.

Every look-up may answer "not known"; what is not known holds, and is never taken for "there is
none".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol

from retuned.api.agent import TunablePost
from retuned.api.values import ApiModel
from retuned.contract import Digest, Guard, Solution, TrustClass, Workload
from retuned.control import ResultFact
from retuned.control.analysis import Compared
from retuned.experiment.tunable_task import TunableInputs
from retuned.ports import Finding
from retuned.stages.drift import DriftReport
from retuned.stages.gate.limits import Metric
from retuned.stages.hypothesis import Hypothesis, Untried
from retuned.stages.profile import Counts, SignatureStat, WorkloadProfile
from retuned.stages.proposal import Lesson, Proposal, TableText, variant_of
from retuned.stages.verdict import EvidenceFault, ServerEnvironment, Verdict
from retuned_operator.agent_api.reports import PodReports
from retuned_operator.kube.resources import Obj, Resource
from retuned_operator.manifests import ServerImage
from retuned_operator.schema import JobRole, KernelExperiment, TuningTarget

BY_TARGET = "target"
"""Index of experiments and proposals: ``namespace/name`` of their target."""
BY_PHASE = "phase"
"""Index of proposals: their phase."""
BY_PROPOSAL = "proposal"
"""Index of decisions: ``namespace/name`` of the proposal that they name."""
BY_EXPERIMENT = "experiment"
"""Index of Jobs: uid of their experiment, and its ``namespace/name``."""
BY_BUDGET = "budget"
"""Index of experiments that use a policy's budget: ``namespace/policy@`` and ``open``, or the day
on which they ended."""
BY_SELECTOR = "selector"
"""Index of targets: ``namespace/key=value`` of the first label that they select by."""
BY_LABEL = "label"
"""Index of pods: ``namespace/key=value`` for each of their labels."""

BY_SIDECAR = "sidecar"
"""Index of pods: namespace of each that has a sidecar."""


class Caches(Protocol):
    """Copies of what is watched, at least as new as what this process has written itself."""

    def knows(self, resource: Resource) -> bool:
        """Whether the copies of a kind are whole and not too old."""
        ...

    def get(self, resource: Resource, key: str) -> Obj | None:
        """Return one object by ``namespace/name``; None if it is not there."""
        ...

    def list(self, resource: Resource, *, namespace: str = "") -> Sequence[Obj] | None:
        """Return all of a kind; None while that is not known."""
        ...

    def by(self, resource: Resource, index: str, word: str) -> Sequence[Obj] | None:
        """Return what an index finds; None while that is not known."""
        ...

    def dated(self, resource: Resource, index: str, word: str) -> Mapping[str, str] | None:
        """Return by key when what an index finds was made; None while that is not known."""
        ...


class Owners(Protocol):
    """Workloads, whose pod templates canary replicas are made from."""

    def get(self, resource: Resource, name: str, *, namespace: str = "") -> Obj:
        """Return one object as it is now.

        Raises
        ------
        ApiError
            `NotFound`, `Forbidden`, or any other.
        """
        ...


class Writes(Protocol):
    """The writes of an API server that controllers make; errors are those of the runtime."""

    def get(self, resource: Resource, name: str, *, namespace: str = "") -> Obj:
        """Return one object as it is now."""
        ...

    def create(self, resource: Resource, body: Mapping[str, Any]) -> Obj:
        """Make an object."""
        ...

    def patch(
        self, resource: Resource, name: str, *, change: Mapping[str, Any], namespace: str = ""
    ) -> Obj:
        """Merge a change into an object."""
        ...

    def patch_status(
        self,
        resource: Resource,
        name: str,
        *,
        status: Mapping[str, Any],
        namespace: str = "",
        version: str = "",
    ) -> Obj:
        """Replace the status of an object, of this version only."""
        ...

    def delete(
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str = "",
        uid: str = "",
        version: str = "",
    ) -> None:
        """Ask for the end of an object."""
        ...


class Reports(Protocol):
    """Reports of sidecars."""

    def of(self, uid: str) -> PodReports | None:
        """Return the last reports of a pod's sidecar; None before the first."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSubject:
    """Variables for queries of a policy: the servers that the analysis compares."""

    namespace: str
    """Of the target: ``$namespace``."""
    target: str
    """Its name: ``$target``."""
    pods: tuple[str, ...]
    """Pods with an order to swap: ``$pods``, a regular expression."""


class Signals(Protocol):
    """Metrics of the service from a monitoring system."""

    def slo_firing(self, target: TuningTarget) -> bool | None:
        """Whether an alert on the service level fires; None while it is unknown."""
        ...

    def compare(
        self, metrics: Sequence[Metric], *, about: EventSubject, since: datetime
    ) -> Mapping[str, Compared]:
        """Return each metric now and at an earlier moment; one that is left out has no data.

        Parameters
        ----------
        about
            What the queries may name.
        since
            When the first pod got an order to swap.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedSizes:
    """One size class of a tunable, over all processes of a target's servers."""

    axes: Mapping[str, int] = field(hash=False)
    """Upper end of each axis."""
    captured: int = 0
    """Launches during captures of graphs."""
    sizes: tuple[int, ...] = ()
    """Exact sizes on the first axis of captured launches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedTunable:
    """What the servers of a target launch now of one tunable; all of their processes agree."""

    definition: str
    """Id of the tunable."""
    family: str
    module: str
    """Module of the kernel, for people."""
    source: str
    """Digest of the kernel's source."""
    frozen: Mapping[str, Any] | None = field(default=None, hash=False)
    """Configuration that an autotuner chose once for all sizes, also while a table hides it; None
    of others."""
    ways: Mapping[str, str] = field(default_factory=dict, hash=False)
    """``on`` or a reason code, by way of change."""
    asked: tuple[LaunchedSizes, ...] = ()
    """Size classes."""
    refused: str = ""
    """Reason code if it cannot be changed in these servers, such as ``batch-invariant``."""

    @property
    def incumbent(self) -> Solution:
        """The servers' own choice as a variant."""
        chosen = {"frozen": dict(self.frozen)} if self.frozen is not None else {}
        return variant_of(self.definition, [], author="server", source=self.source, **chosen)


POST_FRESH = timedelta(minutes=15)
"""Older posts do not count: their pod no longer answers, or its traffic is another one."""


@dataclass(frozen=True, slots=True)
class PodPost:
    """What one pod posted about one tunable, without what an experiment needs."""

    pod: str
    """Its uid."""
    at: datetime
    """By the operator's clock."""
    post: TunablePost


class Tunables(Protocol):
    """Tunables of servers, from their pods' posts."""

    def of(self, target: str) -> Mapping[str, Sequence[PodPost]]:
        """Return the last post of each pod of a target, by tunable."""
        ...

    def launched(self, target: str, definition: str) -> LaunchedTunable | None:
        """Return what the servers of a target launch now.

        None while that is not known, and where their processes run different sources.
        """
        ...

    def tell(self, target: str, untried: Mapping[str, Untried]) -> None:
        """Note why tunables of a target get no experiment now."""
        ...

    def untried(self, target: str) -> Mapping[str, Untried]:
        """Return why tunables of a target get no experiment, by tunable."""
        ...


class NoTunables:
    """The tunables of servers that post none."""

    def of(self, target: str) -> Mapping[str, Sequence[PodPost]]:
        """Return nothing; see `Tunables.of`."""
        return {}

    def launched(self, target: str, definition: str) -> LaunchedTunable | None:
        """Return None; see `Tunables.launched`."""
        return None

    def tell(self, target: str, untried: Mapping[str, Untried]) -> None:
        """Do nothing; see `Tunables.tell`."""

    def untried(self, target: str) -> Mapping[str, Untried]:
        """Return nothing; see `Tunables.untried`."""
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvenTable:
    """A table that was made from a win."""

    solution: Digest
    """Variant that was proven."""
    text: str
    """What servers get."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedWin:
    """What a trusted Job proved."""

    verdict: Verdict
    """The judge's verdict; its evidence is signed, and in the store."""
    trust: TrustClass
    """Class of the author."""
    table: Solution | None = None
    """The rules that won, read strictly; None where a kernel did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenDrift:
    """A drift report without an experiment yet, with the workload since."""

    id: str
    """Its id in the store."""
    report: DriftReport
    """The report of stage 3."""
    beside: str = ""
    """State of the pod's accelerators then, as text; empty if unknown or not notable."""
    windows: tuple[WorkloadProfile, ...]
    """Windows reported since, of any pod of the target, oldest first."""
    counts: Counts = field(default_factory=dict)
    """Launches that slots counted in these windows, those included that no trace saw."""
    traceparent: str = ""
    """Span in which it was heard; empty where traces are off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TunableSource:
    """What an experiment on a tunable needs from the servers of a target."""

    inputs: TunableInputs
    """Report, recipes, environment and rules in force, as the servers report them."""
    server: ServerImage
    """Image that the servers run."""


class TunableSources(Protocol):
    """What sidecars report about the tunables of their servers."""

    def source(self, target: str, tunable: str) -> TunableSource | None:
        """Return what is known of a tunable; None if no server of the target reports it now.

        Parameters
        ----------
        target
            ``namespace/name``.

        Raises
        ------
        Refused
            If it can get no experiment, now or later: the servers' image is not known by its
            digest, or their environments differ.
        TemporaryError
            If it cannot be read now.
        """
        ...


class Ledger(Protocol):
    """The operator's store for controllers: results, evidence and hypotheses."""

    def collect(self, experiment: KernelExperiment) -> None:
        """Fetch the results of the experiment's pods; a node that is away may take long.

        A result that cannot be fetched is requested later, also by `results`.
        """
        ...

    def results(self, experiment: KernelExperiment) -> Sequence[ResultFact]:
        """Return the complete results that the experiment's pods have left.

        Raises
        ------
        TemporaryError
            If they cannot be read now.
        """
        ...

    def lost(self, experiment: KernelExperiment) -> Mapping[str, str]:
        """Return the Jobs whose pods have ended without a result that can be read.

        By name, with a stable code that says why.
        """
        ...

    def win(self, experiment: KernelExperiment, *, job: str, pod_uid: str) -> VerifiedWin | None:
        """Return what a pod proved, its evidence checked and signed; None where it does not hold.

        Raises
        ------
        TemporaryError
            If it cannot be read or kept now.
        """
        ...

    def keep_table(
        self, table: TableText, solution: Solution, *, guard: Guard, target: str
    ) -> None:
        """Keep the text of a table, signed for its target; keeping it again changes nothing.

        Raises
        ------
        TemporaryError
            If it cannot be kept now.
        """
        ...

    def keep_proof(self, document: bytes) -> Digest:
        """Keep the pairs of a live proof with their verdict, signed; return their digest.

        Raises
        ------
        TemporaryError
            If they cannot be kept now.
        """
        ...

    def proof(self, digest: Digest) -> bytes | None:
        """Return a document of `keep_proof`; None where it is gone, or its signature is wrong.

        Raises
        ------
        TemporaryError
            If it cannot be read now.
        """
        ...

    def keep_lesson(self, lesson: Lesson, *, id: str, target: str) -> None:
        """Keep a lesson of a live proof, signed; keeping it again changes nothing.

        Parameters
        ----------
        id
            Of the proof.
        target
            The servers, ``namespace/name``.

        Raises
        ------
        TemporaryError
            If it cannot be kept now.
        """
        ...

    def lessons(self, target: str) -> Sequence[Lesson]:
        """Return the lessons that live proofs have left of a target, oldest first.

        Raises
        ------
        TemporaryError
            If it cannot be read now.
        """
        ...

    def table(self, digest: Digest) -> ProvenTable | None:
        """Return a table by the digest of its text; None if it is not stored."""
        ...

    def task(self, experiment: KernelExperiment, role: JobRole, *, arch: str = "") -> str:
        """Return what the pods of a Job are to do, as JSON.

        Parameters
        ----------
        arch
            What the servers run on; empty while it is unknown.

        Raises
        ------
        TemporaryError
            If what it is made from cannot be read now.
        Refused
            If a tunable can get no experiment.
        """
        ...

    def server(self, experiment: KernelExperiment) -> ServerImage | None:
        """Return the image of the servers, for an experiment on a tunable; None for kernels.

        Raises
        ------
        TemporaryError, Refused
            As `task`.
        """
        ...

    def belief(self, id: str) -> Hypothesis | None:
        """Return a hypothesis; None if it is not in the store."""
        ...

    def findings(self, experiment: KernelExperiment) -> Sequence[Finding]:
        """Return one finding a candidate, of the results that count; the trusted Job's goes first.

        Raises
        ------
        TemporaryError
            If they cannot be read now.
        """
        ...

    def drifts(self, target: str) -> Sequence[OpenDrift]:
        """Return the reports of a target that are still to be answered, oldest first."""
        ...

    def believe(self, belief: Hypothesis) -> None:
        """Store a hypothesis; storing it again changes nothing."""
        ...

    def answered(self, drifted: OpenDrift) -> None:
        """Note that a report has been answered."""
        ...

    def doubt(
        self, proposal: Proposal, *, servers: Sequence[ServerEnvironment]
    ) -> EvidenceFault | None:
        """Return why evidence does not carry a proposal; None where it does.

        Parameters
        ----------
        servers
            What the processes run on that are to be swapped.

        Raises
        ------
        TemporaryError
            If it cannot be read now; it may be valid.
        """
        ...


LiveShapes = Callable[[SignatureStat], Sequence[tuple[Workload, float]]]
"""Shapes that launches of live kernels may have had, weighted by launches, and the share of the
time of each; none for other launches."""
Dims = tuple[tuple[int, ...], ...]
"""Lengths of each tensor of a launch."""


class Kernels(Protocol):
    """The catalog, as far as the operator asks it."""

    def incumbent(self, definition: str, *, target: TuningTarget) -> Solution | None:
        """Return the original of such servers; None for an unknown kernel."""
        ...

    def structures(self, definition: str, *, target: TuningTarget) -> tuple[str, ...]:
        """Return the source structures that a search can try; empty if none is known."""
        ...

    def recognise(
        self, kernel: str, dims: Dims, dtypes: tuple[str, ...], *, target: TuningTarget
    ) -> tuple[str, Mapping[str, int]] | None:
        """Return definition and variable axes of a launch; None for an unknown kernel."""
        ...

    def live_shapes(self, *, target: TuningTarget) -> LiveShapes:
        """Return how to find launches of a target's live kernels by name and grid."""
        ...

    def is_live(self, definition: str, *, target: TuningTarget) -> bool:
        """Whether servers have no slot for it before a variant is prepared."""
        ...


class Queue(Protocol):
    """Queue in which a controller puts another object for its reconcile."""

    def add(self, key: str) -> None:
        """Queue a key."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesEvent:
    """One thing that people should see beside an object: a Kubernetes Event."""

    resource: Resource
    """Kind of the object."""
    about: ApiModel
    """The object."""
    reason: str
    """Stable code, CamelCase."""
    note: str
    """For people."""
    warning: bool = False
    """Whether the event has the type Warning."""
    once: str = ""
    """What makes it the same event as an earlier one; the reason by default."""
