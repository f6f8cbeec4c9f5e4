"""The start of a step in the real worker's class: followed, and restored."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tests.servers.sources import running
from tests.servers.wheels import Wheel, unpacked, versions

from retuned.runtime.steps.hook import MODULE, Steps

pytestmark = pytest.mark.index


@pytest.mark.parametrize("wheel", versions("vllm"))
def test_a_step_carries_out_what_waits_for_it(
    wheel: Wheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(unpacked(wheel), [MODULE], {"regex": {}}) as modules:
        cls: Any = modules[MODULE].Worker
        own, order = cls.__dict__["execute_model"], list[str]()

        def played_step(worker: object, scheduler_output: object) -> str:
            order.append("step")
            return "answer"

        monkeypatch.setattr(cls, "execute_model", played_step)
        steps = Steps()
        assert steps.install(lambda: None) == "on"
        worker = object.__new__(cls)
        worker.model_runner = SimpleNamespace()
        scheduled = SimpleNamespace(
            num_scheduled_tokens={"a": 1, "b": 7}, total_num_scheduled_tokens=8
        )
        assert worker.execute_model(scheduled) == "answer"
        _, held_us = steps.at_safe_point(lambda _: order.append("exchange"))
        assert (order, held_us >= 0) == (["step", "exchange"], True)
        report = steps.report()
        assert (report["count"], report["tokens"]) == (1, 8)
        assert report["recent"][0]["queries"] == [1, 7]
        steps.uninstall()
        assert cls.__dict__["execute_model"] is played_step
        monkeypatch.undo()
        assert cls.__dict__["execute_model"] is own
