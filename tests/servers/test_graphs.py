"""Steps and captured graphs of vLLM: what a safe point and a second capture are built on."""

from __future__ import annotations

import ast

import pytest
from tests.servers.sources import attributes, class_of, function, parameters, parsed
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
def test_the_first_runner_captures_the_sizes_it_is_given(wheel: Wheel) -> None:
    tree = parsed(unpacked(wheel), RUNNER)
    assert parameters(tree, "GPUModelRunner._capture_cudagraphs")[:3] == [
        *("self", "batch_descriptors", "cudagraph_runtime_mode")
    ]


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
