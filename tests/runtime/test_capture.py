"""Slots under a graph capture: the original is recorded, since no rollback reaches a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from retuned.runtime.core.active_order import Launch, Swapped
from retuned.runtime.core.orders import parse_order
from retuned.runtime.core.slots import Slot
from retuned.runtime.shadow.sampler import compare_tensors

DEFINITION = {
    "name": "copy",
    "op_type": "copy",
    "axes": {"M": {"type": "var"}},
    "inputs": {"x": {"shape": ["M"], "dtype": "float32"}},
    "outputs": {"y": {"shape": ["M"], "dtype": "float32"}},
}


class Recorded:
    """A variant on a device whose stream may be recorded; a check in between would end that."""

    recording = False

    def launcher(self, key: tuple[int, ...]) -> Launch:
        return lambda inputs: inputs[0].clone()

    checked_launcher = launcher

    def fingerprint(self, inputs: tuple[Any, ...]) -> object:
        assert not self.recording, "this would wait for the device"
        return 0

    def capturing(self) -> Callable[[], bool]:
        return lambda: self.recording


def test_what_is_recorded_into_a_graph_is_the_original_and_never_checked() -> None:
    variant, served = Recorded(), []

    def original(x: Any) -> Any:
        served.append("original")
        return x.clone()

    slot = Slot(DEFINITION, original)
    order = parse_order(
        {
            "id": "one",
            "kind": "swap",
            "definition": "copy",
            "artifact": "sha256:" + "0" * 64,
            "guard": {},
            "epoch": 1,
            "shadow_every": 10**6,
        }
    )
    swapped = Swapped(slot, order, variant=variant, compare=compare_tensors)
    slot.commit(swapped)
    variant.recording = True
    for _ in range(3):
        slot(torch.ones(4))
    assert served == ["original"] * 3
    assert (swapped.swapped_launches, swapped.stats.checks) == (0, 0)
    variant.recording = False
    for _ in range(3):
        slot(torch.ones(4))
    assert (swapped.swapped_launches, swapped.stats.checks) == (3, 1)
    assert served == ["original"] * 4, "the one check compares with it"
