"""A world whose server has a tunable: a real process, a real lab in the server's environment."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from tests.standalone.forked_servers import Forked, forked
from tests.standalone.local_world import World
from tests.standalone.proofs import interval, proof

from retuned.contract import Digest
from retuned.experiment.tunables import (
    Benches,
    TunableLab,
    class_of,
    recipes_by_class,
)
from retuned.lab.evidence import keep
from retuned.ports import Finding
from retuned.runtime_client.captures import RuntimeCaptures
from retuned.runtime_client.change_orders import ChangeSwapper
from retuned.runtime_client.client import RuntimeSocket
from retuned.runtime_client.tunables import RuntimeTunables
from retuned.stages.experiment import ExperimentPlan, Turn, TurnOutcome
from retuned.stages.gate import KernelTuningPolicy
from retuned.stages.hypothesis import HypothesisSettings
from retuned.stages.proposal import variant_of
from retuned.stages.verdict import JudgeSettings
from retuned.standalone.context import Captures, RecordKind, Tunables
from retuned.standalone.daemon import Loop
from retuned.standalone.tunables.experiments import task_of
from retuned.standalone.tunables.tuned_files import ConfiguredKernels, StoredChanges
from retuned.store.keys import Ed25519Notary
from retuned.tunables.tune import ClassResult, rules_of

SIZE = 512


class ScriptedLab(TunableLab):
    """Asks the server as the real lab does, and believes that the largest block wins."""

    speedup: float = 2.0

    def run(self, plan: ExperimentPlan, *, known: Mapping[Digest, Finding]) -> Iterator[Finding]:
        if known:
            return
        task = self._task_of(plan)
        described = recipes_by_class(task.recipes)
        assert all(class_of(each.axes) in described for each in plan.workloads)
        self._turns[plan.id] = [
            Turn(number=1, generator="search", because="a script", outcome=TurnOutcome.TRIED)
        ]
        if self.speedup <= 1.0:
            return
        config = max(task.report["space"]["configs"], key=lambda each: each["kwargs"]["BLOCK"])
        results = [
            ClassResult(axes=dict(each.axes), in_force_us=2.0, best=config)
            for each in plan.workloads
        ]
        found = variant_of(plan.definition, rules_of(results), author="search")
        document = proof(
            found,
            incumbent=plan.incumbent,
            plan=plan.id,
            speedup=interval(self.speedup),
            at=self._clock.now(),
            environment=task.measured_in,
            workloads=plan.workloads,
            settings=JudgeSettings(buckets=plan.buckets),
            definition=plan.definition,
        )
        kept = document.verdict.model_copy(update={"evidence": keep(self._folder, document)})
        yield Finding(solution=found, verdict=kept, seconds=1.0)


@dataclass
class Server:
    """One process of the server."""

    process: Forked

    @classmethod
    def start(cls, folder: Path, **environment: str) -> Server:
        paths = [os.getcwd(), *filter(None, [os.environ.get("PYTHONPATH")])]
        process = forked(
            [str(folder / "sockets"), str(folder / "package")],
            {**os.environ, "PYTHONPATH": os.pathsep.join(paths)} | environment,
        )
        server = cls(process)
        assert server.out.readline() == "ready\n"
        return server

    @property
    def out(self) -> IO[str]:
        return self.process.stdout

    def launch(self, times: int, *, size: int = SIZE) -> int:
        """Launch; return the largest block that ran. The last output is right."""
        self.process.stdin.write(json.dumps([size, times]) + "\n")
        self.process.stdin.flush()
        worst, block = json.loads(self.out.readline())
        assert worst == 0.0
        return int(block)

    def stop(self) -> None:
        """End it, orderly."""
        self.process.stdin.close()
        self.process.wait(timeout=120)
        self.process.close()

    def kill(self) -> None:
        """End it in the middle of whatever it does."""
        self.process.kill()
        self.stop()


@dataclass
class TunableWorld:
    """Daemon, and the processes of a server."""

    folder: Path
    lab: type[TunableLab] = ScriptedLab
    captures: bool = False
    servers: list[Server] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name in ("sockets", "package"):
            (self.folder / name).mkdir(mode=0o700)
        self.notary = Ed25519Notary(self.folder / "keys")
        self.world = World(self.folder)
        self.connect()

    def connect(self) -> None:
        """Point the daemon at the server's sockets; also after the daemon was started anew."""
        ctx, path = self.world.loop.ctx, self.folder / "sockets"
        socket = RuntimeSocket(path, timeout_s=60.0, key=self.notary.public_hex)
        ctx = replace(
            ctx,
            notary=self.notary,
            # launches take a few real milliseconds of seconds that are not real
            settings=replace(ctx.settings, hypothesis=HypothesisSettings(min_saving=1e-5)),
            swapper=ChangeSwapper(
                socket,
                path,
                changes=StoredChanges(ctx.store),
                term=socket.term,
                key=self.notary.public_hex,
            ),
            catalog=ConfiguredKernels(ctx.catalog, ctx.store, buckets=ctx.settings.profile),
            changes=self.folder / "changes",
            captures=Captures(
                tap=RuntimeCaptures(path),
                folder=self.folder / "inputs",
                definition=lambda _: None,
                enabled=self.captures,
            ),
            tunables=Tunables(tap=RuntimeTunables(path, clock_s=ctx.clock.monotonic_s)),
        )
        lab = self.lab(lambda plan: task_of(ctx, plan), self.folder / "lab", clock=ctx.clock)
        self.world.loop = Loop(replace(ctx, bench=Benches(ctx.bench, lab)))

    def restart_daemon(self) -> None:
        """Kill the daemon and start it on what is on disk."""
        self.world.restart()
        self.connect()

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

    def look(self, times: int = 1, *, seconds: float = 2.0) -> None:
        """Let the daemon look again."""
        for _ in range(times):
            self.world.clock.advance(seconds)
            self.world.loop.turn()

    def serve(self, turns: int, *, launches: int = 16, size: int = SIZE) -> None:
        """Let traffic go by, and the daemon look at it."""
        for _ in range(turns):
            for server in self.servers:
                if server.process.poll() is None:
                    server.launch(launches, size=size)
            self.look(seconds=5.0)

    def swap(self) -> str:
        """Go as far as a table in force; return its proposal."""
        self.serve(4)
        self.world.approve_what_waits()
        self.look(3)
        (stored,) = self.world.store.list(RecordKind.PROPOSAL)
        return stored.id

    def permit(self, **spec: Any) -> None:
        """Change the policy's spec."""
        (policy,) = self.world.policies
        body = policy.model_dump(mode="json", by_alias=True)
        body["spec"] |= spec
        self.world.policies = (KernelTuningPolicy.model_validate(body),)

    def phase(self, proposal: str) -> str:
        """Where a proposal is."""
        stored = self.world.store.get(RecordKind.PROPOSAL, proposal)
        assert stored is not None
        return stored.phase

    def tunable(self) -> dict[str, Any]:
        """Return the record of the only tunable."""
        (stored,) = self.world.store.list(RecordKind.TUNABLE)
        return dict(stored.body)

    def trail(self, id: str) -> list[tuple[str, str]]:
        """Its history: what, and why."""
        events = self.world.store.events(id=id)
        return [(event.what, str(event.detail.get("reason", ""))) for event in events]
