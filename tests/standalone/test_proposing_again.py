"""A win that nobody decided on in time comes back, a few times, while it still holds."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from tests.standalone.local_world import World
from tests.standalone.test_proposing import reasons, win

from retuned.contract import digest_of
from retuned.stages.proposal import Proposal
from retuned.standalone import proposal_steps
from retuned.standalone.context import Context, RecordKind

DAY_S = 86_400.0


def phases(ctx: Context) -> list[str]:
    return [stored.phase for stored in ctx.store.list(RecordKind.PROPOSAL)]


def expire(world: World, ctx: Context) -> None:
    world.clock.advance(DAY_S + 1)
    proposal_steps.gate(ctx)
    proposal_steps.propose(ctx)


def test_an_expired_win_rests_and_is_proposed_again_as_another_attempt(world: World) -> None:
    ctx = world.loop.ctx
    experiment = win(ctx)
    proposal_steps.propose(ctx)
    expire(world, ctx)
    assert phases(ctx) == ["expired"]
    world.clock.advance(DAY_S - 10)
    proposal_steps.propose(ctx)
    assert phases(ctx) == ["expired"]
    world.clock.advance(20)
    proposal_steps.propose(ctx)
    assert phases(ctx) == ["expired", "awaiting"]
    first, second = (Proposal.model_validate(s.body) for s in ctx.store.list(RecordKind.PROPOSAL))
    assert (first.attempt, second.attempt) == (1, 2)
    assert first.id != second.id
    assert (first.artifact, first.evidence) == (second.artifact, second.evidence)
    assert second.expires_at == ctx.clock.now() + ctx.settings.proposal_ttl
    assert reasons(ctx, experiment) == []
    proposal_steps.gate(ctx)
    assert phases(ctx) == ["expired", "awaiting"]
    world.approve_what_waits()
    world.clock.advance(1)
    proposal_steps.gate(ctx)
    assert phases(ctx) == ["expired", "approved"]


def test_after_a_few_attempts_only_a_new_experiment_brings_a_win_back(world: World) -> None:
    ctx = world.loop.ctx
    experiment = win(ctx)
    patient = replace(
        ctx, settings=replace(ctx.settings, evidence_max_age=timedelta(days=365), max_proposals=2)
    )
    proposal_steps.propose(patient)
    for _ in range(4):
        expire(world, patient)
        expire(world, patient)
    assert phases(patient) == ["expired", "expired"]
    assert reasons(patient, experiment) == ["expired-too-often"]
    # the same win, found anew
    ctx.store.advance(RecordKind.EXPERIMENT, experiment, expect="refused", to="won")
    proposal_steps.propose(patient)
    assert phases(patient) == ["expired", "expired", "awaiting"]
    (open_one,) = ctx.store.list(RecordKind.PROPOSAL, phase="awaiting")
    assert open_one.body["attempt"] == 3


def test_what_was_measured_long_ago_is_not_proposed_again(world: World) -> None:
    ctx = world.loop.ctx
    experiment = win(ctx)
    proposal_steps.propose(ctx)
    expire(world, ctx)
    world.clock.advance(7 * DAY_S)
    proposal_steps.propose(ctx)
    assert phases(ctx) == ["expired"]
    assert reasons(ctx, experiment) == ["old-evidence"]
    assert ctx.store.list(RecordKind.EXPERIMENT, phase="lapsed") == []


def test_an_expired_win_of_another_environment_is_not_proposed_again(world: World) -> None:
    ctx = world.loop.ctx
    experiment = win(ctx)
    proposal_steps.propose(ctx)
    expire(world, ctx)
    world.clock.advance(DAY_S)
    proposal_steps.propose(replace(ctx, environment=digest_of("a new driver")))
    assert phases(ctx) == ["expired"]
    assert reasons(ctx, experiment) == ["stale-environment"]


@pytest.mark.parametrize("end", ["rejected", "aborted", "superseded"])
def test_what_somebody_decided_does_not_come_back(world: World, end: str) -> None:
    ctx = world.loop.ctx
    win(ctx)
    proposal_steps.propose(ctx)
    (stored,) = ctx.store.list(RecordKind.PROPOSAL)
    ctx.store.advance(RecordKind.PROPOSAL, stored.id, expect="awaiting", to=end)
    for _ in range(3):
        expire(world, ctx)
    assert phases(ctx) == [end]


def test_a_win_waits_while_another_of_its_kernel_is_under_way(world: World) -> None:
    ctx = world.loop.ctx
    win(ctx)
    proposal_steps.propose(ctx)
    expire(world, ctx)
    world.clock.advance(DAY_S)
    (stored,) = ctx.store.list(RecordKind.PROPOSAL)
    ctx.store.add(RecordKind.PROPOSAL, "newer", {**stored.body, "id": "newer"}, phase="swapping")
    proposal_steps.propose(ctx)
    assert phases(ctx) == ["expired", "swapping"]
    ctx.store.advance(RecordKind.PROPOSAL, "newer", expect="swapping", to="refused")
    proposal_steps.propose(ctx)
    assert phases(ctx) == ["expired", "refused", "awaiting"]
