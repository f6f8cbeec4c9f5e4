"""The servers' own operators, over the whole way: counted, swapped, checked, rolled back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.expect import raises_naming

ROWS, WIDTH = 5, 16
WEIGHT = torch.rand(WIDTH, generator=torch.Generator().manual_seed(3)) + 0.5
CACHE = torch.randn(32, 8, generator=torch.Generator().manual_seed(4))
NORM = "_C::rms_norm"


def norm_args(rows: int = ROWS, **changed: Any) -> tuple[Any, ...]:
    x = changed.get("x", torch.randn(rows, WIDTH))
    return torch.full_like(x, 7.0), x, changed.get("weight", WEIGHT), changed.get("epsilon", 1e-6)


def added_args() -> tuple[Any, ...]:
    return torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDTH), WEIGHT, 1e-6


def gated_args() -> tuple[Any, ...]:
    return torch.full((ROWS, WIDTH // 2), 7.0), torch.randn(ROWS, WIDTH)


def rope_args() -> tuple[Any, ...]:
    query, key = torch.randn(ROWS, 3 * 8), torch.randn(ROWS, 2 * 8)
    return torch.tensor([0, 31, 4, 5, 6]), query, key, 8, CACHE, True


CASES: dict[str, tuple[str, Callable[[], tuple[Any, ...]]]] = {
    NORM: ("rmsnorm_h16", norm_args),
    "_C::fused_add_rms_norm": ("add_rmsnorm_h16", added_args),
    "_C::silu_and_mul": ("silu_mul_i8", gated_args),
    "_C::rotary_embedding": ("rope_q3_k2_d8", rope_args),
    "sgl_kernel::rmsnorm": ("rmsnorm_h16", lambda: (*norm_args(), False)),
    "sgl_kernel::fused_add_rmsnorm": ("add_rmsnorm_h16", lambda: (*added_args(), True)),
    "sgl_kernel::silu_and_mul": ("silu_mul_i8", gated_args),
    "sgl_kernel::rotary_embedding": ("rope_q3_k2_d8", rope_args),
    "sglang::_run_activation_inplace": (
        "silu_mul_i8",
        lambda: ("silu", *reversed(gated_args())),
    ),
}


def operator(name: str) -> Any:
    namespace, _, plain = name.partition("::")
    return getattr(getattr(torch.ops, namespace), plain)


def ready(server: Any, bindings: Any, name: str) -> tuple[str, Callable[[], tuple[Any, ...]]]:
    """Register an operator, take it over, launch it once."""
    server.register(bindings[name])
    assert server.runtime.override(bindings[name]) == {f"{name}/CPU": "on"}
    definition, args = CASES[name]
    launch(name, args())
    return definition, args


def launch(name: str, args: tuple[Any, ...]) -> None:
    with torch.inference_mode():
        assert operator(name)(*args) is None


def right(name: str, args: tuple[Any, ...], stock: Any) -> None:
    """Launch, and compare every argument with what the server's own kernel makes of it."""
    copies = tuple(a.clone() if isinstance(a, torch.Tensor) else a for a in args)
    launch(name, args)
    with torch.inference_mode():
        stock[name](*copies)
    for ours, theirs in zip(args, copies, strict=True):
        if isinstance(ours, torch.Tensor):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_an_operator_is_counted_swapped_and_rolled_back(
    server: Any, bindings: Any, stock: Any, name: str
) -> None:
    definition, args = ready(server, bindings, name)
    right(name, args(), stock)
    assert server.sample(definition)["fallback_launches"] == 2
    server.swap(definition)
    right(name, args(), stock)  # the first of a bucket is checked: both run
    before = server.calls[name]
    for _ in range(3):
        right(name, args(), stock)
    sample = server.sample(definition)
    assert server.calls[name] == before, "a swapped launch does not run the original"
    assert (sample["swapped_launches"], sample["shadow_checks"]) == (4, 1)
    assert (sample["shadow_mismatches"], sample["errors"]) == (0, 0)
    server.roll_back(definition)
    right(name, args(), stock)
    assert server.calls[name] == before + 1
    assert server.sample(definition)["swapped_launches"] == 0


@pytest.mark.parametrize("name", [NORM, "_C::fused_add_rms_norm"])
def test_a_wrong_variant_is_found_and_the_launch_is_right_all_the_same(
    server: Any, bindings: Any, stock: Any, name: str
) -> None:
    definition, args = ready(server, bindings, name)
    server.swap(definition)
    server.roll_back(definition)
    # The self-check would not let it in: what was loaded goes wrong later.
    digest, _ = server.artifact(definition)
    server.ask("commit", order=server.order(definition, digest))
    slot = server.runtime._host._seating.seats[definition].slot

    def wrong(output: Any) -> Any:
        return tuple(2 * o for o in output) if isinstance(output, tuple) else 2 * output

    slot.table.in_force.distortion = lambda run: lambda inputs: wrong(run(inputs))
    slot.replace(slot.table.in_force, state="swapped")  # routes anew, with the fault
    right(name, args(), stock)
    sample = server.sample(definition)
    assert sample["tripped"] != ""
    right(name, args(), stock)
    assert server.sample(definition)["swapped_launches"] == sample["swapped_launches"]


def test_a_wrong_variant_does_not_pass_the_self_check(server: Any, bindings: Any) -> None:
    definition, _ = ready(server, bindings, NORM)
    with raises_naming(Exception, "self-check-failed"):
        server.swap(definition, fault=1)


@pytest.mark.parametrize("name", [NORM, "_C::fused_add_rms_norm", "_C::rotary_embedding"])
def test_a_canary_shadows_without_touching_what_the_server_sees(
    server: Any, bindings: Any, stock: Any, name: str
) -> None:
    definition, args = ready(server, bindings, name)
    server.swap(definition, canary=[{"fraction": 0.0}], shadow_every=1)
    for _ in range(5):
        right(name, args(), stock)
    sample = server.sample(definition)
    assert (sample["swapped_launches"], sample["shadow_mismatches"], sample["errors"]) == (0, 0, 0)
    assert sample["shadow_checks"] >= 1


@pytest.mark.parametrize("name", [NORM, "_C::fused_add_rms_norm"])
def test_every_launch_may_be_checked(server: Any, bindings: Any, stock: Any, name: str) -> None:
    definition, args = ready(server, bindings, name)
    server.swap(definition, shadow_every=1)
    for _ in range(5):
        right(name, args(), stock)
    sample = server.sample(definition)
    assert (sample["swapped_launches"], sample["shadow_mismatches"]) == (5, 0)


def test_a_variant_writes_to_the_operators_own_output(server: Any, bindings: Any) -> None:
    definition, _ = ready(server, bindings, NORM)
    server.swap(definition)
    args = norm_args()
    launch(NORM, args)
    seen: list[int] = []
    slot = server.runtime._host._seating.seats[definition].slot
    order = slot.table.in_force

    def noting(run: Any) -> Any:
        def noted(inputs: Any) -> Any:
            output = run(inputs)
            seen.append(output.data_ptr())
            return output

        return noted

    order.distortion = noting
    slot.replace(order, state="swapped")
    launch(NORM, args)
    assert seen == [args[0].data_ptr()]


def test_an_output_on_the_inputs_memory_is_copied(server: Any, bindings: Any, stock: Any) -> None:
    definition, _ = ready(server, bindings, NORM)
    server.swap(definition)
    for _ in range(2):
        x = torch.randn(ROWS, WIDTH)
        expected = torch.empty_like(x)
        stock[NORM](expected, x, WEIGHT, 1e-6)
        launch(NORM, (x, x, WEIGHT, 1e-6))
        torch.testing.assert_close(x, expected, rtol=1e-4, atol=1e-5)


def test_other_ranks_and_strides_are_served(server: Any, bindings: Any, stock: Any) -> None:
    definition, _ = ready(server, bindings, NORM)
    server.swap(definition)
    right(NORM, norm_args(x=torch.randn(2, 3, WIDTH)), stock)
    assert server.sample(definition)["swapped_launches"] == 1, "heads are rows"
    wide = torch.randn(ROWS, 2 * WIDTH)
    right(NORM, norm_args(x=wide[:, :WIDTH]), stock)
    right(NORM, norm_args(x=torch.randn(3, 2, WIDTH).transpose(0, 1)), stock)
    assert server.sample(definition)["ineligible_launches"] == {"tensor-kind": 1}
    assert server.told(NORM)["passed"] == {"tensor-kind": 1}
    _, x, weight, epsilon = norm_args()
    right(NORM, (torch.empty(ROWS, 2 * WIDTH)[:, ::2], x, weight, epsilon), stock)
    assert server.told(NORM)["faults"] == 0


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"epsilon": 1e-5}, "value-differs"),
        ({"weight": None}, "unreadable"),
        ({"x": torch.randn(WIDTH)}, "shape-differs"),
        ({"x": torch.randn(2, WIDTH, dtype=torch.float64),
          "weight": WEIGHT.double()}, "dtype-differs"),
        ({"weight": WEIGHT.half()}, "dtype-differs"),
    ],
)  # fmt: skip
def test_a_launch_of_no_definition_is_the_originals_and_counted_by_reason(
    server: Any, bindings: Any, changed: dict[str, Any], reason: str
) -> None:
    definition, _ = ready(server, bindings, NORM)
    before = server.calls[NORM]
    args = norm_args(**changed)
    for _ in range(2):
        try:
            launch(NORM, args)
        except RuntimeError:  # the original's own: types that do not go together
            assert reason == "dtype-differs"
    assert server.calls[NORM] == before + 2
    assert server.told(NORM)["passed"] == {reason: 2}
    assert server.sample(definition)["fallback_launches"] == 1


def test_each_width_and_element_type_has_a_slot_of_its_own(server: Any, bindings: Any) -> None:
    ready(server, bindings, NORM)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        x = torch.randn(3, 32).to(dtype)
        launch(NORM, (torch.empty_like(x), x, torch.ones(32, dtype=dtype), 1e-6))
    assert server.told(NORM)["definitions"] == [
        *("rmsnorm_bf16_h32", "rmsnorm_fp16_h32", "rmsnorm_h16", "rmsnorm_h32"),
    ]


def test_many_threads_are_served_while_orders_come_and_go(
    server: Any, bindings: Any, stock: Any
) -> None:
    definition, _ = ready(server, bindings, NORM)
    server.swap(definition)
    server.roll_back(definition)
    digest, _ = server.artifact(definition)
    problems: list[str] = []
    stop = threading.Event()

    def serve(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        while not stop.is_set():
            x = torch.randn(1 + seed % 5, WIDTH, generator=generator)
            out, expected = torch.empty_like(x), torch.empty_like(x)
            launch(NORM, (out, x, WEIGHT, 1e-6))
            stock[NORM](expected, x, WEIGHT, 1e-6)
            if not torch.allclose(out, expected, rtol=1e-4, atol=1e-5):
                problems.append(f"thread {seed}")

    threads = [threading.Thread(target=serve, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(100):
        server.ask("commit", order=server.order(definition, digest, shadow_every=2))
        server.roll_back(definition)
    stop.set()
    for thread in threads:
        thread.join(30)
    assert problems == []
    assert server.told(NORM)["faults"] == 0
