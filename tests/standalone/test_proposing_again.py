"""A win that nobody decided on in time comes back, a few times, while it still holds."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from tests.standalone.local_world import World
from tests.standalone.test_proposing import reasons, win

from retuned.contract import digest_of
from retuned.stages.proposal import Proposal
from retuned.standalone import proposals
from retuned.standalone.context import Context, RecordKind
from retuned.standalone.reconciler import Reconciler

DAY_S = 86_400.0


def phases(ctx: Context) -> list[str]:
    return [stored.phase for stored in ctx.store.list(RecordKind.PROPOSAL)]


def expire(world: World, ctx: Context) -> None:
    world.clock.advance(DAY_S + 1)
    Reconciler(ctx).reconcile()
    proposals.propose(ctx)


def test_an_expired_win_rests_and_is_proposed_again_as_another_attempt(world: World) -> None:
    ctx = world.loop.ctx
    experiment = win(ctx)
    proposals.propose(ctx)
    expire(world, ctx)
    assert phases(ctx) == ["Expired"]
    world.clock.advance(DAY_S - 10)
    proposals.propose(ctx)
    assert phases(ctx) == ["Expired"]
    world.clock.advance(20)
    proposals.propose(ctx)
    assert phases(ctx) == ["Expired", "Pending"]
    first, second = (Proposal.model_validate(s.body) for s in ctx.store.list(RecordKind.PROPOSAL))
    assert (first.attempt, second.attempt) == (1, 2)
    assert first.id != second.id
    assert (first.artifact, first.evidence) == (second.artifact, second.evidence)
    assert second.expires_at == ctx.clock.now() + ctx.settings.proposal_ttl
    assert reasons(ctx, experiment) == []
    Reconciler(ctx).reconcile()
    assert phases(ctx) == ["Expired", "AwaitingApproval"]
    world.approve_what_waits()
    world.clock.advance(1)
    Reconciler(ctx).reconcile()
    assert phases(ctx) == ["Expired", "Canary"]


def test_after_a_few_attempts_only_a_new_experiment_brings_a_win_back(world: World) -> None:
    ctx = world.loop.ctx
    experiment = win(ctx)
    patient = replace(
        ctx, settings=replace(ctx.settings, evidence_max_age=timedelta(days=365), max_proposals=2)
    )
    proposals.propose(patient)
    for _ in range(4):
        expire(world, patient)
        expire(world, patient)
    assert phases(patient) == ["Expired", "Expired"]
    assert reasons(patient, experiment) == ["expired-too-often"]
    # the same win, found anew
    ctx.store.advance(RecordKind.EXPERIMENT, experiment, expect="refused", to="won")
    proposals.propose(patient)
    assert phases(patient) == ["Expired", "Expired", "Pending"]
    (open_one,) = ctx.store.list(RecordKind.PROPOSAL, phase="Pending")
    assert open_one.body["attempt"] == 3


def test_what_was_measured_long_ago_is_not_proposed_again(world: World) -> None:
    ctx = world.loop.ctx
    experiment = win(ctx)
    proposals.propose(ctx)
    expire(world, ctx)
    world.clock.advance(7 * DAY_S)
    proposals.propose(ctx)
    assert phases(ctx) == ["Expired"]
    assert reasons(ctx, experiment) == ["old-evidence"]
    assert ctx.store.list(RecordKind.EXPERIMENT, phase="lapsed") == []


def test_an_expired_win_of_another_environment_is_not_proposed_again(world: World) -> None:
    ctx = world.loop.ctx
    experiment = win(ctx)
    proposals.propose(ctx)
    expire(world, ctx)
    world.clock.advance(DAY_S)
    proposals.propose(replace(ctx, environment=digest_of("a new driver")))
    assert phases(ctx) == ["Expired"]
    assert reasons(ctx, experiment) == ["stale-environment"]


@pytest.mark.parametrize("end", ["Rejected", "Aborted", "Superseded"])
def test_what_somebody_decided_does_not_come_back(world: World, end: str) -> None:
    ctx = world.loop.ctx
    win(ctx)
    proposals.propose(ctx)
    (stored,) = ctx.store.list(RecordKind.PROPOSAL)
    ctx.store.advance(RecordKind.PROPOSAL, stored.id, expect="Pending", to=end)
    for _ in range(3):
        expire(world, ctx)
    assert phases(ctx) == [end]


def test_a_win_waits_while_another_of_its_kernel_is_under_way(world: World) -> None:
    ctx = world.loop.ctx
    win(ctx)
    proposals.propose(ctx)
    expire(world, ctx)
    world.clock.advance(DAY_S)
    (stored,) = ctx.store.list(RecordKind.PROPOSAL)
    ctx.store.add(RecordKind.PROPOSAL, "newer", {**stored.body, "id": "newer"}, phase="Canary")
    proposals.propose(ctx)
    assert phases(ctx) == ["Expired", "Canary"]
    ctx.store.advance(RecordKind.PROPOSAL, "newer", expect="Canary", to="Invalid")
    proposals.propose(ctx)
    assert phases(ctx) == ["Expired", "Invalid", "Pending"]
