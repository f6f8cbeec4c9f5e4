"""Layers of fused experts in a live proof: one launch each, from the look-up to the second."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
from tests.runtime.steps.test_launch_times import Played

from retuned.runtime.steps.launch_times import EVERY_S, LaunchTimes
from retuned.runtime.steps.log import StepLog
from retuned.runtime.tunables.moe import FUNCTION, KERNEL, MODULE, MoeHook
from retuned.runtime.tunables.records import bucket
from retuned.runtime.tunables.state import Registry, Tunable

ROW = {"BLOCK_SIZE_M": 32}
SHAPES: dict[str, Any] = {"w1_shape": (4, 64, 32), "w2_shape": (4, 32, 32), "top_k": 2}


class Products:
    """In place of the kernel: a launch takes time on the device."""

    arg_names: tuple[str, ...] = ()
    src = "def fused_moe_kernel(): ..."

    def __init__(self, device: Played) -> None:
        self._device = device

    def __getitem__(self, grid: Any) -> Any:
        def launch(*_: Any, **__: Any) -> None:
            self._device.now_ns += self._device.took_ns

        return launch


class Server:
    """A process with vLLM's look-up and kernel, whose launches a live proof may time."""

    def __init__(self, module: ModuleType) -> None:
        self.module, self.device, self.log = module, Played(), StepLog()
        self.times = LaunchTimes(
            self.log, device=lambda: self.device, now_s=lambda: self.device.now_s
        )
        vars(module).update(
            {FUNCTION: self._row, KERNEL: Products(self.device), "get_moe_configs": lambda *_: {}}
        )
        self.registry = Registry()
        assert MoeHook(self.registry).install() == "on"

    @staticmethod
    def _row(
        w1_shape: Any, w2_shape: Any, top_k: int, dtype: str, M: int, block_shape: Any = None
    ) -> dict[str, Any]:
        return dict(ROW)

    @property
    def tunable(self) -> Tunable:
        (found,) = self.registry
        return found

    def look_up(self, tokens: int) -> None:
        self.device.now_s += EVERY_S
        assert self.module.try_get_optimal_moe_config(**SHAPES, dtype="", M=tokens) == ROW

    def launch(self, *, took_ns: int = 1000) -> None:
        self.device.took_ns = took_ns
        self.module.fused_moe_kernel[1]()

    def layer(self, tokens: int) -> None:
        self.look_up(tokens)
        self.launch(took_ns=7000)
        self.device.now_ns += 500  # the activation between both products
        self.launch(took_ns=2000)

    def rows(self) -> list[tuple[str, int, int, list[float]]]:
        assert not self.registry.failures
        return [
            (row["arm"], row["lengths"][0], row["launches"], row["us"]) for row in self.times.rows()
        ]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    module = ModuleType(MODULE)
    monkeypatch.setitem(sys.modules, MODULE, module)
    made = Server(module)
    made.layer(100)
    made.log.start()
    made.times.follow(made.tunable)
    made.log.arm = "0-0-on"
    return made


def test_a_layer_is_timed_as_one_launch_in_each_arm(server: Server) -> None:
    server.layer(100)
    server.layer(100)
    server.log.arm = "0-1-off"
    server.layer(100)
    server.layer(9)  # its size class is new
    assert server.rows() == [
        ("off", bucket(9), 1, [9.5]),
        ("on", bucket(100), 2, [9.5, 9.5]),
        ("off", bucket(100), 1, [9.5]),
    ]


def test_a_look_up_without_its_launches_is_not_timed_by_those_of_the_next(server: Server) -> None:
    server.look_up(100)
    server.launch()
    server.device.now_ns += 10**6
    server.layer(100)
    assert server.rows() == [("on", bucket(100), 2, [9.5])]
    server.launch()
    server.launch()
    assert server.rows() == [("on", bucket(100), 2, [9.5])], "no look-up names them"


def test_a_layer_between_two_due_times_is_only_counted(server: Server) -> None:
    server.layer(100)
    server.device.now_s -= EVERY_S
    server.layer(100)
    assert server.rows() == [("on", bucket(100), 2, [9.5])]


def test_layers_are_counted_no_more_after_the_proof(server: Server) -> None:
    server.layer(100)
    server.times.leave()
    server.layer(100)
    assert server.rows() == [("on", bucket(100), 1, [9.5])]
    assert server.tunable.sized({"tokens": 100}).launches == 3
