"""The ports of controllers as tests want them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from unittest import mock

from tests.operators import examples

from retuned.contract import Digest, Guard, Solution, TrustClass, Workload, digest_of
from retuned.control import ResultFact
from retuned.control.analysis import Compared
from retuned.errors import Refused
from retuned.ports import Finding
from retuned.stages.gate.limits import Metric
from retuned.stages.hypothesis import Hypothesis
from retuned.stages.profile import SignatureStat
from retuned.stages.proposal import Lesson, Proposal, TableText
from retuned.stages.verdict import (
    EvidenceFault,
    Interval,
    Reason,
    ServerEnvironment,
    ShapeResult,
    Status,
    Verdict,
)
from retuned_operator.agent_api import Receipt
from retuned_operator.agent_api.ports import Said
from retuned_operator.controllers.ports import (
    Dims,
    EventSubject,
    LiveShapes,
    OpenDrift,
    ProvenTable,
    VerifiedWin,
)
from retuned_operator.manifests import ServerImage
from retuned_operator.schema import JobRole, KernelExperiment, TuningTarget

KERNEL = "rmsnorm_h512"
ANOTHER = "rope_h512"
LIVE = "lifted_their_kernel_0123456789"
ORIGINAL = examples.BASELINE
WIN = Interval(lower=1.2, point=1.25, upper=1.3, confidence=0.995)


class FakeLedger:
    """Results, evidence and beliefs as the tests want them."""

    def __init__(self) -> None:
        self.found: list[ResultFact] = []
        self.gone: dict[str, str] = {}
        self.faults: dict[str, EvidenceFault] = {}
        self.tasks: list[tuple[str, JobRole, str]] = []
        self.servers: dict[str, ServerImage | Refused] = {}
        """By tunable: the image of its servers, or why it can get no container."""
        self.reports: list[OpenDrift] = []
        self.beliefs: list[Hypothesis] = []
        self.believes = True
        """Whether experiments that a test makes by hand have a hypothesis."""
        self.tried: list[Finding] = []
        self.tables: dict[Digest, ProvenTable] = {}
        self.proofs: list[bytes] = []
        """What was kept of live proofs, oldest first."""
        self.learned: dict[tuple[str, str], Lesson] = {}
        """What live proofs have taught, by target and proof."""
        self.collecting: Callable[[KernelExperiment], object] = lambda _: None

    def belief(self, id: str) -> Hypothesis | None:
        """Return a hypothesis; one that a test did not make is about a fifth of the time."""
        made = next((each for each in self.beliefs if each.id == id), None)
        if made is not None or not self.believes:
            return made
        return Hypothesis(
            id=id,
            definition="k",
            workloads=(Workload(definition="k", axes={}, weight=1.0),),
            share=0.2,
            expected_gain_ratio=1.5,
            expected_saving=0.2 / 3,
            because="a test's",
        )

    def findings(self, experiment: KernelExperiment) -> Sequence[Finding]:
        return tuple(self.tried)

    def collect(self, experiment: KernelExperiment) -> None:
        self.collecting(experiment)

    def results(self, experiment: KernelExperiment) -> Sequence[ResultFact]:
        return tuple(self.found)

    def lost(self, experiment: KernelExperiment) -> Mapping[str, str]:
        return self.gone

    def win(self, experiment: KernelExperiment, *, job: str, pod_uid: str) -> VerifiedWin | None:
        result = next(each for each in self.found if (each.job, each.pod_uid) == (job, pod_uid))
        assert result.winner is not None
        shape = ShapeResult(
            axes={"M": 16}, weight=100.0, incumbent_us=10.0, candidate_us=8.0, speedup=WIN
        )
        verdict = Verdict(
            status=Status.PROMOTE,
            reason=Reason.FASTER,
            gate="G6",
            candidate=result.winner,
            incumbent=ORIGINAL,
            speedup=WIN,
            noise_floor_ratio=1.01,
            shapes=(shape,),
            guard=Guard(),
            evidence=examples.EVIDENCE,
        )
        return VerifiedWin(verdict=verdict, trust=TrustClass.PARAMETERS)

    def task(self, experiment: KernelExperiment, role: JobRole, *, arch: str = "") -> str:
        self.tasks.append((experiment.metadata.name, role, arch))
        return "{}"

    def keep_table(
        self, table: TableText, solution: Solution, *, guard: Guard, target: str
    ) -> None:
        self.tables[table.digest] = ProvenTable(solution=solution.digest, text=table.text)

    def keep_proof(self, document: bytes) -> Digest:
        self.proofs.append(document)
        return digest_of(document.decode())

    def proof(self, digest: Digest) -> bytes | None:
        found = (each for each in self.proofs if digest_of(each.decode()) == digest)
        return next(found, None)

    def keep_lesson(self, lesson: Lesson, *, id: str, target: str) -> None:
        self.learned.setdefault((target, id), lesson)

    def lessons(self, target: str) -> Sequence[Lesson]:
        return [lesson for (of, _), lesson in self.learned.items() if of == target]

    def table(self, digest: Digest) -> ProvenTable | None:
        return self.tables.get(digest)

    def server(self, experiment: KernelExperiment) -> ServerImage | None:
        found = self.servers.get(experiment.spec.kernel.name)
        if isinstance(found, Refused):
            raise found
        return found

    def drifts(self, target: str) -> Sequence[OpenDrift]:
        return tuple(self.reports)

    def believe(self, belief: Hypothesis) -> None:
        self.beliefs.append(belief)

    def answered(self, drifted: OpenDrift) -> None:
        self.reports.remove(drifted)

    def doubt(
        self, proposal: Proposal, *, servers: Sequence[ServerEnvironment]
    ) -> EvidenceFault | None:
        assert servers
        return self.faults.get(proposal.artifact)


@dataclass
class FakeSignals:
    """Monitoring as the tests want it."""

    firing: bool | None = False
    says: dict[str, Compared] = field(default_factory=dict)
    asked: list[tuple[EventSubject, datetime]] = field(default_factory=list)

    def slo_firing(self, target: TuningTarget) -> bool | None:
        return self.firing

    def compare(
        self, metrics: Sequence[Metric], *, about: EventSubject, since: datetime
    ) -> Mapping[str, Compared]:
        self.asked.append((about, since))
        return {each.name: self.says[each.name] for each in metrics if each.name in self.says}


class FakeKernels:
    """A catalog with two kernels, of which only the digest counts."""

    def incumbent(self, definition: str, *, target: TuningTarget) -> Solution | None:
        return (
            mock.Mock(spec=Solution, digest=ORIGINAL)
            if definition in (KERNEL, ANOTHER, LIVE)
            else None
        )

    def structures(self, definition: str, *, target: TuningTarget) -> tuple[str, ...]:
        return ("rows", "tiles")

    def recognise(
        self, kernel: str, dims: Dims, dtypes: tuple[str, ...], *, target: TuningTarget
    ) -> tuple[str, Mapping[str, int]] | None:
        return (KERNEL, {"M": dims[0][0]}) if kernel == "rmsnorm" else None

    def live_shapes(self, *, target: TuningTarget) -> LiveShapes:
        def shapes(stat: SignatureStat) -> Sequence[tuple[Workload, float]]:
            if stat.signature.kernel != "their_kernel":
                return ()
            rows = stat.signature.blocks[0]
            return [(Workload(definition=LIVE, axes={"rows": rows}, weight=stat.launches), 1.0)]

        return shapes

    def is_live(self, definition: str, *, target: TuningTarget) -> bool:
        return definition == LIVE


class NoArchive:
    """Takes what is told, and keeps nothing."""

    def take(self, receipt: Receipt, said: Said) -> None:
        pass
