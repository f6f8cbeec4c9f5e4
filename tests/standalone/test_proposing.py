"""What becomes of an experiment that was won."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from tests.standalone.local_world import KERNEL, WINNER, WON, World
from tests.standalone.test_beliefs import belief, conclude

from retuned.contract import Guard, digest_of
from retuned.stages.gate import KernelTuningPolicy
from retuned.stages.proposal import Proposal
from retuned.stages.swap import order_swap
from retuned.standalone import proposals
from retuned.standalone.context import Context, RecordKind
from retuned.standalone.evidence import measured_in
from retuned.standalone.reconciler import Reconciler
from retuned.standalone.records import was_swapped


def win(ctx: Context) -> str:
    conclude(ctx, belief(), WON)
    (experiment,) = ctx.store.list(RecordKind.EXPERIMENT, phase="won")
    return experiment.id


def reasons(ctx: Context, experiment: str) -> list[str]:
    events = ctx.store.events(id=experiment)
    return [event.detail["reason"] for event in events if event.what == "not-proposed"]


def test_what_was_decided_before_is_not_proposed_again(world: World) -> None:
    ctx = world.loop.ctx
    experiment = win(ctx)
    proposals.propose(ctx)
    (first,) = ctx.store.list(RecordKind.PROPOSAL)
    ctx.store.advance(RecordKind.PROPOSAL, first.id, expect="Pending", to="Rejected")
    waiting = Proposal.model_validate(first.body).model_copy(update={"id": "waiting"})
    body = waiting.model_dump(mode="json")
    ctx.store.add(RecordKind.PROPOSAL, "waiting", body, phase="Pending")
    ctx.store.advance(RecordKind.EXPERIMENT, experiment, expect="proposed", to="won")
    proposals.propose(ctx)
    assert [stored.phase for stored in ctx.store.list(RecordKind.PROPOSAL)] == [
        "Rejected",
        "Pending",
    ]
    assert reasons(ctx, experiment) == ["already-decided"]
    assert [event.what for event in ctx.store.events(id=first.id)].count("proposed") == 1
    assert ctx.store.list(RecordKind.EXPERIMENT, phase="refused")


def test_a_proposal_expires_when_the_gate_of_its_policy_has_it_expire(world: World) -> None:
    (policy,) = world.policies
    spec = policy.model_dump(mode="json", by_alias=True)
    spec["spec"]["gates"][0]["approvals"]["ttl"] = "1h"
    world.policies = (KernelTuningPolicy.model_validate(spec),)
    ctx = world.loop.ctx
    win(ctx)
    proposals.propose(ctx)
    (stored,) = ctx.store.list(RecordKind.PROPOSAL)
    proposal = Proposal.model_validate(stored.body)
    assert proposal.expires_at - proposal.created_at == timedelta(hours=1)
    assert ctx.settings.proposal_ttl > timedelta(hours=1), "it would have had longer"


def test_a_win_of_another_environment_is_not_proposed(world: World) -> None:
    ctx = world.loop.ctx
    experiment = win(ctx)
    moved = replace(ctx, environment=digest_of("a new driver"))
    proposals.propose(moved)
    assert ctx.store.list(RecordKind.PROPOSAL) == []
    assert reasons(ctx, experiment) == ["stale-environment"]


def test_a_proposal_of_an_earlier_version_has_its_environment_from_its_experiment(
    world: World,
) -> None:
    ctx = world.loop.ctx
    win(ctx)
    proposals.propose(ctx)
    (stored,) = ctx.store.list(RecordKind.PROPOSAL)
    assert stored.body["environment"] == ctx.environment
    old = {name: value for name, value in stored.body.items() if name != "environment"}
    ctx.store.advance(RecordKind.PROPOSAL, stored.id, expect="Pending", to="Pending", body=old)
    assert measured_in(ctx, Proposal.model_validate(old)) == ctx.environment
    Reconciler(ctx).reconcile()
    assert world.phases(RecordKind.PROPOSAL) == ["AwaitingApproval"]
    Reconciler(replace(ctx, environment=digest_of("a new driver"))).reconcile()
    assert world.phases(RecordKind.PROPOSAL) == ["Superseded"]


def test_the_first_swap_of_a_kernel_is_a_first_swap_whatever_other_kernels_had(
    world: World,
) -> None:
    ctx = world.loop.ctx
    win(ctx)
    proposals.propose(ctx)
    (stored,) = ctx.store.list(RecordKind.PROPOSAL)
    first = "first swap of this kernel on this target"
    assert first in stored.body["risk_reasons"]
    proposal = Proposal.model_validate(stored.body)
    for number, (definition, phase) in enumerate(
        (("another", "done"), (KERNEL, "new"), (KERNEL, "superseded"))
    ):
        other = proposal.model_copy(
            update={"definition": definition, "artifact": WINNER.digest, "guard": Guard()}
        )
        order = order_swap(other, epoch=number + 1)
        ctx.store.add(RecordKind.ORDER, order.id, order.model_dump(mode="json"), phase=phase)
        assert was_swapped(ctx.store, KERNEL) is (number == 2)
