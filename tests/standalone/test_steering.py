"""Ways back, stop signs and refusals through the whole loop: what runs is always watched."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.standalone.local_world import (
    ENVIRONMENT,
    INCUMBENT,
    KERNEL,
    WINNER,
    World,
    auto_policy,
    solution,
)
from tests.standalone.proofs import interval

from retuned.contract import Digest, Guard, Solution, TrustClass, digest_of
from retuned.errors import HarnessError
from retuned.node import order_executor, order_store, watcher
from retuned.node.history import History
from retuned.stages.gate import (
    DecisionKind,
    KernelTuningPolicy,
    StopPolicy,
    SwapDecision,
    TuningFreeze,
)
from retuned.stages.proposal import Proposal, Risk
from retuned.stages.swap import SwapKind, SwapOrder
from retuned.stages.watch import WatchAction, WatchReport, WatchSample
from retuned.standalone.context import RecordKind
from retuned.standalone.facts import quarantined, target_status
from retuned.store.approvals import Approvals

FIRST, SECOND = WINNER, solution("second", "rows")
OTHER = "other"
BUSY = {"swapped_launches": 900, "shadow_checks": 30}
WRONG = BUSY | {"shadow_mismatches": 1, "worst_ratio": 3.0}


def propose(
    world: World, artifact: Solution, *, baseline: Digest = INCUMBENT.digest, **changes: Any
) -> str:
    """Write a proposal that waits, and the finding that holds its artifact's source."""
    now = world.clock.now()
    speedup = interval(2.0)
    values: dict[str, Any] = {
        "id": digest_of([artifact.digest, baseline]),
        "target": "demo",
        "definition": KERNEL,
        "artifact": artifact.digest,
        "baseline": baseline,
        "guard": Guard(),
        "speedup": speedup,
        "share": 0.5,
        "expected_saving": 0.2,
        "risk": Risk.LOW,
        "risk_reasons": (),
        "trust": TrustClass.PARAMETERS,
        "evidence": world.prove(artifact, baseline=baseline, plan="e", speedup=speedup),
        "experiment": "e",
        "requested_by": "retuned",
        "created_at": now,
        "expires_at": now + timedelta(hours=1),
        "environment": ENVIRONMENT,
    }
    proposal = Proposal(**(values | changes))
    body = {"experiment": "e", "solution": artifact.model_dump(mode="json")}
    world.store.add(RecordKind.FINDING, f"e/{artifact.digest}", body, phase="final")
    world.store.add(
        RecordKind.PROPOSAL, proposal.id, proposal.model_dump(mode="json"), phase="Pending"
    )
    return proposal.id


def swap(world: World, artifact: Solution, *, baseline: Digest = INCUMBENT.digest) -> str:
    """Propose, approve and steer: afterwards it is watched, unless something is in its way."""
    id = propose(world, artifact, baseline=baseline)
    world.approve_what_waits()
    look(world)
    return id


def look(world: World, times: int = 1, *, seconds: float = 2.0) -> None:
    for _ in range(times):
        world.clock.advance(seconds)
        world.loop.steer()


def promote(world: World) -> None:
    world.server.counts[KERNEL] = dict(BUSY)
    look(world, 3)


def phase(world: World, proposal: str) -> str:
    stored = world.store.get(RecordKind.PROPOSAL, proposal)
    assert stored is not None
    return stored.phase


def active(world: World, name: str = KERNEL) -> Digest | None:
    return next(slot.active for slot in world.server.slots() if slot.definition == name)


def trail(world: World, proposal: str) -> list[str]:
    return [event.what for event in world.store.events(id=proposal)]


def freeze(world: World, stop: StopPolicy = StopPolicy.HOLD, *, for_s: float = 0.0) -> None:
    now = world.clock.now()
    sign = TuningFreeze(
        id=f"f-{now:%H%M%S}",
        stop_policy=stop,
        until=now + timedelta(seconds=for_s) if for_s else None,
        user="ada",
        at=now,
    )
    Approvals(world.store).freeze(sign)


def decide(
    world: World, proposal: str, kind: DecisionKind, *, policy_digest: Digest | None = None
) -> None:
    Approvals(world.store).give(
        SwapDecision(
            proposal=proposal,
            digest=FIRST.digest,
            decision=kind,
            user="ada",
            at=world.clock.now(),
            policy_digest=policy_digest,
        )
    )


def ask_for(world: World, what: str, proposal: str) -> None:
    Approvals(world.store).request(what, target=proposal, who="ada", at=world.clock.now())


def an_order(artifact: Solution) -> SwapOrder:
    """Return an order that this state knows nothing of."""
    return SwapOrder(
        id="stranger",
        kind=SwapKind.SWAP,
        proposal="lost",
        target="demo",
        definition=KERNEL,
        artifact=artifact.digest,
        previous=None,
        guard=Guard(),
        epoch=1,
    )


# --- engagement ------------------------------------------------------------------------------


def test_a_swap_survives_every_restart_of_its_server(world: World) -> None:
    id = swap(world, FIRST)
    promote(world)
    for _ in range(3):
        look(world, 40)
        world.server.restart()
        world.server.counts[KERNEL] = {"fallback_launches": 5}
        look(world, 5)
        assert active(world) == FIRST.digest
        world.server.counts[KERNEL] = dict(BUSY)
        look(world, 3)
    assert phase(world, id) == "Promoted"
    assert quarantined(world.loop.ctx) == frozenset()


def test_a_wall_clock_that_jumps_ahead_takes_nothing_back(world: World) -> None:
    id = swap(world, FIRST)
    world.server.counts[KERNEL] = {"fallback_launches": 5}
    look(world)
    world.clock.set_wall(world.clock.now() + timedelta(minutes=50))
    look(world)
    assert phase(world, id) == "Analyzing"


def test_a_swap_that_launches_pass_by_is_taken_back_in_time(world: World) -> None:
    id = swap(world, FIRST)
    world.server.counts[KERNEL] = {"fallback_launches": 500}
    look(world, 29)
    assert phase(world, id) == "Analyzing"
    look(world, 3)
    assert phase(world, id) == "RolledBack"
    assert FIRST.digest in quarantined(world.loop.ctx)


def test_a_restart_that_the_watch_saw_begins_the_time_to_engage_anew(world: World) -> None:
    node = world.loop.reconciler.node
    swap(world, FIRST)
    for _ in range(3):
        world.server.counts[KERNEL] = {"fallback_launches": 500}
        (report,) = watcher.watch(node)
        world.clock.advance(50)
        world.server.restart()
        assert watcher.watch(node) == [], "the server has lost the order"
        assert world.loop.reconciler.deliver() or order_executor.carry_out(node) == frozenset()
        assert active(world) == FIRST.digest, "and it was delivered again"
    assert report.action is WatchAction.WAIT


def test_the_watch_is_told_which_orders_were_told_again(world: World) -> None:
    node = world.loop.reconciler.node
    swap(world, FIRST)
    world.server.counts[KERNEL] = {"fallback_launches": 500}
    watcher.watch(node)
    world.server.restart()
    delivered = order_executor.carry_out(node)
    assert delivered == {stored.id for stored in world.store.list(RecordKind.ORDER)}
    assert node.standing.history.series.keys() == delivered
    world.server.restart()
    world.loop.reconciler.deliver()
    assert node.standing.history.series == {}


@pytest.mark.parametrize(
    ("change", "anew"),
    [
        ({"swapped_launches": 950, "shadow_checks": 31}, False),
        ({"swapped_launches": 10}, True),
        ({"shadow_checks": 2}, True),
        ({"processes": 3}, True),
        ({"idle_processes": 1}, True),
        ({"members": ("1.sock", "3.sock")}, True),
        ({"artifact": None}, True),
    ],
)
def test_time_begins_anew_when_some_process_does(change: dict[str, Any], anew: bool) -> None:
    values: dict[str, Any] = {
        "definition": KERNEL,
        "artifact": FIRST.digest,
        "epoch": 1,
        "swapped_launches": 900,
        "fallback_launches": 0,
        "shadow_checks": 30,
        "shadow_mismatches": 0,
        "shadow_nonfinite": 0,
        "worst_ratio": 0.0,
        "errors": 0,
        "processes": 2,
        "members": ("1.sock", "2.sock"),
    }
    history, order = History(), an_order(FIRST)
    history.extend(order, WatchSample(**values), now_s=10.0)
    seen = history.extend(order, WatchSample(**(values | change)), now_s=70.0)
    assert seen.since_s == (70.0 if anew else 10.0)
    assert len(seen.samples) == 2


def test_a_server_without_traffic_keeps_its_swap_and_does_not_promote_it(world: World) -> None:
    id = swap(world, FIRST)
    look(world, 60)
    assert phase(world, id) == "Analyzing"


# --- what comes back -------------------------------------------------------------------------


def two_swaps(world: World) -> tuple[str, str]:
    first = swap(world, FIRST)
    promote(world)
    second = swap(world, SECOND, baseline=FIRST.digest)
    return first, second


def test_what_is_replaced_is_superseded_only_once_its_successor_runs(world: World) -> None:
    first = swap(world, FIRST)
    promote(world)
    world.server.away = True
    second = swap(world, SECOND, baseline=FIRST.digest)
    assert (phase(world, first), phase(world, second)) == ("Promoted", "Scheduled")
    assert "replaced" not in trail(world, first)
    world.server.away = False
    look(world)
    assert (phase(world, first), phase(world, second)) == ("Promoted", "Analyzing")
    assert "replaced" in trail(world, first)


def test_a_variant_that_comes_back_is_watched_again(world: World) -> None:
    first, second = two_swaps(world)
    world.server.counts[KERNEL] = dict(WRONG)
    look(world)
    assert active(world) == FIRST.digest
    assert (phase(world, first), phase(world, second)) == ("Promoted", "RolledBack")
    assert "restored" in trail(world, first)
    world.server.counts[KERNEL] = dict(WRONG)
    look(world)
    assert active(world) is None
    assert phase(world, first) == "RolledBack"


def test_a_variant_that_came_back_can_be_promoted_and_rolled_back_by_a_person(
    world: World,
) -> None:
    first, _ = two_swaps(world)
    world.server.counts[KERNEL] = dict(WRONG)
    look(world)
    promote(world)
    assert phase(world, first) == "Promoted"
    ask_for(world, "rollback", first)
    look(world)
    assert (active(world), phase(world, first)) == (None, "RolledBack")


def test_a_variant_whose_successor_was_refused_is_still_watched(world: World) -> None:
    first = swap(world, FIRST)
    promote(world)
    world.server.refuse[SECOND.digest] = "self-check-failed"
    second = swap(world, SECOND, baseline=FIRST.digest)
    assert (phase(world, first), phase(world, second)) == ("Promoted", "RolledBack")
    world.server.counts[KERNEL] = dict(WRONG)
    look(world)
    assert (active(world), phase(world, first)) == (None, "RolledBack")


def test_what_was_called_off_does_not_end_up_behind_a_way_back(world: World) -> None:
    """The first is rolled back by a person while the second waits for the server."""
    first = swap(world, FIRST)
    promote(world)
    world.server.away = True
    second = swap(world, SECOND, baseline=FIRST.digest)
    ask_for(world, "rollback", first)
    look(world)
    world.server.away = False
    look(world, 2)
    assert active(world) is None
    assert (phase(world, first), phase(world, second)) == ("RolledBack", "Superseded")
    assert "swapped" not in trail(world, second)


# --- ways back that are barred ---------------------------------------------------------------


@pytest.mark.parametrize("failure", ["refused", "not-built", "source-lost"])
def test_a_way_back_that_is_barred_leads_to_the_original(world: World, failure: str) -> None:
    first, second = two_swaps(world)
    if failure == "refused":
        world.server.restart()
        look(world)
        world.server.refuse[FIRST.digest] = "artifact-missing"
    elif failure == "not-built":
        world.bench_failures[FIRST.digest] = HarnessError("no space left")
    else:
        world.bench_failures[FIRST.digest] = OSError("read-only file system")
    world.server.counts[KERNEL] = dict(WRONG)
    look(world)
    assert active(world) is None
    assert phase(world, second) == "RolledBack"
    look(world, 3)
    assert phase(world, first) == "RolledBack", "nothing of it is in force"
    assert [each.order.artifact for each in order_store.latest(world.store).values()] == [None]


def test_the_original_is_ordered_until_the_server_takes_it(world: World) -> None:
    id = swap(world, FIRST)
    world.server.unknown = frozenset({KERNEL})
    ask_for(world, "rollback", id)
    look(world, 3)
    assert phase(world, id) == "RollbackFailed"
    assert trail(world, id).count("rollback-failed") == 1
    assert phase(world, id) == "RollbackFailed", "it is tried again"
    world.server.unknown = frozenset()
    look(world)
    assert (active(world), phase(world, id)) == (None, "RolledBack")


def test_a_bad_order_record_stops_no_other_slot(world: World) -> None:
    id, other = two_slots(world)
    world.approve_what_waits()
    look(world, 2)
    world.server.counts = {KERNEL: dict(BUSY), OTHER: dict(BUSY)}
    look(world, 8)
    assert {phase(world, id), phase(world, other)} <= {"Analyzing", "Watching", "Promoted"}
    bad = next(o for o in world.store.list(RecordKind.ORDER) if o.body["definition"] == OTHER)
    world.store.advance(
        RecordKind.ORDER, bad.id, expect="done", to="done", body={"definition": OTHER}
    )
    world.server.counts[KERNEL] = dict(WRONG)
    look(world)
    assert (active(world), phase(world, id)) == (None, "RolledBack")


def test_a_restarted_server_that_refuses_the_variant_leaves_nothing_unwatched(
    world: World,
) -> None:
    id = swap(world, FIRST)
    promote(world)
    world.server.restart()
    world.server.refuse[FIRST.digest] = "self-check-failed"
    look(world, 2)
    assert (active(world), phase(world, id)) == (None, "RolledBack")
    assert quarantined(world.loop.ctx) == {FIRST.digest}, "it fails its own check"


def test_a_worker_that_hangs_in_prepare_keeps_no_other_from_going_back(world: World) -> None:
    _, second = two_swaps(world)
    world.server.one_hangs = True
    world.server.counts[KERNEL] = dict(WRONG)
    look(world)
    assert (active(world), phase(world, second)) == (FIRST.digest, "RolledBack")


def test_a_rollback_does_not_restore_what_failed_here(world: World) -> None:
    two_swaps(world)
    report = WatchReport(action=WatchAction.ROLLBACK, reason="shadow-mismatch")
    first = order_store.newest_orders(world.store)[0].order
    order_store.fail(world.loop.reconciler.node, first, report)
    world.server.counts[KERNEL] = dict(WRONG)
    look(world)
    assert active(world) is None


# --- epochs ----------------------------------------------------------------------------------


def test_a_new_state_goes_on_after_the_epochs_of_the_server(world: World, tmp_path: Path) -> None:
    swap(world, FIRST)
    promote(world)
    fresh = World(tmp_path / "fresh")
    fresh.store.close()
    fresh.server = world.server
    fresh.start()
    id = swap(fresh, SECOND)
    assert (phase(fresh, id), active(fresh)) == ("Analyzing", SECOND.digest)
    (order,) = fresh.store.list(RecordKind.ORDER)
    assert order.body["epoch"] > 2, "later than that of the first state"
    fresh.store.close()


def test_an_order_is_not_done_because_another_of_its_epoch_was(world: World) -> None:
    """A state that was lost counts from one again, and so did the order before it."""
    stranger = an_order(SECOND)
    world.server.prepare(stranger, artifact_dir=world.loop.ctx.bench.build(SECOND))
    world.server.commit(stranger)
    id = swap(world, FIRST)
    assert active(world) == FIRST.digest
    assert phase(world, id) == "Analyzing"
    (order,) = world.store.list(RecordKind.ORDER)
    assert (order.phase, order.body["epoch"]) == ("done", 2)


# --- several processes -----------------------------------------------------------------------


def test_a_commit_that_some_process_refused_is_taken_back_from_the_others(world: World) -> None:
    world.server.refuse_commit[FIRST.digest] = "unknown-slot"
    world.server.half = True
    id = swap(world, FIRST)
    assert phase(world, id) == "RolledBack"
    kinds = [o.body["kind"] for o in world.store.list(RecordKind.ORDER)]
    assert kinds == ["swap", "rollback", "rollback"], "the node's own and the control plane's"
    assert quarantined(world.loop.ctx) == frozenset()


@pytest.mark.parametrize("reason", ["unknown-slot", "torch-missing", "self-check-no-shape"])
def test_a_process_that_cannot_prepare_yet_is_waited_for(world: World, reason: str) -> None:
    world.server.refuse[FIRST.digest] = reason
    id = swap(world, FIRST)
    assert phase(world, id) == "Canary"
    world.server.refuse.clear()
    look(world)
    assert (phase(world, id), active(world)) == ("Analyzing", FIRST.digest)


def test_a_process_that_is_not_prepared_yet_costs_the_candidate_nothing(world: World) -> None:
    world.server.refuse_commit[FIRST.digest] = "not-prepared"
    id = swap(world, FIRST)
    assert phase(world, id) == "Canary"
    world.server.refuse_commit.clear()
    look(world)
    assert phase(world, id) == "Analyzing"


# --- people and stop signs -------------------------------------------------------------------


def test_a_rejection_ends_what_was_approved(world: World) -> None:
    id = propose(world, FIRST)
    world.approve_what_waits()
    world.server.away = True
    look(world)
    assert phase(world, id) == "Scheduled"
    world.server.away = False
    decide(world, id, DecisionKind.REJECT)
    look(world)
    assert (phase(world, id), active(world)) == ("Rejected", None)


def test_an_abort_ends_what_was_approved_and_what_is_on_its_way(world: World) -> None:
    world.server.away = True
    id = swap(world, FIRST)
    assert phase(world, id) == "Scheduled"
    decide(world, id, DecisionKind.ABORT)
    ask_for(world, "abort", id)
    look(world)
    world.server.away = False
    look(world)
    assert (phase(world, id), active(world)) == ("Aborted", None)
    assert world.phases(RecordKind.ORDER) == []


def test_an_abort_of_a_swap_that_runs_takes_it_back_without_quarantine(world: World) -> None:
    id = swap(world, FIRST)
    decide(world, id, DecisionKind.ABORT)
    ask_for(world, "abort", id)
    look(world)
    assert (phase(world, id), active(world)) == ("RolledBack", None)
    assert quarantined(world.loop.ctx) == frozenset()


def test_a_freeze_holds_what_was_approved_and_lets_it_go_afterwards(world: World) -> None:
    id = propose(world, FIRST)
    world.approve_what_waits()
    freeze(world, for_s=60)
    look(world, 2)
    assert (phase(world, id), world.phases(RecordKind.ORDER)) == ("Scheduled", [])
    look(world, 2, seconds=40)
    assert phase(world, id) == "Analyzing"


def test_a_freeze_withdraws_an_order_that_nobody_has_got(world: World) -> None:
    world.server.one_hangs = True
    id = swap(world, FIRST)
    assert (phase(world, id), world.phases(RecordKind.ORDER)) == ("Canary", ["new"])
    freeze(world, for_s=60)
    look(world)
    world.server.one_hangs = False
    look(world, 2)
    assert (active(world), phase(world, id)) == (None, "Scheduled")
    look(world, 2, seconds=40)
    assert (active(world), phase(world, id)) == (FIRST.digest, "Analyzing")
    assert world.phases(RecordKind.ORDER) == ["superseded", "done"]


def test_a_freeze_between_the_gate_and_the_order_holds(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Freezes are read again in the transaction that writes the order."""
    id = propose(world, FIRST)
    world.approve_what_waits()
    world.clock.advance(1.0)
    reconciler = world.loop.reconciler
    begin = reconciler._span

    def frozen_now(resource: Any, status: Any) -> Any:
        if not world.store.list("freeze"):
            freeze(world)
        return begin(resource, status)

    monkeypatch.setattr(reconciler, "_span", frozen_now)
    world.loop.steer()
    assert (phase(world, id), world.phases(RecordKind.ORDER)) == ("Scheduled", [])


def test_an_order_is_withdrawn_when_its_window_closes_and_written_anew_in_the_next(
    world: World,
) -> None:
    window = {"kind": "allow", "schedule": "0 12,18 * * *", "duration": "1h"}
    body = auto_policy().model_dump(mode="json", by_alias=True)
    body["spec"]["windows"] = [window]
    rules = KernelTuningPolicy.model_validate(body)
    world.policies = (rules,)
    now = world.clock.now()
    id = propose(world, FIRST, expires_at=now + timedelta(days=3))
    decide(world, id, DecisionKind.APPROVE, policy_digest=rules.digest)
    world.server.one_hangs = True
    look(world, seconds=55 * 60.0)
    assert phase(world, id) == "Canary"
    look(world, seconds=400.0)
    assert (phase(world, id), world.phases(RecordKind.ORDER)) == ("Scheduled", ["superseded"])
    world.server.one_hangs = False
    look(world)
    assert active(world) is None
    look(world, seconds=5.2 * 3600.0)
    assert (phase(world, id), active(world)) == ("Analyzing", FIRST.digest)


def test_a_freeze_takes_back_an_order_that_some_process_may_have_got(world: World) -> None:
    world.server.refuse_commit[FIRST.digest] = "not-prepared"
    world.server.half = True
    id = swap(world, FIRST)
    assert world.phases(RecordKind.ORDER) == ["sent"]
    freeze(world)
    look(world)
    assert (phase(world, id), world.phases(RecordKind.ORDER)) == ("Canary", ["sent"])
    look(world, seconds=700.0)
    assert phase(world, id) == "RolledBack", "the processes may not differ for long"


def test_a_rollback_is_not_held_by_a_freeze(world: World) -> None:
    id = swap(world, FIRST)
    freeze(world)
    world.server.counts[KERNEL] = dict(WRONG)
    look(world)
    assert (active(world), phase(world, id)) == (None, "RolledBack")


def test_hold_and_rollback_takes_back_all_the_way_to_the_original(world: World) -> None:
    first, second = two_swaps(world)
    freeze(world, StopPolicy.HOLD_AND_ROLLBACK)
    look(world, 2)
    assert active(world) is None
    assert (phase(world, first), phase(world, second)) == ("RolledBack", "RolledBack")
    assert quarantined(world.loop.ctx) == frozenset()


def test_hold_and_drain_takes_back_what_is_under_way_and_no_more(world: World) -> None:
    first, second = two_swaps(world)
    freeze(world, StopPolicy.HOLD_AND_DRAIN)
    look(world, 3)
    assert active(world) == FIRST.digest
    assert (phase(world, first), phase(world, second)) == ("Promoted", "RolledBack")


def test_a_freeze_that_is_over_takes_nothing_back(world: World) -> None:
    freeze(world, StopPolicy.HOLD_AND_ROLLBACK, for_s=10)
    world.clock.advance(20)
    id = swap(world, FIRST)
    look(world, 3)
    assert (phase(world, id), active(world)) == ("Analyzing", FIRST.digest)


def test_a_swap_that_was_never_delivered_expires(world: World) -> None:
    world.server.away = True
    id = swap(world, FIRST)
    look(world, seconds=4000)
    assert (phase(world, id), world.phases(RecordKind.ORDER)) == ("Expired", [])
    world.server.away = False
    look(world)
    assert active(world) is None


def test_evidence_of_another_environment_is_not_swapped_in(world: World) -> None:
    id = propose(world, FIRST, environment=digest_of("another machine"))
    world.approve_what_waits()
    look(world, 2)
    assert (phase(world, id), active(world)) == ("Superseded", None)
    (ended,) = [e for e in world.store.events(id=id) if e.what == "superseded"]
    assert ended.detail["reason"] == "environment-changed"


# --- one at a time, and each for itself -------------------------------------------------------


def two_slots(world: World) -> tuple[str, str]:
    world.server.definitions = [KERNEL, OTHER]
    other = SECOND.model_copy(update={"definition": OTHER})
    return propose(world, FIRST), propose(world, other, definition=OTHER)


def test_a_swap_that_is_stuck_holds_no_other_slot_up(world: World) -> None:
    world.bench_failures[FIRST.digest] = HarnessError("no compiler today")
    first = swap(world, FIRST)
    second = two_slots(world)[1]
    world.approve_what_waits()
    look(world, 2)
    assert (phase(world, first), phase(world, second)) == ("Canary", "Scheduled")
    look(world, seconds=601.0)
    look(world)
    assert (phase(world, first), phase(world, second)) == ("RolledBack", "Analyzing")


def test_a_slot_has_one_swap_at_a_time(world: World) -> None:
    world.server.one_hangs = True
    first = swap(world, FIRST)
    second = propose(world, SECOND, baseline=FIRST.digest)
    world.approve_what_waits()
    look(world, 2)
    assert (phase(world, first), phase(world, second)) == ("Canary", "Scheduled")


def test_a_policy_that_cannot_be_read_does_not_stop_the_watch(world: World) -> None:
    id, _ = two_slots(world)
    decide(world, id, DecisionKind.APPROVE, policy_digest=auto_policy().digest)
    look(world)
    world.policies_gone = True
    world.server.counts[KERNEL] = dict(WRONG)
    look(world)
    assert (active(world), phase(world, id)) == (None, "RolledBack")
    assert world.unexpected() > 0
    world.telemetry.counters.clear()


def test_a_second_rollback_renews_the_quarantine(world: World) -> None:
    swap(world, FIRST)
    world.server.counts[KERNEL] = dict(WRONG)
    look(world)
    (first,) = target_status(world.loop.ctx).quarantine
    world.clock.advance(8 * 86_400)
    propose(world, FIRST, id="again")
    world.approve_what_waits()
    look(world)
    world.server.counts[KERNEL] = dict(WRONG)
    look(world)
    (second,) = target_status(world.loop.ctx).quarantine
    assert second.until > first.until


def test_an_answer_of_the_gate_is_written_once(world: World) -> None:
    id = propose(world, FIRST)
    look(world)
    before = world.store.get(RecordKind.GATE, id)
    look(world, 5)
    assert world.store.get(RecordKind.GATE, id) == before
    assert trail(world, id).count("gate-waiting") == 1
