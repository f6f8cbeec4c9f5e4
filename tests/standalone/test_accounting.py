"""What experiments cost and swaps saved, over a whole story of the loop."""

from __future__ import annotations

import math

import pytest
from tests.standalone.local_world import KERNEL, World
from tests.standalone.test_loop import tell_story

from retuned.stages.proposal import Proposal
from retuned.stages.verdict import Interval
from retuned.stages.watch import (
    Account,
    ExperimentUsage,
    Hours,
    SwapUsage,
    claimed,
    saved,
    settle,
    total,
)
from retuned.stages.watch.proof import Calibration, EffectInterval, ProofReason, Verdict
from retuned.standalone import savings
from retuned.standalone.context import RecordKind
from retuned.store.savings import RAN


def swapped_windows(world: World, count: int) -> None:
    for _ in range(count):
        world.window(256)
        world.loop.turn()


def the_account(world: World) -> Account:
    (found,) = savings.accounts(world.store)
    return found


def test_device_time_of_swapped_shapes_times_the_gain_is_what_was_saved(world: World) -> None:
    tell_story(world)
    before = the_account(world)
    swapped_windows(world, 4)
    account = the_account(world)
    assert (account.target, account.definition, account.swaps) == ("demo", KERNEL, 1)
    proposal = Proposal.model_validate(world.store.list(RecordKind.PROPOSAL)[0].body)
    ran_ns = [stored.body["gpu_ns"] for stored in world.store.list(RAN, phase="current")]
    hours = sum(ran_ns) / 3.6e12
    assert account.claimed_h.point > before.claimed_h.point
    assert account.claimed_h.point == pytest.approx(hours * (proposal.speedup.point - 1))
    assert account.claimed_h.lower < account.claimed_h.point < account.claimed_h.upper
    assert (account.saved_h, account.proven) == (Hours(), 0), "no server has confirmed it"


def test_what_a_live_proof_has_shown_is_saved_and_no_claim(world: World) -> None:
    tell_story(world)
    swapped_windows(world, 4)
    proposal = Proposal.model_validate(world.store.list(RecordKind.PROPOSAL)[0].body)
    proven = Calibration(
        proposal=proposal.id,
        definition=proposal.definition,
        artifact=proposal.artifact,
        at=world.clock.now(),
        share=proposal.share,
        speedup=proposal.speedup,
        verdict=Verdict.HELPS,
        reason=ProofReason.FASTER,
        live=EffectInterval(effect=-0.02, low=-0.03, high=-0.01),
        pairs=24,
    )
    body = proven.model_dump(mode="json")
    world.store.add(RecordKind.CALIBRATION, proposal.id, body, phase="differs")
    rows = world.store.list(RAN, phase="current")
    hours = sum(row.body["server_ns"] for row in rows) / 3.6e12
    assert hours > 0.0
    account = the_account(world)
    assert (account.claimed_h, account.proven) == (Hours(), 1)
    assert account.saved_h.point == pytest.approx(hours * math.expm1(0.02))
    assert account.saved_h.lower == pytest.approx(hours * math.expm1(0.01))
    assert account.saved_h.upper == pytest.approx(hours * math.expm1(0.03))
    assert savings.calibrations(world.store) == [proven]


def test_no_window_counts_twice_however_often_the_daemon_looks_or_starts(world: World) -> None:
    tell_story(world)
    swapped_windows(world, 3)
    once = the_account(world)
    for _ in range(3):
        savings.keep_up(world.loop.ctx)
    world.restart()
    savings.keep_up(world.loop.ctx)
    assert the_account(world) == once


def test_what_was_taken_back_saved_nothing(world: World) -> None:
    tell_story(world)
    swapped_windows(world, 3)
    world.server.counts[KERNEL] = {
        "swapped_launches": 2_000,
        "shadow_checks": 60,
        "shadow_mismatches": 1,
        "worst_ratio": 3.0,
    }
    world.loop.steer()
    account = the_account(world)
    assert (account.taken_back, account.saved_h, account.claimed_h) == (1, Hours(), Hours())
    assert account.net_h.point == -account.spent_h < 0


def test_windows_before_the_swap_and_after_its_end_do_not_count(world: World) -> None:
    for _ in range(5):
        world.window(256)
        world.loop.turn()
    assert world.store.list(RAN, phase="current") == []


def test_every_candidate_of_an_ended_experiment_is_paid_for_once(world: World) -> None:
    tell_story(world)
    world.loop.observe()
    findings = world.store.list(RecordKind.FINDING)
    seconds = sum(float(each.body["seconds"]) for each in findings)
    account = the_account(world)
    assert account.spent_h == pytest.approx(seconds / 3600)
    assert account.experiments == 2


SPEEDUP = Interval(lower=1.5, point=2.0, upper=2.5, confidence=0.99)


def ran(**changes: object) -> SwapUsage:
    values: dict[str, object] = {
        "target": "t",
        "definition": "d",
        "month": "2026-01",
        "proposal": "p",
        "gpu_ns": 3.6e12,
        "speedup": SPEEDUP,
    }
    return SwapUsage(**(values | changes))  # type: ignore[arg-type]


def test_accounts_are_by_month_target_and_kernel_newest_month_first() -> None:
    tried = ExperimentUsage(
        target="t", definition="e", month="2026-02", experiment="x", device_s=7_200.0
    )
    found = settle([ran(), ran(month="2026-02"), ran(proposal="q", gpu_ns=7.2e12)], [tried])
    assert [(a.month, a.definition) for a in found] == [
        ("2026-02", "d"),
        ("2026-02", "e"),
        ("2026-01", "d"),
    ]
    assert found[1].net_h == Hours(lower=-2.0, point=-2.0, upper=-2.0)
    assert (found[2].swaps, found[2].claimed_h.point) == (2, 3.0)
    whole = total(found)
    assert (whole.claimed_h, whole.spent_h) == (Hours(lower=2.0, point=4.0, upper=6.0), 2.0)


def test_a_slower_lower_bound_may_say_that_hours_were_lost() -> None:
    doubtful = Interval(lower=0.9, point=1.1, upper=1.2, confidence=0.99)
    assert claimed(ran(speedup=doubtful)).lower == pytest.approx(-0.1)


@pytest.mark.parametrize(
    ("low", "high", "hours"),
    [
        (-0.03, -0.01, (math.expm1(0.01), math.expm1(0.02), math.expm1(0.03))),
        (None, -0.01, (math.expm1(0.01), math.expm1(0.02), math.expm1(0.02))),
        (-0.03, None, (0.0, math.expm1(0.02), math.expm1(0.03))),
        (-0.03, 0.01, (math.expm1(-0.01), math.expm1(0.02), math.expm1(0.03))),
    ],
)
def test_an_open_end_promises_nothing(
    low: float | None, high: float | None, hours: tuple[float, float, float]
) -> None:
    live = EffectInterval(effect=-0.02, low=low, high=high)
    found = saved(ran(effect=live, server_ns=3.6e12))
    assert (found.lower, found.point, found.upper) == pytest.approx(hours)
    assert claimed(ran(effect=live)) == Hours()


def test_a_kept_swap_that_harms_costs_hours() -> None:
    live = EffectInterval(effect=0.05, low=0.04, high=0.06)
    found = saved(ran(effect=live, server_ns=3.6e12))
    assert found.lower < found.point < found.upper < 0.0
