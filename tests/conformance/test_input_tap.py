"""One suite over both taps: samples of inputs over the runtime's socket, and the fake's."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.expect import raises_code

torch = pytest.importorskip("torch")


from retuned.contract import Definition, DType, TensorSpec  # noqa: E402
from retuned.errors import CandidateError, TemporaryError  # noqa: E402
from retuned.ports import CapturedInputs, CapturedTensor, CaptureRule, InputTap  # noqa: E402
from retuned.runtime import attach  # noqa: E402
from retuned.runtime_client.captures import (  # noqa: E402
    FakeInputTap,
    RuntimeCaptures,
    _described,
)

RULE = CaptureRule(every=1, samples=4, max_bytes=1 << 20, sample_bytes=1 << 16)
DEFINITION = Definition.model_validate(
    {
        "name": "scale",
        "op_type": "scale",
        "axes": {"M": {"type": "var"}, "N": {"type": "const", "value": 3}},
        "inputs": {
            "x": TensorSpec(shape=("M", "N"), dtype=DType.FLOAT32),
            "w": TensorSpec(shape=("N",), dtype=DType.FLOAT32, constant=True),
        },
        "outputs": {"y": TensorSpec(shape=("M", "N"), dtype=DType.FLOAT32)},
        "reference": "def run(x, w): ...",
    }
)


@dataclass
class World:
    """A tap, and how a launch comes to be."""

    tap: InputTap
    launch: Callable[[Any], None]


@pytest.fixture(params=["fake", "socket"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    if request.param == "fake":
        fake = FakeInputTap(slots=["scale"])

        def launch(x: Any) -> None:
            data = ctypes.string_at(x.data_ptr(), x.numel() * 4)
            tensor = CapturedTensor(dtype="float32", shape=tuple(x.shape), data=data)
            sample = CapturedInputs(axes={"M": x.shape[0]}, tensors={"x": tensor})
            if "scale" in fake.listening:
                fake.samples.setdefault("scale", []).append(sample)

        yield World(fake, launch)
        return
    runtime = attach(server="test", socket_dir=tmp_path / "s")
    slot = runtime.slot(DEFINITION.model_dump(mode="json"), original=lambda x, w: x * w)
    weight = torch.ones(3)

    def through_slot(x: Any) -> None:
        slot(x, weight)
        runtime._host.housekeeping()

    yield World(RuntimeCaptures(tmp_path / "s"), through_slot)
    runtime.close()


def test_nothing_is_there_before_somebody_listens(world: World) -> None:
    world.launch(torch.randn(2, 3))
    assert world.tap.captured(DEFINITION, max_bytes=1000) == []


def test_what_was_given_comes_back_bit_by_bit_and_ends_when_nobody_listens(world: World) -> None:
    world.tap.listen("scale", RULE)
    world.tap.listen("scale", RULE)
    x = torch.randn(2, 3)
    world.launch(x)
    (found,) = world.tap.captured(DEFINITION, max_bytes=1000)
    assert dict(found.axes) == {"M": 2}
    assert set(found.tensors) == {"x"}
    tensor = found.tensors["x"]
    assert (tensor.dtype, tensor.shape) == ("float32", (2, 3))
    assert tensor.data == ctypes.string_at(x.data_ptr(), 24)
    world.tap.listen("scale", None)
    assert world.tap.captured(DEFINITION, max_bytes=1000) == []


def test_what_is_over_the_budget_is_left_out(world: World) -> None:
    world.tap.listen("scale", RULE)
    world.launch(torch.randn(2, 3))
    assert world.tap.captured(DEFINITION, max_bytes=23) == []


def test_a_slot_that_is_not_there_is_refused(world: World) -> None:
    with raises_code(CandidateError, "unknown-slot", "other"):
        world.tap.listen("other", RULE)
    other = DEFINITION.model_copy(update={"name": "other"})
    with raises_code(CandidateError, "unknown-slot", "other"):
        world.tap.captured(other, max_bytes=1)


def test_no_server_is_a_reason_to_try_again(tmp_path: Path) -> None:
    for tap in (RuntimeCaptures(tmp_path), FakeInputTap(away=True)):
        with pytest.raises(TemporaryError):
            tap.listen("scale", RULE)


@pytest.mark.parametrize(
    "said",
    [
        None,
        {},
        {"id": "a", "key": [2], "tensors": []},
        {"id": "a", "key": [2, 2], "tensors": [{"name": "x", "dtype": "float32", "shape": [2, 3]}]},
        {"id": "a", "key": [2], "tensors": [{"name": "x", "dtype": "float64", "shape": [2, 3]}]},
        {"id": "a", "key": [2], "tensors": [{"name": "x", "dtype": "float32", "shape": [2, 4]}]},
        {"id": "a", "key": [-2], "tensors": [{"name": "x", "dtype": "float32", "shape": [-2, 3]}]},
        {"id": "a", "key": ["2"], "tensors": 7},
    ],
)
def test_words_that_do_not_fit_the_definition_are_left_out_before_a_byte_is_fetched(
    said: object,
) -> None:
    assert _described(said, DEFINITION) is None
