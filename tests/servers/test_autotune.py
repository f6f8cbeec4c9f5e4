"""Triton's autotuner in its versions: how it keys a choice, where it keeps it, what it launches."""

from __future__ import annotations

from typing import Any

import pytest
import triton
import triton.language as tl
from tests.servers.autotuners import KEY, MODULE, autotuner, kept, launched, tuned
from tests.servers.sources import (
    attributes,
    decorated,
    function,
    parameters,
    parsed,
    running,
)
from tests.servers.wheels import PINNED, Wheel, unpacked, versions

pytestmark = pytest.mark.index
TRITON = pytest.mark.parametrize("wheel", versions("triton"))
HELPERS = "vllm.model_executor.layers.mamba.ops.triton_helpers"


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
