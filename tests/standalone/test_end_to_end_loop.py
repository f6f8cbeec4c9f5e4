"""Gate G7 in the loop: switched off and on in turn, kept across a kill, reverted where it fails."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest
from tests.standalone.local_world import KERNEL, WINNER, World, auto_policy

from retuned.cli.render_proposals import end_to_end_body, print_end_to_end
from retuned.errors import TemporaryError
from retuned.stages.gate import KernelTuningPolicy
from retuned.stages.verdict import SignedEvidence
from retuned.stages.watch import EndToEndSettings, Served, ServerResponse
from retuned.standalone.context import RecordKind
from retuned.standalone.daemon import Loop
from retuned.standalone.facts import quarantined
from retuned.standalone.proofs import end_to_end

QUICK = EndToEndSettings(looks=(4, 8))


def policy(rule: str) -> KernelTuningPolicy:
    body = auto_policy().model_dump(mode="json", by_alias=True)
    body["spec"]["validation"]["endToEnd"] = rule
    return KernelTuningPolicy.model_validate(body)


@dataclass
class Users:
    """Asks the world's server as its users do: it is as fast as its kernels, and as right."""

    world: World
    off_s: float = 1.0
    on_s: float = 0.4
    word: str = "same"
    away: bool = False
    states: list[str] = field(default_factory=list)
    dies_at: int | None = None

    def serve(self) -> Served:
        if self.away:
            raise TemporaryError("nobody answers", delay_s=1.0)
        (slot,) = self.world.server.slots()
        on = slot.active is not None and not slot.bypassed
        self.states.append("on" if on else "off")
        if len(self.states) == self.dies_at:
            self.dies_at = None
            raise KeyboardInterrupt
        self.world.clock.advance(1.0)
        words = ("a", self.word if on else "same", *(["word"] * 30))
        noise = 1.0 + 0.002 * (len(self.states) % 3)
        answers = tuple(ServerResponse(tokens=words, ttft_s=0.1, tpot_s=0.1) for _ in range(32))
        return Served(answers=answers, wall_s=(self.on_s if on else self.off_s) * noise)


@pytest.fixture
def users(world: World) -> Users:
    made = Users(world)
    settings = replace(world.loop.ctx.settings, end_to_end=QUICK)
    world.loop = Loop(replace(world.loop.ctx, end_to_end=made, settings=settings))
    return made


@pytest.fixture
def swapped(world: World, users: Users) -> World:
    """A swap that is watched and clean, and not measured yet."""
    world.policies = (policy("required"),)
    for m in (8,) * 5 + (256,) * 4:
        world.window(m)
        steps(world)
    for _ in range(6):
        approve(world)
        world.clock.advance(2.0)
        if world.server.slots()[0].active is not None:
            world.server.counts[KERNEL] = {"swapped_launches": 900, "shadow_checks": 30}
        steps(world)
    assert world.phases(RecordKind.PROPOSAL) == ["Watching"], (
        "clean, and not kept before it is measured"
    )
    return world


def approve(world: World, *, phase: str = "AwaitingApproval") -> None:
    from retuned.stages.gate import DecisionKind, SwapDecision
    from retuned.store.approvals import Approvals

    for stored in world.store.list(RecordKind.PROPOSAL, phase=phase):
        Approvals(world.store).give(
            SwapDecision(
                proposal=stored.id,
                digest=stored.body["artifact"],
                decision=DecisionKind.APPROVE,
                user="ada",
                at=stored.created_at + timedelta(microseconds=1),
                policy_digest=world.policies[0].digest,
            )
        )


def steps(world: World) -> None:
    """All steps but the measuring."""
    world.loop.observe()
    world.loop.experiment()
    world.loop.steer()


def record(world: World) -> Any:
    (stored,) = world.store.list(RecordKind.END_TO_END)
    return stored


def test_a_swap_that_keeps_its_promise_is_kept_with_signed_evidence(
    swapped: World, users: Users
) -> None:
    swapped.loop.measure()
    assert users.states[0] == "on", "the first pass warms up, and counts for nothing"
    assert users.states[1:] == ["off", *["off", "on", "on", "off"] * 2]
    found = record(swapped)
    assert (found.phase, found.body["report"]["reason"]) == ("pass", "gain-holds")
    assert not swapped.server.slots()[0].bypassed
    swapped.loop.steer()
    assert swapped.phases(RecordKind.PROPOSAL) == ["Promoted"]
    assert swapped.server.slots()[0].active == WINNER.digest
    envelope = SignedEvidence.model_validate_json(swapped.store.get_blob(found.body["evidence"]))
    signature = bytes.fromhex(envelope.signature)
    doubt = swapped.notary.check(envelope.payload.encode(), key=envelope.key, signature=signature)
    assert doubt is None
    said = json.loads(envelope.payload)
    assert (said["gate"], said["artifact"], len(said["blocks"])) == ("G7", WINNER.digest, 8)
    assert said["predicted"] == pytest.approx(0.5, abs=0.02), "all of the time, twice as fast"
    asked = len(users.states)
    swapped.loop.measure()
    assert len(users.states) == asked, "once is enough"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"on_s": 0.95}, "gain-below-half"),
        ({"on_s": 1.2}, "slower"),
        ({"word": "other"}, "tokens-differ"),
    ],
)
@pytest.mark.parametrize("rule", ["required", "whenPossible"])
def test_a_swap_that_fails_goes_back_with_evidence_and_a_lesson(
    swapped: World, users: Users, changes: dict[str, Any], reason: str, rule: str
) -> None:
    swapped.policies = (policy(rule),)
    for name, value in changes.items():
        setattr(users, name, value)
    swapped.loop.measure()
    swapped.loop.steer()
    assert swapped.phases(RecordKind.PROPOSAL) == ["RolledBack"]
    assert swapped.server.slots()[0].active is None
    assert WINNER.digest in quarantined(swapped.loop.ctx)
    (alarm,) = [e for e in swapped.store.events() if e.what == "rolling-back"]
    assert alarm.detail["reason"] == f"end-to-end-{reason}"
    (lesson,) = [e for e in swapped.store.events() if e.what == "end-to-end-lesson"]
    assert (lesson.kind, lesson.detail["candidate"]) == (RecordKind.EXPERIMENT, WINNER.digest)
    assert swapped.store.get_blob(record(swapped).body["evidence"])


def test_a_kill_in_the_middle_goes_on_with_the_pairs_there_are(
    swapped: World, users: Users
) -> None:
    users.dies_at = 8  # with the swap off, in the second half of a pair
    with pytest.raises(KeyboardInterrupt):
        swapped.loop.measure()
    swapped.server.bypass(KERNEL, on=True)  # the kill came before it was switched on again
    passes = len(record(swapped).body["blocks"])
    assert passes == 5
    loop = swapped.loop
    swapped.restart()
    swapped.loop = Loop(replace(loop.ctx, store=swapped.store))
    before = len(users.states)
    swapped.loop.measure()
    assert users.states[before:] == ["off", "on", "on", "off"], "two pairs were kept"
    assert record(swapped).phase == "pass"
    assert not swapped.server.slots()[0].bypassed


def test_answers_of_the_original_that_are_lost_are_asked_for_again(
    swapped: World, users: Users
) -> None:
    """Else the swap would wait to be measured for ever."""
    users.dies_at = 8
    with pytest.raises(KeyboardInterrupt):
        swapped.loop.measure()
    assert swapped.store.drop_blob(record(swapped).body["first"])
    before = len(users.states)
    swapped.loop.measure()
    assert users.states[before:] == ["on", "off", *["off", "on", "on", "off"] * 2]
    assert record(swapped).phase == "pass"


def test_a_daemon_that_starts_switches_on_what_a_killed_one_left_off(
    swapped: World, users: Users
) -> None:
    users.dies_at = 4
    with pytest.raises(KeyboardInterrupt):
        swapped.loop.measure()
    swapped.server.bypass(KERNEL, on=True)
    users.away = True
    swapped.loop.measure()
    assert not swapped.server.slots()[0].bypassed


@pytest.mark.parametrize(
    ("rule", "phase", "active"),
    [("required", "RolledBack", None), ("whenPossible", "Promoted", WINNER.digest)],
)
def test_a_server_that_cannot_be_asked_is_asked_again_until_the_time_is_up(
    swapped: World, users: Users, rule: str, phase: str, active: str | None
) -> None:
    swapped.policies = (policy(rule),)
    approve(swapped, phase="Watching")
    users.away = True
    swapped.loop.measure()
    swapped.loop.steer()
    assert swapped.phases(RecordKind.PROPOSAL) == ["Watching"]
    swapped.clock.advance(1801.0)
    swapped.loop.measure()
    swapped.loop.steer()
    swapped.clock.advance(2.0)
    swapped.loop.steer()
    found = record(swapped)
    assert (found.phase, found.body["report"]["reason"]) == ("not-measured", "no-answer")
    assert swapped.phases(RecordKind.PROPOSAL) == [phase]
    assert swapped.server.slots()[0].active == active


def test_a_swap_that_goes_back_meanwhile_is_measured_no_more(swapped: World, users: Users) -> None:
    serve = users.serve

    def harmed() -> Served:
        if len(users.states) == 4:
            swapped.server.counts[KERNEL] = {
                "swapped_launches": 2_000,
                "shadow_checks": 60,
                "shadow_mismatches": 1,
            }
            swapped.loop.steer()
        return serve()

    users.serve = harmed  # type: ignore[method-assign]
    swapped.loop.measure()
    assert len(users.states) == 5
    assert swapped.phases(RecordKind.PROPOSAL) == ["RolledBack"]
    assert record(swapped).phase == end_to_end.MEASURING
    swapped.loop.measure()
    assert len(users.states) == 5


def test_a_daemon_that_stops_leaves_the_swap_on(swapped: World, users: Users) -> None:
    serve = users.serve

    def stopping() -> Served:
        if len(users.states) == 3:
            swapped.loop.stop_measuring()
        return serve()

    users.serve = stopping  # type: ignore[method-assign]
    swapped.loop.measure()
    assert len(users.states) == 4
    assert not swapped.server.slots()[0].bypassed


def test_off_measures_nothing(swapped: World, users: Users) -> None:
    swapped.policies = (policy("off"),)
    approve(swapped, phase="Watching")
    swapped.loop.measure()
    assert users.states == []
    swapped.clock.advance(2.0)
    swapped.loop.steer()
    assert swapped.phases(RecordKind.PROPOSAL) == ["Promoted"]


def test_without_a_policy_that_can_be_read_nothing_is_promoted(
    swapped: World, users: Users
) -> None:
    swapped.policies_gone = True
    swapped.loop.measure()
    swapped.loop.steer()
    assert users.states == []
    assert swapped.phases(RecordKind.PROPOSAL) == ["Watching"]
    assert swapped.unexpected() > 0
    swapped.telemetry.counters.clear()


def test_what_must_be_measured_and_cannot_be_is_not_swapped(world: World) -> None:
    world.policies = (policy("required"),)
    for m in (8,) * 5 + (256,) * 4:
        world.window(m)
        world.loop.turn()
    for _ in range(6):
        approve(world)
        world.clock.advance(2.0)
        world.loop.turn()
    assert world.phases(RecordKind.PROPOSAL) == ["Scheduled"]
    assert world.server.flips == []
    (waits,) = [e for e in world.store.events() if e.what == "scheduled"]
    assert waits.detail["reason"] == "end-to-end-unavailable"


def test_people_and_programs_are_shown_what_was_measured(
    swapped: World, users: Users, capsys: pytest.CaptureFixture[str]
) -> None:
    assert end_to_end_body(None) is None
    users.dies_at = 8
    with pytest.raises(KeyboardInterrupt):
        swapped.loop.measure()
    print_end_to_end(record(swapped))
    assert "being measured, 5 passes so far" in capsys.readouterr().out
    swapped.loop.measure()
    print_end_to_end(record(swapped))
    shown = capsys.readouterr().out
    assert "pass: gain-holds" in shown
    assert "0.00% of tokens differ" in shown
    body = end_to_end_body(record(swapped))
    assert body is not None
    assert (body["outcome"], body["reason"], body["pairs"]) == ("pass", "gain-holds", 4)


def test_nobody_waits_for_the_measuring(swapped: World, users: Users) -> None:
    """The watch goes on while a pass is under way, on another thread."""
    entered, leave = threading.Event(), threading.Event()
    serve = users.serve

    def slow() -> Served:
        entered.set()
        assert leave.wait(120.0)
        return serve()

    users.serve = slow  # type: ignore[method-assign]
    thread = threading.Thread(target=swapped.loop.measure)
    thread.start()
    assert entered.wait(120.0)
    swapped.server.counts[KERNEL] = {"swapped_launches": 1, "shadow_checks": 1, "errors": 9}
    swapped.loop.steer()
    assert swapped.phases(RecordKind.PROPOSAL) == ["RolledBack"]
    leave.set()
    thread.join(120.0)
    assert not thread.is_alive()
