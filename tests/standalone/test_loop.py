"""The loop as a whole: from drift to promotion, and back, and a kill at every boundary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.standalone.local_world import INCUMBENT, KERNEL, WINNER, Killed, World

from retuned.stages.swap import SwapKind
from retuned.standalone.context import RecordKind
from retuned.standalone.facts import quarantined


def tell_story(world: World) -> None:
    """Four windows of chat, then code until the winner is promoted; restarts after each kill."""

    def safely(step: Callable[[], None]) -> None:
        try:
            step()
        except Killed:
            world.kill_at = None
            world.restart()
            step()

    for _ in range(5):
        world.window(8)
        safely(lambda: world.loop.turn())
    for _ in range(4):
        world.window(256)
        safely(lambda: world.loop.turn())
    for _ in range(8):
        safely(world.approve_what_waits)
        world.clock.advance(2.0)
        if world.server.slots()[0].active is not None:
            world.server.counts[KERNEL] = {"swapped_launches": 900, "shadow_checks": 30}
        safely(lambda: world.loop.turn())


def assert_converged(world: World) -> None:
    assert Counter(world.phases(RecordKind.PROPOSAL)) == {"Promoted": 1}
    orders = [o.body for o in world.store.list(RecordKind.ORDER)]
    assert [o["kind"] for o in orders] == [SwapKind.SWAP]
    assert world.server.slots()[0].active == WINNER.digest
    assert len(world.server.flips) == 1, "one swap, however often the daemon died"
    assert Counter(world.phases(RecordKind.EXPERIMENT)) == {"done": 1, "proposed": 1}
    assert sorted(world.phases(RecordKind.HYPOTHESIS)) == ["refined", "tested"]
    assert set(world.phases(RecordKind.BATCH)) == {"folded"}
    assert len(world.store.list(RecordKind.BATCH)) == 9


def test_drift_leads_to_a_refined_experiment_a_proposal_a_swap_and_a_promotion(
    world: World,
) -> None:
    tell_story(world)
    assert_converged(world)
    assert Counter(world.paid).most_common(1)[0][1] == 1, "no candidate is measured twice"
    order = world.store.list(RecordKind.ORDER)[0].body
    assert (order["previous"], order["epoch"]) == (None, 2)
    proposal = world.store.list(RecordKind.PROPOSAL)[0].body
    assert proposal["baseline"] == INCUMBENT.digest
    assert proposal["evidence"] is not None
    assert world.store.get_blob(proposal["evidence"])


def boundaries_of_a_whole_story(folder: Path) -> int:
    world = World(folder)
    tell_story(world)
    world.store.close()
    return world.boundaries


@pytest.mark.slow
def test_a_kill_at_any_boundary_converges_to_the_same_end(tmp_path: Path) -> None:
    total = boundaries_of_a_whole_story(tmp_path / "whole")
    assert total > 100, "every write and every call to the server is a boundary"
    for kill_at in range(1, total + 1):
        world = World(tmp_path / f"kill-{kill_at}")
        world.boundaries, world.kill_at = 0, kill_at
        try:
            tell_story(world)
            assert_converged(world)
            # what was measured in the instant of the kill is the only thing that may be paid again
            assert sum(Counter(world.paid).values()) - len(set(world.paid)) <= 1
        except AssertionError as error:
            raise AssertionError(f"killed at boundary {kill_at} of {total}: {error}") from error
        finally:
            world.store.close()


def test_a_mismatch_found_by_shadow_checks_is_rolled_back_and_quarantined(world: World) -> None:
    tell_story(world)
    world.server.counts[KERNEL] = {
        "swapped_launches": 2_000,
        "shadow_checks": 60,
        "shadow_mismatches": 1,
        "worst_ratio": 3.0,
    }
    world.loop.steer()
    assert world.phases(RecordKind.PROPOSAL) == ["RolledBack"]
    assert world.server.slots()[0].active is None
    steps = ("harm-detected", "reverted", "rolling-back", "rolled-back")
    happened = [e.what for e in world.store.events() if e.what in steps]
    assert happened == ["harm-detected", "reverted", "rolling-back", "reverted", "rolled-back"]
    assert WINNER.digest in quarantined(world.loop.ctx)


def test_a_server_that_was_restarted_gets_its_swap_back(world: World) -> None:
    tell_story(world)
    world.server.restart()
    world.loop.steer()
    assert world.server.slots()[0].active == WINNER.digest


def test_a_server_that_is_away_loses_nothing(world: World) -> None:
    for _ in range(5):
        world.window(8)
        world.loop.turn()
    world.server.away = True
    for _ in range(6):
        world.window(256)
        world.loop.turn()
    world.approve_what_waits()
    world.clock.advance(1.0)
    world.loop.turn()
    assert world.phases(RecordKind.PROPOSAL) == ["Scheduled"]
    world.server.away = False
    world.loop.turn()
    assert world.phases(RecordKind.PROPOSAL) == ["Analyzing"]


def test_without_a_policy_nothing_is_ever_swapped(world: World) -> None:
    world.policies = ()
    tell_story(world)
    assert world.phases(RecordKind.PROPOSAL) == ["AwaitingApproval"]
    assert world.server.flips == []
    gate = world.store.list(RecordKind.GATE)[0].body
    assert (gate["state"], gate["reason"]) == ("waiting", "no-policy")


def test_an_artifact_that_the_server_refuses_leaves_the_original_running(world: World) -> None:
    world.server.refuse[WINNER.digest] = "self-check-failed"
    tell_story(world)
    assert world.phases(RecordKind.PROPOSAL) == ["RolledBack"]
    assert world.phases(RecordKind.ORDER) == ["refused", "done"], "and the original is confirmed"
    assert world.server.slots()[0].active is None


def test_a_drift_is_answered_when_windows_after_its_swap_were_learned(world: World) -> None:
    tell_story(world)
    assert Counter(world.phases(RecordKind.DRIFT))["explained"] == 1, (
        "windows after the swap are missing"
    )
    for _ in range(world.loop.ctx.settings.baseline_windows + 1):
        world.window(256)
        world.loop.turn()
    world.loop.turn()
    phases = Counter(world.phases(RecordKind.DRIFT))
    assert (phases["explained"], phases["answered"]) == (0, 1)
    (told,) = [each for each in world.store.events() if each.what == "traffic-adopted"]
    assert "new baseline" in told.detail["sentence"]
