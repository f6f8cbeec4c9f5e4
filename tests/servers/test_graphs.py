"""Steps and captured graphs of vLLM: what a safe point and a second capture are built on."""

from __future__ import annotations

import ast

import pytest
from tests.servers.sources import attributes, class_of, function, names, parameters, parsed
from tests.servers.wheels import Wheel, unpacked, versions

pytestmark = pytest.mark.index
VLLM = pytest.mark.parametrize("wheel", versions("vllm"))
TORCH = pytest.mark.parametrize("wheel", versions("torch"))
WRAPPER = "vllm.compilation.cuda_graph"
RUNNER = "vllm.v1.worker.gpu_model_runner"
MANAGER = "vllm.v1.worker.gpu.cudagraph_utils"
WORKER = "vllm.v1.worker.gpu_worker"


@VLLM
def test_a_step_begins_with_the_workers_call(wheel: Wheel) -> None:
    tree = parsed(unpacked(wheel), WORKER)
    assert parameters(tree, "Worker.execute_model") == ["self", "scheduler_output"]
    assert "model_runner" in attributes(tree, "Worker")


@VLLM
def test_a_step_says_its_tokens_and_sequences(wheel: Wheel) -> None:
    fields = attributes(parsed(unpacked(wheel), "vllm.v1.core.sched.output"), "SchedulerOutput")
    assert fields >= {"num_scheduled_tokens", "total_num_scheduled_tokens"}


@VLLM
def test_the_first_runners_graphs_lie_in_wrappers(wheel: Wheel) -> None:
    tree = parsed(unpacked(wheel), WRAPPER)
    assert attributes(tree, "CUDAGraphWrapper") >= {
        *("concrete_cudagraph_entries", "runtime_mode", "_all_instances", "clear_all_graphs")
    }
    assert attributes(tree, "CUDAGraphEntry") >= {"batch_descriptor", "cudagraph", "output"}


@VLLM
def test_the_first_runner_looks_for_its_entry_at_each_replay(wheel: Wheel) -> None:
    """So an exchanged dictionary is replayed by the next step."""
    replay = function(parsed(unpacked(wheel), WRAPPER), "CUDAGraphWrapper.__call__")
    assert "self.concrete_cudagraph_entries[batch_descriptor]" in ast.unparse(replay)


@VLLM
def test_the_first_runner_captures_the_sizes_it_is_given(wheel: Wheel) -> None:
    tree = parsed(unpacked(wheel), RUNNER)
    assert parameters(tree, "GPUModelRunner._capture_cudagraphs") == [
        *("self", "batch_descriptors", "cudagraph_runtime_mode", "profiler")
    ]
    assert "_freeze_gc" in attributes(tree, "GPUModelRunner")


@VLLM
def test_the_second_runners_graphs_lie_in_its_manager(wheel: Wheel) -> None:
    tree = parsed(unpacked(wheel), MANAGER)
    assert attributes(tree, "CudaGraphManager") >= {
        *("graphs", "pool", "_graphs_captured", "_capture_descs", "capture", "run_fullgraph")
    }
    assert attributes(tree, "BatchExecutionDescriptor") >= {"cg_mode", "num_tokens", "num_reqs"}
    assert "ModelCudaGraphManager" in {
        each.name for each in tree.body if isinstance(each, ast.ClassDef)
    }


@VLLM
def test_the_second_runner_runs_the_graph_that_lies_in_the_dictionary(wheel: Wheel) -> None:
    """So an exchanged entry is replayed by the next step."""
    run = function(parsed(unpacked(wheel), MANAGER), "CudaGraphManager.run_fullgraph")
    assert "self.graphs[desc].replay()" in ast.unparse(run)


@VLLM
def test_the_second_runner_holds_its_manager_by_name(wheel: Wheel) -> None:
    tree = parsed(unpacked(wheel), "vllm.v1.worker.gpu.model_runner")
    assert attributes(tree, "GPUModelRunner") >= {"cudagraph_manager", "capture_model"}


@VLLM
def test_the_second_runner_captures_without_arguments(wheel: Wheel) -> None:
    """It captures a speculator's graphs too, which it asserts to be absent."""
    tree = parsed(unpacked(wheel), "vllm.v1.worker.gpu.model_runner")
    capture = function(tree, "GPUModelRunner.capture_model")
    assert [each.arg for each in capture.args.args] == ["self"]
    assert all(each is not None for each in capture.args.kw_defaults)
    assert "self.speculator.capture()" in ast.unparse(capture)


@VLLM
def test_captures_are_allowed_by_a_flag_of_a_module(wheel: Wheel) -> None:
    tree = parsed(unpacked(wheel), "vllm.compilation.monitor")
    assert parameters(tree, "set_cudagraph_capturing_enabled") == ["enabled"]
    assert "cudagraph_capturing_enabled" in names(tree)


@VLLM
def test_a_capture_takes_place_within_the_servers_context(wheel: Wheel) -> None:
    tree = parsed(unpacked(wheel), "vllm.distributed.parallel_state")
    assert parameters(tree, "graph_capture")[:1] == ["device"]
    required = function(tree, "graph_capture").args
    assert len(required.args) - len(required.defaults) == 1


@VLLM
def test_the_first_runner_lists_what_it_captures(wheel: Wheel) -> None:
    tree = parsed(unpacked(wheel), "vllm.v1.cudagraph_dispatcher")
    assert parameters(tree, "CudagraphDispatcher.get_capture_descs") == ["self"]
    runner = attributes(parsed(unpacked(wheel), RUNNER), "GPUModelRunner")
    assert runner >= {"cudagraph_dispatcher", "requests", "input_batch", "device"}


@VLLM
def test_the_first_runners_block_tables_lie_on_device_and_host(wheel: Wheel) -> None:
    tables = parsed(unpacked(wheel), "vllm.v1.worker.block_table")
    assert "block_tables" in attributes(tables, "MultiGroupBlockTable")
    assert "block_table" in attributes(tables, "BlockTable")
    assert "CpuGpuBuffer" in ast.unparse(function(tables, "BlockTable._make_buffer"))
    buffers = parsed(unpacked(wheel), "vllm.v1.utils")
    assert attributes(buffers, "CpuGpuBuffer") >= {"gpu", "cpu"}


@VLLM
def test_both_runners_say_which_requests_are_under_way(wheel: Wheel) -> None:
    first = parsed(unpacked(wheel), "vllm.v1.worker.gpu_input_batch")
    assert attributes(first, "InputBatch") >= {"req_id_to_index", "num_computed_tokens_cpu"}
    second = parsed(unpacked(wheel), "vllm.v1.worker.gpu.states")
    assert attributes(second, "RequestState") >= {"req_id_to_index", "num_computed_tokens_np"}
    runner = parsed(unpacked(wheel), "vllm.v1.worker.gpu.model_runner")
    assert "req_states" in attributes(runner, "GPUModelRunner")


@VLLM
def test_keys_of_graphs_name_their_tokens(wheel: Wheel) -> None:
    context = parsed(unpacked(wheel), "vllm.forward_context")
    assert "num_tokens" in attributes(context, "BatchDescriptor")


@TORCH
def test_a_graph_is_a_class_that_python_can_make(wheel: Wheel) -> None:
    tree = parsed(unpacked(wheel), "torch.cuda.graphs")
    assert attributes(tree, "CUDAGraph") >= {"capture_begin", "capture_end", "replay", "pool"}
    assert class_of(tree, "graph")
    assert function(tree, "is_current_stream_capturing")


INDUCTOR = "torch._inductor.runtime.triton_heuristics"


@TORCH
def test_a_compiled_kernel_keeps_its_launchers_in_a_list(wheel: Wheel) -> None:
    """No adapter exchanges them yet: they are seen, and a later family rests on these names."""
    tree = parsed(unpacked(wheel), INDUCTOR)
    assert attributes(tree, "CachingAutotuner") >= {
        *("launchers", "lock", "run", "_precompile_config", "fn", "inductor_meta", "size_hints")
    }


@pytest.mark.parametrize("wheel", [each for each in versions("torch") if each.id != "torch-2.11.0"])
def test_a_compiled_kernel_keeps_its_last_launcher_apart(wheel: Wheel) -> None:
    tree = parsed(unpacked(wheel), INDUCTOR)
    assert "_cached_launcher" in attributes(tree, "CachingAutotuner")
