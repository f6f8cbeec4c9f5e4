"""A runner over a server whose host changes its pace every second: turns see small effects."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from retuned.node.live_proof import ProofNeed, ProofRunner, UnstoredProof
from retuned.ports import SlotState
from retuned.stages.gate import LiveProof, LiveProofMode
from retuned.stages.swap import SwapKind, SwapOrder
from retuned.stages.watch import proof

ARTIFACT = "sha256:" + "0" * 64
STEP_S = 0.015


class Server:
    """Takes steps while the proof waits; its host is a third slower for seconds at a time."""

    def __init__(self, effect: float, *, seed: int = 1) -> None:
        self.effect, self.chance = effect, random.Random(seed)
        self.at_s, self.slow_until_s = 0.0, 0.0
        self.turns: list[tuple[str, bool]] = []
        self.steps_each = 0
        self.taken = 0
        self.answers = True
        self.index = 0
        self.captured_s = 0.0
        """When graphs have the swap, if it is on."""
        self.bypassed = False
        self.recorded_s: list[float] = []
        """When recordings began."""
        self.fresh: list[tuple[str, proof.StepRecord]] = []

    # the turns, the slot and the clock that a runner uses
    def take_turns(self, turns: Sequence[tuple[str, bool]], *, steps: int) -> None:
        self.turns, self.steps_each, self.taken = list(turns), steps, 0

    def slots(self) -> Sequence[SlotState]:
        awaits = not self.bypassed and self.at_s < self.captured_s
        slot = SlotState(definition="own", active=ARTIFACT, epoch=1, launches={})
        return [replace(slot, awaits_graphs=awaits, bypassed=self.bypassed)]

    def bypass(self, definition: str, *, on: bool, arm: str | None = None) -> None:
        assert arm is None, "blocks are not asked for"
        self.bypassed = on

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.at_s, UTC)

    def monotonic_s(self) -> float:
        return self.at_s

    # its steps
    def unavailable(self) -> str:
        return ""

    def engine(self) -> str:
        return "vllm 0.26.0"

    def launches(self) -> Sequence[proof.ArmLaunches]:
        return ()

    def begin(self) -> None:
        self.recorded_s.append(self.at_s)

    def end(self) -> None: ...

    def now_s(self) -> float:
        return self.at_s

    def wait(self, seconds: float) -> None:
        until_s = self.at_s + seconds
        while self.at_s < until_s:
            self._step()

    def read(self) -> Sequence[tuple[str, proof.StepRecord]]:
        found, self.fresh = self.fresh, []
        return found

    def _step(self) -> None:
        if self.at_s > self.slow_until_s and self.chance.random() < 0.01:
            self.slow_until_s = self.at_s + self.chance.uniform(0.3, 2.0)
        turn = self.taken // self.steps_each if self.steps_each else 0
        label, on = self.turns[turn] if turn < len(self.turns) else ("", True)
        period_s = STEP_S * math.exp(self.chance.gauss(0.0, 0.02))
        period_s *= 1.35 if self.at_s < self.slow_until_s else 1.0
        period_s *= math.exp(self.effect) if on else 1.0
        self.at_s += period_s
        self.taken += 1
        self.index += 1
        if label and self.answers:
            arm = proof.Arm.ON if on else proof.Arm.OFF
            self.fresh.append((label, self._record(arm, period_s)))

    def _record(self, arm: proof.Arm, period_s: float) -> proof.StepRecord:
        return proof.StepRecord(
            index=self.index,
            arm=arm,
            prefill=0,
            decode=16,
            context=4096,
            graph=None,
            period_s=period_s,
            busy_s=None,
            host_s=period_s,
            ended_s=self.at_s,
        )


class Kept(UnstoredProof):
    """States in memory, and how many of them have a plan."""

    plans = 0

    def keep(self, state: proof.ProofState) -> None:
        self.plans += state.plan is not None
        super().keep(state)


def proven(server: Server, **changed: object) -> Kept:
    settings = proof.ProofSettings(
        ask="ceiling",
        min_effect=math.log(1.01),
        turn_steps=4,
        long_blocks=0,
        max_duration_s=600.0,
    ).model_copy(update=changed)
    kept = Kept()
    order = SwapOrder.model_construct(
        id="own",
        kind=SwapKind.SWAP,
        proposal="own",
        target="chat",
        definition="own",
        artifact=ARTIFACT,
        epoch=1,
    )
    rule = LiveProof(mode=LiveProofMode.OBSERVE)
    ProofRunner(
        order,
        rule,
        record=kept,
        swapper=server,
        live=server,
        clock=server,
        first=lambda at_s: proof.begin(settings, at_s=at_s),
        turns=server,
    ).run(threading.Event())
    return kept


@pytest.mark.parametrize(
    ("effect", "verdict"),
    [(0.002, proof.Verdict.NO_MEASURABLE_EFFECT), (0.035, proof.Verdict.HARMS)],
)
def test_an_overhead_is_told_from_one_per_cent_within_minutes(
    effect: float, verdict: proof.Verdict
) -> None:
    server = Server(effect)
    kept = proven(server)
    assert kept.state is not None
    report = kept.state.report
    assert report is not None
    assert report.verdict is verdict
    assert report.low is not None
    assert report.high is not None
    assert report.low <= effect <= report.high
    assert server.at_s < 240.0
    assert kept.plans >= report.pairs  # each plan was stored before its steps


def test_turns_that_do_not_come_are_given_up() -> None:
    server = Server(0.0)
    server.answers = False
    kept = proven(server, max_duration_s=200.0)
    assert kept.state is not None
    assert kept.state.report is not None
    assert kept.state.report.pairs == 0
    assert all(pair.void is proof.VoidReason.ABANDONED for pair in kept.state.pairs)


@pytest.mark.parametrize("bypassed", [False, True])
def test_a_proof_begins_when_graphs_have_the_swap(bypassed: bool) -> None:
    server = Server(0.035)
    server.captured_s, server.bypassed = 50.0, bypassed
    kept = proven(server)
    assert len(server.recorded_s) == 1
    assert 50.0 <= server.recorded_s[0] < 52.0
    assert kept.state is not None
    assert kept.state.report is not None
    assert kept.state.report.verdict is proof.Verdict.HARMS


def test_a_server_whose_graphs_are_never_captured_is_measured_as_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = Server(0.035)
    server.captured_s = math.inf
    kept = proven(server, max_duration_s=600.0)
    assert 200.0 <= server.recorded_s[0] < 202.0
    assert kept.state is not None
    assert kept.state.report is not None
    assert "spec.pauses.recaptureAfter" in caplog.text


def test_a_proof_that_waits_for_graphs_ends_with_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(0.035)
    server.captured_s = math.inf
    monkeypatch.setattr(
        Kept, "need", lambda _: ProofNeed.END if server.at_s > 9.0 else ProofNeed.CONTINUE
    )
    kept = proven(server)
    assert server.recorded_s == []
    assert server.at_s < 12.0
    assert kept.state is not None
    assert kept.state.report is not None
    assert kept.state.report.verdict is proof.Verdict.NOT_CONCLUDED
