"""Orders, the way back, and that every crash converges without a double swap."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.expect import raises_naming

from retuned.contract import Digest, Guard, TrustClass
from retuned.stages.proposal import Proposal, Risk
from retuned.stages.swap import (
    SlotFacts,
    Spread,
    SwapKind,
    SwapOrder,
    is_carried_out,
    is_overtaken,
    next_epoch,
    order_rollback,
    order_swap,
    reconcile,
    reissue,
    to_original,
)
from retuned.stages.verdict import Interval

NOW = datetime(2026, 11, 18, 10, 0, tzinfo=UTC)
NEW: Digest = "sha256:" + "a" * 64
OLD: Digest = "sha256:" + "b" * 64
GUARD = Guard(bounds={"M": (16, 256)})
OLD_GUARD = Guard(bounds={"M": (1, 8)})


def proposal(definition: str = "linear") -> Proposal:
    return Proposal(
        id=f"proposal-{definition}",
        target="demo",
        definition=definition,
        artifact=NEW,
        baseline=OLD,
        guard=GUARD,
        speedup=Interval(lower=1.2, point=1.3, upper=1.4, confidence=0.99),
        share=0.5,
        expected_saving=0.1,
        risk=Risk.LOW,
        risk_reasons=(),
        trust=TrustClass.PARAMETERS,
        evidence=None,
        experiment="plan",
        requested_by="retuned",
        created_at=NOW,
        expires_at=NOW + timedelta(days=1),
    )


def test_an_order_carries_what_was_approved_and_nothing_else() -> None:
    order = order_swap(proposal(), epoch=3, spread=Spread(shadow_every=20))
    assert (order.kind, order.artifact, order.guard) == (SwapKind.SWAP, NEW, GUARD)
    assert (order.previous, order.previous_guard, order.shadow_every) == (None, None, 20)
    assert order.id == order_swap(proposal(), epoch=3).id
    assert order.id != order_swap(proposal(), epoch=4).id


def test_a_rollback_leads_to_what_ran_before_with_its_own_guard() -> None:
    order = order_swap(proposal(), epoch=3, previous=OLD, previous_guard=OLD_GUARD)
    back = order_rollback(order, epoch=4)
    assert (back.kind, back.artifact, back.guard) == (SwapKind.ROLLBACK, OLD, OLD_GUARD)
    assert (back.previous, back.previous_guard) == (NEW, GUARD)
    forth = order_rollback(back, epoch=5)
    assert (forth.artifact, forth.guard) == (NEW, GUARD)


def test_a_rollback_to_an_artifact_of_unknown_shapes_ends_at_the_original() -> None:
    back = order_rollback(order_swap(proposal(), epoch=3, previous=OLD), epoch=4)
    assert (back.artifact, back.guard) == (None, Guard())


@pytest.mark.parametrize("epoch", [1, 3])
def test_a_rollback_that_the_runtime_would_refuse_is_not_made(epoch: int) -> None:
    with raises_naming(ValueError, "epoch 3", f"got {epoch}"):
        order_rollback(order_swap(proposal(), epoch=3), epoch=epoch)


def test_a_slot_that_took_itself_back_is_not_swapped_again() -> None:
    order = order_swap(proposal(), epoch=3)
    assert reconcile([order], [SlotFacts(definition="linear", active=None, epoch=3)]) == ()


def test_one_worker_that_is_behind_is_enough_to_repeat_an_order() -> None:
    order = order_swap(proposal(), epoch=3)
    states = [
        SlotFacts(definition="linear", active=NEW, epoch=3),
        SlotFacts(definition="linear", active=None, epoch=0),
    ]
    assert reconcile([order], states) == (order,)
    assert reconcile([order], []) == (), "a server that is away is left alone"
    later = [SlotFacts(definition="linear", active=None, epoch=9)]
    assert reconcile([order], later) == (), "would be refused"


def test_only_the_newest_order_of_a_slot_is_driven_and_oldest_slots_first() -> None:
    first = order_swap(proposal("a"), epoch=1)
    other = order_swap(proposal("b"), epoch=2)
    back = order_rollback(first, epoch=3)
    states = [SlotFacts(definition=name, active=None, epoch=0) for name in "ab"]
    assert reconcile([back, first, other], states) == (other, back)
    assert next_epoch([first, other, back], states) == 4
    assert next_epoch([], []) == 1


@dataclass
class Server:
    """What a runtime does with orders, and nothing else."""

    facts: dict[str, SlotFacts] = field(default_factory=dict)
    flips: list[tuple[str, int]] = field(default_factory=list)
    """(order, life of the server): the same pair twice is a double swap."""
    life: int = 0

    def restart(self) -> None:
        self.life += 1
        self.facts = {name: SlotFacts(definition=name, active=None, epoch=0) for name in ("a", "b")}

    def commit(self, order: SwapOrder) -> None:
        known = self.facts[order.definition]
        if (order.id, self.life) in self.flips and known.epoch >= order.epoch:
            return
        assert order.epoch > known.epoch, "refused as stale: the driver must not get here"
        self.flips.append((order.id, self.life))
        self.facts[order.definition] = SlotFacts(
            definition=order.definition, active=order.artifact, epoch=order.epoch
        )


STEP = st.sampled_from(["swap-a", "swap-b", "back-a", "back-b", "drive", "half", "restart"])


@given(st.lists(STEP, max_size=25))
def test_any_crash_of_either_side_converges_without_a_double_swap(steps: list[str]) -> None:
    """Orders are durable, everything else is lost at will: ``half`` dies after the first commit."""
    server, orders = Server(), list[SwapOrder]()
    server.restart()
    for step in steps:
        kind, _, slot = step.partition("-")
        states = list(server.facts.values())
        mine = [order for order in orders if order.definition == slot]
        if kind == "swap":
            orders.append(order_swap(proposal(slot), epoch=next_epoch(orders, states)))
        elif kind == "back" and mine:
            orders.append(order_rollback(mine[-1], epoch=next_epoch(orders, states)))
        elif kind == "restart":
            server.restart()
        elif kind in ("drive", "half"):
            due = reconcile(orders, states)
            for order in due[: 1 if kind == "half" else None]:
                server.commit(order)
                server.commit(order)  # the answer was lost and the driver asks again
    for order in reconcile(orders, list(server.facts.values())):
        server.commit(order)
    assert reconcile(orders, list(server.facts.values())) == ()
    assert len(server.flips) == len(set(server.flips))
    for name, facts in server.facts.items():
        newest = [order for order in orders if order.definition == name][-1:]
        assert [facts.active] == [order.artifact for order in newest] or not newest


def fact(**changes: object) -> SlotFacts:
    values: dict[str, object] = {"definition": "linear", "active": NEW, "epoch": 3}
    return SlotFacts(**(values | changes))  # type: ignore[arg-type]


def test_an_order_is_carried_out_where_epoch_and_artifact_are_its_own() -> None:
    order = order_swap(proposal(), epoch=3)
    assert is_carried_out(order, fact())
    assert is_carried_out(order, fact(active=None, tripped="launch-errors"))
    assert not is_carried_out(order, fact(active=OLD)), "a state that was lost counts anew"
    assert not is_carried_out(order, fact(active=None))
    assert not is_carried_out(order, fact(epoch=2))
    assert not is_carried_out(order, fact(definition="rmsnorm"))


def test_an_order_is_overtaken_by_any_process_that_would_refuse_it() -> None:
    order = order_swap(proposal(), epoch=3)
    assert is_overtaken(order, [fact(epoch=4)])
    assert is_overtaken(order, [fact(epoch=1, newest_epoch=4)])
    assert is_overtaken(order, [fact(active=OLD)])
    assert not is_overtaken(order, [fact()])
    assert not is_overtaken(order, [fact(epoch=1, newest_epoch=3)]), "it is on its way"
    assert not is_overtaken(order, [fact(definition="rmsnorm", epoch=9)])


def test_an_order_that_is_issued_again_differs_in_nothing_but_its_epoch() -> None:
    order = order_swap(proposal(), epoch=3, previous=OLD, previous_guard=OLD_GUARD)
    again = reissue(order, epoch=8)
    assert again == order_swap(proposal(), epoch=8, previous=OLD, previous_guard=OLD_GUARD)
    with raises_naming(ValueError, "epoch 3", "at 3"):
        reissue(order, epoch=3)


def test_a_way_back_that_is_barred_becomes_one_to_the_original_for_all_shapes() -> None:
    order = order_swap(proposal(), epoch=3, previous=OLD, previous_guard=OLD_GUARD)
    back = to_original(order_rollback(order, epoch=4), epoch=5)
    assert (back.kind, back.artifact, back.guard, back.epoch) == (
        SwapKind.ROLLBACK,
        None,
        Guard(),
        5,
    )
    straight = order_rollback(order, epoch=5, to_original=True)
    assert (straight.artifact, straight.guard) == (None, Guard())


def test_the_next_epoch_is_after_that_of_the_process_that_is_furthest() -> None:
    assert next_epoch([], [fact(epoch=2, newest_epoch=7), fact(epoch=4)]) == 8


def test_an_order_of_an_earlier_version_still_loads() -> None:
    body = order_swap(proposal(), epoch=3).model_dump(mode="json")
    del body["previous_guard"], body["shadow_tolerance"]
    assert SwapOrder.model_validate(body).epoch == 3
    old = proposal().model_dump(mode="json")
    del old["environment"]
    assert Proposal.model_validate(old).environment is None
