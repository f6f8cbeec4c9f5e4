"""A canary in the loop: step by step, left alone by a daemon that dies, back from any step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.standalone import local_world
from tests.standalone.local_world import KERNEL, WINNER, World

from retuned.runtime.core.orders import parse_order
from retuned.stages.gate import KernelTuningPolicy
from retuned.stages.gate.enforcement import limits_of
from retuned.stages.swap import spread_by
from retuned.stages.verdict import Check, IncumbentNoise
from retuned.standalone.context import RecordKind
from retuned.standalone.facts import quarantined

STEPS = [
    {"fraction": 0.01, "minChecks": 20, "minSeconds": 3, "patience": "60s"},
    {"fraction": 0.5, "minChecks": 10, "minSeconds": 0},
]


def policy(canary: Any) -> KernelTuningPolicy:
    body = local_world.auto_policy().model_dump(mode="json", by_alias=True)
    body["spec"]["rollout"]["canary"] = {"bake": "0s", **canary}
    return KernelTuningPolicy.model_validate(body)


@pytest.fixture
def swapped(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """A world in which the first step of a canary has just begun."""
    return begun(world, {"steps": STEPS}, monkeypatch)


def begun(world: World, canary: Any, monkeypatch: pytest.MonkeyPatch) -> World:
    said = policy(canary)
    world.policies = (said,)
    monkeypatch.setattr("tests.standalone.local_world.auto_policy", lambda: said)
    for m in (8,) * 5 + (256,) * 4:
        world.window(m)
        world.loop.turn()
    for _ in range(3):
        world.approve_what_waits()
        world.clock.advance(2.0)
        world.loop.turn()
    assert world.phases(RecordKind.PROPOSAL) == ["Analyzing"]
    assert world.server.slots()[0].active == WINNER.digest
    return world


def fraction(world: World) -> float:
    return world.server.samples()[0].fraction


def report(world: World, *step_checks: int, seconds: float = 60.0, **counts: Any) -> None:
    """Let the server report so many checks in each of its shape buckets, and the daemon look."""
    rows = [
        {"bucket": (n + 1,), "launches": 900, "checks": checks, "step_checks": checks}
        for n, checks in enumerate(step_checks)
    ]
    world.server.counts[KERNEL] = {
        "swapped_launches": 900,
        "shadow_checks": sum(step_checks),
        "buckets": rows,
        "fraction_s": seconds,
        **counts,
    }
    world.clock.advance(2.0)
    world.loop.steer()


def history(world: World) -> list[str]:
    return [event.what for event in world.store.events() if event.what.startswith("canary-")]


def test_a_swap_spreads_step_by_step_and_is_promoted_when_all_launches_run_it(
    swapped: World,
) -> None:
    assert fraction(swapped) == 0.01
    report(swapped, 19)
    assert fraction(swapped) == 0.01
    report(swapped, 20, seconds=2.0)
    assert fraction(swapped) == 0.01, "enough checks, not enough time"
    report(swapped, 20, 25)
    assert fraction(swapped) == 0.5
    assert swapped.phases(RecordKind.PROPOSAL) == ["Analyzing"]
    report(swapped, 500)
    assert fraction(swapped) == 1.0
    assert swapped.phases(RecordKind.PROPOSAL) == ["Analyzing"]
    for _ in range(3):
        report(swapped, 500)
    assert swapped.phases(RecordKind.PROPOSAL) == ["Promoted"]
    assert history(swapped) == ["canary-advance", "canary-advance"]


def test_a_daemon_that_was_killed_goes_on_with_the_step_that_the_server_is_at(
    swapped: World,
) -> None:
    report(swapped, 20)
    assert fraction(swapped) == 0.5
    swapped.restart()
    assert fraction(swapped) == 0.5, "the server serves it whoever lives"
    report(swapped, 5)
    assert fraction(swapped) == 0.5
    report(swapped, 10)
    assert fraction(swapped) == 1.0


def test_a_server_that_was_restarted_begins_with_the_first_step(swapped: World) -> None:
    report(swapped, 20)
    swapped.server.restart()
    swapped.loop.steer()
    assert swapped.server.slots()[0].active == WINNER.digest
    assert fraction(swapped) == 0.01


@pytest.mark.parametrize("steps_before", [0, 1, 2])
def test_harm_brings_it_back_from_every_step(swapped: World, steps_before: int) -> None:
    for _ in range(steps_before):
        report(swapped, 30)
    report(swapped, 30, shadow_mismatches=1, worst_ratio=3.0)
    assert swapped.phases(RecordKind.PROPOSAL) == ["RolledBack"]
    assert swapped.server.slots()[0].active is None
    assert WINNER.digest in quarantined(swapped.loop.ctx)


def test_shapes_without_their_checks_are_left_out_of_the_guard(swapped: World) -> None:
    report(swapped, 30, 3, seconds=59.0)
    assert fraction(swapped) == 0.01
    report(swapped, 30, 3, seconds=61.0)
    sample = swapped.server.samples()[0]
    assert (sample.fraction, sample.excluded) == (0.5, ((2,),))
    event = next(e for e in swapped.store.events() if e.what == "canary-narrow-guard")
    assert event.detail["left_out"] == [[2]]


def test_an_orphan_that_went_back_by_itself_is_made_official_and_not_quarantined(
    swapped: World,
) -> None:
    report(swapped, 3, tripped="orphaned", artifact=None)
    assert swapped.phases(RecordKind.PROPOSAL) == ["RolledBack"]
    assert WINNER.digest not in quarantined(swapped.loop.ctx)


def test_in_the_shadow_first_nothing_is_served_until_it_has_its_checks(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(world, {"steps": STEPS, "shadowFirst": True}, monkeypatch)
    assert fraction(world) == 0.0
    report(world, 20, swapped_launches=0)
    assert fraction(world) == 0.01


def test_a_server_that_is_away_gets_its_step_later(swapped: World) -> None:
    order = swapped.store.list(RecordKind.ORDER)[0]
    assert order.body["canary"][0]["fraction"] == 0.01
    swapped.server.away = True
    swapped.loop.steer()
    swapped.server.away = False
    report(swapped, 20)
    assert fraction(swapped) == 0.5


def test_a_policys_steps_are_an_orders_and_fractions_rise() -> None:
    spread = spread_by(limits_of(policy({"steps": STEPS})), shadow_later=((600.0, 1_000),))
    assert [step.fraction for step in spread.canary] == [0.01, 0.5]
    assert (spread.canary[0].patience_s, spread.lease_s, spread.orphan) == (60.0, 600.0, "hold")
    assert (spread.shadow_share, spread.shadow_later) == (0.02, ((600.0, 1_000),))
    assert spread_by(limits_of(policy({"steps": []}))).lease_s == 0.0, "no canary, no orphan"
    for odd in ([STEPS[1], STEPS[0]], [{"fraction": 0}], [{"fraction": 1.2}], "all"):
        with pytest.raises(ValueError, match="validation error"):
            policy({"steps": odd})


def test_only_the_shadow_may_be_asked_for() -> None:
    spread = spread_by(limits_of(policy({"shadowFirst": True, "orphan": "rollback"})))
    assert [step.fraction for step in spread.canary] == [0.0]
    assert (spread.orphan, spread.lease_s) == ("rollback", 600.0)


def test_nothing_is_measured_on_the_whole_server_while_few_launches_run_it(
    swapped: World, tmp_path: Path
) -> None:
    from retuned.stages.swap import SwapOrder
    from retuned.standalone.proofs.end_to_end import _runs_everywhere

    order = SwapOrder.model_validate(swapped.store.list(RecordKind.ORDER)[0].body)
    assert not _runs_everywhere(swapped.loop.ctx, order)
    report(swapped, 30)
    report(swapped, 30)
    assert fraction(swapped) == 1.0
    assert _runs_everywhere(swapped.loop.ctx, order)


def test_checks_are_held_to_the_noise_that_the_evidence_has_of_the_incumbent(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = [IncumbentNoise(bucket=(9,), rms=2e-6), IncumbentNoise(bucket=(9,), rms=3e-6)]
    gates = tuple(
        Check(gate=f"G{n}", incumbent_noise=(noise[n - 4],) if n in (4, 5) else ())
        for n in range(7)
    )
    monkeypatch.setattr("tests.standalone.proofs.GATES", gates)
    begun(world, {"steps": STEPS}, monkeypatch)
    body = world.store.list(RecordKind.ORDER)[0].body
    assert body["shadow_noise"] == [{"bucket": [9], "rms": 3e-6}], "the largest"
    order = parse_order(body)
    assert order.noise == {(9,): 3e-6}
    assert (order.fraction, order.shadow_share, order.lease_s) == (0.01, 0.02, 600.0)
    assert order.shadow_later == ((600.0, 1_000), (86_400.0, 10_000))
