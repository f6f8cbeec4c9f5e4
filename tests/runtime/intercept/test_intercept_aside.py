"""Intercepted launches checked aside: both kernels on copies, the server's memory its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.runtime.intercept import strangers
from tests.runtime.intercept.strangers import cdiv_grid, launch_affine
from tests.runtime.intercept.test_intercept_swapping import AFFINE, WRONG, World

from retuned.runtime.core.active_order import Swapped
from retuned.runtime.intercept.hook import Interceptor
from retuned.runtime.shadow.comparison import ElementFormat, form_of
from retuned.runtime.shadow.input_copies import KEEPER, InputCopier
from retuned.runtime.shadow.pending_checks import CHECKS
from retuned.runtime.shadow.reduction import measure

DARK: dict[str, Any] = {"canary": [{"fraction": 0.0}], "shadow_every": 1}
GROW = {
    "code": "live",
    "axes": {"N": "n"},
    "grid": "kept",
    "dtypes": {"x_ptr": "float32"},
    "stores": {"x_ptr": "update"},
}


class AtOnce:
    """A device whose streams are always done: what is queued runs at once, on the CPU."""

    def __init__(self) -> None:
        self.compared: list[tuple[Any, Any]] = []
        self.rows: dict[int, list[float]] = {}
        self.between: Callable[[], object] = lambda: None

    def capturing(self) -> bool:
        return False

    def copy(self, tensor: Any) -> Any:
        return tensor.detach().clone()

    glimpse = copy

    def form(self, tensor: Any) -> tuple[ElementFormat, int]:
        return form_of(torch, tensor), int(tensor.numel())

    def version(self, tensor: Any) -> int | None:
        return int(tensor._version)

    def mark(self, *, timed: bool = False) -> object:
        return object()

    @contextmanager
    def aside(self, after: object) -> Iterator[None]:
        self.between()  # the server goes on before the check begins
        yield

    def measure(self, ours: Any, theirs: Any, tolerance: float) -> Any:
        self.compared.append((ours, theirs))
        return measure(torch, ours, theirs, tolerance)

    def changed(self, before: Sequence[Any], after: Sequence[Any]) -> Any:
        pairs = zip(before, after, strict=True)
        return torch.tensor([float(sum(int((a != b).sum()) for a, b in pairs))])

    def send(self, numbers: Sequence[Any], *, place: int) -> None:
        self.rows[place] = torch.cat([each.double() for each in numbers]).tolist()

    def received(self, count: int, *, place: int) -> list[float]:
        return self.rows[place][:count]

    def arrived(self, mark: object) -> bool:
        return True

    def elapsed_ns(self, begin: object, end: object) -> int:
        return 1000


@pytest.fixture
def world(hook: Interceptor, tmp_path: Path, interpreted: bool) -> World:
    if not interpreted:
        pytest.skip("nothing is computed")
    return World(hook, tmp_path)


@pytest.fixture(autouse=True)
def settled() -> Iterator[None]:
    yield
    CHECKS.settle()
    assert (CHECKS.count, KEEPER.held_bytes) == (0, 0)


def in_force(world: World) -> Swapped:
    (slot,) = world.host._seating.slots()
    order = slot.table.in_force
    assert isinstance(order, Swapped)
    return order


def aside(world: World) -> AtOnce:
    """Let the checks of the order in force be made on a device."""
    device, checker = AtOnce(), in_force(world)._checker
    assert checker is not None
    checker._device_of = lambda inputs, *, dense=True: None if dense else device
    return device


def grown(world: World, **fields: Any) -> Any:
    """Swap a kernel that reads and writes the same memory; return that memory."""
    x = torch.zeros(40)
    strangers.grow[cdiv_grid(40)](x, 40, BLOCK=16)
    definition = AFFINE | {
        "name": "lifted_grow",
        "outputs": {"x_out": {"shape": ["N"], "dtype": "float32"}},
    }
    delivered = world.artifact("grow", definition=definition, params={"BLOCK": 8}, intercept=GROW)
    world.swap(delivered, "lifted_grow", **fields)
    return x


@pytest.mark.parametrize("fields", [{"shadow_every": 1}, DARK])
def test_memory_that_is_read_and_written_is_changed_once_a_launch(
    world: World, fields: dict[str, Any]
) -> None:
    x = grown(world, **fields)
    device = aside(world)
    for _ in range(5):
        strangers.grow[cdiv_grid(40)](x, 40, BLOCK=16)
        world.host.housekeeping()
    assert torch.equal(x, torch.full((40,), 6.0))
    sample = world.sample()
    assert (sample["shadow_checks"], sample["shadow_mismatches"], sample["errors"]) == (5, 0, 0)
    in_line = 0 if fields is DARK else 1  # the first that a variant serves
    assert len(device.compared) == 5 - in_line


def test_both_kernels_read_what_there_was_at_the_launch(world: World) -> None:
    """The server overwrites all of it before the check begins."""
    x = grown(world, **DARK)
    device = aside(world)
    device.between = lambda: x.fill_(-1000.0)
    strangers.grow[cdiv_grid(40)](x, 40, BLOCK=16)
    ((ours, theirs),) = device.compared
    assert torch.equal(ours[:40], torch.full((40,), 2.0))
    assert torch.equal(theirs[:40], torch.full((40,), 2.0))
    assert torch.equal(x, torch.full((40,), -1000.0)), "the check has not touched it"


def test_what_is_only_read_is_copied_too(world: World) -> None:
    x, y = torch.arange(104, dtype=torch.float32), torch.zeros(104)
    strangers.affine[cdiv_grid(100)](x, y, 100, 0.5, BLOCK=16)
    world.swap(world.live_affine(), **DARK)
    device = aside(world)
    device.between = lambda: x.fill_(torch.nan)
    strangers.affine[cdiv_grid(100)](x, y, 100, 0.5, BLOCK=16)
    ((_, theirs),) = device.compared
    assert torch.equal(theirs[:100], y[:100])
    assert bool(y[:100].isfinite().all())


def test_a_wrong_variant_is_taken_back_when_its_numbers_are_looked_at(world: World) -> None:
    launch_affine(100)
    world.swap(world.other_affine(WRONG), **DARK)
    aside(world)
    assert torch.equal(*launch_affine(100))
    assert world.sample()["tripped"] == ""
    world.host.housekeeping()
    assert world.sample()["tripped"] == "shadow-mismatch"
    assert torch.equal(*launch_affine(100))


STORES_TO_X = '''"""Writes to what it must only read."""

import triton
import triton.language as tl


@triton.jit
def affine_two(x, out, n, factor, TILE: tl.constexpr):
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = at < n
    value = tl.load(x + at, mask=inside)
    tl.store(out + at, value * factor * 3 + 2, mask=inside)
    tl.store(x + at, value + 1, mask=inside)
'''


def test_a_variant_that_writes_to_what_it_reads_is_found_and_spoils_nothing(world: World) -> None:
    x, y = torch.arange(100, dtype=torch.float32), torch.zeros(100)
    strangers.affine[cdiv_grid(100)](x, y, 100, 0.5, BLOCK=16)
    world.swap(world.other_affine(STORES_TO_X), **DARK)
    aside(world)
    strangers.affine[cdiv_grid(100)](x, y, 100, 0.5, BLOCK=16)
    world.host.housekeeping()
    assert world.sample()["tripped"] == "input-modified"
    assert torch.equal(x, torch.arange(100, dtype=torch.float32))


def test_launches_too_large_for_two_whole_copies_are_checked_in_line(world: World) -> None:
    launch_affine(100)
    world.swap(world.live_affine(), **DARK)
    device, checker = aside(world), in_force(world)._checker
    assert checker is not None
    checker._keeper = InputCopier(1000)
    assert torch.equal(*launch_affine(100))
    assert device.compared == []
    assert world.sample()["shadow_checks"] == 1


def test_a_check_left_out_lets_the_variant_serve(world: World) -> None:
    launch_affine(100)
    world.swap(world.live_affine(), shadow_every=1)
    assert torch.equal(*launch_affine(100))  # in line
    device = aside(world)
    device.capturing = lambda: True  # type: ignore[method-assign]
    for _ in range(3):
        assert torch.equal(*launch_affine(100))
    sample = world.sample()
    assert (sample["swapped_launches"], sample["shadow_checks"]) == (4, 1)
    assert sample["dropped_checks"] == {"capturing": 3}
