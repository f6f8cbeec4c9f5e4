"""A small world around the loop: a server that lives on, a folder of traces, people, and kills."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.standalone.proofs import MACHINE, interval, measured, proof

from retuned.api.proposal import ProposalPhase
from retuned.clock import FakeClock
from retuned.contract import Digest, Language, Solution, SourceFile, TrustClass, digest_of
from retuned.errors import CandidateError, TemporaryError
from retuned.experiment.fake import FakeBench
from retuned.ports import Finding, Spans, TraceBatch
from retuned.runtime_client.fake import FakeSwapper
from retuned.stages.drift import DEMO_SETTINGS
from retuned.stages.experiment import ExperimentPlan
from retuned.stages.gate import DecisionKind, KernelTuningPolicy, SwapDecision
from retuned.stages.swap import SwapOrder
from retuned.stages.trace import LaunchRecord, ShapeSource
from retuned.stages.verdict import Interval, JudgeSettings, Reason, ServerEnvironment, judge
from retuned.stages.watch import WatchSettings
from retuned.standalone.context import Context, LoopSettings, RecordKind
from retuned.standalone.daemon import Loop
from retuned.store.approvals import Approvals
from retuned.store.envelopes import seal
from retuned.store.keys import FakeNotary
from retuned.store.sqlite import SqliteStore
from retuned.telemetry.prometheus import FakeTelemetry
from retuned.telemetry.spans import NoSpans
from retuned.traces.folder import FakeTraceSource

KERNEL = "linear"
ENVIRONMENT = MACHINE.digest
WINDOW = timedelta(seconds=5)
_SERVER = 2**22 + 1
"""Number of the server's process; no process of the machine has it."""


class Killed(BaseException):
    """kill -9: nothing may catch it."""


def solution(name: str, structure: str) -> Solution:
    return Solution(
        name=name,
        definition=KERNEL,
        language=Language.CPU_CPP,
        entry="run",
        sources=(SourceFile(path="k.cpp", content=f"// {name}"),),
        structure=structure,
        trust=TrustClass.PARAMETERS,
    )


INCUMBENT = solution("incumbent", "rows")
WINNER = solution("winner", "panels")
LOSER = solution("loser", "rows")


def finding(candidate: Solution, *, speedup: float, reason: Reason) -> Finding:
    verdict = judge(measured(candidate.digest, INCUMBENT.digest, interval(speedup)))
    assert verdict.reason is reason
    return Finding(solution=candidate, verdict=verdict, seconds=1.0)


LOST = finding(LOSER, speedup=0.9, reason=Reason.SLOWER)
WON = finding(WINNER, speedup=2.0, reason=Reason.FASTER)


class Kernels:
    """A catalog of one kernel."""

    def recognise(
        self, kernel: str, dims: tuple[tuple[int, ...], ...], dtypes: tuple[str, ...]
    ) -> tuple[str, Mapping[str, int]] | None:
        return (KERNEL, {"M": dims[0][0]}) if kernel == f"retuned::{KERNEL}" and dims else None

    def incumbent(self, definition: str) -> Solution:
        return INCUMBENT

    def family(self, definition: str) -> str:
        return "linear"

    def audited(self, definition: str) -> tuple[str, ...]:
        return ("rows",)

    def structures(self, definition: str) -> tuple[str, ...]:
        return ("rows", "panels")

    def floor_ns(self, definition: str, axes: Mapping[str, int]) -> int:
        return 0


class Lab(FakeBench):
    """Finds the winner only where it may look beyond the audited structure; counts what is paid."""

    clock: FakeClock
    documents: dict[Digest, bytes]
    paid: list[tuple[str, Digest]]
    boundary: Callable[[str], None]
    failures: dict[Digest, Exception]

    def build(self, solution: Solution) -> Path:
        if solution.digest in self.failures:
            raise self.failures[solution.digest]
        return super().build(solution)

    def run(self, plan: ExperimentPlan, *, known: Mapping[Digest, Finding]) -> Iterator[Finding]:
        for found in (LOST,) if plan.structures == ("rows",) else (LOST, WON):
            if found.solution.digest not in known:
                self.paid.append((plan.id, found.solution.digest))
                yield self.proven(plan, found)
                self.boundary("finding-stored")

    def proven(self, plan: ExperimentPlan, found: Finding) -> Finding:
        """Write down what it rests on, as the lab does."""
        assert found.verdict.speedup is not None
        document = proof(
            found.solution,
            incumbent=plan.incumbent,
            plan=plan.id,
            speedup=found.verdict.speedup,
            at=self.clock.now(),
            workloads=plan.workloads,
            settings=JudgeSettings(buckets=plan.buckets),
            definition=plan.definition,
        )
        data = document.model_dump_json().encode()
        digest = "sha256:" + hashlib.sha256(data).hexdigest()
        self.documents[digest] = data
        verdict = document.verdict.model_copy(update={"evidence": digest})
        return replace(found, verdict=verdict)

    def evidence(self, digest: Digest) -> bytes | None:
        return self.documents.get(digest)


class Server(FakeSwapper):
    """The server outlives the daemon; kills fall before and after what it is told."""

    boundary: Callable[[str], None]
    unknown: frozenset[str] = frozenset()
    """Slots that a process reports no more when it is told something."""
    one_hangs: bool = False
    """Whether a worker beside this one does not answer a prepare."""

    def prepare(self, order: SwapOrder, *, artifact_dir: Path) -> None:
        self.boundary("before-prepare")
        super().prepare(order, artifact_dir=artifact_dir)
        self.boundary("after-prepare")
        if self.one_hangs:
            raise TemporaryError("one of the workers does not answer", delay_s=1.0)

    def commit(self, order: SwapOrder) -> int:
        self.boundary("before-commit-order")
        if order.definition in self.unknown:
            raise CandidateError("unknown-slot", detail=order.definition)
        took = super().commit(order)
        self.boundary("after-commit-order")
        return took

    def bypass(self, definition: str, *, on: bool, arm: str | None = None) -> None:
        self.boundary("before-bypass")
        super().bypass(definition, on=on, arm=arm)
        self.boundary("after-bypass")


def auto_policy() -> KernelTuningPolicy:
    return KernelTuningPolicy.model_validate(
        {
            "apiVersion": "retuned.dev/v1alpha1",
            "kind": "KernelTuningPolicy",
            "metadata": {"name": "person"},
            "spec": {
                "priority": 1,
                "mode": "Enforce",
                "validation": {"minSpeedup": 1.02, "confidence": 0.99},
                "gates": [{"name": "one", "approvals": {"required": 1}}],
                "rollout": {
                    "canary": {"bake": "0s"},
                    "minInterval": "0s",
                    "postPromotionWatch": "0s",
                    "analysis": {"interval": "1s", "inconclusiveLimit": 1000},
                },
            },
        }
    )


@dataclass
class World:
    """Everything outside the daemon, and the daemon, which may be killed and started again."""

    folder: Path
    clock: FakeClock = field(default_factory=FakeClock)
    files: list[TraceBatch] = field(default_factory=list)
    paid: list[tuple[str, Digest]] = field(default_factory=list)
    bench_failures: dict[Digest, Exception] = field(default_factory=dict)
    policies_gone: bool = False
    server_ended: bool = False
    """Whether no process of the server runs; one that is merely `away` does not answer."""
    notary: FakeNotary = field(default_factory=FakeNotary)
    boundaries: int = 0
    kill_at: int | None = None
    watch: WatchSettings = field(default_factory=lambda: WatchSettings(min_checks=10, min_s=1.0))
    spans: Spans = field(default_factory=NoSpans)

    def __post_init__(self) -> None:
        self.server = Server(definitions=[KERNEL])
        self.server.boundary = self.boundary
        self.server.runs_on = ServerEnvironment(process="1", cpu=MACHINE.arch)
        self.telemetry = FakeTelemetry()
        self.policies: Sequence[KernelTuningPolicy] = (auto_policy(),)
        self.start()

    def read_policies(self) -> Sequence[KernelTuningPolicy]:
        if self.policies_gone:
            raise OSError("the folder of policies is gone")
        return self.policies

    def unexpected(self) -> float:
        """Count what went wrong in some step and was nobody's plan."""
        return self.telemetry.total("retuned_step_errors_total", expected="false")

    def boundary(self, _where: str) -> None:
        self.boundaries += 1
        if self.kill_at is not None and self.boundaries == self.kill_at:
            raise Killed

    def start(self) -> None:
        """Start the daemon on whatever is on disk."""
        self.store = SqliteStore(
            self.folder / "state",
            clock=self.clock,
            hook=self.boundary,
            carried=self.spans.carried,
        )
        known = [batch.id for batch in self.store.list(RecordKind.BATCH)]
        bench = Lab(script={}, root=self.folder)
        bench.paid, bench.boundary = self.paid, self.boundary
        bench.clock, bench.documents = self.clock, {}
        bench.failures = self.bench_failures
        self.loop = Loop(
            Context(
                store=self.store,
                clock=self.clock,
                telemetry=self.telemetry,
                traces=FakeTraceSource(self.files, known=known),
                swapper=self.server,
                bench=bench,
                notary=self.notary,
                settings=LoopSettings(
                    target="demo",
                    window=WINDOW,
                    settle=timedelta(seconds=1),
                    baseline_windows=4,
                    drift=DEMO_SETTINGS,
                    watch=self.watch,
                ),
                environment=ENVIRONMENT,
                catalog=Kernels(),
                policies=self.read_policies,
                server_processes=lambda: frozenset() if self.server_ended else frozenset({_SERVER}),
                spans=self.spans,
            )
        )

    def restart(self) -> None:
        """Start again after a kill: files are still there, memory is not."""
        self.store.close()
        self.start()

    def prove(
        self, candidate: Solution, *, baseline: Digest, plan: str, speedup: Interval
    ) -> Digest:
        """Keep signed evidence that something is faster."""
        document = proof(
            candidate, incumbent=baseline, plan=plan, speedup=speedup, at=self.clock.now()
        )
        return self.store.put_blob(seal(document.model_dump_json().encode(), notary=self.notary))

    def window(self, m: int, *, slow: float = 1.0) -> None:
        """Let one window of traffic go by: a trace file of launches at M = m lands in it.

        Each takes so many times as long as usual.
        """
        self.clock.advance(WINDOW.total_seconds())
        number = len(self.files)
        launches = tuple(
            LaunchRecord(
                kernel=f"retuned::{KERNEL}",
                start_ns=i * 1000,
                duration_ns=int(slow * (m * 100 + (i * 7919 + number) % 13)),
                dims=((m, 64), (64, 64)),
                shape_source=ShapeSource.OP,
                shape_confidence=1.0,
            )
            for i in range(400)
        )
        # placed two seconds into the window that has just ended
        at = self.clock.now() - timedelta(seconds=3)
        batch = TraceBatch(
            origin=f"trace-{number}.json",
            digest=digest_of(["trace", number]),
            format="kineto-json",
            launches=launches,
            span_ns=400_000,
            completed_at_ns=int(at.timestamp() * 1e9),
        )
        self.files.append(batch)
        traces: Any = self.loop.ctx.traces
        traces.add(batch)

    def approve_what_waits(self) -> None:
        waiting = (ProposalPhase.PENDING, ProposalPhase.AWAITING_APPROVAL)
        for stored in (s for p in waiting for s in self.store.list(RecordKind.PROPOSAL, phase=p)):
            decision = SwapDecision(
                proposal=stored.id,
                digest=stored.body["artifact"],
                decision=DecisionKind.APPROVE,
                user="ada",
                at=stored.created_at + timedelta(microseconds=1),
                policy_digest=(self.policies or (auto_policy(),))[0].digest,
            )
            Approvals(self.store).give(decision)

    def phases(self, kind: RecordKind) -> list[str]:
        return [stored.phase for stored in self.store.list(kind)]
