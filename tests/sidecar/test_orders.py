"""What the operator orders is carried out once, by whoever it is for, however often it is said."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.sidecar.sidecar_world import (
    FIRST,
    SECOND,
    PodWorld,
    back,
    swap,
)

from retuned.api.agent import Hello, Outcome, WatchPost
from retuned.errors import TemporaryError
from retuned.stages.watch import WatchAction


@pytest.fixture
def world(tmp_path: Path) -> PodWorld:
    found = PodWorld(tmp_path)
    found.publish(FIRST)
    found.publish(SECOND)
    return found


def test_a_swap_is_fetched_verified_carried_out_and_told(world: PodWorld) -> None:
    world.order(swap())
    assert world.active() == FIRST
    assert world.outcomes() == [("swap-p1-2", Outcome.DONE, "")]
    slot = world.slot()
    assert (slot.active, slot.epoch, slot.proposal) == (FIRST, 2, "p1")


def test_an_order_that_is_replayed_is_carried_out_once(world: PodWorld) -> None:
    for _ in range(5):
        world.order(swap())
        world.ctx.standing.revision = 0  # it hears the same set again
    world.start()
    world.turn()
    assert world.swapper.flips == ["swap-p1-2"]
    assert world.outcomes() == [("swap-p1-2", Outcome.DONE, "")]


def test_an_order_that_was_undone_and_is_replayed_stays_undone(world: PodWorld) -> None:
    forward = swap()
    world.order(forward)
    world.order(back(forward, epoch=3))
    assert world.active() is None
    world.order(forward)  # a late copy of the first
    world.start()
    world.turn()
    assert world.active() is None
    assert len(world.swapper.flips) == 2


def test_an_order_out_of_epoch_is_refused_and_said_so(world: PodWorld) -> None:
    world.order(swap(epoch=5))
    world.order(swap(SECOND, epoch=4, proposal="p2"))
    assert world.active() == FIRST
    assert world.outcomes()[-1] == ("swap-p2-4", Outcome.REFUSED, "out-of-epoch")


def test_an_order_whose_epoch_the_server_has_passed_is_refused(world: PodWorld) -> None:
    world.order(swap(epoch=9))
    world.ctx.store.close()  # all that the sidecar knew is lost; the server knows more
    shutil.rmtree(world.folder / "state")
    world.start()
    world.turn()
    world.order(swap(SECOND, epoch=3, proposal="p2"))
    assert world.active() == FIRST
    assert world.outcomes()[-1] == ("swap-p2-3", Outcome.REFUSED, "out-of-epoch")


def test_an_order_for_another_target_is_refused(world: PodWorld) -> None:
    world.order(swap(target="serving/other"))
    assert world.active() is None
    assert world.outcomes() == [("swap-p1-2", Outcome.REFUSED, "other-target")]


def test_an_order_of_a_known_name_that_says_something_else_is_refused(world: PodWorld) -> None:
    world.order(swap())
    world.order(swap().model_copy(update={"artifact": SECOND}))
    assert world.active() == FIRST
    assert world.outcomes()[-1] == ("swap-p1-2", Outcome.REFUSED, "order-altered")


def test_an_order_that_spreads_otherwise_by_a_new_policy_is_the_same_order(world: PodWorld) -> None:
    world.order(swap())
    world.order(swap().model_copy(update={"shadow_share": 0.1}))
    assert world.outcomes() == [("swap-p1-2", Outcome.DONE, "")]


def test_a_swap_that_the_operator_names_no_more_is_not_begun(world: PodWorld) -> None:
    world.swapper.away = True
    world.operator.order(swap())
    with pytest.raises(TemporaryError):
        world.sidecar.tell()  # the server does not answer
    assert world.sidecar.listen(wait_s=0.0)
    world.sidecar.steer()
    world.operator.order()
    world.sidecar.listen(wait_s=0.0)
    world.swapper.away = False
    world.turn()
    assert world.active() is None
    assert world.swapper.flips == []


def test_a_swap_that_was_ordered_long_ago_is_not_begun_before_the_operator_is_back(
    world: PodWorld,
) -> None:
    world.turn()
    world.operator.order(swap())
    world.sidecar.listen(wait_s=0.0)
    world.operator.away = True
    world.clock.advance(400.0)
    world.turn()
    assert world.active() is None, "people may have frozen it since"
    world.operator.away = False
    world.turn()
    assert world.active() == FIRST


def test_a_server_that_was_restarted_gets_what_it_had(world: PodWorld) -> None:
    world.order(swap())
    world.swapper.restart()
    world.turn()
    assert world.active() == FIRST
    assert world.outcomes() == [("swap-p1-2", Outcome.DONE, "")]


def test_a_sidecar_killed_after_the_server_had_the_order_closes_it(world: PodWorld) -> None:
    world.turn()
    world.operator.order(swap())
    world.sidecar.listen(wait_s=0.0)
    order = swap()
    folder = world.ctx.artifacts.folder_of(order)
    world.swapper.prepare(order, artifact_dir=folder)
    world.swapper.commit(order)
    world.start()
    world.turn()
    assert world.swapper.flips == ["swap-p1-2"]
    assert world.outcomes() == [("swap-p1-2", Outcome.DONE, "")]


def test_what_the_server_refuses_is_told_and_not_tried_again(world: PodWorld) -> None:
    world.swapper.refuse = {FIRST: "self-check-failed"}
    world.order(swap())
    world.swapper.refuse = {}
    world.order(swap(epoch=3))
    assert world.active() is None
    assert world.outcomes() == [
        ("swap-p1-2", Outcome.REFUSED, "self-check-failed"),
        ("swap-p1-3", Outcome.REFUSED, "failed-here"),
    ]


def test_a_process_that_is_not_ready_makes_the_order_wait(world: PodWorld) -> None:
    world.swapper.refuse = {FIRST: "self-check-no-shape"}
    world.order(swap())
    assert world.outcomes() == []
    world.swapper.refuse = {}
    world.turn()
    assert world.active() == FIRST


def test_a_refusal_is_told_with_every_look_while_the_order_is_named(world: PodWorld) -> None:
    world.swapper.refuse = {FIRST: "self-check-failed"}
    world.order(swap())
    world.start()  # what it told is not told again, how things stand is
    world.turn()
    world.turn()
    (held,) = world.said(WatchPost)[-1].held
    assert (held.order, held.epoch, held.final) == ("swap-p1-2", 2, True)
    assert (held.reason, held.detail) == ("self-check-failed", "as the test wished")
    world.order()
    world.turn()
    assert world.said(WatchPost)[-1].held == ()


def test_an_order_that_waits_is_told_with_what_it_waits_for_until_it_is_done(
    world: PodWorld,
) -> None:
    world.swapper.refuse = {FIRST: "self-check-no-shape"}
    world.order(swap())
    (held,) = world.said(WatchPost)[-1].held
    assert (held.reason, held.final) == ("self-check-no-shape", False)
    world.swapper.refuse = {}
    world.operator.artifacts = {}
    world.ctx.artifacts.keep_only(())
    world.turn()
    assert [each.reason for each in world.said(WatchPost)[-1].held] == ["artifact-unknown"]
    world.publish(FIRST)
    world.turn()
    assert world.active() == FIRST
    assert world.said(WatchPost)[-1].held == ()


def test_outcomes_are_told_also_while_the_server_does_not_answer(world: PodWorld) -> None:
    world.turn()
    world.operator.order(swap(target="serving/other"))
    world.sidecar.listen(wait_s=0.0)
    world.swapper.away = True
    with pytest.raises(TemporaryError):
        world.sidecar.tell()
    assert world.outcomes() == [("swap-p1-2", Outcome.REFUSED, "other-target")]


def test_a_way_back_that_the_operator_orders_needs_no_artifact(world: PodWorld) -> None:
    forward = swap()
    world.order(forward)
    world.operator.artifacts = {}
    world.order(back(forward, epoch=3))
    assert world.active() is None
    assert world.outcomes()[-1][1] is Outcome.DONE


def test_a_way_back_whose_artifact_cannot_be_had_ends_at_the_original(world: PodWorld) -> None:
    world.order(swap())
    second = swap(SECOND, epoch=3, proposal="p2", previous=FIRST)
    world.order(second)
    assert world.active() == SECOND
    world.swapper.restart()  # nothing is loaded any more
    world.operator.artifacts = {}
    world.ctx.artifacts.keep_only(())
    world.order(back(second, epoch=4))
    assert world.active() is None


def test_a_server_that_refuses_its_original_is_named_until_it_takes_it(world: PodWorld) -> None:
    failed = "retuned_swap_rollback_failed"
    world.order(swap())
    assert world.telemetry.tables[failed] == {}
    world.swapper.refuse_commit[None] = "slot-broken"  # type: ignore[index]
    world.order(back(swap(), epoch=3))
    world.turn()
    about = {"namespace": "", "proposal": "", "target": "chat", "kernel": "gemm"}
    assert world.telemetry.row(failed, **about, server="chat-0") == 1.0
    world.swapper.away = True
    with pytest.raises(TemporaryError):
        world.turn()
    assert world.telemetry.tables[failed], "who does not answer is not back"
    world.swapper.away = False
    world.swapper.refuse_commit.clear()
    world.turn()
    assert world.active() is None
    assert world.telemetry.tables[failed] == {}


def test_some_processes_with_a_swap_and_others_without_all_go_back(world: PodWorld) -> None:
    world.swapper.partial = True
    world.order(swap())
    assert world.active() is None
    assert world.outcomes()[0] == ("swap-p1-2", Outcome.ROLLED_BACK, "partial-commit")
    report = world.slot().report
    assert report is not None
    assert report.action is WatchAction.ROLLBACK


def test_orders_wait_until_the_operator_says_whom_the_pod_serves(world: PodWorld) -> None:
    world.operator.order(swap())
    assert not world.sidecar.listen(wait_s=0.0), "nobody said yet"
    world.sidecar.tell()
    assert world.ctx.target == "serving/chat"
    assert world.said(Hello)
    assert world.sidecar.listen(wait_s=0.0)


def test_a_live_kernel_gets_its_slot_with_its_first_order_and_again_after_a_restart(
    world: PodWorld,
) -> None:
    name = "lifted_norm_0123456789"
    world.operator.artifacts[FIRST] = world.signed(FIRST, name=name, intercept={"kernel": "a:b"})
    world.order(swap(name=name))
    assert world.swapper.flips == [], "it was not launched yet"
    world.swapper.live = frozenset({name})
    world.order(swap(name=name))
    assert world.active(name) == FIRST
    assert world.outcomes() == [(swap(name=name).id, Outcome.DONE, "")]
    world.swapper.restart()
    world.turn()
    assert world.active(name) == FIRST


def test_a_slot_that_a_server_does_not_have_is_not_opened_by_a_kernel_of_the_catalog(
    world: PodWorld,
) -> None:
    world.publish(SECOND, name="softmax")
    world.order(swap(SECOND, name="softmax"))
    assert world.swapper.flips == []
    assert world.outcomes() == []
