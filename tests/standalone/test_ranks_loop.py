"""What the daemon does about processes that differ: all go back, or those behind are waited for."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tests.standalone.local_world import KERNEL, World
from tests.standalone.test_steering import FIRST, active, look, phase, promote, swap

from retuned.ports import SlotState
from retuned.runtime.artifacts.trust import SIGNATURE_FILE
from retuned.stages.swap import MixedEpochs
from retuned.standalone.context import RecordKind
from retuned.standalone.daemon import Loop
from retuned.standalone.facts import quarantined


def settle(world: World, mixed: MixedEpochs, *, catch_up_s: float = 20.0) -> None:
    settings = replace(world.loop.ctx.settings, mixed_epochs=mixed, catch_up_s=catch_up_s)
    world.loop = Loop(replace(world.loop.ctx, settings=settings))


def one_comes_late(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process is there that has nothing yet, and does not answer a prepare."""
    slots = world.server.slots

    def with_one_behind() -> list[SlotState]:
        return [replace(slot, epoch=0, newest_epoch=slot.epoch) for slot in slots()]

    monkeypatch.setattr(world.server, "slots", with_one_behind)
    world.server.one_hangs = True


def reasons(world: World, proposal: str, what: str) -> list[str]:
    events = [event for event in world.store.events(id=proposal) if event.what == what]
    return [str(event.detail.get("reason")) for event in events]


def test_a_process_that_dies_while_a_swap_is_committed_sends_all_back_in_the_same_look(
    world: World,
) -> None:
    world.server.partial = True
    id = swap(world, FIRST)
    assert (phase(world, id), active(world)) == ("RolledBack", None)
    assert reasons(world, id, "harm-detected") == ["partial-commit"]
    assert reasons(world, id, "rolling-back") == ["partial-commit"]
    assert world.phases(RecordKind.ORDER) == ["undone", "superseded", "done"]
    assert quarantined(world.loop.ctx) == frozenset(), "the artifact did no harm"


def test_where_processes_may_differ_a_partial_swap_is_told_again(world: World) -> None:
    settle(world, MixedEpochs.ALLOW)
    world.server.partial = True
    id = swap(world, FIRST)
    assert active(world) == FIRST.digest
    world.server.partial = False
    assert (phase(world, id), active(world)) == ("Analyzing", FIRST.digest)


def test_a_process_that_comes_late_gets_a_while_and_then_all_go_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle(world, MixedEpochs.REFUSE)
    id = swap(world, FIRST)
    promote(world)
    with monkeypatch.context() as late:
        one_comes_late(world, late)
        look(world, 3, seconds=5.0)
        assert phase(world, id) == "Promoted", "it may still follow"
        look(world, 3, seconds=5.0)
        assert (phase(world, id), active(world)) == ("RollingBack", None)
    look(world)
    assert (phase(world, id), active(world)) == ("RolledBack", None)
    assert reasons(world, id, "rolling-back") == ["rank-behind"]


def test_a_process_that_follows_in_time_changes_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle(world, MixedEpochs.REFUSE)
    id = swap(world, FIRST)
    promote(world)
    with monkeypatch.context() as late:
        one_comes_late(world, late)
        look(world, 3, seconds=5.0)
    world.server.one_hangs = False
    look(world, 9, seconds=5.0)
    assert (phase(world, id), active(world)) == ("Promoted", FIRST.digest)
    assert world.loop.reconciler.node.standing.behind == {}


def test_a_server_that_is_started_anew_as_a_whole_is_waited_for(world: World) -> None:
    """Nothing is mixed where nobody has it, however long the model takes to load."""
    settle(world, MixedEpochs.REFUSE)
    id = swap(world, FIRST)
    promote(world)
    world.server.restart()
    world.server.one_hangs = True
    look(world, 9, seconds=30.0)
    assert phase(world, id) == "Promoted"
    world.server.one_hangs = False
    look(world)
    assert active(world) == FIRST.digest


def test_what_is_published_to_a_server_is_signed_for_it(world: World) -> None:
    swap(world, FIRST)
    folder = world.folder / "artifacts" / FIRST.digest.removeprefix("sha256:")
    envelope = json.loads((folder / SIGNATURE_FILE).read_text())
    said = json.loads(envelope["statement"])
    assert (said["artifact"], said["definition"], said["target"]) == (FIRST.digest, KERNEL, "demo")
    assert "epoch" not in said, "what may be loaded may be loaded again on the way back"
