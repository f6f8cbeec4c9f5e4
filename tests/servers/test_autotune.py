"""Triton's autotuner in its versions: how it keys a choice, where it keeps it, what it launches."""

# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from tests.servers.sources import (
    attributes,
    decorated,
    file_of,
    function,
    parameters,
    parsed,
    running,
)
from tests.servers.wheels import PINNED, Wheel, unpacked, versions

pytestmark = pytest.mark.index
TRITON = pytest.mark.parametrize("wheel", versions("triton"))
MODULE = "triton.runtime.autotuner"
HELPERS = "vllm.model_executor.layers.mamba.ops.triton_helpers"


@contextmanager
def autotuner(wheel: Wheel) -> Iterator[ModuleType]:
    """Run a version's autotuner with all else of the installed Triton."""
    name = f"triton.runtime.autotuner_of_{wheel.version.replace('.', '_')}"
    spec = importlib.util.spec_from_file_location(name, file_of(unpacked(wheel), MODULE))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        del sys.modules[name]


@triton.jit
def _blocks(x_ptr: Any, seen_ptr: Any, n: Any, wide: Any, BLOCK: tl.constexpr) -> None:
    """Write to each element the size of the block that wrote it."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(seen_ptr + at, tl.load(x_ptr + at, mask=at < n) * 0 + BLOCK, mask=at < n)


def tuned(module: ModuleType, *sizes: int) -> Any:
    configs = [module.Config({"BLOCK": size}, num_warps=2, num_stages=1) for size in sizes]
    return module.Autotuner(_blocks, _blocks.arg_names, configs, ["n", "wide"], None, None)


def launched(tuner: Any) -> float:
    """Launch, and return the size of the blocks that ran."""
    x, seen = torch.zeros(8), torch.zeros(8, dtype=torch.float64)
    tuner[lambda meta: (triton.cdiv(8, meta["BLOCK"]),)](x, seen, 8, wide=3)
    return float(seen[0])


KEY = (8, 3, "torch.float32", "torch.float64")


@TRITON
def test_a_choice_is_kept_under_key_values_and_dtypes(wheel: Wheel) -> None:
    with autotuner(wheel) as module:
        tuner = tuned(module, 2, 4)
        tuner.cache[KEY] = tuner.configs[1]
        assert launched(tuner) == 4
        assert list(tuner.cache) == [KEY]


@TRITON
def test_an_exchanged_choice_is_launched_by_the_next_call(wheel: Wheel) -> None:
    with autotuner(wheel) as module:
        tuner = tuned(module, 2, 4)
        tuner.cache[KEY] = tuner.configs[1]
        launched(tuner)
        tuner.cache[KEY] = module.Config({"BLOCK": 8}, num_warps=1)
        assert launched(tuner) == 8
        assert tuner.best_config.kwargs == {"BLOCK": 8}


@TRITON
def test_one_configuration_alone_is_kept_nowhere(wheel: Wheel) -> None:
    with autotuner(wheel) as module:
        tuner = tuned(module, 2)
        tuner.cache[KEY] = module.Config({"BLOCK": 8})
        assert launched(tuner) == 2


@TRITON
def test_a_configuration_lists_all_that_it_launches_with(wheel: Wheel) -> None:
    with autotuner(wheel) as module:
        config = module.Config({"BLOCK": 8}, num_warps=2, num_stages=1, num_ctas=1, maxnreg=64)
        assert config.all_kwargs() == {
            "BLOCK": 8,
            "num_warps": 2,
            "num_stages": 1,
            "num_ctas": 1,
            "maxnreg": 64,
        }
        assert config.pre_hook is None


@TRITON
def test_the_autotuner_has_what_the_adapter_reads(wheel: Wheel) -> None:
    tree = parsed(unpacked(wheel), MODULE)
    assert attributes(tree, "Autotuner") >= {
        *("fn", "base_fn", "arg_names", "configs", "keys", "cache", "run"),
        *("reset_to_zero", "restore_value", "pre_hook", "post_hook", "best_config"),
    }
    assert parameters(tree, "Autotuner.__init__")[:7] == [
        *("self", "fn", "arg_names", "configs", "key", "reset_to_zero", "restore_value")
    ]
    run = function(tree, "Autotuner.run").args
    assert [each.arg for each in run.args] == ["self"]
    assert run.vararg is not None
    assert run.kwarg is not None


@pytest.mark.parametrize(("version", "uses"), [("vllm-0.26.0", 30), ("vllm-0.33.0", 56)])
def test_the_server_has_as_many_autotuned_kernels_as_were_counted(version: str, uses: int) -> None:
    assert len(decorated(unpacked(PINNED[version]), "triton.autotune")) == uses


@pytest.mark.parametrize("wheel", [each for each in versions("vllm") if each.id != "vllm-0.26.0"])
def test_the_servers_second_cache_goes_past_the_autotuner(wheel: Wheel) -> None:
    """It launches what it kept: a choice exchanged in the autotuner alone has no effect."""
    empty: dict[str, dict[str, Any]] = {"vllm.triton_utils": {"tl": tl, "triton": triton}}
    with running(unpacked(wheel), [HELPERS], empty) as modules:
        helpers = modules[HELPERS]
        tuner = tuned(triton.runtime.autotuner, 2, 4)
        tuner.cache[KEY] = tuner.configs[1]
        assert kept(helpers, tuner) == 4
        tuner.cache[KEY] = tuner.configs[0]
        assert kept(helpers, tuner) == 4
        ((key, config),) = helpers._autotuned_configs.items()
        assert (key[0], config) == (tuner, tuner.configs[1])
        helpers._autotuned_configs.clear()
        assert kept(helpers, tuner) == 2


def kept(helpers: ModuleType, tuner: Any) -> float:
    x, seen = torch.zeros(8), torch.zeros(8, dtype=torch.float64)
    grid = lambda meta: (triton.cdiv(8, meta["BLOCK"]),)  # noqa: E731
    helpers.launch_autotuned(tuner, grid, x_ptr=x, seen_ptr=seen, n=8, wide=3)
    return float(seen[0])
