"""A pod goes back by itself from what nobody stands behind, and from nothing else."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from tests.sidecar.sidecar_world import CLEAN, FIRST, SECOND, TARGET, PodWorld, back, swap

from retuned.api.agent import Outcome
from retuned.errors import Refused
from retuned.node.order_checks import stands_behind


@pytest.fixture
def world(tmp_path: Path) -> PodWorld:
    found = PodWorld(tmp_path)
    found.publish(FIRST)
    found.publish(SECOND)
    return found


def pass_by(world: PodWorld, seconds: float) -> None:
    """Let time pass in steps of ten seconds; a refusal is what the program's loops live with."""
    for _ in range(int(seconds / 10.0)):
        with suppress(Refused):
            world.turn(10.0)
        with suppress(Refused):
            world.sidecar.listen(wait_s=0.0)
        world.sidecar.steer()


def test_a_pod_that_no_target_selects_any_more_goes_back_after_a_minute(world: PodWorld) -> None:
    world.order(swap())
    world.operator.selected = False
    pass_by(world, 50.0)
    assert world.active() == FIRST
    pass_by(world, 40.0)
    assert world.active() is None


def test_a_target_that_is_made_again_within_a_minute_changes_nothing(world: PodWorld) -> None:
    world.order(swap())
    for _ in range(4):
        world.operator.selected = False
        pass_by(world, 40.0)
        world.operator.selected = True
        pass_by(world, 20.0)
    assert world.active() == FIRST
    assert world.swapper.flips == ["swap-p1-2"]


def test_an_operator_that_does_not_answer_says_nothing(world: PodWorld) -> None:
    world.order(swap())
    world.operator.away = True
    for _ in range(100):
        world.turn(60.0)
    assert world.active() == FIRST


def test_a_sidecar_that_begins_anew_waits_a_minute_too(world: PodWorld) -> None:
    world.order(swap())
    world.operator.selected = False
    pass_by(world, 50.0)
    world.start()
    pass_by(world, 50.0)
    assert world.active() == FIRST
    pass_by(world, 60.0)
    assert world.active() is None


def test_a_proposal_that_is_deleted_leaves_what_was_there_before(world: PodWorld) -> None:
    first = swap()
    world.order(first)
    world.order(first, swap(SECOND, epoch=4, proposal="p2", previous=FIRST))
    assert world.active() == SECOND
    world.operator.order(first)
    pass_by(world, 120.0)
    assert world.active() == FIRST
    world.operator.order()
    pass_by(world, 120.0)
    assert world.active() is None, "nobody stands behind that either"


def test_what_was_there_before_does_not_come_back_where_nobody_stands_behind_it(
    world: PodWorld,
) -> None:
    world.order(swap())
    world.order(swap(SECOND, epoch=4, proposal="p2", previous=FIRST))
    world.operator.order()
    pass_by(world, 120.0)
    assert world.active() is None


def test_it_says_nothing_against_the_artifact_which_may_come_again(world: PodWorld) -> None:
    world.order(swap())
    world.operator.order()
    pass_by(world, 120.0)
    assert world.outcomes()[1] == ("swap-p1-2", Outcome.ROLLED_BACK, "withdrawn")
    epoch = world.slot().epoch + 1
    world.order(swap(epoch=epoch))
    pass_by(world, 120.0)
    assert world.active() == FIRST


def test_a_way_back_of_its_own_is_not_taken_for_what_nobody_stands_behind(world: PodWorld) -> None:
    first = swap()
    world.order(first)
    second = swap(SECOND, epoch=4, proposal="p2", previous=FIRST)
    world.order(first, second)
    world.swapper.counts["gemm"] = {**CLEAN, "shadow_mismatches": 1, "worst_ratio": 9.0}
    world.turn(10.0)
    assert world.active() == FIRST, "it has gone back by itself"
    pass_by(world, 120.0)
    assert world.active() == FIRST
    world.operator.order(first, back(second, epoch=9))
    pass_by(world, 120.0)
    assert world.active() == FIRST


def test_who_stands_behind_an_order() -> None:
    order = swap()
    assert stands_behind(order, [order])
    assert stands_behind(order, [swap(epoch=9)])
    assert stands_behind(order, [swap(proposal="other", epoch=9)])
    assert stands_behind(back(order, epoch=3), []), "the original needs nobody"
    assert not stands_behind(order, [])
    assert not stands_behind(order, [swap(SECOND, proposal="other")])
    assert not stands_behind(order, [swap(name="norm", target=TARGET)])
