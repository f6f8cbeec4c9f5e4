"""How a launch's time is split into layers, on numbers that are known."""

from __future__ import annotations

import pytest
from benchmarks.segments import LAYERS, PARTS, split, timed

TAKEN_NS = {
    "entry": 5000, "leading": 4700, "copying": 150, "repeat": 4100, "runner": 2000, "driver": 1500,
    "key": 900, "captured": 250, "arguments": 180, "stream": 200, "nothing": 50,
    "long way": 8000, "fresh": 400, "of which key of the slot": 1300, "of which signature": 2050,
    "of which grid": 900, "stock": 10_050, "stock stream": 250, "nothing, stock": 50,
}  # fmt: skip


def test_layers_of_a_launch_add_up_to_the_whole_of_it() -> None:
    found = split({name: [value, value + 7.0, value - 3.0] for name, value in TAKEN_NS.items()})
    assert sum(found[name] for name in LAYERS) == pytest.approx(found["swapped"], abs=0.01)
    assert found["swapped"] == 4.95
    assert found["driver"] == 1.45


def test_what_only_makes_a_layer_possible_is_in_none_of_its_figures() -> None:
    found = split({name: [float(value)] for name, value in TAKEN_NS.items()})
    assert found["leading"] == pytest.approx((4700 - 150 - (4100 - 50)) / 1e3)
    assert found["long way"] == pytest.approx((8000 - 400) / 1e3)
    assert found["of which signature"] == pytest.approx((2050 - 50) / 1e3)
    assert found["stock"] == 10.0
    assert "stock binder" not in found  # not where it was last seen
    assert {f"of which {name}" for name in PARTS} <= found.keys()


def test_every_round_takes_every_layer() -> None:
    calls: list[str] = []
    thunks = {name: (lambda name=name: calls.append(name)) for name in ("a", "b")}
    found = timed(thunks, rounds=3, calls=5, wait=lambda: calls.append("wait"))
    assert {name: len(values) for name, values in found.items()} == {"a": 3, "b": 3}
    assert calls.count("a") == calls.count("b") == 3 * (5 + 5)
    assert calls.count("wait") == 3 * 2 * 2
