"""The keeper measures what Retuned costs a server, and lets it count less where it is too much."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.node.test_live_proof_turns import ARTIFACT, Server

from retuned.errors import CandidateError, TemporaryError
from retuned.node.own_overhead import OWN_OVERHEAD, SERVER, OverheadKeeper, last_of
from retuned.ports import SlotState
from retuned.stages.watch.own_overhead import AFTER, EVERY, OverheadOutcome
from retuned.store.sqlite import SqliteStore
from retuned.telemetry.prometheus import FakeTelemetry


class Measured(Server):
    """A server whose steps are longer with Retuned's wrappers."""

    def __init__(self, effect: float) -> None:
        super().__init__(effect)
        self.shares: list[float] = []
        self.refusal: Exception | None = None

    def slots(self) -> list[SlotState]:
        return [SlotState(definition="wrappers", active=ARTIFACT, epoch=1, launches={})]

    def take_turns(self, turns: Sequence[tuple[str, bool]], *, steps: int) -> None:
        if self.refusal is not None:
            raise self.refusal
        super().take_turns(turns, steps=steps)

    def set_share(self, share: float) -> None:
        self.shares.append(share)


class World:
    def __init__(self, folder: Path, effect: float) -> None:
        self.server = Measured(effect)
        self.store = SqliteStore(folder)
        self.telemetry = FakeTelemetry()
        self.keeper = OverheadKeeper(
            self.server,
            live=self.server,
            store=self.store,
            clock=self.server,
            telemetry=self.telemetry,
        )

    def look(self, *, after_s: float = 0.0, wanted: bool = True) -> None:
        self.server.at_s += after_s
        self.keeper.keep_up(threading.Event(), wanted=lambda: wanted)


@pytest.fixture
def world(tmp_path: Path, request: pytest.FixtureRequest) -> World:
    return World(tmp_path, getattr(request, "param", 0.002))


def test_nothing_is_measured_in_the_first_minutes(world: World) -> None:
    world.look()
    world.look(after_s=AFTER.total_seconds() - 1.0)
    assert last_of(world.store) is None
    world.look(after_s=2.0)
    found = last_of(world.store)
    assert found is not None
    assert (found.outcome, found.engine) == (OverheadOutcome.WITHIN_BUDGET, "vllm 0.26.0")
    assert found.report.high is not None
    assert found.report.high < 0.01
    assert world.server.shares == [1.0]
    rows = world.telemetry.tables["retuned_own_overhead_ratio"]
    assert {dict(labels)["bound"] for labels in rows} == {"low", "effect", "high"}


@pytest.mark.parametrize("world", [0.035], indirect=True)
def test_a_cost_above_the_budget_lowers_how_often_launches_are_counted(world: World) -> None:
    world.look()
    world.look(after_s=AFTER.total_seconds())
    found = last_of(world.store)
    assert found is not None
    assert found.outcome is OverheadOutcome.LOWERED
    assert world.server.shares == [found.share]
    assert found.share < 1.0
    (event,) = [e for e in world.store.events() if e.kind == OWN_OVERHEAD]
    assert event.what == "own-overhead-lowered"
    assert "of the time" in str(event.detail["sentence"])
    world.look(after_s=60.0)
    assert world.server.shares == [found.share] * 2, "a server that restarted is told again"
    world.server.effect = 0.0
    world.look(after_s=EVERY.total_seconds())
    assert world.server.shares[-1] == 1.0


def test_it_waits_while_something_else_is_in_force(world: World) -> None:
    world.look()
    world.look(after_s=AFTER.total_seconds(), wanted=False)
    assert last_of(world.store) is None
    world.look()
    assert last_of(world.store) is not None


@pytest.mark.parametrize(
    "refusal",
    [CandidateError("several-ranks", detail="two"), TemporaryError("away", delay_s=1.0)],
)
def test_a_server_that_cannot_be_measured_says_why_and_goes_on(
    world: World, refusal: Exception
) -> None:
    world.server.refusal = refusal
    world.look()
    world.look(after_s=AFTER.total_seconds())
    found = last_of(world.store)
    if isinstance(refusal, CandidateError):
        assert found is not None
        assert (found.outcome, found.share) == (OverheadOutcome.UNKNOWN, 1.0)
    else:
        assert found is None


def test_a_record_that_cannot_be_read_counts_as_none(world: World) -> None:
    world.store.add(OWN_OVERHEAD, SERVER, {"share": "much"}, phase="current")
    assert last_of(world.store) is None
    world.look()
    world.look(after_s=AFTER.total_seconds())
    assert last_of(world.store) is not None
