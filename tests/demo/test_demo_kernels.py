"""The compiled incumbents as the server calls them: equal to PyTorch's, weights repacked."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.expect import raises_naming

torch = pytest.importorskip("torch", reason="the demo's kernels are called with tensors")


from retuned import catalog  # noqa: E402
from retuned.contract import Language  # noqa: E402
from retuned.demo.batches import Chunk  # noqa: E402
from retuned.demo.kernels import (  # noqa: E402
    Incumbent,
    Kernel,
    TritonIncumbent,
    definition_names,
    incumbents,
    slotted_operators,
)
from retuned.demo.model import DecoderModel  # noqa: E402
from retuned.demo.operators import Tensor, plain_operators  # noqa: E402
from retuned.demo.shapes import SHAPES  # noqa: E402
from retuned.errors import MissingDependency  # noqa: E402
from retuned.lab.languages.cpu_cpp import compile_solution  # noqa: E402
from retuned.runtime import attach  # noqa: E402

TINY = SHAPES["tiny"]


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture(scope="module")
def compiled(cache_dir: Path) -> dict[str, Kernel]:
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
    compiled: dict[str, Kernel], name: str, rows: int
) -> None:
    incumbent = compiled[name]
    op_type = incumbent.definition.op_type
    inputs = _inputs(op_type, name, rows)
    expected = getattr(plain_operators(), op_type)(*inputs)
    torch.testing.assert_close(incumbent(*inputs), expected, atol=2e-4, rtol=2e-4)


def test_inputs_that_are_not_contiguous_are_made_so(compiled: dict[str, Kernel]) -> None:
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


@pytest.fixture
def interpreted() -> None:
    triton = pytest.importorskip("triton")
    if not triton.knobs.runtime.interpret:
        pytest.skip("runs in Triton's interpreter; tests/gpu has the same on a device")


@pytest.mark.parametrize("name", definition_names(TINY))
def test_a_triton_incumbent_computes_what_the_plain_operator_does(
    interpreted: None, name: str
) -> None:
    entry = catalog.get(name, language=Language.TRITON)
    incumbent = TritonIncumbent(entry.definition, entry.incumbent, device="cpu")
    inputs = _inputs(entry.definition.op_type, name, 3)
    expected = getattr(plain_operators(), entry.definition.op_type)(*inputs)
    torch.testing.assert_close(incumbent(*inputs), expected, atol=2e-4, rtol=2e-4)


def test_a_triton_launch_that_is_refused_fails_the_step_and_not_the_server(
    interpreted: None,
) -> None:
    entry = catalog.get("rmsnorm_h64", language=Language.TRITON)
    incumbent = TritonIncumbent(entry.definition, entry.incumbent, device="cpu")
    with raises_naming(RuntimeError, "rmsnorm_h64", "tensor-unaligned"):
        incumbent(torch.randn(65)[1:].view(1, 64), torch.randn(64))


def test_a_model_on_triton_kernels_says_what_one_on_plain_operators_says(
    interpreted: None, tmp_path: Path
) -> None:
    runtime = attach(server="test")
    try:
        # anything but "cpu" asks for the Triton kernels; "cpu:0" runs them in the interpreter
        made = slotted_operators(TINY, runtime, cache_dir=tmp_path, device="cpu:0")
        tokens = []
        for operators in (made.operators, plain_operators()):
            model = DecoderModel(TINY, operators, max_sequences=1, seed=5, device="cpu")
            chunk = Chunk([3, 1, 4], model.new_cache(), True)
            tokens.append(model.forward([chunk]))
        assert tokens[0] == tokens[1]
        assert all(slot.total() > 0 for slot in made.slots.values())
    finally:
        runtime.close()


def test_a_machine_without_triton_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    entry = catalog.get("rmsnorm_h64", language=Language.TRITON)
    with raises_naming(
        MissingDependency, "rmsnorm.rows.rows1-block64-num_warps1", "triton-missing"
    ):
        TritonIncumbent(entry.definition, entry.incumbent, device="cuda")
