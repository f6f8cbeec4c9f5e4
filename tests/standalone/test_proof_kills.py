"""A daemon that is killed at any write of a proof, or before and after any switch of its swap."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.standalone.local_world import WINNER, Killed, World
from tests.standalone.test_attribution_loop import alarmed, promoted
from tests.standalone.test_live_proof_loop import Live, policy, settled, swapped

from retuned.stages.gate import LiveProof
from retuned.stages.watch import proof
from retuned.stages.watch.proof import ProofSettings
from retuned.standalone.context import RecordKind
from retuned.standalone.daemon import Loop

EVERY = 29
"""Boundaries from one kill to the next: all of them take twenty minutes."""
FEW = 4
"""Pairs of the pilot: a proof has fewer writes to be killed at."""


@pytest.fixture(autouse=True)
def _short_pilot(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = proof.settings_of

    def short(rule: LiveProof) -> ProofSettings:
        return whole(rule).model_copy(update={"pilot_pairs": FEW})

    monkeypatch.setattr(proof, "settings_of", short)


class Story:
    """A world in which the part that `begin` leaves to do is measured, with at most one kill."""

    def __init__(self, folder: Path) -> None:
        self.world = World(folder)
        self.live = Live(self.world)
        self._start()

    def _start(self) -> None:
        self.world.loop = Loop(replace(self.world.loop.ctx, live_steps=self.live))

    def measure(self, *, kill_at: int | None) -> str:
        """Measure, killed at one boundary and started again; return the phase it ends in."""
        world = self.world
        world.boundaries, world.kill_at = 0, kill_at
        for step in (world.loop.measure, lambda: settled(world)):
            try:
                step()
            except Killed:
                world.kill_at = None
                world.restart()
                self._start()
                world.loop.measure()
        world.kill_at = None
        return settled(world)


def of_a_proof(folder: Path, effect: float) -> Story:
    story = Story(folder)
    story.live.effect = effect
    assert swapped(story.world, policy()) == "Proving"
    return story


def of_an_alarm(folder: Path, effect: float) -> Story:
    story = Story(folder)
    promoted(story.world, story.live)
    story.live.effect = effect
    alarmed(story.world)
    return story


Begin = Callable[[Path, float], Story]


def boundaries(tmp_path: Path, begin: Begin, effect: float) -> int:
    whole = begin(tmp_path / "whole", effect)
    whole.measure(kill_at=None)
    whole.world.store.close()
    return whole.world.boundaries


def check(story: Story, *, phase: str, effect: float) -> None:
    world = story.world
    (slot,) = world.server.slots()
    assert phase == ("RolledBack" if effect > 0.0 else "Promoted")
    assert slot.active == (None if effect > 0.0 else WINNER.digest)
    assert not slot.bypassed
    for kind in (RecordKind.LIVE_PROOF, RecordKind.REPEATED_PROOF, RecordKind.ATTRIBUTION):
        assert not [each for each in world.phases(kind) if each in ("proving", "trying")]
    ends = [e.what for e in world.store.events() if e.what.startswith(("live-proof-h", "attrib"))]
    assert len(ends) == len(set(ends)), "each verdict is written once"
    assert world.unexpected() == 0
    world.store.close()


def killed_at(folder: Path, begin: Begin, effect: float, *, at: int) -> None:
    story = begin(folder, effect)
    try:
        check(story, phase=story.measure(kill_at=at), effect=effect)
    except AssertionError as error:
        raise AssertionError(f"killed at boundary {at}: {error}") from error


@pytest.mark.parametrize("effect", [-0.05, 0.05])
@pytest.mark.parametrize("begin", [of_a_proof, of_an_alarm])
def test_a_kill_leads_to_the_same_end(tmp_path: Path, begin: Begin, effect: float) -> None:
    total = boundaries(tmp_path, begin, effect)
    assert total > 100, "every write and every switch is a boundary"
    for at in range(5, total + 1, EVERY):
        killed_at(tmp_path / str(at), begin, effect, at=at)
