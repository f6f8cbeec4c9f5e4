"""The compiled incumbents as the server calls them: equal to PyTorch's, weights repacked."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the demo's kernels are called with tensors")

from retuned import catalog  # noqa: E402
from retuned.demo.kernels import Incumbent, definition_names, incumbents  # noqa: E402
from retuned.demo.operators import Tensor, plain_operators  # noqa: E402
from retuned.demo.shapes import SHAPES  # noqa: E402
from retuned.lab.languages.cpu_cpp import compile_solution  # noqa: E402

TINY = SHAPES["tiny"]


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture(scope="module")
def compiled(cache_dir: Path) -> dict[str, Incumbent]:
    return {found.definition.name: found for found in incumbents(TINY, cache_dir=cache_dir)}


def _weight(rows: int, depth: int) -> Tensor:
    return torch.randint(-127, 128, (rows, depth)).to(torch.int8)


def _inputs(op_type: str, name: str, rows: int) -> tuple[Tensor, ...]:
    torch.manual_seed(rows)
    if op_type == "linear_w8":
        columns, depth = (int(part) for part in name.removeprefix("linear_w8_n").split("_k"))
        return torch.randn(rows, depth), _weight(columns, depth), torch.rand(columns) * 0.01
    if op_type == "rmsnorm":
        return torch.randn(rows, TINY.hidden), torch.randn(TINY.hidden)
    if op_type == "silu_mul":
        return (torch.randn(rows, 2 * TINY.intermediate),)
    if op_type == "softmax":
        return (torch.randn(rows, TINY.vocab),)
    sizes = (TINY.heads, TINY.head_dim)
    return torch.randn(rows, *sizes), torch.randn(rows + 9, *sizes), torch.randn(rows + 9, *sizes)


@pytest.mark.parametrize("name", definition_names(TINY))
@pytest.mark.parametrize("rows", [1, 3, 37])
def test_an_incumbent_computes_what_the_plain_operator_does(
    compiled: dict[str, Incumbent], name: str, rows: int
) -> None:
    incumbent = compiled[name]
    op_type = incumbent.definition.op_type
    inputs = _inputs(op_type, name, rows)
    expected = getattr(plain_operators(), op_type)(*inputs)
    torch.testing.assert_close(incumbent(*inputs), expected, atol=2e-4, rtol=2e-4)


def test_inputs_that_are_not_contiguous_are_made_so(compiled: dict[str, Incumbent]) -> None:
    incumbent = compiled[f"rmsnorm_h{TINY.hidden}"]
    wide, gain = torch.randn(TINY.hidden, 5), torch.randn(TINY.hidden)
    assert torch.equal(incumbent(wide.t(), gain), incumbent(wide.t().contiguous(), gain))


def test_weights_are_repacked_once_each_to_the_layout_of_the_solution(cache_dir: Path) -> None:
    entry = catalog.get("linear_w8_n64_k96")
    params = {"P": 16, "TILE": 8, "CHUNK": 64, "STAGE": 0, "VEC": 64, "THREADS": 1}
    solution = entry.solution("packed-panels", params)
    library = compile_solution(solution, cache_dir=cache_dir).path
    kernel = Incumbent(entry.definition, solution, library=library)
    x, scale = torch.randn(5, 96), torch.rand(64)
    for weight in (_weight(64, 96), _weight(64, 96)):  # two weights, never mixed up
        for _ in range(2):
            expected = plain_operators().linear_w8(x, weight, scale)
            torch.testing.assert_close(kernel(x, weight, scale), expected, atol=1e-2, rtol=1e-4)


def test_every_operator_of_the_demo_model_is_in_the_catalog() -> None:
    names = definition_names(SHAPES["demo"])
    found = {catalog.get(name).definition.op_type for name in names}
    assert found == {"linear_w8", "rmsnorm", "silu_mul", "attention", "softmax"}
    assert len(names) == len(set(names)) == 9
