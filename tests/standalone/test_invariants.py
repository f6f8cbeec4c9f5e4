"""Whatever people, the server and deaths do: what runs is what was ordered, and it is watched."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from tests.standalone.local_world import INCUMBENT, KERNEL, WINNER, Killed, World, solution
from tests.standalone.test_steering import BUSY, WRONG, ask_for, freeze, propose

from retuned.errors import HarnessError
from retuned.stages.gate import StopPolicy
from retuned.standalone import records
from retuned.standalone.context import RecordKind
from retuned.standalone.facts import quarantined
from retuned.standalone.records import GOING_BACK, IN_FORCE, in_phases
from retuned.store.approvals import Approvals

ARTIFACTS = (WINNER, solution("second", "rows"), solution("third", "rows"))
STEPS = 30


class Chaos:
    """One world and what may happen to it."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.world = World(folder)
        self.rng = random.Random(seed)
        self.said: list[str] = []
        self.dies_after = 0
        self.happenings: tuple[Callable[[], None], ...] = (
            self.propose,
            self.propose,
            self.approve,
            self.approve,
            self.traffic,
            self.traffic,
            self.harm,
            self.restart_server,
            self.come_and_go,
            self.rollback,
            self.freeze,
            self.thaw,
            self.refusal,
            self.half_commit,
            self.no_compiler,
            self.kill,
            self.wait,
        )

    def live(self) -> None:
        for _ in range(STEPS):
            happening = self.rng.choice(self.happenings)
            self.said.append(happening.__name__)
            happening()
            self.world.clock.advance(self.rng.choice((0.5, 2.0, 20.0)))
            self.steer()
            self.nothing_runs_unwatched()

    def heal(self) -> None:
        """End every trouble and let the loop come to rest."""
        world = self.world
        world.server.away = world.server.half = False
        world.server.refuse.clear()
        world.server.refuse_commit.clear()
        world.bench_failures.clear()
        self.thaw()
        for _ in range(6):
            world.server.counts[KERNEL] = dict(BUSY)
            world.clock.advance(2.0)
            world.loop.steer()
        world.clock.advance(61.0)  # orders that nothing names any more are withdrawn
        world.loop.steer()

    def steer(self) -> None:
        if self.dies_after:
            self.world.kill_at = self.world.boundaries + self.dies_after
        try:
            self.world.loop.steer()
        except Killed:
            self.said.append("killed")
            self.world.kill_at = None
            self.world.restart()
        self.world.kill_at, self.dies_after = None, 0

    def nothing_runs_unwatched(self) -> None:
        """Whoever can be asked runs what some open way back, or a watched proposal, is about."""
        world = self.world
        if world.server.away:
            return
        (slot,) = world.server.slots()
        if slot.active is None:
            return
        about = {
            stored.body["artifact"]
            for stored in in_phases(world.loop.ctx, (*IN_FORCE, *GOING_BACK))
        }
        assert slot.active in about, self.said

    def propose(self) -> None:
        ctx = self.world.loop.ctx
        live = records.in_force(ctx.store, KERNEL) or INCUMBENT.digest
        artifact = self.rng.choice(ARTIFACTS)
        if artifact.digest not in (live, *quarantined(ctx)):
            number = len(self.world.store.list(RecordKind.PROPOSAL))
            propose(self.world, artifact, baseline=live, id=f"p{number}")

    def approve(self) -> None:
        self.world.approve_what_waits()

    def traffic(self) -> None:
        self.world.server.counts[KERNEL] = dict(BUSY)

    def harm(self) -> None:
        self.world.server.counts[KERNEL] = dict(WRONG)

    def restart_server(self) -> None:
        self.world.server.restart()

    def come_and_go(self) -> None:
        self.world.server.away = not self.world.server.away

    def rollback(self) -> None:
        known = self.world.store.list(RecordKind.PROPOSAL)
        if known:
            ask_for(self.world, self.rng.choice(("rollback", "abort")), self.rng.choice(known).id)

    def freeze(self) -> None:
        if not self.world.store.list(RecordKind.FREEZE, phase="active"):
            freeze(self.world, self.rng.choice(list(StopPolicy)))

    def thaw(self) -> None:
        for sign in self.world.store.list(RecordKind.FREEZE, phase="active"):
            Approvals(self.world.store).thaw(sign.id, who="ada", at=self.world.clock.now())

    def refusal(self) -> None:
        self.world.server.refuse = {self.rng.choice(ARTIFACTS).digest: "self-check-failed"}

    def half_commit(self) -> None:
        self.world.server.half = True
        reason = self.rng.choice(("unknown-slot", "not-prepared"))
        self.world.server.refuse_commit = {self.rng.choice(ARTIFACTS).digest: reason}

    def no_compiler(self) -> None:
        self.world.bench_failures.clear()
        self.world.bench_failures[self.rng.choice(ARTIFACTS).digest] = HarnessError("disk full")

    def kill(self) -> None:
        self.dies_after = self.rng.randrange(1, 30)

    def wait(self) -> None:
        if self.rng.random() < 0.2:
            self.world.clock.set_wall(self.world.clock.now() - timedelta(minutes=5))
        self.world.clock.advance(60.0)


@pytest.mark.parametrize("seed", range(25))
def test_after_any_trouble_the_server_runs_what_was_ordered_and_it_is_watched(
    seed: int, tmp_path: Path
) -> None:
    chaos = Chaos(tmp_path, seed)
    world = chaos.world
    try:
        chaos.live()
        chaos.heal()
        (slot,) = world.server.slots()
        assert slot.active == records.in_force(world.store, KERNEL), chaos.said
        owners = {
            stored.body["artifact"]: stored.phase for stored in in_phases(world.loop.ctx, IN_FORCE)
        }
        assert slot.active is None or slot.active in owners, chaos.said
        stuck = {"Canary", "RollingBack", "RollbackFailed"} & set(world.phases(RecordKind.PROPOSAL))
        assert not stuck, chaos.said
        assert world.unexpected() == 0
    finally:
        world.store.close()
