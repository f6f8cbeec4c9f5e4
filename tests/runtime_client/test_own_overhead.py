"""Retuned's wrappers in a real runtime, switched over its socket as a measurement does."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from tests.expect import raises_code

import retuned.runtime
from retuned.clock import SystemClock
from retuned.errors import CandidateError, TemporaryError
from retuned.node.live_proof import ProofRunner, UnstoredProof
from retuned.runtime.core.attach import Runtime
from retuned.runtime_client.connection import told
from retuned.runtime_client.live_steps import ServerSteps
from retuned.runtime_client.own_overhead import ServerOverhead
from retuned.runtime_client.tunables import CountedTime
from retuned.stages.gate import LiveProof, LiveProofMode
from retuned.stages.swap import SwapOrder
from retuned.stages.watch import own_overhead, proof


@pytest.fixture
def arm(runtime: Runtime, tmp_path: Path) -> ServerOverhead:
    return ServerOverhead(tmp_path / "s")


def step() -> None:
    with retuned.runtime.step(decode=1, context=5):
        pass


def test_turns_are_taken_by_the_servers_own_steps(arm: ServerOverhead, tmp_path: Path) -> None:
    live = ServerSteps(tmp_path / "s")
    step()
    live.begin()
    arm.take_turns([("0-0-on", True), ("0-1-off", False)], steps=2)
    for _ in range(5):
        step()
    assert [name for name, _ in live.read()] == ["0-0-on", "0-0-on", "0-1-off", "0-1-off"]
    live.end()


def test_a_server_without_steps_cannot_be_measured(arm: ServerOverhead) -> None:
    with pytest.raises(TemporaryError):
        arm.bypass("retuned-wrappers", on=True)


def test_the_server_refuses_where_steps_are_not_recorded(arm: ServerOverhead) -> None:
    step()
    with raises_code(CandidateError, "not-recording"):
        arm.take_turns([("0-0-off", False)], steps=2)


def test_a_share_reaches_the_server_and_its_reports(
    runtime: Runtime, arm: ServerOverhead, tmp_path: Path
) -> None:
    arm.set_share(0.25)
    assert runtime._host.overhead.state()["share"] == 0.25
    (path,) = (tmp_path / "s").glob("*.sock")
    said = told(path, {"op": "tunables"}, timeout_s=5.0)
    assert isinstance(said, dict)
    time = CountedTime.model_validate(said["overhead"])
    assert (time.out_s <= time.now_s, said["overhead"]["share"]) == (True, 0.25)
    arm.set_share(1.0)


def test_a_whole_measurement_runs_over_the_socket(
    arm: ServerOverhead, runtime: Runtime, tmp_path: Path
) -> None:
    stop, kept = threading.Event(), UnstoredProof()
    serving = threading.Event()
    (slot,) = arm.slots()

    def serve() -> None:
        while not serving.is_set():
            with retuned.runtime.step(decode=4, context=64):
                serving.wait(0.002)

    server = threading.Thread(target=serve)
    server.start()
    try:
        ProofRunner(
            SwapOrder.model_construct(
                definition=slot.definition, artifact=slot.active, epoch=slot.epoch
            ),
            LiveProof(mode=LiveProofMode.OBSERVE),
            record=kept,
            swapper=arm,
            live=ServerSteps(tmp_path / "s"),
            clock=SystemClock(),
            first=lambda at_s: proof.begin(
                own_overhead.SETTINGS.model_copy(update={"pilot_pairs": 4}), at_s=at_s
            ),
            turns=arm,
        ).run(stop, most_pairs=8)
    finally:
        serving.set()
        server.join()
    assert kept.state is not None
    assert kept.state.report is None or not kept.state.report.void_pairs
    counted = [pair for pair in kept.state.pairs if pair.void is None]
    assert len(counted) == 8
    assert all(pair.on.steps == pair.off.steps == 12 for pair in counted if not pair.sham)
    host = runtime._host
    assert not host.overhead.out
    assert host.steps.turns is None
    assert not host.steps.log.recording
