"""Before a live proof: the prediction, and the lessons of earlier proofs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from tests.standalone.local_world import KERNEL, WINNER, World
from tests.standalone.test_live_proof_loop import Live, live, policy, settled, swapped
from tests.standalone.test_proposing import reasons, win

from retuned.errors import CandidateError, TemporaryError
from retuned.ports import ObservedSteps
from retuned.report.live_proof import prediction_of
from retuned.stages.proposal import Lesson
from retuned.stages.verdict import SignedEvidence
from retuned.stages.watch.proof import Arm, StepRecord
from retuned.standalone import proposals
from retuned.standalone.context import RecordKind
from retuned.standalone.daemon import Loop
from retuned.standalone.proofs import lessons, server_pace
from retuned.standalone.proposals import DEFERRED
from retuned.store.lessons import HOLDS, kept

__all__ = ["live"]


@dataclass
class Observer:
    """Steps of a server whose GPU works for a share of each step."""

    busy: float | None = 0.99
    count: int = 400
    graph: int | None = 8
    host_s: float = 0.002
    engine: str = "vllm 0.33.0"
    error: Exception | None = None
    looks: int = 0

    def observe(self, seconds: float) -> ObservedSteps:
        self.looks += 1
        if self.error is not None:
            raise self.error
        return ObservedSteps(engine=self.engine, steps=self._steps())

    def _steps(self) -> Sequence[StepRecord]:
        return [
            StepRecord(
                index=number,
                arm=Arm.OFF,
                prefill=0,
                decode=8,
                context=1024,
                graph=self.graph,
                period_s=0.01,
                busy_s=None if self.busy is None else 0.01 * self.busy,
                host_s=self.host_s,
                ended_s=0.01 * number,
            )
            for number in range(self.count)
        ]


@pytest.fixture
def observer(world: World) -> Observer:
    made = Observer()
    world.loop = Loop(replace(world.loop.ctx, step_observer=made))
    return made


def won_again(world: World) -> str:
    """Let the experiment of the swapped winner be won once more; return its id."""
    (experiment,) = world.store.list(RecordKind.EXPERIMENT, phase="proposed")
    assert world.store.advance(RecordKind.EXPERIMENT, experiment.id, expect="proposed", to="won")
    return experiment.id


def taught(world: World, live: Live, *, effect: float) -> str:
    """Let a live proof speak against a swap; return its experiment, won once more."""
    live.effect = effect
    assert swapped(world, policy()) == "Proving"
    world.loop.measure()
    assert settled(world) == "RolledBack"
    world.clock.advance(86_400.0)
    return won_again(world)


@pytest.mark.parametrize("effect", [0.03, 0.0])
def test_a_claim_that_did_not_hold_is_not_proposed_again(
    world: World, live: Live, effect: float
) -> None:
    experiment = taught(world, live, effect=effect)
    (stored,) = world.store.list(RecordKind.LESSON)
    lesson = Lesson.model_validate(stored.body["lesson"])
    assert lesson.artifacts == (WINNER.digest,)
    assert lesson.kind == ("harms" if effect else "no-measurable-effect")
    assert lesson.key.environment == world.loop.ctx.environment
    envelope = SignedEvidence.model_validate_json(world.store.get_blob(stored.body["evidence"]))
    assert Lesson.model_validate_json(envelope.payload) == lesson
    world.restart()
    proposals.propose(world.loop.ctx)
    assert len(world.store.list(RecordKind.PROPOSAL)) == 1
    assert reasons(world.loop.ctx, experiment) == ["live-lesson"]
    told = world.store.events(id=experiment)[-1]
    assert lesson.sentence in str(told.detail["detail"])
    world.clock.advance(3600.0)
    proposals.propose(world.loop.ctx)
    assert reasons(world.loop.ctx, experiment) == ["live-lesson"], "it is said once"


@pytest.mark.parametrize("altered", ["record", "signature", "no signed form"])
def test_a_lesson_that_nobody_signed_refuses_nothing(
    world: World, live: Live, altered: str
) -> None:
    experiment = taught(world, live, effect=0.0)
    (stored,) = world.store.list(RecordKind.LESSON)
    body = dict(stored.body)
    if altered == "record":
        body["lesson"] = {**body["lesson"], "claimed_saving": 0.99}
    else:
        envelope = json.loads(world.store.get_blob(body["evidence"]))
        envelope["signature"] = "00" * 64
        body["evidence"] = world.store.put_blob(json.dumps(envelope).encode())
    if altered == "no signed form":
        body["evidence"] = "sha256:" + "0" * 64
    assert world.store.advance(RecordKind.LESSON, stored.id, expect=HOLDS, to=HOLDS, body=body)
    assert len(kept(world.store)) == 1
    assert kept(world.store, verifier=world.notary) == []
    proposals.propose(world.loop.ctx)
    assert reasons(world.loop.ctx, experiment) == []


def test_a_lesson_whose_signed_form_cannot_be_read_now_holds(
    world: World, live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    taught(world, live, effect=0.0)

    def fails(_: str) -> bytes:
        raise OSError("input/output error")

    monkeypatch.setattr(world.store, "get_blob", fails)
    assert len(kept(world.store, verifier=world.notary)) == 1


def test_a_person_lifts_a_lesson_with_a_reason(world: World, live: Live) -> None:
    experiment = taught(world, live, effect=0.0)
    ctx = world.loop.ctx
    proposals.propose(ctx)
    assert world.phases(RecordKind.EXPERIMENT)[-1] == DEFERRED
    now = world.clock.now()
    assert lessons.lift(world.store, "other", who="ada", reason="r", at=now) == ()
    (lifted,) = lessons.lift(world.store, KERNEL, who="ada", reason="another model", at=now)
    assert lifted.experiment == experiment
    assert kept(world.store) == []
    told = world.store.events(id=experiment)[-1]
    assert (told.what, told.who) == ("live-proof-lesson-lifted", "ada")
    assert told.detail["reason"] == "another model"
    world.clock.advance(61.0)
    proposals.propose(ctx)
    assert world.phases(RecordKind.PROPOSAL) == ["RolledBack", "Pending"]
    assert world.store.list(RecordKind.PROPOSAL)[1].body["attempt"] == 2


def test_traffic_teaches_nothing(world: World, live: Live) -> None:
    live.per_s = 0.2
    assert swapped(world, policy(maxDuration="10m")) == "Proving"
    world.loop.measure()
    assert settled(world) == "RolledBack"
    assert world.store.list(RecordKind.LESSON) == []
    (event,) = [e for e in world.store.events() if e.what == "live-proof-lesson"]
    assert event.detail["verdict"] == "too-little-traffic"


def test_a_lesson_of_another_load_does_not_hold(
    world: World, live: Live, observer: Observer
) -> None:
    world.loop = Loop(replace(world.loop.ctx, live_steps=live))
    observer.busy = 0.99
    experiment = taught(world, live, effect=0.0)
    (stored,) = world.store.list(RecordKind.LESSON)
    assert stored.body["lesson"]["key"]["busy_ratio"] == pytest.approx(0.99)
    assert stored.body["lesson"]["key"]["engine"] == "vllm 0.33.0"
    assert stored.body["lesson"]["key"]["graphs"] is True
    observer.busy = 0.70
    world.policies = (policy(mode="observe"),)
    world.loop.measure()
    proposals.propose(world.loop.ctx)
    assert reasons(world.loop.ctx, experiment) == []
    assert world.phases(RecordKind.PROPOSAL) == ["RolledBack", "Pending"]


# --- the prediction -------------------------------------------------------------------------------


def forecast_sentence(world: World) -> str:
    (proposal,) = world.store.list(RecordKind.PROPOSAL)
    return prediction_of(server_pace.forecast_of(world.store, proposal.id))


def test_a_proposal_has_the_predicted_gain_of_a_step(world: World, observer: Observer) -> None:
    win(world.loop.ctx)
    server_pace.observe(world.loop.ctx)
    proposals.propose(world.loop.ctx)
    said = forecast_sentence(world)
    assert said.startswith("steps take ")
    assert "less time" in said
    assert "100% of 400 steps" in said


def test_where_the_host_sets_the_pace_nothing_is_proposed_until_that_changes(
    world: World, observer: Observer
) -> None:
    observer.busy = 0.2
    world.policies = (policy(),)
    ctx = world.loop.ctx
    experiment = win(ctx)
    server_pace.observe(ctx)
    proposals.propose(ctx)
    assert world.store.list(RecordKind.PROPOSAL) == []
    assert reasons(ctx, experiment) == ["host-bound"]
    assert "0 of 400 steps" in str(world.store.events(id=experiment)[-1].detail["detail"])
    proposals.propose(ctx)
    assert reasons(ctx, experiment) == ["host-bound"]
    observer.busy = 0.99
    world.clock.advance(601.0)
    server_pace.observe(ctx)
    proposals.propose(ctx)
    (stored,) = world.store.list(RecordKind.PROPOSAL)
    assert stored.phase == "Pending"


def test_where_it_is_only_observed_the_host_is_told_and_holds_nothing_back(
    world: World, observer: Observer
) -> None:
    observer.busy = 0.2
    world.policies = (policy(mode="observe"),)
    win(world.loop.ctx)
    server_pace.observe(world.loop.ctx)
    proposals.propose(world.loop.ctx)
    assert forecast_sentence(world).startswith("host-bound: the server cannot gain from this")


def test_a_proposal_of_before_the_look_is_held_back(
    world: World, live: Live, observer: Observer
) -> None:
    observer.busy = 0.2
    world.loop = Loop(replace(world.loop.ctx, live_steps=live))
    world.policies = (policy(),)
    win(world.loop.ctx)
    proposals.propose(world.loop.ctx)
    assert forecast_sentence(world).startswith("not predicted")
    world.loop.measure()
    assert forecast_sentence(world).startswith("host-bound")
    for _ in range(4):
        world.approve_what_waits()
        world.clock.advance(2.0)
        world.loop.steer()
    (stored,) = world.store.list(RecordKind.PROPOSAL)
    status = world.store.get(RecordKind.STATUS, stored.id)
    assert status is not None
    assert (stored.phase, status.body["reason"]) == ("Scheduled", "host-bound")
    assert world.server.slots()[0].active is None


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"busy": None}, "gpu-time-unknown"),
        ({"count": 20}, "few-steps"),
        ({"count": 0}, "few-steps"),
        ({"graph": None, "host_s": 0.0098}, "pace-unclear"),
        ({"error": TemporaryError("no answer", delay_s=1.0)}, "steps-unknown"),
        ({"error": CandidateError("not-switchable", detail="none")}, "steps-unknown"),
    ],
)
def test_what_is_unknown_holds_nothing_back(
    world: World, observer: Observer, change: dict[str, Any], why: str
) -> None:
    for name, value in change.items():
        setattr(observer, name, value)
    world.policies = (policy(),)
    win(world.loop.ctx)
    server_pace.observe(world.loop.ctx)
    proposals.propose(world.loop.ctx)
    said = forecast_sentence(world)
    assert said.startswith("not predicted: ")
    assert said.endswith(f"({why})")


def test_the_server_is_observed_only_while_it_matters(world: World, observer: Observer) -> None:
    ctx = world.loop.ctx
    server_pace.observe(ctx)
    assert observer.looks == 0, "nothing may be swapped"
    win(ctx)
    world.policies = (policy(mode="off"),)
    server_pace.observe(ctx)
    assert observer.looks == 0, "the policy measures nothing"
    world.policies = (policy(),)
    server_pace.observe(ctx)
    server_pace.observe(ctx)
    assert observer.looks == 1
    world.clock.advance(601.0)
    server_pace.observe(ctx)
    assert observer.looks == 2
    world.clock.advance(3 * 3600.0)
    found = server_pace.forecast(ctx, KERNEL, share=0.5, speedup=2.0)
    assert str(found.reason) == "steps-unknown", "an old look says nothing about now"


def test_long_steps_are_observed_again_until_there_are_enough(
    world: World, observer: Observer
) -> None:
    ctx = world.loop.ctx
    win(ctx)
    world.policies = (policy(),)
    observer.count = 48  # a look of 5 s at steps of 100 ms
    for looks, wait_s in ((1, 29.0), (1, 2.0), (2, 31.0), (3, 31.0)):
        server_pace.observe(ctx)
        assert observer.looks == looks
        world.clock.advance(wait_s)
    server_pace.observe(ctx)
    assert observer.looks == 3, "144 steps are enough"
    found = server_pace.forecast(ctx, KERNEL, share=0.5, speedup=2.0)
    assert found.prediction is not None
