"""A sidecar measures what Retuned costs where it is asked to, and follows other pods elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.expect import raises_naming
from tests.node.test_own_overhead import Measured
from tests.sidecar.sidecar_world import FIRST, PodWorld, back, swap

from retuned.api.agent import OverheadOrder, PodOverhead, ProofOrder, ProofPost
from retuned.node.own_overhead import OverheadKeeper, last_of
from retuned.sidecar import live_proofs, own_overhead
from retuned.sidecar.main import Sidecar
from retuned.stages.gate import LiveProof
from retuned.stages.watch.own_overhead import AFTER, SETTINGS, OverheadOutcome
from retuned.stages.watch.proof import replay

ASKED = OverheadOrder(measure=True)


class Pod(PodWorld):
    """A pod whose server has a cost of Retuned's wrappers, in a time of its own."""

    server: Measured
    effect = 0.002

    def start(self, *, configured: str = "") -> Sidecar:
        made = super().start(configured=configured)
        if not hasattr(self, "server"):
            self.server = Measured(self.effect)
        keeper = OverheadKeeper(
            self.server,
            live=self.server,
            store=made.ctx.store,
            clock=self.server,
            telemetry=self.telemetry,
            reports=True,
        )
        self.sidecar = Sidecar(replace(made.ctx, live_steps=self.server, own_overhead=keeper))
        return self.sidecar

    def ask(self, order: OverheadOrder | None) -> None:
        self.operator.ask_overhead(order)
        self.turn()

    def measure(self, *, after_s: float = 0.0) -> None:
        self.server.at_s += after_s
        timed = not live_proofs.unavailable(self.ctx)[0]
        own_overhead.keep_up(self.ctx, threading.Event(), timed=timed)

    def posted(self) -> PodOverhead | None:
        self.sidecar.tell()
        return self.said(ProofPost)[-1].overhead


@pytest.fixture
def world(tmp_path: Path, request: pytest.FixtureRequest) -> Pod:
    Pod.effect = getattr(request, "param", 0.002)
    found = Pod(tmp_path)
    found.turn()
    found.measure()
    return found


def due(world: Pod) -> None:
    world.measure(after_s=AFTER.total_seconds())


@pytest.mark.parametrize("world", [0.002, 0.035], indirect=True)
def test_a_pod_that_is_asked_measures_and_reports_until_it_is_heard(world: Pod) -> None:
    world.ask(ASKED)
    world.measure()
    assert last_of(world.ctx.store) is None, "not in its first ten minutes"
    due(world)
    known = last_of(world.ctx.store)
    assert known is not None
    wire = ProofPost.model_validate_json(world.said(ProofPost)[-1].model_dump_json())
    assert wire.overhead is None
    found = world.posted()
    assert found is not None
    assert (found.at, found.engine) == (known.at, "vllm 0.26.0")
    again = PodOverhead.model_validate_json(found.model_dump_json())
    report = replay(again.claim, SETTINGS)
    assert (report.verdict, report.effect) == (known.report.verdict, known.report.effect)
    assert (report.low, report.high) == (known.report.low, known.report.high)
    assert world.posted() == found, "an operator that restarts hears it again"
    world.start()
    world.turn()
    assert world.posted() == found
    world.ask(OverheadOrder(measure=True, heard=found.at))
    assert world.posted() is None
    rows = world.telemetry.tables["retuned_own_overhead_ratio"]
    assert {dict(labels)["bound"] for labels in rows} == {"low", "effect", "high"}


def test_a_pod_that_is_not_asked_measures_nothing(world: Pod) -> None:
    due(world)
    world.ask(OverheadOrder(shares={world.ctx.environment: 0.25}))
    due(world)
    assert last_of(world.ctx.store) is None
    assert world.posted() is None


def test_a_pod_whose_target_is_gone_is_asked_no_more(world: Pod) -> None:
    world.ask(ASKED)
    world.operator.selected = False
    with raises_naming(Exception, "no-target"):
        world.sidecar.listen(wait_s=0.0)
    due(world)
    assert last_of(world.ctx.store) is None


def test_nothing_is_measured_while_a_swap_is_in_force_or_on_its_way(world: Pod) -> None:
    world.publish(FIRST)
    world.ask(ASKED)
    world.order(swap())
    assert world.active() == FIRST
    due(world)
    assert last_of(world.ctx.store) is None
    world.order(back(swap(), epoch=3))
    assert world.active() is None
    world.measure()
    assert last_of(world.ctx.store) is not None


def test_nothing_is_measured_while_a_proof_is_asked_for(world: Pod) -> None:
    order = swap()
    proof = ProofOrder(order=order.id, proposal="p1", definition="gemm", epoch=2, rule=LiveProof())
    world.operator.prove(proof)
    world.ask(ASKED)
    due(world)
    assert last_of(world.ctx.store) is None
    world.operator.prove()
    world.turn()
    world.measure()
    assert last_of(world.ctx.store) is not None


def test_a_measurement_that_is_taken_back_ends(world: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    world.ask(ASKED)
    turns = world.server.take_turns

    def taken_back(asked: Sequence[tuple[str, bool]], *, steps: int) -> None:
        world.operator.ask_overhead(None)
        world.sidecar.listen(wait_s=0.0)
        turns(asked, steps=steps)

    monkeypatch.setattr(world.server, "take_turns", taken_back)
    due(world)
    assert last_of(world.ctx.store) is None


def test_other_pods_of_an_environment_follow_what_one_has_found(world: Pod) -> None:
    assert world.ctx.environment
    world.ask(OverheadOrder(shares={world.ctx.environment: 0.25, "sha256:other": 0.03}))
    world.measure()
    world.measure()
    assert world.server.shares == [0.25, 0.25], "a server that restarted is told again"
    world.ask(None)
    world.measure()
    assert world.server.shares == [0.25, 0.25], "an operator of another release says nothing"
    world.ask(OverheadOrder(heard=world.clock.now()))
    world.measure()
    world.measure()
    assert world.server.shares == [0.25, 0.25, 1.0]


@pytest.mark.parametrize("world", [0.035], indirect=True)
def test_a_pod_that_has_measured_follows_no_other(world: Pod) -> None:
    world.ask(ASKED)
    due(world)
    known = last_of(world.ctx.store)
    assert known is not None
    assert known.outcome is OverheadOutcome.LOWERED
    world.ask(OverheadOrder(shares={world.ctx.environment: 0.03}))
    world.measure()
    assert set(world.server.shares) == {known.share}


def test_a_measurement_without_room_waits_for_the_next_report(world: Pod) -> None:
    world.ask(ASKED)
    due(world)
    found = world.posted()
    assert found is not None
    count = len(found.claim.pairs)
    assert own_overhead.reported(world.ctx, most_pairs=count) == found
    assert own_overhead.reported(world.ctx, most_pairs=count - 1) is None


def test_a_restarted_sidecar_tells_once_that_all_launches_count(world: Pod) -> None:
    world.ask(OverheadOrder(shares={world.ctx.environment: 0.25}))
    world.measure()
    world.start()
    world.ask(OverheadOrder(shares={"sha256:other": 0.03}))
    world.measure()
    world.measure()
    assert world.server.shares == [0.25, 1.0]
