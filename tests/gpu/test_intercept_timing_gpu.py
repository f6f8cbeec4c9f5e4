"""Sampled launches are timed by a real device's events, and captured ones are left alone."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, name-defined"

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

from retuned.runtime.intercept.hook import Interceptor  # noqa: E402
from retuned.runtime.intercept.observed import records  # noqa: E402
from retuned.runtime.intercept.timing import MOST_SKIPPED, Stopwatch  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or triton.knobs.runtime.interpret,
        reason="no GPU that PyTorch can use",
    ),
]

LENGTH = 1 << 26
MOVED_BYTES = 2 * 4 * LENGTH


@triton.jit
def doubled(x_ptr, y_ptr, n, BLOCK: tl.constexpr):  # noqa: ANN001, ANN201
    """y = 2 x."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=inside) * 2, mask=inside)


class Timed:
    """A kernel that moves half a gigabyte, followed by an interceptor that times it."""

    def __init__(self) -> None:
        self.hook = Interceptor()
        self.now_s = 0.0
        self.hook.stopwatch = Stopwatch(random_source=random.Random(1), clock=lambda: self.now_s)
        self.x = torch.rand(LENGTH, device="cuda")
        self.y = torch.empty_like(self.x)
        self.hook.install()
        self.launch(1)

    def launch(self, times: int) -> None:
        for _ in range(times):
            doubled[(triton.cdiv(LENGTH, 1024),)](self.x, self.y, LENGTH, BLOCK=1024)

    def round(self) -> None:
        self.now_s += 2.0
        self.hook.poll()

    def device_time(self) -> dict[str, int] | None:
        (kernel,) = self.hook.kernels()
        (record,) = records(kernel)
        found: dict[str, int] | None = record["device_time"]
        return found


@pytest.fixture
def timed() -> Iterator[Timed]:
    made = Timed()
    yield made
    made.hook.uninstall()


def test_a_sample_is_the_time_that_the_device_needed(timed: Timed) -> None:
    for _ in range(5):
        timed.round()
        torch.cuda._sleep(20_000_000)  # the stream is busy when the launches come
        timed.launch(MOST_SKIPPED)
    torch.cuda.synchronize()
    timed.round()
    found = timed.device_time()
    assert found is not None
    assert found["timed"] == 5
    bandwidth = MOVED_BYTES / found["least_ns"]  # bytes a nanosecond are GB/s
    assert 500 < bandwidth < 8000, found


def test_on_an_idle_stream_nothing_is_timed(timed: Timed) -> None:
    timed.round()
    for _ in range(MOST_SKIPPED):
        torch.cuda.synchronize()
        timed.launch(1)
    torch.cuda.synchronize()
    timed.round()
    found = timed.device_time()
    assert found is None or found["timed"] + found["idle"] == 1


def test_a_capture_is_left_alone(timed: Timed) -> None:
    timed.round()
    graph: Any = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        timed.launch(MOST_SKIPPED)
    graph.replay()
    torch.cuda.synchronize()
    timed.round()
    assert timed.device_time() is None
    assert torch.equal(timed.y, timed.x * 2)
