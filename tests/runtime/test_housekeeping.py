"""Housekeeping: every piece has its turn, whatever happens to those before it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from retuned.runtime.core.host import RuntimeHost
from retuned.runtime.core.maintenance import MAX_CAUSES, OTHER, Maintenance
from retuned.runtime.core.slots import Slot
from retuned.runtime.schema import Refused

PIECES = (
    "leases and breakers",
    "interception",
    "checks",
    "one: packing",
    "one: samples",
    "one: never committed",
    "two: packing",
    "two: never committed",
    "graphs",
)


class World:
    """A host with two slots, whose pieces of housekeeping are counted and may fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[str] = []
        self.failing: dict[str, Exception] = {}
        self.host = RuntimeHost("kept")
        for name in ("one", "two"):
            self.host.add(Slot(_definition(name), lambda x: x))
        seats = self.host._seating.seats
        self.host._interception = self._played("interception", poll="interception")
        self.host._execution.supervision = self._played("supervision", tend="leases and breakers")
        monkeypatch.setattr("retuned.runtime.core.host.CHECKS", self._played("c", settle="checks"))
        monkeypatch.setattr(self.host.graphs, "housekeeping", self._piece("graphs"))
        for name in ("one", "two"):
            seats[name].packed = self._played(name, pack_pending=f"{name}: packing")
            seats[name].ledger = self._played(name, expired=f"{name}: never committed")
        seats["one"].reservoir = self._played("one", settle="one: samples")

    def _played(self, _: str, **methods: str) -> Any:
        return type("Played", (), {k: self._piece(v) for k, v in methods.items()})

    def _piece(self, name: str) -> Any:
        def piece(*_: object) -> tuple[()]:
            self.done.append(name)
            if name in self.failing:
                raise self.failing[name]
            return ()

        return staticmethod(piece)


def _definition(name: str) -> dict[str, Any]:
    tensor = {"shape": ["M"], "dtype": "float32"}
    return {"name": name, "op_type": "copy", "axes": {"M": {"type": "var"}},
            "inputs": {"x": tensor}, "outputs": {"y": tensor}}  # fmt: skip


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World(monkeypatch)
    yield made
    for slot in made.host._seating.slots():
        made.host.graphs.remove(slot)


@pytest.mark.parametrize("failing", PIECES)
def test_a_piece_that_fails_keeps_no_other_from_its_turn(world: World, failing: str) -> None:
    world.failing[failing] = RuntimeError("a stranger's device")
    world.host.housekeeping()
    assert world.done == list(PIECES)
    assert world.host._chores.failures() == {failing: {"RuntimeError": 1}}


def test_all_may_fail_and_all_are_tried_again(world: World) -> None:
    world.failing = {name: OSError(name) for name in PIECES}
    for _ in range(3):
        world.host.housekeeping()
    assert world.done == [*PIECES] * 3
    assert world.host._chores.failures() == {name: {"OSError": 3} for name in PIECES}


def test_a_cause_is_said_once_and_counted_each_time(caplog: pytest.LogCaptureFixture) -> None:
    chores = Maintenance()

    def fail(error: Exception) -> Any:
        def piece() -> None:
            raise error

        return piece

    with caplog.at_level(logging.ERROR):
        for _ in range(5):
            chores.do("packing", fail(RuntimeError("address 0x1234")))
            chores.do("packing", fail(RuntimeError("address 0x5678")))
        chores.do("packing", fail(Refused("scratch-memory", detail="full")))
        chores.do("compiling", fail(RuntimeError("the same elsewhere")))
        assert chores.do("compiling", lambda: None)
    assert [record.getMessage().partition(",")[0] for record in caplog.records] == [
        "housekeeping: packing failed",
        "housekeeping: packing failed",
        "housekeeping: compiling failed",
    ]
    assert chores.failures() == {
        "packing": {"RuntimeError": 10, "Refused: scratch-memory": 1},
        "compiling": {"RuntimeError": 1},
    }


def test_causes_without_end_do_not_grow_without_end() -> None:
    chores = Maintenance()
    for number in range(MAX_CAUSES + 10):

        def piece(number: int = number) -> None:
            raise Refused(f"reason-{number}", detail="")

        chores.do("files", piece)
    counted = chores.failures()["files"]
    assert len(counted) == MAX_CAUSES + 1
    assert counted[OTHER] == 10


def test_a_process_says_what_of_its_housekeeping_failed() -> None:
    host = RuntimeHost("kept")
    host._chores.do("packing", lambda: 1 / 0)
    assert host.answer({"op": "status"})["failed_chores"] == {"packing": {"ZeroDivisionError": 1}}
    host.reset()
    assert host.answer({"op": "status"})["failed_chores"] == {}
