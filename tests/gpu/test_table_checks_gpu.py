"""On a GPU: launches under a table are compared aside, on the server's own state and streams."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from tests.runtime.tunables.test_table_checks import (  # noqa: E402 - needs both
    RIGHT,
    WRONG,
    _added,
    launch,
    swap,
    table,
    tuner,
)

from retuned.runtime.artifacts.trust import Trust  # noqa: E402
from retuned.runtime.core.epochs import Fence  # noqa: E402
from retuned.runtime.shadow.pending_checks import CHECKS  # noqa: E402
from retuned.runtime.tunables.service import Tunables  # noqa: E402

pytestmark = pytest.mark.gpu
COUNT = 1 << 20


@pytest.fixture(autouse=True)
def device() -> None:
    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no GPU")


@pytest.fixture
def tunables() -> Iterator[Tunables]:
    fence = Fence()
    made = Tunables(trust=Trust(), fence=lambda: fence)
    assert made.turn_on(lambda: None)["autotune"] == "on"
    yield made
    made.close()


def settled() -> None:
    torch.cuda.synchronize()
    CHECKS.settle()


def doubles(kernel: Any) -> bool:
    x = torch.full((COUNT,), 1.5, device="cuda")  # one wrong element is as large as all others
    return bool(torch.equal(launch(kernel, x, torch.full_like(x, -1.0)), 2 * x))


def test_a_right_table_is_checked_aside_and_serves(tunables: Tunables) -> None:
    kernel = tuner()
    assert doubles(kernel)
    swap(tunables, RIGHT, every=4)
    for _ in range(41):  # the first, and ten blocks of four
        assert doubles(kernel)
        settled()
    found = table(tunables)
    assert found["state"] == "engaged"
    assert (found["checks"]["checks"], found["checks"]["mismatches"]) == (11, 0)
    assert not found["checks"]["dropped"]


def test_a_wrong_table_serves_nothing(tunables: Tunables) -> None:
    kernel = tuner()
    assert doubles(kernel)
    swap(tunables, WRONG)
    assert all(doubles(kernel) for _ in range(3))
    assert (table(tunables)["state"], table(tunables)["reason"]) == ("lost", "shadow-mismatch")


def test_a_state_is_updated_once_for_each_launch(tunables: Tunables) -> None:
    kernel, state = tuner(_added), torch.zeros(COUNT, device="cuda")
    one = torch.ones(COUNT, device="cuda")
    launch(kernel, state, one)
    swap(tunables, RIGHT)
    for number in range(2, 60):
        launch(kernel, state, one)
        assert state.min().item() == state.max().item() == number
        settled()
    assert table(tunables)["checks"]["checks"] == 58
    assert table(tunables)["state"] == "engaged"


def test_launches_of_a_capture_are_not_checked(tunables: Tunables) -> None:
    kernel, x = tuner(), torch.randn(COUNT, device="cuda")
    out = torch.empty_like(x)
    launch(kernel, x, out)
    swap(tunables, RIGHT)
    launch(kernel, x, out)
    before = table(tunables)["checks"]["checks"]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch(kernel, x, out)
    graph.replay()
    settled()
    assert torch.equal(out, 2 * x)
    assert table(tunables)["checks"]["checks"] == before
