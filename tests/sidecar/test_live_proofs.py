"""A sidecar proves what the operator asks for, keeps its pairs over a restart, and reports them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.sidecar.sidecar_world import CLEAN, FIRST, PodWorld, back, swap
from tests.standalone.test_live_proof_loop import Counts, Live

from retuned.api.agent import (
    VERSION,
    Ack,
    Hello,
    LevelsState,
    PodProof,
    ProofOrder,
    ProofPost,
    Report,
    Welcome,
    wire_json,
)
from retuned.errors import CandidateError, Refused, TemporaryError
from retuned.node.live_proof import LIVE_PROOF
from retuned.node.sentinel import DAY
from retuned.ports import SlotState
from retuned.runtime_client.fake import FakeSwapper
from retuned.sidecar import live_proofs
from retuned.sidecar.main import Sidecar
from retuned.stages.gate import LiveProof
from retuned.stages.watch.proof import (
    DAY_S,
    Arm,
    ArmLaunches,
    VoidReason,
    day_settings,
    replay,
    replay_day,
    settings_of,
)
from retuned.stages.watch.proof.service_level import Served

ORDER = swap()


class OneSlot:
    """The server as its simulated steps see it: one kernel."""

    def __init__(self, swapper: FakeSwapper) -> None:
        self._swapper = swapper

    def slots(self) -> list[SlotState]:
        return [slot for slot in self._swapper.slots() if slot.definition == "gemm"]

    @property
    def arm(self) -> str:
        return self._swapper.arm


class Pod(PodWorld):
    """A pod with simulated steps, in the time of its clock."""

    live: Live

    def start(self, *, configured: str = "") -> Sidecar:
        made = super().start(configured=configured)
        if not hasattr(self, "live"):
            self.server = OneSlot(self.swapper)
            self.live = Live(self)  # type: ignore[arg-type]  # it has a clock and a server
        self.sidecar = Sidecar(replace(made.ctx, live_steps=self.live))
        return self.sidecar

    def prove(self) -> None:
        live_proofs.prove(self.ctx, threading.Event())

    def posted(self) -> ProofPost:
        self.sidecar.tell()
        return self.said(ProofPost)[-1]

    def proof(self) -> PodProof:
        (found,) = self.posted().proofs
        return found

    def is_off(self) -> bool:
        return self.server.slots()[0].bypassed


def asked(**rule: Any) -> ProofOrder:
    return ProofOrder(
        order=ORDER.id,
        proposal=ORDER.proposal,
        definition=ORDER.definition,
        epoch=ORDER.epoch,
        rule=LiveProof.model_validate({"mode": "required", "longBlocks": 0} | rule),
    )


@pytest.fixture
def world(tmp_path: Path) -> Pod:
    found = Pod(tmp_path)
    found.publish(FIRST)
    found.order(ORDER)
    found.swapper.counts["gemm"] = dict(CLEAN)
    assert found.active() == FIRST
    return found


def ask(world: Pod, **rule: Any) -> None:
    world.operator.prove(asked(**rule))
    world.turn()


def test_nothing_is_proven_that_is_not_asked_for(world: Pod) -> None:
    world.prove()
    assert world.live.reads == 0
    assert world.posted().proofs == ()
    assert world.posted().unavailable == ""


@pytest.mark.parametrize(("effect", "verdict"), [(-0.04, "helps"), (0.03, "harms")])
def test_a_verdict_is_reported_with_pairs_that_lead_to_it(
    world: Pod, effect: float, verdict: str
) -> None:
    world.live.effect = effect
    ask(world)
    world.prove()
    found = world.proof()
    assert (found.order, found.epoch, found.phase) == (ORDER.id, ORDER.epoch, "done")
    assert found.claim is not None
    wire = ProofPost.model_validate_json(world.posted().model_dump_json())
    claim = wire.proofs[0].claim
    assert claim is not None
    report = replay(claim, settings_of(asked().rule))
    assert str(report.verdict) == verdict
    assert world.is_off() is (effect > 0), "what harms stays off until its rollback comes"
    reads = world.live.reads
    world.prove()
    assert world.live.reads == reads, "one proof is enough"


def timed(world: Pod) -> None:
    """Let the server time the launches of the kernel in both arms."""
    world.live.timed = [
        ArmLaunches(arm=arm, lengths=(4,), launches=900, times_s=(seconds,) * 20)
        for arm, seconds in ((Arm.OFF, 2e-3), (Arm.ON, 1e-3))
    ]


def test_the_kernel_in_place_is_reported_with_the_verdict(world: Pod) -> None:
    world.live.effect = -0.04
    timed(world)
    ask(world)
    world.prove()
    (stored,) = world.ctx.store.list(LIVE_PROOF)
    claim = world.proof().claim
    assert claim is not None
    (kernel,) = claim.kernels
    assert (kernel.lengths, kernel.off_s, kernel.on_s) == ((4,), 2e-3, 1e-3)
    wire = ProofPost.model_validate_json(wire_json(world.posted()), strict=True)
    assert wire.proofs[0].claim == claim
    computed = replay(claim, settings_of(asked().rule))
    assert computed.account.model_dump(mode="json") == stored.body["report"]["account"]


class OperatorOf2:
    """An operator of version 2, which refuses what it does not know."""

    def __init__(self, world: Pod, *, says: int) -> None:
        self._inner, self.says = world.operator, says

    def hello(self, hello: Hello) -> Welcome:
        return self._inner.hello(hello).model_copy(update={"version": self.says})

    def post(self, report: Report, *, traceparent: str = "") -> Ack:
        if '"kernels"' in wire_json(report):
            error = Refused("proofs.0.claim.kernels: Extra inputs are not permitted")
            error.code = "body-invalid"
            raise error
        return self._inner.post(report, traceparent=traceparent)

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


@pytest.mark.parametrize("says", [2, VERSION], ids=["it says so", "it came back since"])
def test_an_operator_of_version_2_gets_the_verdict_without_kernels(world: Pod, says: int) -> None:
    world.live.effect = -0.04
    timed(world)
    ask(world)
    world.prove()
    operator = OperatorOf2(world, says=says)
    world.sidecar = Sidecar(replace(world.ctx, operator=operator))  # type: ignore[arg-type]
    world.ctx.standing.hello_at_s = float("-inf")
    world.sidecar.tell()
    if says == VERSION:
        assert not any(each.proofs for each in world.said(ProofPost))
        operator.says, world.operator.heard = 2, False  # it has started since, and asks who this is
        world.sidecar.tell()
        world.sidecar.tell()
    claim = world.said(ProofPost)[-1].proofs[0].claim
    assert claim is not None
    assert (claim.verdict, claim.kernels) == ("helps", ())
    assert replay(claim, settings_of(asked().rule)).verdict == "helps"


def test_a_swap_that_is_kept_is_switched_on_once_no_proof_is_asked_for(world: Pod) -> None:
    ask(world)
    world.prove()
    assert world.is_off(), "without an effect the original serves"
    world.prove()
    assert world.is_off()
    world.operator.prove()
    world.turn()
    world.prove()
    assert not world.is_off(), "the operator keeps it after all"


def test_a_restarted_sidecar_switches_nothing_on_before_the_operator_answers(world: Pod) -> None:
    world.live.effect = 0.03
    ask(world)
    world.prove()
    world.start()
    world.prove()
    assert world.is_off()
    world.turn()
    world.prove()
    assert world.is_off()
    world.order(back(ORDER, epoch=3))
    assert world.active() is None


def test_a_sidecar_that_is_killed_continues_with_its_pairs(world: Pod) -> None:
    world.live.effect, world.live.dies_at = -0.04, 200
    ask(world)
    with pytest.raises(KeyboardInterrupt):
        world.prove()
    begun = world.proof()
    assert begun.claim is None
    assert begun.pairs > 5
    world.start()
    world.turn()
    world.prove()
    ended = world.proof()
    assert ended.claim is not None
    assert ended.claim.verdict == "helps"
    assert [each.void for each in ended.claim.pairs].count(VoidReason.ABANDONED) == 1
    assert replay(ended.claim, settings_of(asked().rule)).verdict == "helps"


def meanwhile(world: Pod, act: Callable[[], object], *, after: int = 50) -> None:
    """Let something happen while a proof runs."""
    wait, taken = world.live.wait, [0]

    def waits(seconds: float) -> None:
        wait(seconds)
        taken[0] += 1
        if taken[0] == after:
            act()

    world.live.wait = waits  # type: ignore[method-assign]


def test_a_proof_that_is_no_longer_asked_for_ends(world: Pod) -> None:
    ask(world)

    def taken_back() -> None:
        world.operator.prove()
        world.sidecar.listen(wait_s=0.0)

    meanwhile(world, taken_back)
    world.prove()
    (record,) = world.ctx.store.list(LIVE_PROOF)
    assert (record.phase, record.body["report"]["reason"]) == ("not-concluded", "interrupted")
    world.prove()
    assert not world.is_off()


def test_an_operator_that_is_away_interrupts_nothing(world: Pod) -> None:
    world.live.effect = -0.04
    ask(world)
    meanwhile(world, lambda: setattr(world.operator, "away", True))
    world.prove()
    world.operator.away = False
    found = world.proof()
    assert found.claim is not None
    assert found.claim.verdict == "helps"


def test_a_rollback_in_the_middle_ends_the_proof(world: Pod) -> None:
    ask(world)
    meanwhile(world, lambda: world.order(back(ORDER, epoch=3)))
    world.prove()
    (record,) = world.ctx.store.list(LIVE_PROOF)
    assert record.body["report"]["reason"] == "interrupted"
    assert world.active() is None


def test_a_server_that_restarts_ends_the_proof_with_the_original(world: Pod) -> None:
    ask(world)
    world.live.lost = CandidateError("server-restarted", detail="4711.sock")
    world.prove()
    found = world.proof()
    assert found.claim is not None
    assert (found.claim.verdict, found.claim.reason) == ("not-concluded", "interrupted")
    assert replay(found.claim, settings_of(asked().rule)).reason == "interrupted"
    assert world.is_off()


def test_a_server_whose_steps_are_not_known_is_reported_by_name(world: Pod) -> None:
    world.live.reason = "several-servers"
    world.clock.advance(10.0)
    assert world.posted().unavailable == "several-servers"
    assert not world.posted().temporary
    ask(world)
    world.prove()
    assert world.live.reads == 0
    assert world.posted().proofs == ()


def test_a_server_that_does_not_answer_may_soon(world: Pod) -> None:
    world.live.silent = True
    world.clock.advance(10.0)
    assert (world.posted().unavailable, world.posted().temporary) == ("no-answer", True)
    world.live.silent = False
    assert world.posted().unavailable == ""


def test_the_engine_of_the_server_is_reported(world: Pod) -> None:
    world.live.built = "vllm 0.33.0"
    assert world.posted().engine == "vllm 0.33.0"


def test_a_sidecar_without_steps_says_so(tmp_path: Path) -> None:
    world = PodWorld(tmp_path)
    world.sidecar.tell()
    assert world.said(ProofPost)[-1].unavailable == "not-switchable"


def test_an_order_that_is_made_again_gets_a_proof_of_its_own(world: Pod) -> None:
    world.live.effect = -0.04
    ask(world)
    world.prove()
    again = swap(epoch=5)
    world.operator.prove(asked().model_copy(update={"order": again.id, "epoch": 5}))
    world.order(again)
    world.prove()
    assert (world.proof().order, world.proof().epoch) == (again.id, 5)
    assert len(world.ctx.store.list(LIVE_PROOF)) == 2


def test_an_operator_of_an_older_release_hears_nothing_of_proofs(
    world: Pod, monkeypatch: pytest.MonkeyPatch
) -> None:
    post = world.operator.post

    def older(report: Any, *, traceparent: str = "") -> Any:
        if isinstance(report, ProofPost):
            error = Refused("not found")
            error.code = "status-404"
            raise error
        return post(report, traceparent=traceparent)

    monkeypatch.setattr(world.operator, "post", older)
    world.sidecar.tell()
    assert world.slot().active == FIRST, "the slots are told all the same"


def test_the_server_that_is_away_in_a_block_is_waited_for(world: Pod) -> None:
    world.live.effect = -0.04
    ask(world)
    world.live.lost = TemporaryError("no answer", delay_s=1.0)
    world.prove()
    assert world.proof().claim is None
    assert world.is_off()
    world.live.lost = None
    world.prove()
    assert world.proof().claim is not None


SLO: dict[str, Any] = {"slo": {"maxQueue": 4}}


class Silent:
    """Metrics that do not answer for a while."""

    def __init__(self) -> None:
        self.silent, self.reads = True, 0

    def read(self) -> Served:
        self.reads += 1
        if self.silent:
            raise TemporaryError("no answer", delay_s=1.0)
        return Served(at_s=0.0, waiting=0.0)


def counting(world: Pod, counts: Any) -> None:
    """Let the sidecar read the server's metrics."""
    world.sidecar = Sidecar(replace(world.ctx, service_counts=counts))


def test_whether_service_levels_can_be_read_is_reported(world: Pod) -> None:
    assert world.posted().levels is LevelsState.ABSENT
    counts = Silent()
    counting(world, counts)
    assert world.posted().levels is LevelsState.UNREADABLE
    counts.silent = False
    world.clock.advance(10.0)
    assert world.posted().levels is LevelsState.READ
    reads = counts.reads
    world.clock.advance(30.0)
    assert world.posted().levels is LevelsState.READ
    assert counts.reads == reads, "a page that answered is not read again at once"


def test_without_the_servers_metrics_no_proof_with_service_levels_begins(world: Pod) -> None:
    ask(world, **SLO)
    world.prove()
    assert world.live.reads == 0
    assert world.posted().proofs == ()
    assert not world.is_off()


def test_a_breach_pauses_the_proof_and_switches_the_swap_off(world: Pod) -> None:
    world.live.effect = -0.04
    began_s = world.live.now_s()
    seen: list[bool] = []

    def busy(at_s: float) -> bool:
        hit = began_s + 70.0 < at_s < began_s + 90.0
        if hit:
            seen.append(world.is_off())
        return hit

    counting(world, Counts(world.live, busy))
    ask(world, **SLO)
    world.prove()
    found = world.proof()
    assert found.claim is not None
    assert found.claim.verdict == "helps"
    assert len(seen) > 10
    assert all(seen[1:]), "while requests wait the original serves"


def test_the_third_breach_ends_the_proof_and_its_report_is_accepted(world: Pod) -> None:
    counting(world, Counts(world.live, lambda at_s: at_s % 72.0 > 69.0))
    ask(world, **SLO)
    world.prove()
    found = world.proof()
    assert found.claim is not None
    assert (found.claim.verdict, found.claim.reason) == ("too-little-traffic", "slo-pressure")
    assert replay(found.claim, settings_of(asked(**SLO).rule)).reason == "slo-pressure"
    assert world.is_off()


PERIOD_S = 1_250.0


def measured(world: Pod, *, days: float = 0.0, **rule: Any) -> Pod:
    """Return a pod whose proven swap the operator asks to measure, after some days."""
    world.live.effect = -0.04
    ask(world)
    world.prove()
    world.operator.prove(asked(**rule).model_copy(update={"sentinel": True}))
    world.turn()
    passes(world, days * DAY_S)
    return world


def passes(world: Pod, seconds: float) -> None:
    until_s = world.clock.monotonic_s() + seconds
    while world.clock.monotonic_s() < until_s:
        world.clock.advance(200.0)
        world.sidecar.prove(threading.Event())


def pairs(world: Pod) -> list[dict[str, Any]]:
    stored = world.ctx.store.list(DAY)
    return [p for each in stored for p in each.body["state"]["pairs"] if p["kind"] == "long"]


def test_a_promoted_swap_is_measured_and_nothing_is_reported_before_its_day_ends(
    world: Pod,
) -> None:
    measured(world)
    assert pairs(world) == []
    passes(world, 6 * PERIOD_S)
    assert 2 <= len(pairs(world)) <= 7
    assert not world.is_off(), "it serves between the pairs"
    assert world.posted().days == ()
    world.clock.advance(DAY_S)
    passes(world, PERIOD_S)
    (day,) = world.posted().days
    assert (day.order, day.epoch) == (ORDER.id, ORDER.epoch)
    assert day.claim is not None
    assert replay_day(day.claim, day_settings(asked().rule)).verdict == day.claim.verdict
    world.clock.advance(2 * 3600.0)
    assert world.posted().days == (), "the operator has it"


def test_a_swap_whose_day_harmed_stays_off_until_its_rollback_comes(world: Pod) -> None:
    measured(world)
    world.live.effect = 0.08
    for _ in range(40):
        passes(world, PERIOD_S)
        if world.posted().days:
            break
    claim = world.posted().days[0].claim
    assert claim is not None
    assert claim.verdict == "harms"
    world.clock.advance(2 * 3600.0)
    assert len(world.posted().days) == 1, "harm is reported until its rollback"
    assert world.is_off()
    world.turn()
    world.prove()
    assert world.is_off()
    world.order(back(ORDER, epoch=3))
    assert world.active() is None


def test_a_sentinel_that_is_no_longer_asked_for_leaves_the_swap_on(world: Pod) -> None:
    measured(world)
    passes(world, 3 * PERIOD_S)
    world.operator.prove()
    world.turn()
    before = pairs(world)
    passes(world, 3 * PERIOD_S)
    assert pairs(world) == before
    assert not world.is_off()
    assert world.posted().days == ()


def test_a_sidecar_whose_proof_is_gone_measures_nothing(world: Pod) -> None:
    world.operator.prove(asked().model_copy(update={"sentinel": True}))
    world.turn()
    passes(world, 3 * PERIOD_S)
    assert pairs(world) == []
    assert not world.is_off()


def test_bounds_that_the_sidecar_cannot_read_end_the_sentinel(world: Pod) -> None:
    measured(world, **SLO)
    passes(world, 3 * PERIOD_S)
    assert pairs(world) == []


def test_a_breach_ends_the_pair_of_a_sentinel_and_leaves_the_swap_on(world: Pod) -> None:
    counting(world, Counts(world.live, lambda _: True))
    measured(world, **SLO)
    passes(world, 4 * PERIOD_S)
    assert all(each["void"] for each in pairs(world))
    assert not world.is_off()
