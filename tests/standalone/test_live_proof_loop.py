"""Live proof in the loop: random pairs, kept across a kill, withdrawn without a gain."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest
from tests.standalone.local_world import KERNEL, WINNER, World, auto_policy
from tests.standalone.test_end_to_end_loop import approve, steps
from tests.standalone.test_steering import ask_for, freeze

from retuned.errors import CandidateError, TemporaryError
from retuned.stages.gate import FreezeScope, KernelTuningPolicy, TuningFreeze
from retuned.stages.proposal import Proposal
from retuned.stages.verdict import SignedEvidence
from retuned.stages.watch import Consequence
from retuned.stages.watch.proof import Arm, ArmLaunches, StepRecord
from retuned.stages.watch.proof.service_level import Served
from retuned.standalone import experiments
from retuned.standalone.context import Context, RecordKind
from retuned.standalone.daemon import Loop
from retuned.standalone.facts import quarantined
from retuned.standalone.proofs import live_proof
from retuned.standalone.savings import calibrations
from retuned.store.approvals import Approvals


def policy(**rule: Any) -> KernelTuningPolicy:
    body = auto_policy().model_dump(mode="json", by_alias=True)
    body["spec"]["liveProof"] = {"mode": "required", "longBlocks": 0} | rule
    return KernelTuningPolicy.model_validate(body)


@dataclass
class Live:
    """The steps of the world's server, in the time of the world's clock.

    `effect` is what the swap changes of a step's time, as a share.
    """

    world: World
    effect: float = 0.0
    reason: str = ""
    built: str = ""
    lost: Exception | None = None
    silent: bool = False
    per_s: float = 50.0
    dies_at: int | None = None
    reads: int = 0
    recording: bool = False
    chance: random.Random = field(default_factory=lambda: random.Random(7))
    arms: list[str] = field(default_factory=list)
    timed: Sequence[ArmLaunches] = ()
    _steps: list[tuple[str, StepRecord]] = field(default_factory=list)
    _count: int = 0
    _now_s: float = 100.0

    def unavailable(self) -> str:
        if self.silent:
            raise TemporaryError("no answer", delay_s=1.0)
        return self.reason

    def engine(self) -> str:
        return self.built

    def begin(self) -> None:
        self.recording = True

    def launches(self) -> Sequence[ArmLaunches]:
        return self.timed

    def end(self) -> None:
        self.recording = False

    def now_s(self) -> float:
        return self._now_s

    def wait(self, seconds: float) -> None:
        self.world.clock.advance(seconds)
        end_s = self._now_s + seconds
        (slot,) = self.world.server.slots()
        label = self.world.server.arm
        if not self.arms or self.arms[-1] != label:
            self.arms.append(label)
        on = slot.active is not None and not slot.bypassed
        while self._now_s < end_s:
            decode, prefill = self.chance.randrange(1, 32), self.chance.choice((0, 0, 0, 512))
            period_s = (1.0 + 0.02 * decode + 0.004 * prefill) / self.per_s / 2.0
            period_s *= self.chance.lognormvariate(0.0, 0.01) * (1.0 + self.effect * on)
            self._now_s += period_s
            self._count += 1
            step = StepRecord(
                index=self._count,
                arm=Arm.ON if on else Arm.OFF,
                prefill=prefill,
                decode=decode,
                context=256 * decode,
                graph=None,
                period_s=period_s,
                busy_s=None,
                host_s=None,
                ended_s=self._now_s,
            )
            if self.recording and label:
                self._steps.append((label, step))
        self._now_s = max(self._now_s, end_s)

    def read(self) -> Sequence[tuple[str, StepRecord]]:
        self.reads += 1
        if self.reads == self.dies_at:
            raise KeyboardInterrupt
        if self.lost is not None:
            raise self.lost
        found, self._steps = self._steps, []
        return found


@pytest.fixture
def live(world: World, monkeypatch: pytest.MonkeyPatch) -> Live:
    coins = random.Random(3)  # a real coin shows an effect that is none in one run of a hundred
    monkeypatch.setattr(secrets, "SystemRandom", lambda: coins)
    made = Live(world)
    world.loop = Loop(replace(world.loop.ctx, live_steps=made))
    return made


@dataclass
class Counts:
    """The server's count of waiting requests."""

    live: Live
    busy: Callable[[float], bool]

    def read(self) -> Served:
        at_s = self.live.now_s()
        return Served(at_s=at_s, waiting=9.0 if self.busy(at_s) else 0.0)


def counted(world: World, live: Live, busy: Callable[[float], bool]) -> None:
    """Let the daemon read how many requests wait."""
    world.loop = Loop(replace(world.loop.ctx, service_counts=Counts(live, busy)))


def swapped(world: World, rule: KernelTuningPolicy) -> str:
    """Let a swap be watched and clean; return its phase."""
    world.policies = (rule,)
    for m in (8,) * 5 + (256,) * 4:
        world.window(m)
        steps(world)
    for _ in range(6):
        approve(world)
        world.clock.advance(2.0)
        if world.server.slots()[0].active is not None:
            world.server.counts[KERNEL] = {"swapped_launches": 900, "shadow_checks": 30}
        steps(world)
    (phase,) = world.phases(RecordKind.PROPOSAL)
    return phase


def settled(world: World) -> str:
    for _ in range(6):
        world.clock.advance(2.0)
        world.loop.steer()
    (phase,) = world.phases(RecordKind.PROPOSAL)
    return phase


def at_look(live: Live, number: int, act: Callable[[], object]) -> None:
    """Do something after so many looks at the server, between two steps of a block."""
    wait, looks = live.wait, [0]

    def waits(seconds: float) -> None:
        wait(seconds)
        looks[0] += 1
        if looks[0] == number:
            act()

    live.wait = waits  # type: ignore[method-assign]


def record(world: World) -> Any:
    (stored,) = world.store.list(RecordKind.LIVE_PROOF)
    return stored


def test_a_swap_that_helps_is_promoted_with_signed_evidence(world: World, live: Live) -> None:
    live.effect = -0.04
    assert swapped(world, policy()) == "Proving"
    assert world.loop.ctx.store.list(RecordKind.LIVE_PROOF) == []
    world.loop.measure()
    found = record(world)
    assert (found.phase, found.body["report"]["reason"]) == ("helps", "faster")
    low, high = found.body["report"]["low"], found.body["report"]["high"]
    assert low < -0.0408 < high < 0.0
    assert not world.server.slots()[0].bypassed
    assert not live.recording
    (kept,) = calibrations(world.store)
    assert kept.live.effect == pytest.approx(found.body["report"]["effect"])
    assert (kept.speedup.point, kept.verdict) == (2.0, "helps")
    assert world.store.list(RecordKind.LESSON) == []
    assert settled(world) == "Promoted"
    assert world.server.slots()[0].active == WINNER.digest
    envelope = SignedEvidence.model_validate_json(world.store.get_blob(found.body["evidence"]))
    signature = bytes.fromhex(envelope.signature)
    assert (
        world.notary.check(envelope.payload.encode(), key=envelope.key, signature=signature) is None
    )
    pilot = [each for each in live.arms if int(each.split("-")[0]) < 30]
    assert {each.rpartition("-")[2] for each in pilot} == {"off"}, "the pilot runs the original"
    reads = live.reads
    world.loop.measure()
    assert live.reads == reads, "one proof is enough"


def test_the_kernel_in_place_stands_beside_the_claim(world: World, live: Live) -> None:
    live.effect = -0.05
    live.timed = [
        ArmLaunches(arm=arm, lengths=(4,), launches=900, times_s=(seconds,) * 20)
        for arm, seconds in ((Arm.OFF, 2e-3), (Arm.ON, 1e-3))
    ]
    assert swapped(world, policy()) == "Proving"
    world.loop.measure()
    account = record(world).body["report"]["account"]
    (kernel,) = account["kernels"]
    assert (kernel["lengths"], kernel["off_s"], kernel["on_s"]) == ([4], 2e-3, 1e-3)
    assert account["kernel_s"] == pytest.approx(-1e-3 * kernel["launches"])


def test_a_swap_that_harms_goes_back_by_itself_and_is_blamed(world: World, live: Live) -> None:
    live.effect = 0.03
    assert swapped(world, policy()) == "Proving"
    world.loop.measure()
    assert record(world).phase == "harms"
    assert world.server.slots()[0].bypassed, "the original serves until the order is taken back"
    assert settled(world) == "RolledBack"
    assert world.server.slots()[0].active is None
    assert WINNER.digest in quarantined(world.loop.ctx)
    (lesson,) = [e for e in world.store.events() if e.what == "live-proof-lesson"]
    assert (lesson.detail["verdict"], lesson.detail["candidate"]) == ("harms", WINNER.digest)


def test_experiments_wait_for_a_live_proof(
    world: World, live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    live.effect = -0.04
    assert swapped(world, policy()) == "Proving"
    looks: list[Context] = []
    monkeypatch.setattr(experiments, "open_experiment", looks.append)
    world.loop.experiment()
    assert looks == []
    live.silent = True
    world.loop.experiment()
    assert len(looks) == 1, "no proof begins while the server does not answer"
    live.silent = False
    world.loop.measure()
    assert record(world).phase == "helps"
    world.loop.experiment()
    assert len(looks) == 2


def test_a_live_proof_waits_for_the_experiment_that_runs(
    world: World, live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert swapped(world, policy()) == "Proving"
    monkeypatch.setattr(live_proof, "is_wanted", lambda _: False)  # it began before
    monkeypatch.setattr(experiments, "open_experiment", lambda _: "a plan")
    monkeypatch.setattr(experiments, "run_experiment", lambda *_: world.loop.measure())
    world.loop.experiment()
    assert world.loop.ctx.store.list(RecordKind.LIVE_PROOF) == []
    world.loop.measure()
    assert record(world).phase == "no-measurable-effect"


@pytest.mark.parametrize("keep", [True, False])
def test_a_swap_that_changes_nothing_goes_back_without_blame(
    world: World, live: Live, *, keep: bool
) -> None:
    rule = policy(onNoEffect="keep") if keep else policy()
    assert swapped(world, rule) == "Proving"
    world.loop.measure()
    assert record(world).phase == "no-measurable-effect"
    assert settled(world) == "RolledBack", "kept only where it is shown that the GPU works less"
    assert WINNER.digest not in quarantined(world.loop.ctx)


@pytest.mark.parametrize("effect", [0.03, 0.0])
def test_where_it_is_observed_nothing_follows(world: World, live: Live, effect: float) -> None:
    live.effect = effect
    assert swapped(world, policy(mode="observe")) == "Proving"
    world.loop.measure()
    assert record(world).phase == ("harms" if effect else "no-measurable-effect")
    assert not world.server.slots()[0].bypassed
    assert settled(world) == "Promoted"


def test_a_daemon_that_is_killed_goes_on_with_its_pairs(world: World, live: Live) -> None:
    live.effect, live.dies_at = -0.04, 200
    assert swapped(world, policy()) == "Proving"
    with pytest.raises(KeyboardInterrupt):
        world.loop.measure()
    begun = record(world).body["state"]
    assert begun["plan"] is not None, "the pair was planned before its data"
    kept = len(begun["pairs"]) + len(begun["pilot"])
    assert kept > 5
    world.loop = Loop(world.loop.ctx)
    world.loop.measure()
    ended = record(world)
    assert ended.phase == "helps"
    voids = [each for each in ended.body["state"]["pairs"] if each["void"] == "abandoned"]
    assert [each["number"] for each in voids] == [begun["plan"]["number"]]


def test_a_server_that_restarts_ends_the_proof_with_the_original(world: World, live: Live) -> None:
    live.effect = -0.04
    assert swapped(world, policy()) == "Proving"
    live.lost = CandidateError("server-restarted", detail="4711.sock")
    world.loop.measure()
    found = record(world)
    assert (found.phase, found.body["report"]["reason"]) == ("not-concluded", "interrupted")
    assert settled(world) == "RolledBack"
    assert WINNER.digest not in quarantined(world.loop.ctx)


def test_a_server_that_does_not_answer_is_waited_for(world: World, live: Live) -> None:
    live.effect = -0.04
    assert swapped(world, policy()) == "Proving"
    live.lost = TemporaryError("no answer", delay_s=1.0)
    world.loop.measure()
    assert record(world).phase == "proving"
    assert world.server.slots()[0].bypassed, "without a verdict the original serves"
    live.lost = None
    world.loop.measure()
    assert record(world).phase == "helps"
    assert settled(world) == "Promoted"


def test_too_little_traffic_ends_with_the_original(world: World, live: Live) -> None:
    live.per_s = 0.2
    assert swapped(world, policy(maxDuration="10m")) == "Proving"
    world.loop.measure()
    assert record(world).phase == "too-little-traffic"
    assert settled(world) == "RolledBack"
    assert WINNER.digest not in quarantined(world.loop.ctx)


def test_a_rollback_in_the_middle_ends_the_proof(world: World, live: Live) -> None:
    assert swapped(world, policy()) == "Proving"
    taken: list[int] = []
    wait = live.wait

    def waits(seconds: float) -> None:
        wait(seconds)
        taken.append(1)
        if len(taken) == 50:
            (proposal,) = world.store.list(RecordKind.PROPOSAL)
            body = {"target": proposal.id, "what": "rollback", "who": "ada", "reason": "a test"}
            world.store.add(RecordKind.REQUEST, f"back-{proposal.id}", body, phase="new")
            world.loop.steer()

    live.wait = waits  # type: ignore[method-assign]
    world.loop.measure()
    assert record(world).body["report"]["reason"] == "interrupted"


@pytest.mark.parametrize(("mode", "phase"), [("required", "Scheduled"), ("observe", "Promoted")])
def test_where_steps_are_not_known(world: World, live: Live, mode: str, phase: str) -> None:
    live.reason = "not-switchable"
    reached = swapped(world, policy(mode=mode))
    assert (reached if mode == "required" else settled(world)) == phase
    assert world.store.list(RecordKind.LIVE_PROOF) == []


@pytest.mark.parametrize(
    ("reason", "rule", "phase"),
    [
        ("not-switchable", "keep", "Promoted"),
        ("not-switchable", "canary", "Scheduled"),
        ("several-servers", "keep", "Scheduled"),
    ],
)
def test_where_nothing_can_be_switched(
    world: World, live: Live, reason: str, rule: str, phase: str
) -> None:
    live.reason = reason
    reached = swapped(world, policy(whenNotSwitchable=rule))
    assert (settled(world) if phase == "Promoted" else reached) == phase
    assert world.store.list(RecordKind.LIVE_PROOF) == []


@pytest.mark.parametrize(
    ("rule", "phase"), [("refuse", "Scheduled"), ("keep", "Promoted"), ("canary", "Scheduled")]
)
def test_where_the_policy_forbids_it_nothing_is_switched(
    world: World, live: Live, rule: str, phase: str
) -> None:
    reached = swapped(world, policy(whenNotSwitchable=rule, switching=False))
    assert (settled(world) if phase == "Promoted" else reached) == phase
    assert world.store.list(RecordKind.LIVE_PROOF) == []


SLO = {"slo": {"maxQueue": 4}}


def test_a_breach_switches_the_swap_off_until_it_is_over(world: World, live: Live) -> None:
    live.effect = -0.04
    began_s = live.now_s()
    seen: list[bool] = []

    def busy(at_s: float) -> bool:
        hit = began_s + 70.0 < at_s < began_s + 90.0
        if hit and seen:
            seen.append(world.server.slots()[0].bypassed)
        elif hit:
            seen.append(True)  # the reading that finds it
        return hit

    counted(world, live, busy)
    assert swapped(world, policy(**SLO)) == "Proving"
    world.loop.measure()
    found = record(world)
    assert (found.phase, found.body["state"]["pauses"]) == ("helps", 1)
    assert len(seen) > 10
    assert all(seen), "while requests wait the original serves"
    assert found.body["report"]["seconds"] > 60.0
    assert settled(world) == "Promoted"


def test_bounds_that_the_daemon_cannot_read_hold_the_swap(world: World, live: Live) -> None:
    assert swapped(world, policy(**SLO)) == "Scheduled"
    assert world.server.slots()[0].active is None


def test_bounds_that_the_daemon_cannot_read_are_named_where_it_only_observes(
    world: World, live: Live
) -> None:
    swapped(world, policy(mode="observe", **SLO))
    (stored,) = world.store.list(RecordKind.PROPOSAL)
    fact = live_proof.follows(world.loop.ctx, Proposal.model_validate(stored.body))
    assert (fact.consequence, fact.reason) == (Consequence.KEEP, "live-proof-no-service-levels")


@pytest.mark.parametrize("lost", ["the address of the metrics", "the steps"])
def test_a_proof_that_has_lost_what_it_needs_ends(world: World, live: Live, lost: str) -> None:
    counted(world, live, lambda _: False)
    live.dies_at = 60
    assert swapped(world, policy(**SLO)) == "Proving"
    with pytest.raises(KeyboardInterrupt):
        world.loop.measure()
    if lost == "the steps":
        live.reason = "not-switchable"
    else:
        world.loop = Loop(replace(world.loop.ctx, service_counts=None))
    world.loop.measure()
    found = record(world)
    assert (found.phase, found.body["report"]["reason"]) == ("not-concluded", "interrupted")
    assert settled(world) == "RolledBack"
    assert WINNER.digest not in quarantined(world.loop.ctx)


def test_the_third_breach_ends_the_proof(world: World, live: Live) -> None:
    counted(world, live, lambda at_s: at_s % 72.0 > 69.0)
    assert swapped(world, policy(**SLO)) == "Proving"
    world.loop.measure()
    found = record(world)
    reason = found.body["report"]["reason"]
    assert (found.phase, reason) == ("too-little-traffic", "slo-pressure")
    assert world.server.slots()[0].bypassed
    assert settled(world) == "RolledBack"
    assert WINNER.digest not in quarantined(world.loop.ctx)


@pytest.mark.parametrize(
    ("why", "verdict", "reason"),
    [
        ("shadow-mismatch", "harms", "errors"),
        ("launch-errors", "harms", "errors"),
        ("orphaned", "not-concluded", "interrupted"),
    ],
)
def test_a_swap_that_the_server_takes_back_ends_its_proof(
    world: World, live: Live, why: str, verdict: str, reason: str
) -> None:
    live.effect = -0.04
    assert swapped(world, policy()) == "Proving"
    at_look(live, 300, lambda: world.server.counts[KERNEL].update(tripped=why))
    world.loop.measure()
    found = record(world)
    assert (found.phase, found.body["report"]["reason"]) == (verdict, reason)


def test_a_freeze_ends_a_paused_proof(world: World, live: Live) -> None:
    counted(world, live, lambda _: True)
    assert swapped(world, policy(**SLO)) == "Proving"
    at_look(live, 30, lambda: freeze(world))
    world.loop.measure()
    assert record(world).body["report"]["reason"] == "interrupted"


def test_where_it_is_off_nothing_is_measured(world: World, live: Live) -> None:
    swapped(world, policy(mode="off"))
    assert settled(world) == "Promoted"
    world.clock.advance(timedelta(minutes=1).total_seconds())
    world.loop.measure()
    assert live.reads == 0


def test_a_policy_that_asks_no_longer_switches_the_swap_on(world: World, live: Live) -> None:
    assert swapped(world, policy()) == "Proving"
    live.lost = TemporaryError("no answer", delay_s=1.0)
    world.loop.measure()
    assert world.server.slots()[0].bypassed
    world.policies = (policy(mode="off"),)
    world.loop.measure()
    assert not world.server.slots()[0].bypassed


def test_a_verdict_that_did_not_reach_the_server_reaches_it_later(
    world: World, live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    live.effect = -0.04
    assert swapped(world, policy()) == "Proving"
    bypass = world.server.bypass

    def fails(definition: str, *, on: bool, arm: str | None = None) -> None:
        if arm is None:
            raise TemporaryError("no answer", delay_s=1.0)
        bypass(definition, on=on, arm=arm)

    with monkeypatch.context() as patched:
        patched.setattr(type(world.server), "bypass", lambda _, *a, **k: fails(*a, **k))
        world.loop.measure()
    assert record(world).phase == "helps"
    world.server._bypassed.add(KERNEL)
    world.loop.measure()
    assert not world.server.slots()[0].bypassed


def test_a_silent_server_ends_the_proof_when_its_time_is_over(world: World, live: Live) -> None:
    assert swapped(world, policy(maxDuration="10m")) == "Proving"
    live.lost = TemporaryError("no answer", delay_s=1.0)
    for _ in range(12):
        world.loop.measure()
        world.clock.advance(60.0)
    assert record(world).phase == "too-little-traffic"
    assert settled(world) == "RolledBack"


def test_a_proof_touches_no_other_order(world: World, live: Live) -> None:
    live.effect = 0.03
    assert swapped(world, policy()) == "Proving"
    wait, taken = live.wait, [0]

    def waits(seconds: float) -> None:
        wait(seconds)
        taken[0] += 1
        if taken[0] == 50:
            order = world.server._orders[KERNEL]
            world.server._orders[KERNEL] = order.model_copy(update={"epoch": order.epoch + 1})
            world.server._bypassed.discard(KERNEL)

    live.wait = waits  # type: ignore[method-assign]
    world.loop.measure()
    assert record(world).body["report"]["reason"] == "interrupted"
    assert not world.server.slots()[0].bypassed, "the other order is not switched off"


def test_a_kept_swap_does_not_switch_on_another_one(world: World, live: Live) -> None:
    live.effect = 0.03
    assert swapped(world, policy()) == "Proving"
    body = {"order": "o", "definition": KERNEL, "artifact": "sha256:" + "9" * 64}
    (proposal,) = world.store.list(RecordKind.PROPOSAL)
    earlier = "sha256:" + "8" * 64
    world.store.add(RecordKind.PROPOSAL, earlier, dict(proposal.body), phase="Promoted")
    report = {"verdict": "helps", "reason": "faster"}
    world.store.add(RecordKind.LIVE_PROOF, earlier, body | {"report": report}, phase="helps")
    world.loop.measure()
    assert world.server.slots()[0].bypassed
    world.loop.measure()
    assert world.server.slots()[0].bypassed, "what harms stays off until it is taken back"


def test_a_look_that_is_not_answered_ends_no_proof(world: World, live: Live) -> None:
    live.effect = -0.04
    assert swapped(world, policy()) == "Proving"
    live.silent = True
    assert settled(world) == "Proving"
    world.loop.measure()
    assert world.store.list(RecordKind.LIVE_PROOF) == []
    live.silent = False
    world.loop.measure()
    assert settled(world) == "Promoted"


def test_a_long_step_ends_no_proof(world: World, live: Live) -> None:
    live.effect = -0.04
    assert swapped(world, policy()) == "Proving"
    live.lost = CandidateError("no-safe-point", detail="a step of 4 s")
    world.loop.measure()
    assert record(world).phase == "proving"
    live.lost = None
    world.loop.measure()
    assert record(world).phase == "helps"


def test_a_state_of_another_version_begins_again(world: World, live: Live) -> None:
    live.effect, live.dies_at = -0.04, 200
    assert swapped(world, policy()) == "Proving"
    with pytest.raises(KeyboardInterrupt):
        world.loop.measure()
    found = record(world)
    body = found.body | {"state": {"unknown": 1}}
    assert world.store.advance(
        RecordKind.LIVE_PROOF, found.id, expect="proving", to="proving", body=body
    )
    world.loop.measure()
    assert record(world).phase == "helps"


@pytest.mark.parametrize(("mode", "phase"), [("required", "RolledBack"), ("observe", "Promoted")])
@pytest.mark.parametrize("look", [50, 51, 52, 53])
def test_a_freeze_ends_the_proof_within_a_look(
    world: World, live: Live, mode: str, phase: str, look: int
) -> None:
    live.effect = -0.04
    assert swapped(world, policy(mode=mode)) == "Proving"
    frozen_at: list[float] = []

    def frozen() -> None:
        freeze(world)
        frozen_at.append(live.now_s())

    at_look(live, look, frozen)
    world.loop.measure()
    assert record(world).body["report"]["reason"] == "interrupted"
    assert live.now_s() == frozen_at[0], "it does not wait for the end of the block"
    assert world.server.slots()[0].bypassed is (mode == "required")
    Approvals(world.store).thaw(f"f-{world.clock.now():%H%M%S}", who="ada", at=world.clock.now())
    assert settled(world) == phase
    assert world.server.slots()[0].active == (None if mode == "required" else WINNER.digest)
    assert WINNER.digest not in quarantined(world.loop.ctx)


def test_while_frozen_no_proof_begins(world: World, live: Live) -> None:
    live.effect = -0.04
    assert swapped(world, policy()) == "Proving"
    freeze(world, for_s=600.0)
    world.loop.measure()
    assert world.store.list(RecordKind.LIVE_PROOF) == []
    assert settled(world) == "Proving"
    world.clock.advance(600.0)
    world.loop.measure()
    assert settled(world) == "Promoted"


def test_a_freeze_of_another_kernel_ends_no_proof(world: World, live: Live) -> None:
    live.effect = -0.04
    assert swapped(world, policy()) == "Proving"
    scope = FreezeScope(kernels=("another",))
    sign = TuningFreeze(id="f", scope=scope, user="ada", at=world.clock.now())
    at_look(live, 50, lambda: Approvals(world.store).freeze(sign))
    world.loop.measure()
    assert record(world).phase == "helps"


def test_a_freeze_that_cannot_be_read_delays_the_proof(world: World, live: Live) -> None:
    live.effect = -0.04
    assert swapped(world, policy()) == "Proving"
    at_look(live, 50, lambda: world.store.add(RecordKind.FREEZE, "f", {"x": 1}, phase="active"))
    world.loop.measure()
    assert record(world).phase == "proving"
    assert world.server.slots()[0].bypassed, "without a verdict the original serves"
    assert world.store.advance(RecordKind.FREEZE, "f", expect="active", to="lifted")
    world.loop.measure()
    assert record(world).phase == "helps"


@pytest.mark.parametrize("what", ["rollback", "abort"])
def test_a_request_in_a_block_ends_the_proof(world: World, live: Live, what: str) -> None:
    assert swapped(world, policy()) == "Proving"
    ended_at: list[float] = []

    def asks() -> None:
        (proposal,) = world.store.list(RecordKind.PROPOSAL)
        ask_for(world, what, proposal.id)
        world.loop.steer()
        ended_at.append(live.now_s())

    at_look(live, 50, asks)
    world.loop.measure()
    assert live.now_s() == ended_at[0]
    assert record(world).body["report"]["reason"] == "interrupted"
    assert settled(world) == "RolledBack"
    assert world.server.slots()[0].active is None


def test_a_server_that_is_detached_ends_the_proof(world: World, live: Live) -> None:
    live.effect = -0.04
    assert swapped(world, policy()) == "Proving"
    detached = CandidateError("detached", detail="4711.sock")
    at_look(live, 50, lambda: setattr(live, "lost", detached))
    world.loop.measure()
    assert record(world).body["report"]["reason"] == "interrupted"
    assert settled(world) == "RolledBack"
    assert WINNER.digest not in quarantined(world.loop.ctx)
