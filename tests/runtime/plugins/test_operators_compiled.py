"""Overridden operators under everything that PyTorch puts around a launch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses.fake_tensor import FakeTensorMode

NORM, ADDED, SILU = "_C::rms_norm", "_C::fused_add_rms_norm", "_C::silu_and_mul"
WIDTH = 16
WEIGHT = torch.rand(WIDTH, generator=torch.Generator().manual_seed(3)) + 0.5


def layer(x: Any, residual: Any) -> Any:
    """What a model does with them: out of place, in place, and its own arithmetic between."""
    out = torch.empty_like(x)
    torch.ops._C.rms_norm(out, x, WEIGHT, 1e-6)
    torch.ops._C.fused_add_rms_norm(out, residual, WEIGHT, 1e-6)
    gated = torch.empty(x.shape[0], WIDTH // 2)
    torch.ops._C.silu_and_mul(gated, out * 2)
    return gated + 1, residual


@pytest.fixture
def joined(server: Any, bindings: Any) -> Iterator[Any]:
    for name in (NORM, ADDED, SILU):
        server.register(bindings[name])
        server.runtime.override(bindings[name])
    yield server
    torch._dynamo.reset()


def inputs() -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(5)
    shape = (3, WIDTH)
    return torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)


def expected() -> tuple[Any, Any]:
    x, residual = inputs()
    normed = torch.nn.functional.rms_norm(x, (WIDTH,), WEIGHT, 1e-6)
    residual = residual + normed
    out = 2 * torch.nn.functional.rms_norm(residual, (WIDTH,), WEIGHT, 1e-6)
    return torch.nn.functional.silu(out[:, :8]) * out[:, 8:] + 1, residual


def close(found: tuple[Any, Any]) -> None:
    torch.testing.assert_close(found, expected(), rtol=1e-4, atol=1e-5)


DEFINITIONS = ("rmsnorm_h16", "add_rmsnorm_h16", "silu_mul_i8")


def swapped(server: Any) -> list[int]:
    return [server.sample(name)["swapped_launches"] for name in DEFINITIONS]


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_swap_and_its_way_back_reach_compiled_code_without_compiling_again(
    joined: Any, backend: str
) -> None:
    compiled: list[object] = []
    run: Any = torch.compile(layer, fullgraph=True, backend=noting(backend, compiled))
    with torch.inference_mode():
        close(run(*inputs()))
        stock = dict(joined.calls)
        assert len(compiled) == 1
        for name in DEFINITIONS:
            joined.swap(name)
        for _ in range(3):
            close(run(*inputs()))
        assert swapped(joined) == [3, 3, 3]
        for name in DEFINITIONS:
            joined.roll_back(name)
        before = dict(joined.calls)
        close(run(*inputs()))
        assert {n: joined.calls[n] - before[n] for n in (NORM, ADDED, SILU)} == {
            n: stock[n] for n in (NORM, ADDED, SILU)
        }
        joined.runtime.close()
        close(run(*inputs()))
    assert len(compiled) == 1, "the operators stay opaque: nothing was compiled again"


def noting(backend: str, compiled: list[object]) -> Callable[..., Any]:
    from torch._dynamo import lookup_backend

    def compile(graph: Any, examples: Any, **options: Any) -> Any:
        compiled.append(graph)
        return lookup_backend(backend)(graph, examples, **options)

    return compile


def test_taking_over_reaches_what_was_compiled_before(server: Any, bindings: Any) -> None:
    for name in (NORM, ADDED, SILU):
        server.register(bindings[name])
    compiled: list[object] = []
    run: Any = torch.compile(layer, fullgraph=True, backend=noting("aot_eager", compiled))
    with torch.inference_mode():
        close(run(*inputs()))
        server.runtime.override(*[bindings[name] for name in (NORM, ADDED, SILU)])
        close(run(*inputs()))
    assert [server.sample(name)["fallback_launches"] for name in DEFINITIONS] == [1, 1, 1]
    assert len(compiled) == 1
    torch._dynamo.reset()


@pytest.mark.parametrize("around", ["inference_mode", "no_grad", "enable_grad", "autocast"])
def test_the_modes_of_a_launch_change_nothing(joined: Any, around: str) -> None:
    modes: dict[str, Callable[[], Any]] = {
        "inference_mode": torch.inference_mode,
        "no_grad": torch.no_grad,
        "enable_grad": torch.enable_grad,
        "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    }
    with modes[around]():
        close(layer(*inputs()))
        for name in DEFINITIONS:
            joined.swap(name)
        for _ in range(2):
            close(layer(*inputs()))
    assert swapped(joined) == [2, 2, 2]
    assert [joined.told(name)["faults"] for name in (NORM, ADDED, SILU)] == [0, 0, 0]
    assert [joined.sample(name)["errors"] for name in DEFINITIONS] == [0, 0, 0]


def test_tensors_made_in_inference_mode_may_be_launched_outside(joined: Any) -> None:
    with torch.inference_mode():
        made = inputs()
        out = torch.empty(3, WIDTH)
        layer(*(value.clone() for value in made))
        x, residual = (value.clone() for value in made)
    for name in DEFINITIONS:
        joined.swap(name)
    for _ in range(2):
        torch.ops._C.rms_norm(out, made[0], WEIGHT, 1e-6)
        torch.testing.assert_close(
            out, torch.nn.functional.rms_norm(made[0], (WIDTH,), WEIGHT, 1e-6)
        )
    torch.ops._C.fused_add_rms_norm(x, residual, WEIGHT, 1e-6)
    torch.testing.assert_close(residual, made[0] + made[1])
    assert [joined.sample(name)["errors"] for name in DEFINITIONS] == [0, 0, 0]


def test_a_launch_that_wants_gradients_is_the_originals(joined: Any) -> None:
    layer(*inputs())
    joined.swap("rmsnorm_h16")
    weight = torch.nn.Parameter(WEIGHT.clone())
    before = joined.calls[NORM]
    with torch.no_grad():
        torch.ops._C.rms_norm(torch.empty(3, WIDTH), inputs()[0], weight, 1e-6)
    torch.ops._C.rms_norm(torch.empty(3, WIDTH), inputs()[0], weight.detach(), 1e-6)
    # both ran the variant; the original only beside the first, as its check
    assert joined.calls[NORM] == before + 1
    out = torch.empty(3, WIDTH)
    with contextlib.suppress(RuntimeError):  # the stock kernel of this test copies with gradients
        torch.ops._C.rms_norm(out, inputs()[0], weight, 1e-6)
    assert joined.calls[NORM] == before + 2
    assert joined.sample("rmsnorm_h16")["ineligible_launches"] == {"autograd": 1}


def test_shapes_without_data_never_reach_a_slot(joined: Any) -> None:
    layer(*inputs())
    joined.swap("rmsnorm_h16")
    slot = joined.runtime._host._seating.seats["rmsnorm_h16"].slot
    before = slot.total(), dict(joined.calls)
    with FakeTensorMode():
        x = torch.empty(3, WIDTH)
        torch.ops._C.rms_norm(torch.empty_like(x), x, torch.empty(WIDTH), 1e-6)
    meta = torch.empty(3, WIDTH, device="meta")
    torch.ops._C.rms_norm(torch.empty_like(meta), meta, torch.empty(WIDTH, device="meta"), 1e-6)
    assert (slot.total(), joined.calls) == before


def test_mutation_is_seen_through_by_functionalisation(joined: Any) -> None:
    layer(*inputs())
    for name in DEFINITIONS:
        joined.swap(name)
    seen: list[str] = []

    def kept(graph: Any, _: object) -> Any:
        seen.append(graph.code)
        return graph

    run: Any = torch.compile(layer, backend=aot_autograd(fw_compiler=kept))
    with torch.no_grad():
        close(run(*inputs()))
        close(run(*inputs()))
    assert seen[0].count("auto_functionalized") >= 3, "what is written is an output of the graph"
    assert swapped(joined) == [2, 2, 2]
