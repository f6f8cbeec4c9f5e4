"""Checks made aside on a real GPU: nobody waits for them, and their numbers are the host's."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.gpu

from retuned.runtime.core.active_order import Swapped  # noqa: E402
from retuned.runtime.core.orders import parse_order  # noqa: E402
from retuned.runtime.core.slots import Slot  # noqa: E402
from retuned.runtime.shadow.comparison import compare_tensors, form_of  # noqa: E402
from retuned.runtime.shadow.device import TorchShadow, shadow_device  # noqa: E402
from retuned.runtime.shadow.pending_checks import CHECKS  # noqa: E402
from retuned.runtime.shadow.reduction import judged, measure  # noqa: E402

DEFINITION = {
    "name": "scale",
    "op_type": "scale",
    "axes": {"M": {"type": "var"}, "K": {"type": "const", "value": 4096}},
    "inputs": {
        "x": {"shape": ["M", "K"], "dtype": "float32"},
        "w": {"shape": ["K"], "dtype": "float32", "constant": True},
    },
    "outputs": {"y": {"shape": ["M", "K"], "dtype": "float32"}},
}
SLEEP_CYCLES = 3_000_000_000
"""More than a second on any GPU of today."""
DARK = {"canary": [{"fraction": 0.0}]}


class Kernel:
    """A variant that does what a function of its inputs does."""

    def __init__(self, run: Callable[..., Any]) -> None:
        self.run = run

    def launcher(self, _: tuple[int, ...]) -> Any:
        return lambda inputs: self.run(*inputs)

    checked_launcher = launcher

    def capturing(self) -> Callable[[], bool]:
        return lambda: bool(torch.cuda.is_current_stream_capturing())

    def fingerprint(self, inputs: tuple[Any, ...]) -> object:
        return 0


@pytest.fixture(scope="module", autouse=True)
def device() -> Any:
    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no GPU")
    return torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def settled() -> Iterator[None]:
    yield
    torch.cuda.synchronize()
    CHECKS.settle()
    assert CHECKS.count == 0


def swapped(variant: Callable[..., Any], **fields: Any) -> tuple[Slot, Swapped]:
    slot = Slot(DEFINITION, lambda x, w: x * w)
    body = {"id": "one", "kind": "swap", "definition": "scale", "guard": {}, "epoch": 1}
    body |= {"artifact": "sha256:" + "a" * 64, "shadow_every": 1}
    order = Swapped(slot, parse_order(body | fields), variant=Kernel(variant),
                    compare=compare_tensors)  # fmt: skip
    slot.commit(order)
    return slot, order


def inputs(device: Any, rows: int = 64) -> tuple[Any, Any]:
    generator = torch.Generator(device).manual_seed(1)
    x = torch.randn(rows, 4096, generator=generator, device=device)
    return x, torch.rand(4096, generator=generator, device=device) + 0.5


def side(device: Any) -> TorchShadow:
    found = shadow_device(inputs(device))
    assert isinstance(found, TorchShadow)
    return found


def settle(order: Swapped, checks: int) -> None:
    """Wait for checks with a deadline, as the control thread would look."""
    end = time.monotonic() + 60.0
    while order.stats.checks < checks and time.monotonic() < end:
        CHECKS.settle()
        time.sleep(0.001)
    assert order.stats.checks >= checks


def reached(event: Any, *, within_s: float) -> bool:
    end = time.monotonic() + within_s
    while not event.query() and time.monotonic() < end:
        time.sleep(0.001)
    return bool(event.query())


@pytest.mark.parametrize("fields", [{}, DARK])
def test_the_served_stream_is_not_held_up_by_a_check(device: Any, fields: Any) -> None:
    slot, order = swapped(lambda x, w: w * x, **fields)
    x, w = inputs(device)
    for _ in range(
        3
    ):  # the first of its bucket is checked in line; then code is loaded, which waits
        slot(x, w)
        torch.cuda.synchronize()
        CHECKS.settle()
    before = order.stats.checks
    with torch.cuda.stream(side(device).stream):
        torch.cuda._sleep(SLEEP_CYCLES)
        asleep = torch.cuda.Event()
        asleep.record()
    begun = time.monotonic()
    output = slot(x, w)
    launched_s = time.monotonic() - begun
    done = torch.cuda.Event()
    done.record()
    assert reached(done, within_s=0.5), "the server's stream has what it was given"
    assert not asleep.query(), "while the checks' stream still sleeps"
    assert launched_s < 0.5, "and no thread waited"
    assert order.stats.checks == before
    assert torch.equal(output, x * w)
    settle(order, before + 1)
    assert order.stats.mismatches == 0


@pytest.mark.parametrize("fields", [{}, DARK])
def test_a_server_that_overwrites_and_frees_everything_is_checked_on_what_it_was_given(
    device: Any, fields: Any
) -> None:
    slot, order = swapped(lambda x, w: w * x, **fields)
    _, w = inputs(device)
    with torch.cuda.stream(side(device).stream):
        torch.cuda._sleep(SLEEP_CYCLES // 10)
    for number in range(40):
        x = torch.full((64, 4096), float(number), device=device)
        output = slot(x, w)
        x.fill_(math.nan)
        output.fill_(math.nan)
        del x, output
        torch.full((64, 4096), math.inf, device=device)  # takes the memory that was given back
    torch.cuda.synchronize()
    CHECKS.settle()
    assert order.stats.checks >= 2
    assert (order.stats.nonfinite, order.stats.mismatches) == (0, 0)
    assert slot.table.state == "swapped"


@pytest.mark.parametrize(
    ("variant", "reason"),
    [
        (lambda x, w: x * w * 1.5, "shadow-mismatch"),
        (lambda x, w: torch.full_like(x, math.nan), "shadow-nonfinite"),
        (lambda x, w: (x * w, x.add_(1))[0], "input-modified"),
    ],
)
def test_a_variant_that_is_wrong_in_the_shadow_is_taken_back(
    device: Any, variant: Any, reason: str
) -> None:
    slot, order = swapped(variant, **DARK)
    x, w = inputs(device)
    kept = x.clone()
    assert torch.equal(slot(x, w), kept * w)
    assert torch.equal(x, kept)
    settle(order, 1)
    assert slot.table.state == f"tripped:{reason}"


def test_nothing_of_a_check_gets_into_a_captured_graph(device: Any) -> None:
    slot, order = swapped(lambda x, w: w * x)
    x, w = inputs(device)
    for _ in range(3):
        slot(x, w)
    torch.cuda.synchronize()
    CHECKS.settle()
    before = order.stats.checks
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = slot(x, w)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(output, x * w)
    assert CHECKS.count == 0
    assert order.stats.checks == before


def test_checks_are_timed_by_the_device(device: Any) -> None:
    slot, order = swapped(lambda x, w: w * x)
    x, w = inputs(device, 4096)
    for _ in range(12):
        slot(x, w)
        torch.cuda.synchronize()
        CHECKS.settle()
    assert 0.01 < order.judge.slowdown < 100.0
    assert order.judge.cost.spent_s > 0.0


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn"])
@pytest.mark.parametrize("off", [0.0, 1e-5, 1e-2, 3.0])
@pytest.mark.parametrize("odd", [None, math.nan, math.inf])
def test_numbers_reduced_on_the_device_are_the_hosts(
    device: Any, dtype: str, off: float, odd: float | None
) -> None:
    generator = torch.Generator().manual_seed(7)
    theirs = torch.randn(5000, generator=generator, dtype=torch.float64)
    ours = theirs + off * torch.randn(5000, generator=generator, dtype=torch.float64)
    if odd is not None:
        ours[17] = theirs[17] = odd
    kind = getattr(torch, dtype)
    ours, theirs = ours.to(kind), theirs.to(kind)
    numbers = measure(torch, ours.to(device), theirs.to(device), 1e-3)
    assert numbers.is_cuda
    forms = [(form_of(torch, theirs), 5000)]
    here = judged(forms, measure(torch, ours, theirs, 1e-3).tolist(), 1e-3)
    there = judged(forms, numbers.tolist(), 1e-3)
    host = compare_tensors([ours], [theirs], 1e-3)
    assert there.mismatched == here.mismatched
    for found in (here.comparison, there.comparison):
        assert found.nonfinite == host.nonfinite
        assert found.ratio == pytest.approx(host.ratio, rel=1e-3, abs=1e-9)
        assert found.rms_ratio == pytest.approx(host.rms_ratio, rel=1e-3, abs=1e-9)


def test_to_look_for_results_costs_the_host_little(device: Any) -> None:
    """The control thread looks every 50 ms; a look is microseconds, whatever is under way."""
    slot, order = swapped(lambda x, w: w * x)
    x, w = inputs(device)
    slot(x, w)
    with torch.cuda.stream(side(device).stream):
        torch.cuda._sleep(SLEEP_CYCLES // 10)
    for _ in range(4):
        slot(x, w)
    begun = time.perf_counter()
    CHECKS.settle()
    assert time.perf_counter() - begun < 0.05
    settle(order, 5)
