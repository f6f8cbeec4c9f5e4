"""The way back as it goes in production: a real runtime, its socket, the daemon's own steps."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.standalone.local_world import KERNEL, WINNER, World

from retuned.runtime import attach
from retuned.runtime.core.slots import Slot
from retuned.runtime.native.cpu import LOADERS
from retuned.runtime.shadow.sampler import Comparison
from retuned.runtime_client.client import RuntimeSocket
from retuned.stages.swap import SwapOrder
from retuned.stages.verdict import ServerEnvironment
from retuned.standalone.context import RecordKind
from retuned.standalone.daemon import Loop
from retuned.standalone.facts import quarantined

DEFINITION = {
    "name": KERNEL,
    "op_type": "linear",
    "axes": {"M": {"type": "var"}},
    "inputs": {"x": {"shape": ["M"], "dtype": "float32"}},
    "outputs": {"y": {"shape": ["M"], "dtype": "float32"}},
}


class Rows:
    shape = (256,)


class Erring:
    """A variant whose answer is its error, which the test sets."""

    error = 0.0

    def __init__(self, *_: object) -> None:
        pass

    def launcher(self, _: tuple[int, ...]) -> Callable[[tuple[Any, ...]], Any]:
        return lambda _: Erring.error

    checked_launcher = launcher

    def capturing(self) -> None:
        return None

    def fingerprint(self, _: tuple[Any, ...]) -> object:
        return 0


def by_number(served: Any, expected: Any, _: float) -> Comparison:
    return Comparison(nonfinite=False, ratio=abs(served[0] - expected[0]))


class Bridge:
    """The socket as the daemon's swapper; artifacts are delivered as a lab would."""

    def __init__(self, socket: RuntimeSocket, folder: Path) -> None:
        self._socket = socket
        self._folder = folder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def environments(self) -> list[ServerEnvironment]:
        from tests.standalone.proofs import MACHINE

        return [ServerEnvironment(process="1", cpu=MACHINE.arch)]

    def prepare(self, order: SwapOrder, *, artifact_dir: Path) -> None:
        manifest = {
            "digest": order.artifact,
            "definition": DEFINITION,
            "language": "erring",
            "entry": "run",
            "params": {},
            "layouts": {},
            "scratch_bytes": 0,
            "parts": 1,
            "binary": "kernel.so",
            "binary_sha256": hashlib.sha256(b"").hexdigest(),
        }
        self._folder.mkdir(exist_ok=True)
        (self._folder / "kernel.so").write_bytes(b"")
        (self._folder / "artifact.json").write_text(json.dumps(manifest))
        self._socket.prepare(order, artifact_dir=self._folder)


@pytest.fixture
def served(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[World, Slot]]:
    """A world whose server is a runtime behind a socket, with the winner in force."""
    monkeypatch.setitem(LOADERS, "erring", Erring)
    monkeypatch.setattr(Erring, "error", 0.0)
    runtime = attach(server="test", socket_dir=tmp_path / "s", compare=by_number)
    slot = runtime.slot(DEFINITION, lambda _: 0.0)
    socket: Any = Bridge(RuntimeSocket(tmp_path / "s", timeout_s=60.0), tmp_path / "artifact")
    world.loop = Loop(replace(world.loop.ctx, swapper=socket))
    for m in (8,) * 5 + (256,) * 4:
        world.window(m)
        world.loop.turn()
    for _ in range(3):
        world.approve_what_waits()
        world.clock.advance(2.0)
        world.loop.turn()
        slot(Rows())
    assert slot.table.in_force is not None
    assert (slot.table.in_force.artifact, slot.table.state) == (WINNER.digest, "swapped")
    yield world, slot
    runtime.close()


def until_a_mismatch_was_seen(slot: Slot, world: World) -> None:
    Erring.error = 2.0  # over what is allowed, too little for the server's own breaker
    for _ in range(10_000):
        slot(Rows())
        (sample,) = world.loop.ctx.swapper.samples()
        if sample.shadow_mismatches:
            return
        for _ in range(50):
            slot(Rows())
    raise AssertionError("no check found it")


def test_from_the_alarm_to_the_original_it_takes_less_than_a_second(
    served: tuple[World, Slot],
    record_property: Callable[[str, object], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, slot = served
    until_a_mismatch_was_seen(slot, world)
    assert slot.table.state == "swapped", "it is the daemon that has to find it"
    slept: list[float] = []
    steers, sleep = threading.current_thread(), time.sleep

    def sleeps(seconds: float) -> None:
        if threading.current_thread() is steers:
            slept.append(seconds)
        else:  # of a library: it would turn without a pause
            sleep(seconds)

    monkeypatch.setattr(time, "sleep", sleeps)
    begin, worked = time.perf_counter(), time.process_time()
    world.loop.steer()
    took_s, worked_s = time.perf_counter() - begin, time.process_time() - worked
    record_property("steer_ms", took_s * 1e3)  # what `benchmarks/rollback.py` reports
    assert slot(Rows()) == 0.0
    assert slot.table.state == "original"
    assert world.phases(RecordKind.PROPOSAL) == ["RolledBack"]
    # not the time on the wall: a shared machine may stand still for longer
    assert worked_s < 1.0
    assert slept == [], "one look, without a pause in it"
    assert took_s < 60.0, "nor does it wait for anybody's time-out"


def test_what_the_server_took_back_by_itself_is_made_official(served: tuple[World, Slot]) -> None:
    world, slot = served
    Erring.error = 9.0
    while slot.table.state == "swapped":
        slot(Rows())
    assert slot(Rows()) == 0.0, "at once, with no word from the daemon"
    assert world.phases(RecordKind.PROPOSAL) == ["Analyzing"]
    world.loop.steer()
    assert world.phases(RecordKind.PROPOSAL) == ["RolledBack"]
    harm = next(event for event in world.store.events() if event.what == "harm-detected")
    assert "shadow-mismatch" in str(harm.detail)
    assert WINNER.digest in quarantined(world.loop.ctx)
