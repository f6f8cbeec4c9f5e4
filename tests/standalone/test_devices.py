"""What devices do is written beside what it may explain."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from tests.review.test_one_machine import settings
from tests.standalone.local_world import World
from tests.standalone.test_showing import until_it_waits

from retuned.node.gpu import FakeDevices
from retuned.ports import DeviceState
from retuned.standalone.context import RecordKind
from retuned.standalone.daemon import Loop
from retuned.standalone.metrics import WHAT, DevicePoller, descendants, said_beside
from retuned.standalone.review_page import served
from retuned.standalone.review_source import key_of

THROTTLED = DeviceState(gpu="nvidia-0", throttled=frozenset({"power"}), processes=(1,))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def with_devices(world: World, *states: DeviceState) -> None:
    world.loop = Loop(replace(world.loop.ctx, devices=FakeDevices(states)))


def said(world: World, kind: RecordKind) -> list[str]:
    found = [each for each in world.store.events() if each.what == WHAT and each.kind == kind]
    return [str(each.detail["sentence"]) for each in found]


def test_devices_are_shown_with_each_look(world: World) -> None:
    with_devices(world, THROTTLED)
    world.loop.show()
    row = world.telemetry.row
    assert row("retuned_gpu_throttled", gpu="nvidia-0", reason="power") == 1.0
    assert row("retuned_gpu_processes", gpu="nvidia-0", whose="others") == 1.0


def test_an_alarm_about_the_machine_has_what_devices_did_beside_it_once(world: World) -> None:
    with_devices(world, THROTTLED)
    for id, action in (("1.0", "retune"), ("2.0", "alarm"), ("3.0", "none")):
        world.store.add(RecordKind.DRIFT, id, {"action": action}, phase="noted")
    beside = DevicePoller(world.loop.ctx)
    beside.look()
    beside.look()
    words = "nvidia-0 is throttled (power); nvidia-0 is shared with 1 other process(es)"
    assert said(world, RecordKind.DRIFT) == [words]
    assert said_beside(world.store, RecordKind.DRIFT, "2.0") == words
    assert said_beside(world.store, RecordKind.DRIFT, "1.0") == ""


def test_an_experiment_has_beside_it_what_may_have_slowed_it(world: World) -> None:
    with_devices(world, THROTTLED)
    until_it_waits(world)
    assert len(said(world, RecordKind.EXPERIMENT)) >= 2
    assert all("throttled (power)" in each for each in said(world, RecordKind.EXPERIMENT))
    (stored,) = world.store.list(RecordKind.PROPOSAL, phase="AwaitingApproval")
    words = said_beside(world.store, RecordKind.EXPERIMENT, str(stored.body["experiment"]))
    began, ended = words.split("; as it ended, ")
    assert began == f"as it began, {ended}"
    with served(settings(world), world.loop) as address:
        page = httpx.get(f"{address}proposals/{key_of(stored.id)}", timeout=60.0).text
    assert f"{words} (what may have changed the numbers" in page


def test_nothing_is_written_beside_an_experiment_where_nothing_is_unusual(world: World) -> None:
    with_devices(world, DeviceState(gpu="nvidia-0", throttled=frozenset(), processes=()))
    until_it_waits(world)
    assert said(world, RecordKind.EXPERIMENT) == []


def test_what_a_process_has_started_is_found_with_what_that_has_started() -> None:
    script = (
        "import subprocess, sys; p = subprocess.Popen(['sleep', '900']); "
        "print(p.pid, flush=True); sys.stdin.read(); p.kill(); p.wait()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        found = descendants(os.getpid())
        assert {os.getpid(), child.pid, grandchild} <= found
        assert os.getppid() not in found
        child.communicate("")
