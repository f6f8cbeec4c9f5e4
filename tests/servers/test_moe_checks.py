"""Layers of vLLM's fused experts under a table are compared with the server's own row."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from tests.servers import moe
from tests.servers.sources import parameters, parsed
from tests.servers.tables import only, put
from tests.servers.wheels import Wheel, unpacked, versions

from retuned.runtime.core.orders import CheckRates
from retuned.runtime.tunables.checks import ALIASED, UNKNOWN
from retuned.runtime.tunables.expert_layers import CLASSES, LORA, MODULE, WORKSPACES
from retuned.runtime.tunables.moe import MoeHook
from retuned.runtime.tunables.state import Registry

pytestmark = pytest.mark.index
ROW = {
    "BLOCK_SIZE_M": 32,
    "BLOCK_SIZE_N": 32,
    "BLOCK_SIZE_K": 32,
    "GROUP_SIZE_M": 1,
    "num_warps": 4,
    "num_stages": 2,
}
EACH = CheckRates(shadow_every=1, shadow_later=(), shadow_share=1.0)
TOKENS = 20


class Layers:
    """A process with one layer of experts, which has run once: its tunable is known."""

    def __init__(self, module: ModuleType) -> None:
        self.module, self.registry = module, Registry()
        self.stock = module.TritonExperts.apply
        self.hook = MoeHook(self.registry)
        assert self.hook.install() == "on"
        self.layer = module.TritonExperts(None, moe.Experts().quant_config)
        self.rows: list[int] = []
        self._note_rows()
        assert self.is_right()

    def _note_rows(self) -> None:
        """Note the row of each call: which block sizes are sorted by, in order."""
        module = self.module
        for owner in (module, sys.modules[moe.MODULE]):
            sort = vars(owner).get("moe_align_block_size")
            if sort is not None:
                vars(owner)["moe_align_block_size"] = self._noting(sort)

    def _noting(self, sort: Any) -> Any:
        def noted(routes: torch.Tensor, block: int, *args: Any, **kwargs: Any) -> Any:
            self.rows.append(block)
            ids, blocks, count = sort(routes, block, *args, **kwargs)
            if block == 64:  # as a configuration that computes wrong
                blocks = (blocks + 1) % 4
            if block == 128:
                raise RuntimeError("out of shared memory")
            return ids, blocks, count

        return noted

    def is_right(self, tokens: int = TOKENS, **changed: Any) -> bool:
        call = moe.layer_call(tokens) | changed
        wanted = moe.layer_output(call)
        self.rows.clear()
        self.layer.apply(**call)
        return bool(torch.allclose(call["output"], wanted, rtol=1e-4, atol=1e-4))

    def put(self, **changed: int) -> None:
        put(only(self.registry), ROW | changed, rates=EACH)

    @property
    def report(self) -> dict[str, Any]:
        checks = only(self.registry).checks
        assert checks is not None
        return checks.report()


@pytest.fixture(params=versions("vllm"))
def layers(request: pytest.FixtureRequest) -> Iterator[Layers]:
    with moe.expert_layers(unpacked(request.param)) as module:
        made = Layers(module)
        yield made
        made.hook.uninstall()
        assert module.TritonExperts.apply is made.stock


@pytest.mark.parametrize("wheel", versions("vllm"))
def test_layers_take_their_output_and_workspaces_by_these_names(wheel: Wheel) -> None:
    assert MODULE == moe.LAYERS
    tree = parsed(unpacked(wheel), MODULE)
    for owner in CLASSES:
        names = parameters(tree, f"{owner}.apply")
        assert {"self", "output", "hidden_states", *WORKSPACES} <= set(names)


def test_both_rows_run_and_the_server_gets_its_own_first(layers: Layers) -> None:
    own = layers.rows[0]
    layers.put()
    assert layers.is_right()
    assert layers.rows == [ROW["BLOCK_SIZE_M"], own]
    assert (layers.report["checks"], layers.report["errors"]) == (1, 0)
    assert layers.report["worst_ratio"] < 0.1
    assert layers.is_right()
    assert layers.report["checks"] == 2
    assert only(layers.registry).matched == 2, "a checked launch counts once"
    assert not layers.registry.failures


def test_a_row_that_computes_wrong_ends_before_it_serves(layers: Layers) -> None:
    layers.put(BLOCK_SIZE_M=64)
    assert layers.is_right()
    assert only(layers.registry).tripped == "shadow-mismatch"
    assert layers.is_right()
    assert 64 not in layers.rows


def test_a_row_that_fails_to_launch_leaves_the_servers_own(layers: Layers) -> None:
    layers.put(BLOCK_SIZE_M=128)
    assert layers.is_right()
    assert layers.registry.failures == 1
    assert layers.is_right()
    assert 128 not in layers.rows


def test_a_layer_with_adapters_is_not_checked(layers: Layers) -> None:
    layers.put()
    layers.layer._lora_context = SimpleNamespace(aux_stream=None, original_hidden_states=None)
    assert layers.is_right()
    assert layers.rows == [ROW["BLOCK_SIZE_M"]], "one side ran"
    assert layers.report["dropped"] == {LORA: 1}
    assert layers.report["errors"] == 0


def test_a_class_from_elsewhere_is_not_checked(layers: Layers) -> None:
    class Elsewhere(layers.module.TritonExperts):  # type: ignore[name-defined,misc]
        pass

    layers.layer = Elsewhere(None, moe.Experts().quant_config)
    assert layers.is_right()
    layers.put()
    assert layers.is_right()
    assert layers.report["dropped"] == {UNKNOWN: 1}


def test_an_output_in_the_memory_of_an_input_is_not_checked(layers: Layers) -> None:
    layers.put()
    states = moe.layer_call(TOKENS)["hidden_states"]
    assert layers.is_right(hidden_states=states, output=states)
    assert layers.report["dropped"] == {ALIASED: 1}


def test_a_look_up_outside_a_known_layer_counts_as_not_checked(layers: Layers) -> None:
    layers.put()
    moe_module = sys.modules[moe.MODULE]
    row = moe_module.try_get_optimal_moe_config((4, 64, 32), (4, 32, 32), 2, None, TOKENS)
    assert row["BLOCK_SIZE_M"] == ROW["BLOCK_SIZE_M"]
    assert layers.report["dropped"] == {UNKNOWN: 1}


def test_a_layer_that_looks_nothing_up_counts_as_not_checked(
    layers: Layers, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers.put()
    own = {**ROW, "BLOCK_SIZE_M": 16}
    package, module = sys.modules[moe.PACKAGE], sys.modules[moe.MODULE]
    monkeypatch.setattr(package, "get_config", lambda: own)
    monkeypatch.setattr(module, "get_config", lambda: own, raising=False)
    assert layers.is_right()
    report = layers.report
    assert (report["checks"], report["dropped"]) == (0, {UNKNOWN: 1})
    monkeypatch.undo()
    assert layers.is_right(), "the layer is new"
    assert layers.report["checks"] == 0
    assert layers.is_right()
    assert layers.report["checks"] == 1


def test_a_layer_that_is_new_under_a_table_runs_the_servers_own_row_once(layers: Layers) -> None:
    own = layers.rows[0]
    layers.put()
    layers.layer = layers.module.TritonExperts(None, moe.Experts().quant_config)
    assert layers.is_right()
    assert (layers.rows, only(layers.registry).matched) == ([own], 0)
    assert layers.is_right()
    assert layers.rows == [ROW["BLOCK_SIZE_M"], own], "checked"


def test_memory_that_a_check_lacks_puts_no_row_out_of_force(
    layers: Layers, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = layers.rows[0]
    layers.put()
    stock, full = moe.Experts.activation, [torch.OutOfMemoryError("full")]

    def activation(*args: Any, **kwargs: Any) -> None:
        if full:
            raise full.pop()
        stock(*args, **kwargs)

    monkeypatch.setattr(moe.Experts, "activation", activation)
    assert layers.is_right()
    assert layers.rows == [ROW["BLOCK_SIZE_M"], own], "no row serves before a check of it"
    assert layers.is_right()
    assert layers.rows == [ROW["BLOCK_SIZE_M"], own]
    assert layers.report["checks"] == 1, "the row is tried again"


def test_under_another_wrapper_ours_only_calls_while_it_is_suspended(layers: Layers) -> None:
    owner, ours = layers.module.TritonExperts, layers.module.TritonExperts.apply

    def theirs(*args: Any, **kwargs: Any) -> Any:
        return ours(*args, **kwargs)

    owner.apply = theirs
    layers.put()
    layers.hook.suspend()
    assert layers.is_right()
    layers.hook.resume()
    assert owner.apply is theirs, "not wrapped twice"
    assert layers.is_right()
    assert layers.report["checks"] == 1
    owner.apply = ours


def test_layers_are_the_servers_own_while_the_hook_is_suspended(layers: Layers) -> None:
    layers.put()
    layers.hook.suspend()
    assert layers.module.TritonExperts.apply is layers.stock
    layers.hook.resume()
    assert layers.is_right()
    assert layers.report["checks"] == 1
