"""The start of a step in the real worker's class: followed, and restored."""

from __future__ import annotations

import ast
from types import SimpleNamespace
from typing import Any

import pytest
from tests.runtime.steps.played import scheduled, taken
from tests.servers.sources import attributes, class_of, function, parameters, parsed, running
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


def calls(tree: ast.AST, name: str) -> list[ast.Call]:
    """Return the calls of a method or function of this name."""
    return [
        each
        for each in ast.walk(tree)
        if isinstance(each, ast.Call) and getattr(each.func, "attr", "") == name
    ]


def fields(tree: ast.Module, name: str) -> set[str]:
    """Return the annotated fields of a class."""
    body = class_of(tree, name).body
    return {
        each.target.id
        for each in body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }


@pytest.mark.parametrize("wheel", versions("vllm"))
def test_the_scheduler_sends_the_composition_of_a_step(wheel: Wheel) -> None:
    """`composition` reads these fields; computed tokens are those before the step."""
    folder = unpacked(wheel)
    output = parsed(folder, "vllm.v1.core.sched.output")
    assert fields(output, "SchedulerOutput") >= {
        *("scheduled_new_reqs", "scheduled_cached_reqs"),
        *("num_scheduled_tokens", "total_num_scheduled_tokens"),
    }
    assert fields(output, "CachedRequestData") >= {"req_ids", "num_computed_tokens"}
    assert fields(output, "NewRequestData") >= {"req_id", "num_computed_tokens"}
    schedule = function(parsed(folder, "vllm.v1.core.sched.scheduler"), "Scheduler.schedule")
    (made,) = calls(schedule, "_make_cached_request_data")
    (advanced,) = calls(schedule, "_update_after_schedule")
    assert made.lineno < advanced.lineno


@pytest.mark.parametrize("wheel", versions("vllm"))
def test_a_step_is_two_calls_of_the_worker(wheel: Wheel) -> None:
    """The engine samples where `execute_model` returned None, before the next step."""
    folder = unpacked(wheel)
    worker = parsed(folder, MODULE)
    assert parameters(worker, "Worker.execute_model") == ["self", "scheduler_output"]
    assert parameters(worker, "Worker.sample_tokens") == ["self", "grammar_output"]
    core = parsed(folder, "vllm.v1.engine.core")
    for name in ("step", "step_with_batch_queue"):
        method = function(core, f"EngineCore.{name}")
        (executed,) = calls(method, "execute_model")
        sampled = calls(method, "sample_tokens")
        assert sampled
        assert all(executed.lineno < each.lineno for each in sampled)
    runner = parsed(folder, "vllm.v1.worker.gpu_model_runner")
    first = ast.unparse(function(runner, "GPUModelRunner.execute_model"))
    assert "self.execute_model_state is not None" in first  # a step without sampling is an error


@pytest.mark.parametrize("wheel", versions("vllm"))
def test_both_runners_choose_graphs_by_dispatch(wheel: Wheel) -> None:
    """`GraphNote` reads the results of these methods on the instance."""
    folder = unpacked(wheel)
    second = parsed(folder, "vllm.v1.worker.gpu.cudagraph_utils")
    assert "dispatch" in attributes(second, "CudaGraphManager")
    assert fields(second, "BatchExecutionDescriptor") >= {"cg_mode", "num_tokens"}
    synced = parsed(folder, "vllm.v1.worker.gpu.dp_utils")
    assert calls(function(synced, "dispatch_cg_and_sync_dp"), "dispatch")
    runner = parsed(folder, "vllm.v1.worker.gpu.model_runner")
    assert "cudagraph_manager" in attributes(runner, "GPUModelRunner")
    first = parsed(folder, "vllm.v1.cudagraph_dispatcher")
    returned = function(first, "CudagraphDispatcher.dispatch").returns
    assert returned is not None
    assert ast.unparse(returned) == "tuple[CUDAGraphMode, BatchDescriptor]"
    assert "num_tokens" in fields(parsed(folder, "vllm.forward_context"), "BatchDescriptor")
    old = parsed(folder, "vllm.v1.worker.gpu_model_runner")
    assert "cudagraph_dispatcher" in attributes(old, "GPUModelRunner")
    padding = function(old, "GPUModelRunner._determine_batch_execution_and_padding")
    assert calls(padding, "dispatch")


@pytest.mark.parametrize("wheel", versions("vllm"))
def test_a_step_of_the_real_class_is_recorded(
    wheel: Wheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(unpacked(wheel), [MODULE], {"regex": {}}) as modules:
        cls: Any = modules[MODULE].Worker
        monkeypatch.setattr(cls, "execute_model", lambda self, scheduler_output: None)
        monkeypatch.setattr(cls, "sample_tokens", lambda self, grammar_output: "answer")
        steps = Steps()
        assert steps.install(lambda: None) == "on"
        worker = object.__new__(cls)
        worker.model_runner = SimpleNamespace()
        steps.log.start()
        for _ in range(2):
            assert worker.execute_model(scheduled({"a": 1, "b": 7})) is None
            assert worker.sample_tokens(None) == "answer"
        first, second = taken(steps.log)
        assert (first["prefill"], first["decode"]) == (7, 1)
        assert second["period_us"] is not None
        steps.uninstall()
