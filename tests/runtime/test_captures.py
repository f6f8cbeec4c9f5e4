"""Samples of inputs: taken only where asked for, rarely, within a budget, and never in the way."""

from __future__ import annotations

import base64
import contextlib
import ctypes
import random
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.expect import raises_code  # noqa: E402

from retuned.runtime import attach  # noqa: E402
from retuned.runtime.captured.reservoir import MAX_KEYS, CaptureRule, Reservoir  # noqa: E402
from retuned.runtime.schema import Refused, parse_spec  # noqa: E402

RULE = {"every": 1, "samples": 2, "max_bytes": 1 << 20, "sample_bytes": 1 << 16}


class Server:
    def __init__(self, kit: Any, layer: Any) -> None:
        self.layer, self.kit = layer, kit
        self.runtime = attach(server="test")
        self.slot = self.runtime.slot(kit.definition(), kit.original)

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        return self.runtime._host.answer({"op": op, "definition": "linear_n16_k32", **fields})

    def launch(self, x: Any) -> Any:
        return self.slot(x, self.layer.wq, self.layer.scale)

    def taken(self) -> list[dict[str, Any]]:
        self.runtime._host.housekeeping()
        return list(self.ask("captured")["samples"])


@pytest.fixture
def server(linear_test_kit: Any, layer: Any) -> Iterator[Server]:
    made = Server(linear_test_kit, layer)
    yield made
    made.runtime.close()


def test_nothing_is_taken_unless_somebody_asked(server: Server) -> None:
    server.launch(torch.randn(4, 32))
    assert server.taken() == []
    assert server.slot.table[4][1] is server.kit.original, "no launch pays for what is off"


def test_no_sample_is_waited_for_while_a_graph_is_captured(server: Server) -> None:
    from retuned.runtime.graphs.process import process_graphs

    server.ask("capture", rule=RULE)
    server.launch(torch.randn(4, 32))
    graph = type("Graph", (), {})()
    gate = process_graphs().gate
    gate.begin(graph)
    try:
        assert server.taken() == []
    finally:
        gate.end(graph)
    assert len(server.taken()) == 1


def test_a_sample_is_what_the_launch_was_given_even_if_that_changes_later(server: Server) -> None:
    server.launch(torch.randn(4, 32))
    assert server.ask("capture", rule=RULE) == {"capturing": True}
    x = torch.randn(4, 32)
    before = x.clone()
    answer = server.launch(x)
    torch.testing.assert_close(
        answer, server.kit.original(before, server.layer.wq, server.layer.scale)
    )
    x.zero_()
    (sample,) = server.taken()
    assert sample["key"] == [4]
    assert sample["tensors"] == [
        {"name": "x", "dtype": "float32", "shape": [4, 32], "bytes": 512}
    ], "weights are never taken"
    part = server.ask("captured-tensor", sample=sample["id"], tensor="x", offset=0)
    whole = base64.b64decode(part["data"])
    assert whole == ctypes.string_at(before.data_ptr(), 512)
    rest = server.ask("captured-tensor", sample=sample["id"], tensor="x", offset=500)
    assert base64.b64decode(rest["data"]) == whole[500:]


def test_asking_again_keeps_what_was_taken_and_ending_forgets_it(server: Server) -> None:
    server.ask("capture", rule=RULE)
    server.launch(torch.randn(4, 32))
    assert len(server.taken()) == 1
    server.ask("capture", rule=RULE)
    assert len(server.taken()) == 1
    assert server.ask("capture", rule=None) == {"capturing": False}
    assert server.taken() == []
    assert server.slot.table[4][1] is server.kit.original
    server.ask("capture", rule=RULE)
    server.launch(torch.randn(4, 32))
    server.runtime._host.reset()
    assert server.taken() == [], "a forked child begins without"


def test_a_swapped_slot_is_sampled_too(server: Server, build: Any) -> None:
    server.launch(torch.randn(4, 32))
    built = build()
    order = server.kit.order(built.digest)
    server.ask("prepare", order=order, artifact_dir=str(built.folder))
    server.ask("commit", order=order)
    server.ask("capture", rule=RULE)
    with torch.inference_mode():
        server.launch(torch.randn(4, 32))
    assert len(server.taken()) == 1
    (sample,) = server.ask("samples")["samples"]
    assert sample["swapped_launches"] == 1


@pytest.mark.parametrize(
    "rule",
    [1, {}, RULE | {"every": 0}, RULE | {"samples": True}, RULE | {"max_bytes": 2**40}],
)
def test_a_rule_without_sense_is_refused(server: Server, rule: Any) -> None:
    with raises_code(Refused, "bad-request"):
        server.ask("capture", rule=rule)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"sample": "x", "tensor": "x"}, "unknown-sample"),
        ({"sample": None, "tensor": None, "offset": -1}, "bad-request"),
        ({"offset": "0"}, "bad-request"),
        ({"definition": "other"}, "unknown-slot"),
    ],
)
def test_what_is_not_there_cannot_be_had(
    server: Server, fields: dict[str, Any], reason: str
) -> None:
    with pytest.raises(Refused) as refused:
        server.ask("captured-tensor", **fields)
    assert refused.value.reason == reason


def test_a_server_may_forbid_it(
    monkeypatch: pytest.MonkeyPatch, linear_test_kit: Any, layer: Any
) -> None:
    monkeypatch.setenv("RETUNED_CAPTURE", "off")
    server = Server(linear_test_kit, layer)
    with raises_code(Refused, "capture-forbidden"):
        server.ask("capture", rule=RULE)
    server.runtime.close()


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def reservoir(kit: Any, clock: Clock, **fields: int) -> Reservoir:
    rule = CaptureRule(**(RULE | fields))
    spec = parse_spec(kit.definition())
    return Reservoir(spec, rule, random_source=random.Random(5), now_s=clock)


def test_exactly_one_launch_of_a_block_is_offered_at_a_place_nobody_knows(
    linear_test_kit: Any, layer: Any
) -> None:
    clock = Clock()
    found = reservoir(linear_test_kit, clock, every=10, samples=64)
    seen: list[int] = []
    run = found.wrap((1,), lambda *_: None)
    for number in range(200):
        clock.now_s += 1.0
        before = len(found.samples())
        run(torch.randn(1, 32), layer.wq, layer.scale)
        found.settle()
        seen += [number] * (len(found.samples()) - before)
    assert [number // 10 for number in seen] == list(range(20))
    assert len({number % 10 for number in seen}) > 3


def test_budgets_of_count_bytes_size_time_and_shapes_hold(linear_test_kit: Any, layer: Any) -> None:
    clock = Clock()

    def offered(found: Reservoir, rows: int, *, times: int, gap_s: float = 1.0) -> int:
        run = found.wrap((rows,), lambda *_: None)
        for _ in range(times):
            clock.now_s += gap_s
            run(torch.randn(rows, 32), layer.wq, layer.scale)
            found.settle()
        return len(found.samples())

    assert offered(reservoir(linear_test_kit, clock), 1, times=20) == 2
    assert offered(reservoir(linear_test_kit, clock, samples=9, max_bytes=400), 1, times=9) == 3
    assert offered(reservoir(linear_test_kit, clock, sample_bytes=127), 1, times=9) == 0
    assert offered(reservoir(linear_test_kit, clock, samples=9), 1, times=9, gap_s=0.0) == 1
    many = reservoir(linear_test_kit, clock, samples=1)
    assert [offered(many, rows, times=1) for rows in range(1, MAX_KEYS + 3)][-1] == MAX_KEYS


@pytest.mark.parametrize("odd", ["text", "shape", "dtype", "fewer"])
def test_inputs_that_are_not_the_definitions_give_nothing_and_the_kernel_runs(
    linear_test_kit: Any, layer: Any, odd: str
) -> None:
    found = reservoir(linear_test_kit, Clock())
    ran = []
    run = found.wrap((4,), lambda *inputs: ran.append(inputs))
    x = {
        "text": "no tensor",
        "shape": torch.randn(3, 32),
        "dtype": torch.randn(4, 32, dtype=torch.float64),
        "fewer": None,
    }[odd]
    run(*([x, layer.wq, layer.scale] if x is not None else []))
    found.settle()
    assert len(ran) == 1
    assert found.samples() == []


def test_samples_that_wait_for_a_busy_control_thread_do_not_take_each_others_place(
    linear_test_kit: Any, layer: Any
) -> None:
    clock = Clock()
    found = reservoir(linear_test_kit, clock)
    run = found.wrap((4,), lambda *_: None)
    for _ in range(2):
        clock.now_s += 1.0
        run(torch.randn(4, 32), layer.wq, layer.scale)
    found.settle()
    assert len(found.samples()) == 2


class FakeTensor:
    """What lies on the second of two devices."""

    dtype, shape, device, is_cuda = "torch.float32", (4, 32), "second", True

    def numel(self) -> int:
        return 128

    def element_size(self) -> int:
        return 4

    def detach(self) -> FakeTensor:
        return self

    def clone(self) -> FakeTensor:
        return self


class FakeCuda:
    """Says which device was current when somebody asked or recorded."""

    def __init__(self) -> None:
        self.current = "first"
        self.asked: list[str] = []

    @contextlib.contextmanager
    def device(self, name: str) -> Iterator[None]:
        before, self.current = self.current, name
        yield
        self.current = before

    def is_current_stream_capturing(self) -> bool:
        self.asked.append(self.current)
        return False

    def Event(self) -> SimpleNamespace:
        return SimpleNamespace(record=lambda: self.asked.append(self.current))


def test_the_end_of_a_clone_is_noted_on_the_stream_of_its_own_device(
    linear_test_kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = FakeCuda()
    fake = SimpleNamespace(
        Tensor=FakeTensor, cuda=cuda, inference_mode=lambda: contextlib.nullcontext()
    )
    found = reservoir(linear_test_kit, Clock())
    run = found.wrap((4,), lambda *_: None)
    monkeypatch.setitem(sys.modules, "torch", fake)
    run(FakeTensor(), None, None)
    assert cuda.asked == ["second", "second"]
