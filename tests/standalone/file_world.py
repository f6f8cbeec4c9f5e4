"""A world whose server configures its kernel by a file: real processes, a lab that is scripted."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import IO, Any, ClassVar

from tests.standalone.local_world import Lab, World
from tests.standalone.proofs import MACHINE, interval, measured

from retuned import catalog
from retuned.contract import Digest, Language, Solution, digest_of
from retuned.ports import Finding, TraceBatch
from retuned.runtime_client.change_orders import ChangeSwapper
from retuned.runtime_client.client import RuntimeSocket
from retuned.runtime_client.tuned_files import RuntimeFiles
from retuned.stages.experiment import ExperimentPlan
from retuned.stages.gate import DecisionKind, SwapDecision
from retuned.stages.trace import LaunchRecord, ShapeSource
from retuned.stages.verdict import ServerEnvironment, judge
from retuned.standalone.context import Files, RecordKind
from retuned.standalone.daemon import Loop
from retuned.standalone.tunables.tuned_files import ConfiguredKernels, StoredChanges
from retuned.store.approvals import Approvals
from retuned.store.keys import Ed25519Notary
from retuned.tuned_files.records import Format

DEFINITION = "fused_moe_bf16_e8_t2_f128_k256"
NAME = "E=8,N=128,device_name=X.json"
SMALL = {
    "BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 64,
    "GROUP_SIZE_M": 8, "num_warps": 4, "num_stages": 3,
}  # fmt: skip
LARGE = SMALL | {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 64, "GROUP_SIZE_M": 1}
ROWS = {"1": SMALL, "128": LARGE}
"""Up to 64 tokens the first is nearer, of 65 on the second."""
WON = SMALL | {"BLOCK_SIZE_N": 64, "num_warps": 8, "num_stages": 2}
TYPES = ("bfloat16", "bfloat16", "bfloat16", "float32", "int32")


def winner() -> Solution:
    """What the lab finds: the row `WON`, in the lab's words."""
    params = {"BLOCK_E": 8, "BLOCK_M": 16, "BLOCK_N": 64, "BLOCK_K": 64}
    entry = catalog.get(DEFINITION, language=Language.TRITON)
    return entry.solution("stages", {**params, "num_warps": 8, "num_stages": 2})


class FileLab(Lab):
    """Finds one better row."""

    found: Solution
    definition: str = DEFINITION

    def run(self, plan: ExperimentPlan, *, known: Mapping[Digest, Finding]) -> Iterator[Finding]:
        if plan.definition != self.definition or self.found.digest in known:
            return
        evidence = measured(
            self.found.digest, plan.incumbent, interval(2.0), workloads=plan.workloads
        )
        finding = Finding(solution=self.found, verdict=judge(evidence), seconds=1.0)
        self.paid.append((plan.id, self.found.digest))
        yield self.proven(plan, finding)


class Socket(RuntimeSocket):
    """Says that the server runs on what the scripted lab says it measured on."""

    def environments(self) -> list[ServerEnvironment]:
        super().environments()
        return [ServerEnvironment(process="1", cpu=MACHINE.arch)]


@dataclass
class Server:
    """One process of the server."""

    process: subprocess.Popen[str]

    @classmethod
    def start(cls, folder: Path, **environment: str) -> Server:
        command = [sys.executable, "-m", "tests.standalone.file_server"]
        process = subprocess.Popen(
            [*command, str(folder / "sockets"), str(folder / "configs"), str(folder / "package")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=_environment() | environment,
        )
        server = cls(process)
        assert server.out.readline() == "ready\n"
        return server

    @property
    def out(self) -> IO[str]:
        assert self.process.stdout is not None
        return self.process.stdout

    def picks(self, *sizes: int) -> list[dict[str, Any]]:
        """What its own lookup gives."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(sizes) + "\n")
        self.process.stdin.flush()
        found: list[dict[str, Any]] = json.loads(self.out.readline())
        return found

    def stop(self) -> None:
        """End it, orderly."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=120)
        self.out.close()

    def kill(self) -> None:
        """End it in the middle of whatever it does."""
        self.process.kill()
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=120)
        self.out.close()


def _environment() -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONPATH": os.getcwd()}


@dataclass
class FileWorld:
    """Daemon, files, and the processes of a server."""

    folder: Path
    servers: list[Server] = field(default_factory=list)
    found: Solution = field(default_factory=winner)
    definition: ClassVar[str] = DEFINITION
    kernel: ClassVar[str] = "fused_moe_kernel"
    types: ClassVar[tuple[str, ...]] = TYPES
    name: ClassVar[str] = NAME
    content: ClassVar[str] = json.dumps(ROWS, indent=4) + "\n"
    measured: ClassVar[frozenset[Format]] = frozenset({"moe-vllm", "moe-sglang"})

    def __post_init__(self) -> None:
        for name in ("sockets", "configs", "package"):
            (self.folder / name).mkdir(mode=0o700)
        self.file = self.folder / "configs" / self.name
        self.file.write_text(self.content)
        self.original = self.file.read_bytes()
        self.notary = Ed25519Notary(self.folder / "keys")
        self.world = World(self.folder)
        self.connect()

    def connect(self) -> None:
        """Point the daemon at the server's sockets; also after the daemon was started anew."""
        ctx, path = self.world.loop.ctx, self.folder / "sockets"
        socket = Socket(path, timeout_s=60.0, key=self.notary.public_hex)
        bench = FileLab(script={}, root=self.folder)
        lab: Any = ctx.bench
        bench.paid, bench.boundary, bench.found = self.world.paid, self.world.boundary, self.found
        bench.definition = self.definition
        bench.clock, bench.documents, bench.failures = lab.clock, lab.documents, {}
        self.world.loop = Loop(
            replace(
                ctx,
                bench=bench,
                notary=self.notary,
                swapper=ChangeSwapper(
                    socket,
                    path,
                    changes=StoredChanges(ctx.store),
                    term=socket.term,
                    key=self.notary.public_hex,
                ),
                catalog=ConfiguredKernels(ctx.catalog, ctx.store, buckets=ctx.settings.profile),
                files=Files(tap=RuntimeFiles(path), measured=self.measured),
                changes=self.folder / "files",
            )
        )

    def start(self, **environment: str) -> Server:
        """Start one more process of the server."""
        self.servers.append(Server.start(self.folder, **environment))
        return self.servers[-1]

    def close(self) -> None:
        """End all."""
        for server in self.servers:
            if server.process.poll() is None:
                server.stop()
        self.world.store.close()

    def restart_daemon(self) -> None:
        """Kill the daemon and start it on what is on disk."""
        self.world.restart()
        self.connect()

    def dims(self, tokens: int) -> tuple[tuple[int, ...], ...]:
        """Return the tensors of a launch."""
        return ((tokens, 256), (8, 256, 256), (8, 256, 128), (tokens, 2), (tokens, 2))

    def window(self, tokens: int) -> None:
        """Let a window of traffic go by whose mixtures of experts have so many tokens."""
        world = self.world
        world.clock.advance(5.0)
        number = len(world.files)
        dims = self.dims(tokens)
        launches = tuple(
            LaunchRecord(
                kernel=self.kernel,
                start_ns=i * 1000,
                duration_ns=tokens * 100 + (i * 7919 + number) % 13,
                dims=dims,
                dtypes=self.types,
                shape_source=ShapeSource.OP,
                shape_confidence=1.0,
            )
            for i in range(400)
        )
        at = world.clock.now() - timedelta(seconds=3)
        batch = TraceBatch(
            origin=f"trace-{number}.json",
            digest=digest_of(["trace", number]),
            format="kineto-json",
            launches=launches,
            span_ns=400_000,
            completed_at_ns=int(at.timestamp() * 1e9),
        )
        world.files.append(batch)
        traces: Any = world.loop.ctx.traces
        traces.add(batch)

    def drift(self) -> None:
        """Let traffic change from many tokens to few, as far as a proposal that waits."""
        for tokens in (128,) * 5 + (16,) * 5:
            self.window(tokens)
            self.world.loop.turn()

    def look(self, times: int = 1, *, seconds: float = 2.0) -> None:
        """Let the daemon look again."""
        for _ in range(times):
            self.world.clock.advance(seconds)
            self.world.loop.turn()

    def approve(self) -> None:
        """Say yes to what waits, by the policy that is in force."""
        (policy,) = self.world.policies
        for stored in self.world.store.list(RecordKind.PROPOSAL, phase="AwaitingApproval"):
            decision = SwapDecision(
                proposal=stored.id,
                digest=stored.body["artifact"],
                decision=DecisionKind.APPROVE,
                user="ada",
                at=stored.created_at + timedelta(microseconds=1),
                policy_digest=policy.digest,
            )
            Approvals(self.world.store).give(decision)

    def swap(self) -> str:
        """Go as far as a row that is in force; return its proposal."""
        self.drift()
        self.approve()
        self.look(2)
        (stored,) = self.world.store.list(RecordKind.PROPOSAL)
        return stored.id

    def phase(self, proposal: str) -> str:
        """Where a proposal is."""
        stored = self.world.store.get(RecordKind.PROPOSAL, proposal)
        assert stored is not None
        return stored.phase

    def trail(self, id: str) -> list[tuple[str, str]]:
        """Its history: what, and why."""
        events = self.world.store.events(id=id)
        return [(event.what, str(event.detail.get("reason", ""))) for event in events]
