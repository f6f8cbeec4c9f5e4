"""The rules of the node agent, each played in both programs: a sidecar and `retuned run`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.sidecar.sidecar_world import FIRST as POD_FIRST
from tests.sidecar.sidecar_world import SECOND as POD_SECOND
from tests.sidecar.sidecar_world import PodWorld
from tests.sidecar.sidecar_world import swap as pod_swap
from tests.standalone import test_steering as one_machine
from tests.standalone.local_world import INCUMBENT, KERNEL, World

from retuned.contract import Digest
from retuned.errors import CandidateError, HarnessError, TemporaryError
from retuned.node import order_executor, order_intake, order_store, watcher
from retuned.node.order_context import FAILED, ORDER, OrderContext
from retuned.ports import SlotState
from retuned.runtime_client.fake import FakeSwapper
from retuned.stages.proposal import Proposal
from retuned.stages.swap import SwapKind, SwapOrder, order_rollback, order_swap
from retuned.stages.watch import WatchAction, WatchReport
from retuned.standalone.context import RecordKind

HARM = {
    "swapped_launches": 50_000,
    "shadow_checks": 900,
    "shadow_mismatches": 1,
    "worst_ratio": 9.0,
}


@dataclass
class Agent:
    """One node agent in the assembly of its program."""

    ctx: OrderContext
    server: FakeSwapper
    slot: str
    first: Digest
    second: Digest
    program: Any
    made: dict[Digest, Proposal]

    def swap(self, artifact: Digest, *, epoch: int, previous: Digest | None = None) -> SwapOrder:
        """Return an order of the program's control plane."""
        if isinstance(self.program, PodWorld):
            proposal = "p1" if artifact == self.first else "p2"
            return pod_swap(artifact, epoch=epoch, proposal=proposal, previous=previous)
        order = order_swap(self.made[artifact], epoch=epoch, previous=previous)
        guard = self.made[artifact].guard if previous else None
        return order.model_copy(update={"previous_guard": guard})

    def hear(self, *orders: SwapOrder) -> None:
        """Let the control plane name orders, and the agent take and deliver them."""
        if isinstance(self.program, PodWorld):  # its operator supplies what it has ordered
            self.program.operator.order(*orders)
        order_intake.take(self.ctx, orders, traces={})
        self.deliver()

    def deliver(self) -> None:
        self.ctx.standing.history.restart(order_executor.carry_out(self.ctx))

    def pass_s(self, seconds: float) -> None:
        self.program.clock.advance(seconds)

    def active(self) -> Digest | None:
        return next(s.active for s in self.server.slots() if s.definition == self.slot)

    def phases(self) -> list[str]:
        return [each.phase for each in self.ctx.store.list(ORDER)]


def of_a_sidecar(folder: Path) -> Agent:
    world = PodWorld(folder)
    for digest in (POD_FIRST, POD_SECOND):
        world.publish(digest)
    world.turn()  # it learns its target
    return Agent(world.ctx, world.swapper, "gemm", POD_FIRST, POD_SECOND, world, {})


def of_one_machine(folder: Path) -> Agent:
    world = World(folder)
    made = {}
    for artifact in (one_machine.FIRST, one_machine.SECOND):
        id = one_machine.propose(world, artifact, baseline=INCUMBENT.digest)
        stored = world.store.get(RecordKind.PROPOSAL, id)
        assert stored is not None
        made[artifact.digest] = Proposal.model_validate(stored.body)
    first, second = one_machine.FIRST.digest, one_machine.SECOND.digest
    node = world.loop.reconciler.node
    return Agent(node, world.server, KERNEL, first, second, world, made)


@pytest.fixture(params=[of_a_sidecar, of_one_machine], ids=["sidecar", "one-machine"])
def agent(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Agent]:
    made = request.param(tmp_path)
    yield made
    made.ctx.store.close()


def test_an_order_is_sent_before_it_is_committed(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []
    commit = agent.server.commit

    def watched(order: SwapOrder) -> int:
        seen.append(agent.phases())
        return commit(order)

    monkeypatch.setattr(type(agent.server), "commit", lambda _, order: watched(order))
    agent.hear(agent.swap(agent.first, epoch=2))
    assert seen == [["sent"]], "a crash here leaves what a process may have"
    assert agent.phases() == ["done"]


def test_a_repeated_set_of_orders_changes_nothing(agent: Agent) -> None:
    order = agent.swap(agent.first, epoch=2)
    for _ in range(3):
        agent.hear(order)
    assert agent.server.flips == [order.id]


def test_a_rollback_whose_earlier_variant_is_unanswered_goes_to_the_original(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = agent.swap(agent.first, epoch=2)
    agent.hear(first)
    second = agent.swap(agent.second, epoch=3, previous=agent.first)
    agent.hear(second)
    commit = agent.server.commit

    def silent(order: SwapOrder) -> int:
        if order.artifact is not None:
            raise TemporaryError("no answer", delay_s=1.0)
        return commit(order)

    monkeypatch.setattr(type(agent.server), "commit", lambda _, order: silent(order))
    agent.hear(order_rollback(second, epoch=4))
    assert agent.active() is None, "in the same look"


def test_a_refused_rollback_to_the_original_is_reported_and_repeated(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = agent.swap(agent.first, epoch=2)
    agent.hear(order)
    back = order_rollback(order, epoch=3)

    def refusing(self: FakeSwapper, order: SwapOrder) -> int:
        raise CandidateError("unknown-slot", detail="as the test wished")

    with monkeypatch.context() as patched:
        patched.setattr(type(agent.server), "commit", refusing)
        agent.hear(back)
        (held,) = order_store.held_orders(agent.ctx)
        assert (held.final, held.reason, held.epoch) == (True, "unknown-slot", 3)
    agent.deliver()
    assert agent.active() is None
    assert order_store.held_orders(agent.ctx) == ()


def test_a_refusal_after_which_the_server_is_silent_rolls_back(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent.server.refuse_commit[agent.first] = "self-check-failed"
    order = agent.swap(agent.first, epoch=2)
    slots, asked = agent.server.slots, []

    def silent_later() -> list[SlotState]:
        asked.append(1)
        if len(asked) > 1:
            raise TemporaryError("no answer", delay_s=1.0)
        return list(slots())

    with monkeypatch.context() as patched:
        patched.setattr(type(agent.server), "slots", lambda _: silent_later())
        agent.hear(order)
    newest = order_store.latest(agent.ctx.store)[agent.slot].order
    assert (newest.kind, newest.artifact) == (SwapKind.ROLLBACK, None), "a process may have it"


def test_a_swap_that_stays_silent_is_not_mixed_and_waits(agent: Agent) -> None:
    agent.server.away = True
    agent.hear(agent.swap(agent.first, epoch=2))
    agent.pass_s(1_000.0)
    agent.hear(agent.swap(agent.first, epoch=2))
    assert agent.phases() == ["new"]
    agent.server.away = False
    agent.hear(agent.swap(agent.first, epoch=2))
    assert agent.active() == agent.first


def test_a_partial_commit_that_a_process_refuses_rolls_back_at_once(agent: Agent) -> None:
    agent.server.refuse_commit[agent.first] = "unknown-slot"
    agent.server.half = True
    agent.hear(agent.swap(agent.first, epoch=2))
    newest = order_store.latest(agent.ctx.store)[agent.slot]
    assert (newest.order.kind, newest.phase) == (SwapKind.ROLLBACK, "done")
    assert agent.ctx.store.get(FAILED, newest.order.proposal) is not None


def test_an_order_out_of_epoch_is_left_to_the_control_plane(agent: Agent) -> None:
    agent.hear(agent.swap(agent.first, epoch=5))
    late = agent.swap(agent.second, epoch=4)
    agent.hear(late)
    (held,) = order_store.held_orders(agent.ctx)
    assert (held.order, held.final, held.reason) == (late.id, True, "out-of-epoch")
    assert agent.active() == agent.first


def test_an_artifact_that_cannot_be_supplied_makes_a_swap_wait_and_a_rollback_go_on(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent.hear(agent.swap(agent.first, epoch=2))
    second = agent.swap(agent.second, epoch=3, previous=agent.first)
    agent.hear(second)

    def gone(self: object, order: SwapOrder) -> Path:
        raise HarnessError("no space left")

    monkeypatch.setattr(type(agent.ctx.artifacts), "folder_of", gone)
    waiting = agent.swap(agent.first, epoch=4)
    agent.hear(waiting)
    (held,) = order_store.held_orders(agent.ctx)
    assert (held.final, held.reason) == (False, "build-failed")
    agent.hear(order_rollback(second, epoch=5))
    assert agent.active() is None


def test_a_source_that_is_away_keeps_its_own_code_and_delays_no_rollback(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent.hear(agent.swap(agent.first, epoch=2))
    second = agent.swap(agent.second, epoch=3, previous=agent.first)
    agent.hear(second)

    class Damaged(TemporaryError):
        code = "artifact-damaged"

    def away(self: object, order: SwapOrder) -> Path:
        raise Damaged("its digest differs", delay_s=1.0)

    monkeypatch.setattr(type(agent.ctx.artifacts), "folder_of", away)
    agent.hear(agent.swap(agent.first, epoch=4))
    (held,) = order_store.held_orders(agent.ctx)
    assert held.reason == "artifact-damaged", "a person must see which"
    agent.hear(order_rollback(second, epoch=5))
    assert agent.active() is None


def test_a_swap_starts_only_while_the_control_plane_names_it(agent: Agent) -> None:
    agent.server.away = True
    order = agent.swap(agent.first, epoch=2)
    agent.hear(order)
    agent.server.away = False
    agent.pass_s(301.0)
    agent.deliver()
    assert agent.active() is None, "it was named too long ago"
    agent.hear()
    agent.deliver()
    assert agent.phases() == ["superseded"], "and it is not named any more"


def test_what_is_named_no_more_is_rolled_back_after_a_while(agent: Agent) -> None:
    order = agent.swap(agent.first, epoch=2)
    agent.hear(order)
    agent.hear()
    agent.pass_s(59.0)
    agent.hear()
    assert agent.active() == agent.first, "an object may be made again"
    agent.pass_s(2.0)
    agent.hear()
    assert agent.active() is None


def test_a_proposal_that_failed_here_is_never_committed_here_again(agent: Agent) -> None:
    agent.hear(agent.swap(agent.first, epoch=2))
    agent.server.counts[agent.slot] = dict(HARM)
    watcher.watch(agent.ctx)
    assert agent.active() is None
    again = agent.swap(agent.first, epoch=9)
    agent.hear(again)
    assert agent.active() is None
    (held,) = [each for each in order_store.held_orders(agent.ctx) if each.order == again.id]
    assert held.reason == "failed-here"


def test_a_rollback_never_restores_what_failed_here(agent: Agent) -> None:
    first = agent.swap(agent.first, epoch=2)
    agent.hear(first)
    second = agent.swap(agent.second, epoch=3, previous=agent.first)
    agent.hear(second)
    report = WatchReport(action=WatchAction.ROLLBACK, reason="shadow-mismatch")
    order_store.fail(agent.ctx, first, report)
    agent.hear(order_rollback(second, epoch=4))
    assert agent.active() is None


def test_harm_is_rolled_back_in_the_same_look_without_the_control_plane(agent: Agent) -> None:
    agent.hear(agent.swap(agent.first, epoch=2))
    agent.server.counts[agent.slot] = dict(HARM)
    (report,) = watcher.watch(agent.ctx)
    assert (report.action, report.reason) == (WatchAction.ROLLBACK, "shadow-mismatch")
    assert agent.active() is None


def test_a_restored_variant_is_watched_under_its_own_proposal(agent: Agent) -> None:
    first = agent.swap(agent.first, epoch=2)
    agent.hear(first)
    second = agent.swap(agent.second, epoch=3, previous=agent.first)
    agent.hear(second)
    agent.hear(order_rollback(second, epoch=4))
    assert agent.active() == agent.first
    agent.server.counts[agent.slot] = dict(HARM)
    watcher.watch(agent.ctx)
    assert agent.active() is None
    assert agent.ctx.store.get(FAILED, first.proposal) is not None
    assert agent.ctx.store.get(FAILED, second.proposal) is None


def test_a_full_disk_does_not_prevent_a_rollback(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent.hear(agent.swap(agent.first, epoch=2))
    agent.server.counts[agent.slot] = dict(HARM)
    report = type(agent.ctx).report
    full = [True]

    def failing(self: Any, *arguments: Any, **named: Any) -> None:
        if full and full.pop():
            raise TemporaryError("no space left", delay_s=1.0)
        report(self, *arguments, **named)

    monkeypatch.setattr(type(agent.ctx), "report", failing)
    watcher.watch(agent.ctx)
    assert agent.active() is None


def test_a_rank_that_lacks_an_order_gets_a_while(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = agent.swap(agent.first, epoch=2)
    agent.hear(order)
    slots = agent.server.slots

    def one_lacks_it() -> list[SlotState]:
        return [replace(slot, epoch=0, newest_epoch=slot.epoch) for slot in slots()]

    def unanswered(*_: object, **__: object) -> None:
        raise TemporaryError("one does not answer", delay_s=1.0)

    with monkeypatch.context() as patched:
        patched.setattr(type(agent.server), "slots", lambda _: one_lacks_it())
        patched.setattr(type(agent.server), "prepare", unanswered)
        agent.hear(order)
        agent.pass_s(299.0)
        agent.hear(order)
        assert agent.server.flips == [order.id]
        agent.pass_s(2.0)
        agent.hear(order)
    agent.deliver()
    assert agent.active() is None, "the others roll back"
