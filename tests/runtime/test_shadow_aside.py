"""Checks made aside, on a played device: its streams run when, and in the order, the test says.

Every operation is queued and does nothing until its stream is played. A tensor that nobody holds
any more is memory that the next launch on its own stream gets, as PyTorch's allocator has it: an
operation of another stream that touches it then is a fault.
"""

from __future__ import annotations

import math
import random
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.expect import raises_naming

from retuned.runtime.core.orders import parse_order
from retuned.runtime.core.slots import Slot
from retuned.runtime.native.interface import Ineligible
from retuned.runtime.schema import Refused
from retuned.runtime.shadow import device as shadow_device
from retuned.runtime.shadow.async_check import (
    FAILED,
    INCUMBENT_FAILED,
    LATE,
    STUCK,
    WEIGHTS_CHANGED,
    AsyncChecker,
    CheckSite,
)
from retuned.runtime.shadow.checker import Checker
from retuned.runtime.shadow.comparison import ElementFormat
from retuned.runtime.shadow.input_copies import KEEPER, InputCopier, budget_of
from retuned.runtime.shadow.outcome import PACE_EVERY, Judge
from retuned.runtime.shadow.pending_checks import (
    IN_FLIGHT,
    LOST,
    NO_ROOM,
    STUCK_S,
    TOO_LARGE,
    UNREADABLE,
    Checks,
)
from retuned.runtime.shadow.sampler import Sampler, Stratum, compare_tensors

DEFINITION = {
    "name": "scale",
    "op_type": "scale",
    "axes": {"M": {"type": "var"}},
    "inputs": {
        "x": {"shape": ["M"], "dtype": "float32"},
        "w": {"shape": ["M"], "dtype": "float32", "constant": True},
    },
    "outputs": {"y": {"shape": ["M"], "dtype": "float32"}},
}


class Memory:
    def __init__(self, data: list[float], home: str) -> None:
        self.data = data
        self.home = home
        self.freed = False


class Box:
    """A tensor: its memory is somebody else's once nobody holds it."""

    def __init__(self, data: Sequence[float], home: str = "served") -> None:
        self.memory = Memory(list(data), home)
        self.shape = (len(data),)
        self.dtype = "f32"
        self.version = 0

    def numel(self) -> int:
        return self.shape[0]

    def element_size(self) -> int:
        return 4

    def __del__(self) -> None:
        self.memory.freed = True


class Event:
    def __init__(self) -> None:
        self.done = False


class Played:
    """A device that does what is queued when it is played."""

    def __init__(self) -> None:
        self.streams: dict[str, deque[tuple[str, Any]]] = {"served": deque(), "aside": deque()}
        self.current = "served"
        self.rows: dict[int, list[float]] = {}
        self.faults: list[str] = []
        self.captured = False
        self.broken: Exception | None = None
        self.copies = 0
        self.no_copies = False
        self.span_ns: Callable[[], int] = lambda: 1000
        self.order: list[str] = []

    # --- what kernels do ---

    def run(self, name: str, work: Callable[[], None], *touched: Any) -> None:
        memories = [box.memory for box in touched]
        stream = self.current

        def op() -> None:
            if any(memory.freed and memory.home != stream for memory in memories):
                self.faults.append(name)
            self.order.append(name)
            work()

        self.streams[self.current].append(("run", op))

    def kernel(self, name: str, gain: float) -> Callable[..., Box]:
        def launch(x: Box, w: Box) -> Box:
            y = Box([math.nan] * x.numel(), self.current)
            a, b, out = x.memory, w.memory, y.memory

            def work() -> None:
                out.data = [gain * u * v for u, v in zip(a.data, b.data, strict=True)]

            self.run(name, work, x, w, y)
            return y

        return launch

    def write(self, box: Box, value: float) -> None:
        """What a server does with its own tensor: on its own stream."""
        memory = box.memory
        self.run("write", lambda: memory.data.__setitem__(slice(None), [value] * len(memory.data)))

    # --- what time does ---

    def play(self, chance: random.Random | None = None, *, only: str = "") -> None:
        """Run what can run, streams in any order."""
        while True:
            ready = [n for n, ops in self.streams.items() if self._can(ops) and only in ("", n)]
            if not ready:
                return
            name = chance.choice(ready) if chance else ready[0]
            kind, what = self.streams[name].popleft()
            if kind == "run":
                what()
            elif kind == "record":
                what.done = True

    @staticmethod
    def _can(ops: deque[tuple[str, Any]]) -> bool:
        return bool(ops) and (ops[0][0] != "wait" or ops[0][1].done)

    # --- the device that checks see ---

    def capturing(self) -> bool:
        return self.captured

    def copy(self, tensor: Box) -> Box:
        if self.no_copies:
            raise RuntimeError("out of memory")
        self.copies += 1
        made = Box([math.nan] * tensor.numel(), self.current)
        source, target = tensor.memory, made.memory
        self.run("copy", lambda: target.data.__setitem__(slice(None), source.data), tensor, made)
        return made

    glimpse = copy

    def form(self, tensor: Box) -> tuple[ElementFormat, int]:
        return ElementFormat(floating=True, bits=32), tensor.numel()

    def version(self, tensor: Box) -> int | None:
        return tensor.version

    def mark(self, *, timed: bool = False) -> Event:
        if self.broken is not None:
            raise self.broken
        event = Event()
        self.streams[self.current].append(("record", event))
        return event

    @contextmanager
    def aside(self, after: Event) -> Iterator[None]:
        self.streams["aside"].append(("wait", after))
        self.current = "aside"
        try:
            yield
        finally:
            self.current = "served"

    def measure(self, ours: Box, theirs: Box, tolerance: float) -> Box:
        assert self.current == "aside"
        made = Box([math.nan] * 8, self.current)
        a, b, out = ours.memory, theirs.memory, made.memory

        def work() -> None:
            pairs = list(zip(a.data, b.data, strict=True))
            odd = sum(math.isfinite(u) != math.isfinite(v) for u, v in pairs)
            both = [(u, v) for u, v in pairs if math.isfinite(u) and math.isfinite(v)]
            off = [abs(u - v) for u, v in both]
            square = sum(v * v for _, v in both)
            allowed = tolerance * math.sqrt(square / max(1, len(both)))
            largest = max(off, default=0.0)
            over = sum(each > allowed for each in off)
            unequal = sum(each > 0 for each in off)
            squares = sum(each * each for each in off)
            out.data = [odd, len(both), square, squares, largest, largest, over, unequal]

        self.run("measure", work, ours, theirs, made)
        return made

    def changed(self, before: Sequence[Box], after: Sequence[Box]) -> Box:
        made = Box([math.nan], self.current)
        pairs = [(b.memory, a.memory) for b, a in zip(before, after, strict=True)]
        out = made.memory

        def work() -> None:
            out.data = [float(sum(b.data != a.data for b, a in pairs))]

        self.run("changed", work, made, *before, *after)
        return made

    def send(self, numbers: Sequence[Box], *, place: int) -> None:
        memories = [box.memory for box in numbers]

        def work() -> None:
            self.rows[place] = [number for memory in memories for number in memory.data]

        self.run("send", work, *numbers)

    def received(self, count: int, *, place: int) -> list[float]:
        return self.rows.pop(place)[:count] if count else []

    def arrived(self, mark: Event) -> bool:
        if self.broken is not None:
            raise self.broken
        return mark.done

    def elapsed_ns(self, begin: Event, end: Event) -> int:
        assert begin.done
        assert end.done
        return self.span_ns()


class Order:
    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.errors: list[Exception] = []
        self.in_force = True

    def trip(self, reason: str, detail: str) -> None:
        self.reasons.append(reason)
        self.in_force = False

    def count_error(self, error: Exception) -> None:
        self.errors.append(error)

    def stands(self) -> bool:
        return self.in_force


class World:
    """A slot on a played device, and the checks of one order."""

    def __init__(self, *, gain: float = 2.0, places: int = 8, budget: int = 1 << 20) -> None:
        self.now_s = 0.0
        self.device = Played()
        self.original: Callable[..., Any] = self.device.kernel("original", 2.0)
        self.variant: Callable[..., Any] = self.device.kernel("variant", gain)
        self.slot = Slot(DEFINITION, lambda *inputs: self.original(*inputs))
        self.order = Order()
        self.keeper = InputCopier(budget)
        self.checks = Checks(places, keeper=self.keeper, clock=lambda: self.now_s)
        self.judge = Judge(an_order(), clock=lambda: self.now_s)
        self.stratum = Stratum()
        self.at = CheckSite(key=(4,), stratum=self.stratum, sampler=Sampler(1))
        self.weight = Box([1.0] * 4)
        self.aside = AsyncChecker(
            self.slot, order=self.order, judge=self.judge, tolerance=1e-3, checks=self.checks
        )

    def launch(self, inputs: tuple[Any, ...]) -> Any:
        return self.variant(*inputs)

    def served(self, *values: float) -> Any:
        x = Box(values or (1.0, 2.0, 3.0, 4.0))
        return self.aside.served(
            self.device, self.launch, self.launch, at=self.at, inputs=(x, self.weight)
        )

    def dark(self, *values: float) -> Any:
        x = Box(values or (1.0, 2.0, 3.0, 4.0))
        return self.aside.dark(self.device, self.launch, self.at, (x, self.weight))

    def play(self, seed: int = 0) -> None:
        self.device.play(random.Random(seed))
        self.checks.settle()

    @property
    def dropped(self) -> dict[str, int]:
        return self.judge.stats.dropped


def an_order() -> Any:
    body = {"id": "one", "kind": "swap", "definition": "scale", "guard": {}, "epoch": 1}
    return parse_order(body | {"artifact": "sha256:" + "a" * 64, "shadow_tolerance": 1e-3})


@pytest.fixture(params=["served", "dark"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_the_servers_stream_never_waits_for_a_check(mode: str) -> None:
    world = World()
    for _ in range(3):
        getattr(world, mode)()
    world.device.play(only="served")
    assert not world.device.streams["served"], "everything of the server's is done"
    assert {kind for kind, _ in world.device.streams["aside"]} == {"wait", "run", "record"}
    served = "variant" if mode == "served" else "original"
    assert world.device.order.count(served) == 3
    assert world.checks.settle() == 0, "no check has come back"
    assert (world.judge.stats.checks, world.checks.count) == (0, 3)
    world.play()
    assert (world.judge.stats.checks, world.checks.count, world.keeper.held_bytes) == (3, 0, 0)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32), st.sampled_from(["served", "dark"]), st.integers(1, 6))
def test_whatever_the_device_does_first_honest_kernels_agree_and_nothing_is_freed_too_soon(
    seed: int, mode: str, launches: int
) -> None:
    """The server goes on: it overwrites its inputs and outputs, and lets go of them."""
    world, chance = World(), random.Random(seed)
    for number in range(launches):
        output = getattr(world, mode)(*[chance.uniform(-9, 9) for _ in range(4)])
        world.device.write(output, 77.0 + number)
        del output
        if chance.random() < 0.5:
            world.device.play(chance, only=chance.choice(["served", "aside", ""]))
            world.checks.settle()
    world.play(seed)
    assert world.device.faults == []
    assert world.order.reasons == []
    assert (world.judge.stats.checks, world.judge.stats.mismatches) == (launches, 0)
    assert (world.keeper.held_bytes, world.checks.count, world.dropped) == (0, 0, {})


def test_without_what_is_held_the_played_device_would_see_freed_memory(mode: str) -> None:
    """The test above can fail."""
    world = World()
    getattr(world, mode)()
    for check in world.checks._taken:
        check.held.clear()
        check.about.before.clear()
    world.device.play()
    assert world.device.faults


def test_a_variant_that_is_wrong_is_taken_back_when_the_numbers_arrive(mode: str) -> None:
    world = World(gain=2.1)
    getattr(world, mode)()
    assert world.order.reasons == []
    world.play()
    assert world.order.reasons == ["shadow-mismatch"]
    assert (world.judge.stats.mismatched, world.judge.stats.mismatches) == (4, 1)


def test_nan_where_the_incumbent_has_none_is_taken_back(mode: str) -> None:
    world = World(gain=math.nan)
    getattr(world, mode)()
    world.play()
    assert world.order.reasons == ["shadow-nonfinite"]


def test_results_that_arrive_after_a_rollback_are_ignored(mode: str) -> None:
    world = World(gain=3.0)
    for _ in range(3):
        getattr(world, mode)()
    world.order.in_force = False
    world.play()
    assert world.order.reasons == []
    assert (world.judge.stats.checks, world.dropped) == (0, {LATE: 3})
    assert (world.checks.count, world.keeper.held_bytes) == (0, 0)


def test_of_several_wrong_results_the_first_takes_back_and_the_rest_is_late() -> None:
    world = World(gain=3.0)
    for _ in range(3):
        world.served()
    world.play()
    assert (world.order.reasons, world.dropped) == (["shadow-mismatch"], {LATE: 2})


def test_more_checks_than_may_be_under_way_are_left_out_and_counted(mode: str) -> None:
    world = World(places=2)
    for _ in range(5):
        assert getattr(world, mode)() is not None
    assert (world.checks.count, world.dropped) == (2, {IN_FLIGHT: 3})
    assert world.stratum.ran == 5
    world.play()
    assert world.judge.stats.checks == 2
    getattr(world, mode)()
    world.play()
    assert world.judge.stats.checks == 3, "places are given back"


def test_inputs_too_large_are_never_copied_and_others_wait_for_room(mode: str) -> None:
    world = World(budget=15)  # an input has 16 bytes
    getattr(world, mode)()
    assert (world.dropped, world.device.copies) == ({TOO_LARGE: 1}, 0)
    world = World(budget=47)  # with copies of both outputs it would be 48
    getattr(world, mode)()
    assert world.dropped == {TOO_LARGE: 1}
    world = World(budget=60)
    getattr(world, mode)()
    getattr(world, mode)()
    assert (world.dropped, world.keeper.held_bytes) == ({NO_ROOM: 1}, 48)
    world.play()
    assert (world.judge.stats.checks, world.keeper.held_bytes) == (1, 0)


def test_a_device_without_memory_leaves_the_check_out_and_serves(mode: str) -> None:
    world = World()
    world.device.no_copies = True
    output = getattr(world, mode)()
    world.play()
    assert output.memory.data == [2.0, 4.0, 6.0, 8.0]
    assert (world.dropped, world.keeper.held_bytes) == ({NO_ROOM: 1}, 0)


def test_nothing_is_checked_while_a_graph_is_captured(mode: str) -> None:
    world = World()
    world.device.captured = True
    getattr(world, mode)()
    assert (world.device.copies, world.dropped) == (0, {"capturing": 1})
    assert [kind for kind, _ in world.device.streams["aside"]] == []


def test_nobody_asks_the_device_while_a_graph_is_captured() -> None:
    world = World()
    world.served()
    world.device.play()

    def capturing() -> AbstractContextManager[None]:
        raise Refused("capturing", detail="a graph")

    world.device.broken = RuntimeError("asking now spoils the capture")
    assert world.checks.settle(capturing) == 0
    world.device.broken = None
    assert world.checks.settle() == 1


def test_a_check_that_never_comes_back_is_reported_once_and_keeps_what_it_holds() -> None:
    world = World(places=1)
    world.served()
    world.device.play(only="served")
    world.now_s = STUCK_S + 1.0
    for _ in range(3):
        world.checks.settle()
    assert world.dropped == {STUCK: 1}
    assert world.checks.state() == {"in_flight": 1, "stuck": 1, "held_bytes": 48}
    world.served()
    assert world.dropped == {STUCK: 1, IN_FLIGHT: 1}
    assert world.device.faults == []
    world.device.play()  # it comes back after all
    world.checks.settle()
    assert (world.judge.stats.checks, world.keeper.held_bytes) == (1, 0)


def test_a_lost_device_is_reported_and_its_memory_kept() -> None:
    world = World()
    world.served()
    world.device.broken = RuntimeError("an illegal memory access")
    world.checks.settle()
    world.checks.settle()
    assert (world.dropped, world.checks.count) == ({LOST: 1}, 1)
    assert world.judge.stats.checks == 0


def test_a_device_that_fails_while_a_check_is_queued_harms_no_launch(mode: str) -> None:
    world = World()
    world.device.broken = RuntimeError("no more events")
    assert getattr(world, mode)() is not None
    assert sum(world.dropped.values()) == 1
    assert world.checks.count == 1, "what may be running is kept"


def test_numbers_that_cannot_be_are_no_result() -> None:
    world = World()
    world.served()
    world.device.play()
    world.device.rows[0][2] = -1.0
    world.checks.settle()
    assert (world.dropped, world.judge.stats.checks) == ({UNREADABLE: 1}, 0)
    assert world.checks.count == 0


def test_an_incumbent_that_raises_on_copies_harms_no_launch() -> None:
    world = World()

    def refuses(*_: Any) -> Any:
        raise ValueError("only the server's own tensors")

    world.original = refuses
    output = world.served()
    world.play()
    assert output.memory.data == [2.0, 4.0, 6.0, 8.0]
    assert (world.dropped, world.checks.count) == ({INCUMBENT_FAILED: 1}, 0)
    assert world.order.errors == []


def test_a_variant_that_raises_is_the_variants_error_and_the_original_serves(mode: str) -> None:
    world = World()

    def broken(*_: Any) -> Any:
        raise OSError("no such luck")

    world.variant = broken
    output = getattr(world, mode)()
    world.play()
    assert output.memory.data == [2.0, 4.0, 6.0, 8.0]
    assert len(world.order.errors) == 1
    assert world.dropped == ({} if mode == "served" else {FAILED: 1})
    assert (world.checks.count, world.keeper.held_bytes) == (0, 0)


def test_a_launch_the_variant_cannot_take_is_the_originals(mode: str) -> None:
    world = World()
    world.variant = lambda *_: Ineligible("shape")
    output = getattr(world, mode)()
    world.play()
    assert output.memory.data == [2.0, 4.0, 6.0, 8.0]
    assert world.judge.stats.ineligible == {"shape": 1}
    assert (world.judge.stats.checks, world.checks.count) == (0, 0)


@pytest.mark.parametrize("which", [0, 1])
def test_a_variant_that_writes_to_what_it_reads_is_taken_back(mode: str, which: int) -> None:
    world = World()
    honest = world.variant

    def meddling(*inputs: Box) -> Any:
        output = honest(*inputs)
        world.device.write(inputs[which], 5.0)
        return output

    world.variant = meddling
    getattr(world, mode)()
    world.play()
    assert world.order.reasons == ["input-modified"]


def test_weights_that_the_server_writes_to_meanwhile_are_no_mismatch() -> None:
    world = World()
    world.served()
    world.device.play(only="served")
    world.device.write(world.weight, 9.0)
    world.weight.version += 1
    world.play()
    assert (world.order.reasons, world.dropped) == ([], {WEIGHTS_CHANGED: 1})


def test_outputs_of_another_form_count_as_the_variants_error(mode: str) -> None:
    world = World()
    world.variant = lambda *_: Box([1.0])
    getattr(world, mode)()
    world.play()
    assert len(world.order.errors) == 1
    assert (world.judge.stats.checks, world.checks.count) == (0, 0)


def test_a_slow_variant_is_taken_back_by_the_devices_own_clock() -> None:
    world = World()
    spans = iter([10_000, 90_000, 10_000] * 10_000)  # the last is the comparison's
    world.device.span_ns = lambda: next(spans) if world.checks._taken[0].about.timed else 10_000
    launches = 0
    while world.order.in_force and launches < 400 * PACE_EVERY:
        world.served()
        world.play()
        launches += 1
    assert world.order.reasons == ["slow"]
    assert world.judge.slowdown == 9.0


def test_what_checks_take_on_the_device_counts_as_their_cost() -> None:
    world = World()
    spans = iter([500_000_000, 250_000_000])  # the incumbent's, the comparison's
    world.device.span_ns = lambda: next(spans)
    world.served()
    world.play()
    assert next(spans, None) is None
    assert world.judge.cost.spent_s >= 0.75


def test_a_forked_child_starts_without_its_parents_checks() -> None:
    world = World()
    world.served()
    world.checks.abandon()
    assert (world.checks.count, world.checks.settle()) == (0, 0)
    world.device.play()
    assert world.device.faults == [], "what the parent's device uses is not given back"


def test_threads_that_launch_while_the_control_thread_looks_lose_no_place_and_no_byte() -> None:
    """Every check is handed over once, whoever begins, ends or looks at it meanwhile."""
    keeper = InputCopier(1 << 30)
    checks = Checks(4, keeper=keeper)
    device, handed = Played(), []
    reached = Event()
    reached.done = True
    device.received = lambda count, *, place: []  # type: ignore[method-assign]

    class Taking:
        def arrived(self, check: Any) -> None:
            handed.append(check)

        def lost(self, check: Any, reason: str) -> None:
            raise AssertionError(reason)

        def stuck(self, check: Any, seconds: float) -> None:
            raise AssertionError(seconds)

    begun: list[int] = []

    def launch() -> None:
        mine = 0
        for size in range(2_000):
            check = checks.begin(device, Taking(), None, size=size)
            if isinstance(check, str):
                assert check == IN_FLIGHT
                continue
            assert checks.grow(check, 5) is None
            if size % 7 == 0:
                checks.drop(check)
                continue
            mine += 1
            check.held.append(object())
            check.count = 1
            check.end = reached
        begun.append(mine)

    threads = [threading.Thread(target=launch) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        checks.settle()
    checks.settle()
    assert len(begun) == 4
    assert len(handed) == len({id(check) for check in handed}) == sum(begun) > 0
    assert (checks.count, keeper.held_bytes) == (0, 0)


class Kernel:
    """A variant over boxes or tensors."""

    def __init__(self, run: Callable[..., Any]) -> None:
        self.run = run

    def fingerprint(self, inputs: tuple[Any, ...]) -> object:
        return 0

    def launcher(self, _: tuple[int, ...]) -> Any:
        return lambda inputs: self.run(*inputs)

    checked_launcher = launcher

    def capturing(self) -> None:
        return None


def checker(world: World, variant: Callable[..., Any], **fields: Any) -> Checker:
    return Checker(
        world.slot,
        Kernel(variant),
        order=world.order,
        judge=world.judge,
        compare=fields.pop("compare", compare_tensors),
        tolerance=1e-3,
        checks=world.checks,
        device_of=lambda inputs, *, dense=True: world.device,
    )


def test_the_first_launch_of_a_bucket_is_checked_in_line_and_a_wrong_answer_is_not_served() -> None:
    world = World()
    world.original = lambda x, w: x * 2
    checks = checker(world, lambda x, w: x * 3)
    x, w = torch.ones(4), torch.ones(4)
    launch = Kernel(lambda x, w: x * 3).launcher((4,))
    assert torch.equal(checks.served(launch, launch, world.at, (x, w)), x * 2)
    assert world.order.reasons == ["shadow-mismatch"]
    assert world.checks.count == 0


def test_what_is_checked_in_line_is_the_originals_while_a_graph_is_captured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    world.original = lambda x, w: x * 2
    monkeypatch.setattr("retuned.runtime.shadow.checker.captures_under_way", lambda: True)
    own = checker(world, lambda x, w: x * 3, compare=lambda a, b, t: compare_tensors(a, b, t))
    x, w = torch.ones(4), torch.ones(4)
    launch = Kernel(lambda x, w: x * 3).launcher((4,))
    assert torch.equal(own.served(launch, launch, world.at, (x, w)), x * 2)
    assert torch.equal(own.dark(launch, world.at, (x, w)), x * 2)
    assert (world.judge.stats.checks, world.dropped) == (0, {"capturing": 2})
    assert world.stratum.ran == 0, "the check is still due"


def test_a_capture_by_any_thread_is_known() -> None:
    from retuned.runtime.graphs.process import process_graphs

    graph = type("Graph", (), {})()
    gate = process_graphs().gate
    assert not shadow_device.captures_under_way()
    gate.begin(graph)
    try:
        assert shadow_device.captures_under_way()
    finally:
        gate.end(graph)
    assert not shadow_device.captures_under_way()


def test_captures_are_held_off_while_a_device_is_asked_and_none_may_be_under_way() -> None:
    from retuned.runtime.graphs.process import process_graphs

    graph = type("Graph", (), {})()
    gate = process_graphs().gate
    began: list[bool] = []

    def capture() -> None:
        gate.begin(graph)
        began.append(True)
        gate.end(graph)

    with shadow_device.quiet():
        gate.end(graph)  # as a finaliser does that runs meanwhile, and resets a graph
        other = threading.Thread(target=capture)
        other.start()
        other.join(0.05)
        assert not began
    other.join(120)
    assert began
    gate.begin(graph)
    try:
        with raises_naming(Refused, "captured"), shadow_device.quiet():
            pass
    finally:
        gate.end(graph)


def test_numbers_arrive_whatever_mode_the_first_and_the_later_launches_were_made_in() -> None:
    cuda = SimpleNamespace(device=lambda _: nullcontext(), Stream=lambda **_: object())
    stands_in = SimpleNamespace(
        cuda=cuda,
        cat=torch.cat,
        float64=torch.float64,
        inference_mode=torch.inference_mode,
        zeros=lambda *shape, dtype, pin_memory: torch.zeros(*shape, dtype=dtype),
    )
    with torch.inference_mode():
        device = shadow_device.TorchShadow(stands_in, 0)
        device.send([torch.ones(2, dtype=torch.float64)], place=0)
    device.send([torch.full((3,), 2.0, dtype=torch.float64)], place=1)
    assert device.received(2, place=0) == [1.0, 1.0]
    assert device.received(3, place=1) == [2.0] * 3


def test_a_launch_that_cannot_be_taken_apart_is_checked_in_line() -> None:
    world = World()
    world.original = lambda x, w: x * 2
    variant = Kernel(lambda x, w: x * 2)

    def refuses(*_: Any) -> Any:
        raise RuntimeError("no storage")

    variant.detached = refuses  # type: ignore[attr-defined]
    checks = Checker(
        world.slot,
        variant,
        order=world.order,
        judge=world.judge,
        compare=compare_tensors,
        tolerance=1e-3,
        checks=world.checks,
        device_of=lambda inputs, *, dense=True: None,
    )
    world.stratum.checks = 1
    x, launch = torch.ones(4), variant.launcher((4,))
    assert torch.equal(checks.served(launch, launch, world.at, (x, x)), x * 2)
    assert torch.equal(checks.dark(launch, world.at, (x, x)), x * 2)
    assert (world.judge.stats.checks, world.checks.count) == (2, 0)


def test_more_outputs_than_a_check_made_aside_has_room_for_are_compared_in_line() -> None:
    names = [f"y{number}" for number in range(shadow_device.MAX_OUTPUTS + 1)]
    outputs = {name: {"shape": ["M"], "dtype": "float32"} for name in names}
    world = World()
    world.slot = Slot({**DEFINITION, "outputs": outputs}, lambda x, w: (x,) * len(names))
    world.stratum.checks = 1
    checks = checker(world, lambda x, w: (x,) * len(names))
    launch = Kernel(lambda x, w: (x,) * len(names)).launcher((4,))
    checks.served(launch, launch, world.at, (torch.ones(4), torch.ones(4)))
    assert (world.judge.stats.checks, world.checks.count) == (1, 0)


def test_later_launches_and_those_in_the_shadow_are_checked_aside() -> None:
    world = World()
    checks = checker(world, world.variant)
    world.stratum.checks = 1
    inputs = (Box([1.0] * 4), world.weight)
    checks.served(world.launch, world.launch, world.at, inputs)
    checks.dark(world.launch, world.at, inputs)
    assert world.checks.count == 2
    world.play()
    assert world.judge.stats.checks == 2


def test_somebodys_own_comparison_is_made_in_line() -> None:
    world = World()
    world.original = lambda x, w: x
    own = checker(world, lambda x, w: x, compare=lambda a, b, t: compare_tensors(a, b, t))
    world.stratum.checks = 1
    x = torch.ones(4)
    own.served(lambda inputs: inputs[0], lambda inputs: inputs[0], world.at, (x, x))
    assert (world.checks.count, world.judge.stats.checks) == (0, 1)


def test_launches_that_are_not_all_on_one_gpu_are_checked_in_line() -> None:
    assert shadow_device.shadow_device((torch.ones(4),)) is None
    assert shadow_device.shadow_device(()) is None
    assert shadow_device.shadow_device((object(),)) is None


def test_the_budget_is_a_setting_and_nonsense_is_not_taken() -> None:
    assert budget_of({"RETUNED_SHADOW_BYTES": "0"}) == 0
    for nonsense in ("-1", "many", "1e9", "9" * 30, "²"):
        assert budget_of({"RETUNED_SHADOW_BYTES": nonsense}) == budget_of({})
    assert KEEPER.budget_bytes == budget_of({})
