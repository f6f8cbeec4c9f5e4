"""What one machine shows: what stands is there, and what is over is there no more."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from tests.standalone.local_world import KERNEL, World

from retuned.stages.gate import DecisionKind, SwapDecision, TuningFreeze
from retuned.standalone.context import RecordKind
from retuned.store.approvals import Approvals

AWAITING = "retuned_swap_proposal_awaiting_approval"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def until_it_waits(world: World) -> str:
    """Let traffic drift until a proposal waits for a person."""
    for m in [4] * 8 + [512] * 30:
        world.window(m)
        world.loop.turn()
        waiting = world.store.ids(RecordKind.PROPOSAL, phase="AwaitingApproval")
        if waiting and world.telemetry.tables.get(AWAITING):
            return waiting[0]
    raise AssertionError("nothing was proposed")


def test_each_stage_leaves_its_numbers(world: World) -> None:
    until_it_waits(world)
    shown = world.telemetry
    assert shown.total("retuned_trace_files_total", outcome="read") == len(world.files)
    assert shown.total("retuned_launches_total") == 400 * len(world.files)
    assert shown.total("retuned_windows_total") > 4
    assert shown.row("retuned_kernel_gpu_time_ratio", kernel=f"retuned::{KERNEL}") == 1.0
    assert shown.total("retuned_drift_reports_total", action="retune") >= 1
    assert shown.total("retuned_drift_reasons_total") >= 1
    assert shown.total("retuned_hypotheses_total") >= 1
    assert shown.total("retuned_experiments_started_total") >= 1
    started = shown.total("retuned_experiments_started_total")
    assert shown.total("retuned_experiments_ended_total") == started
    assert shown.total("retuned_candidates_total", reason="faster") == 1
    paid = shown.total("retuned_experiment_gpu_seconds_total")
    assert paid == shown.total("retuned_candidate_seconds_total") == len(world.paid)
    assert shown.row("retuned_experiments", phase="succeeded") == 1.0
    assert shown.row("retuned_proposals", phase="awaiting-approval") == 1.0


def test_a_proposal_is_shown_only_while_it_waits_for_a_person(world: World) -> None:
    name = until_it_waits(world)
    shown = world.telemetry
    proposal = world.store.get(RecordKind.PROPOSAL, name)
    assert proposal is not None
    labels = {"namespace": "", "proposal": name, "target": "demo", "kernel": KERNEL}
    digest = {"digest": str(proposal.body["artifact"]), "risk": str(proposal.body["risk"])}
    assert shown.row(AWAITING, **labels, **digest) == 1.0
    assert shown.row("retuned_swap_proposal_approvals_missing", proposal=name) == 1.0
    lower = shown.row("retuned_swap_proposal_speedup_ratio", proposal=name, bound="lower")
    assert lower == proposal.body["speedup"]["lower"]
    expires = shown.row("retuned_swap_proposal_expires_timestamp_seconds", proposal=name)
    created = shown.row("retuned_swap_proposal_created_timestamp_seconds", proposal=name)
    assert expires is not None
    assert created is not None
    assert expires - created == timedelta(hours=24).total_seconds()
    world.clock.advance(1.0)
    world.approve_what_waits()
    world.loop.turn()
    assert shown.tables[AWAITING] == {}
    assert shown.tables["retuned_swap_proposal_expires_timestamp_seconds"] == {}
    assert shown.total("retuned_swap_decisions_total", decision="approve") == 1
    assert shown.total("retuned_swaps_total", kind="swap") == 1
    assert shown.row("retuned_swap_in_force_saving_ratio", kernel=KERNEL) is not None


def test_decisions_of_before_are_not_counted_again_after_a_restart(world: World) -> None:
    until_it_waits(world)
    world.clock.advance(1.0)
    world.approve_what_waits()
    world.loop.turn()
    world.restart()
    for _ in range(3):
        world.loop.turn()
    assert world.telemetry.total("retuned_swap_decisions_total") == 1


def test_a_broken_glass_is_counted_by_its_way_in(world: World) -> None:
    name = until_it_waits(world)
    stored = world.store.get(RecordKind.PROPOSAL, name)
    assert stored is not None
    decision = SwapDecision(
        proposal=name,
        digest=str(stored.body["artifact"]),
        decision=DecisionKind.BREAK_GLASS,
        user="ada",
        at=world.clock.now(),
        channel="cli",
        policy_digest=str(stored.body["artifact"]),
    )
    Approvals(world.store).give(decision)
    world.loop.show()
    counted = world.telemetry.total(
        "retuned_swap_decisions_total", decision="break-glass", channel="cli"
    )
    assert counted == 1


def test_a_freeze_is_shown_while_it_stands(world: World) -> None:
    people = Approvals(world.store)
    at = world.clock.now()
    people.freeze(TuningFreeze(id="stop", user="ada", at=at))
    world.loop.show()
    name = "retuned_freeze_since_timestamp_seconds"
    assert world.telemetry.row(name, freeze="stop") == at.timestamp()
    people.thaw("stop", who="ada", at=at)
    world.loop.show()
    assert world.telemetry.tables[name] == {}


def test_policies_that_cannot_be_read_are_shown_as_such(world: World) -> None:
    world.loop.show()
    assert world.telemetry.row("retuned_policy_valid", policy="person") == 1.0
    world.policies_gone = True
    world.loop.show()
    assert world.telemetry.row("retuned_policy_valid", policy="policy_files") == 0.0
    assert world.telemetry.row("retuned_policy_valid", policy="person") is None


def test_a_rollback_is_counted_with_its_reason_and_its_arrival(world: World) -> None:
    until_it_waits(world)
    world.clock.advance(1.0)
    world.approve_what_waits()
    world.loop.turn()
    world.server.counts[KERNEL] = {
        "swapped_launches": 2_000,
        "fallback_launches": 500,
        "shadow_checks": 60,
        "shadow_mismatches": 1,
        "worst_ratio": 3.0,
    }
    world.loop.show()
    shown = world.telemetry
    served = {"kernel": KERNEL, "served_by": "variant"}
    assert shown.row("retuned_slot_launches_total", **served) == 2_000
    assert shown.row("retuned_shadow_checks_total", kernel=KERNEL) == 60
    assert shown.row("retuned_shadow_mismatches_total", kernel=KERNEL) == 1
    assert shown.row("retuned_shadow_worst_ratio", kernel=KERNEL) == 3.0
    world.loop.turn()
    assert shown.total("retuned_rollbacks_total", reason="shadow-mismatch") == 1
    assert shown.total("retuned_swaps_total", kind="rollback") == 2, "the node's, then confirmed"
    assert shown.total("retuned_swap_phases_total", phase="rolled-back") == 1
    assert shown.row("retuned_proposals", phase="rolled-back") == 1.0
    (id,) = world.store.ids(RecordKind.PROPOSAL, phase="RolledBack")
    about = {"namespace": "", "proposal": id, "target": "demo", "kernel": KERNEL}
    back = "retuned_swap_rolled_back"
    assert shown.row(back, **about, reason="shadow-mismatch") == 1.0
    world.clock.advance(901.0)
    world.loop.show()
    assert shown.tables[back] == {}


def test_a_way_back_that_fails_is_named_until_it_arrives(world: World) -> None:
    id = until_it_waits(world)
    world.clock.advance(1.0)
    world.approve_what_waits()
    world.loop.turn()
    failed = "retuned_swap_rollback_failed"
    assert world.telemetry.tables[failed] == {}
    world.server.unknown = frozenset({KERNEL})
    people = Approvals(world.store)
    people.request("rollback", target=id, who="ada", at=world.clock.now())
    for _ in range(3):
        world.loop.turn()
    about = {"namespace": "", "proposal": id, "target": "demo", "kernel": KERNEL, "server": ""}
    assert world.telemetry.row(failed, **about) == 1.0
    world.server.unknown = frozenset()
    for _ in range(2):
        world.loop.turn()
    assert world.telemetry.tables[failed] == {}
