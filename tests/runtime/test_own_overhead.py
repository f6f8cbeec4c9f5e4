"""Wrappers leave the server's calls for the time of a block, and return whatever happens."""

from __future__ import annotations

from typing import Any

import pytest
from tests.expect import raises_code

from retuned.runtime.core.host import RuntimeHost
from retuned.runtime.core.own_overhead import OwnOverhead
from retuned.runtime.graphs.torch_graphs import TorchGraphs
from retuned.runtime.schema import Refused
from retuned.runtime.steps.composition import Composition
from retuned.runtime.steps.hook import Steps
from retuned.runtime.steps.log import LEASE_S, StepLog


class Wrapped:
    """Notes whether it is in the server's calls."""

    def __init__(self) -> None:
        self.within = True

    def suspend(self) -> None:
        self.within = False

    def resume(self) -> None:
        self.within = True


class World:
    """An arm over two wrappers, with a clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.steps = Steps()
        self.steps.log = StepLog(now_s=lambda: self.now_s)
        self.swapped = ""
        self.parts = {"launches": Wrapped(), "graphs": Wrapped()}
        self.made = OwnOverhead(
            self.steps,
            wrappers=lambda: self.parts,
            in_force=lambda: self.swapped,
            stays=lambda: ["operators"],
            now_s=lambda: self.now_s,
        )

    @property
    def within(self) -> set[bool]:
        return {each.within for each in self.parts.values()}

    def mark_step(self) -> None:
        """Run one step of a server that marks them."""
        assert self.steps.enter(Composition(0, 1, 1))
        self.steps.leave(failed=False)

    def arm(self, *, on: bool, label: str = "1-0-off") -> dict[str, Any]:
        return self.made.answer({"on": on, "arm": label})


@pytest.fixture
def world() -> World:
    made = World()
    made.steps.log.start()
    return made


def test_wrappers_leave_and_return_with_the_label_of_their_block(world: World) -> None:
    out = world.arm(on=False)
    assert world.within == {False}
    assert (out["on"], out["arm"], out["stays"]) == (False, "1-0-off", ["operators"])
    back = world.arm(on=True, label="1-1-on")
    assert world.within == {True}
    assert (back["on"], back["arm"], world.steps.log.arm) == (True, "1-1-on", "1-1-on")


def test_some_wrappers_can_leave_alone(world: World) -> None:
    out = world.made.answer({"on": False, "arm": "1-0-off", "parts": ["graphs"]})
    assert not out["on"]
    assert set(out["parts_us"]) == {"launches", "graphs"}
    assert [each.within for each in world.parts.values()] == [True, False]
    world.made.answer({"on": False, "arm": "1-1-off", "parts": ["launches"]})
    assert [each.within for each in world.parts.values()] == [False, True]
    world.arm(on=True)
    assert world.within == {True}


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"on": 1},
        {"on": False, "arm": ""},
        {"on": None},
        {"on": False, "parts": []},
        {"on": False, "parts": "graphs"},
        {"on": False, "parts": ["others"]},
    ],
)
def test_a_bad_request_changes_nothing(world: World, request_: dict[str, Any]) -> None:
    with raises_code(Refused, "bad-request"):
        world.made.answer(request_)
    assert world.within == {True}


def test_wrappers_stay_where_no_steps_are_recorded(world: World) -> None:
    world.steps.log.stop()
    with raises_code(Refused, "not-recording"):
        world.arm(on=False)
    assert world.within == {True}


def test_wrappers_stay_where_a_swap_needs_them(world: World) -> None:
    world.swapped = "rms_norm"
    with raises_code(Refused, "swap-in-force"):
        world.arm(on=False)
    assert world.within == {True}
    assert world.arm(on=True, label="1-1-on")["on"] is True  # the way back is never closed


TURNS = [["1-0-on", True], ["1-1-off", False], ["1-2-off", False], ["1-3-on", True]]


def test_the_launching_thread_takes_turns_itself(world: World) -> None:
    said = world.made.answer({"on": False, "turns": TURNS, "steps": 2})
    assert (said["turns"], world.within) == (4, {True})
    seen = []
    for _ in range(10):
        world.mark_step()
        seen.append((world.steps.log.arm, world.within == {True}))
    assert seen == [
        *[("1-0-on", True)] * 2,
        *[("1-1-off", False)] * 2,
        *[("1-2-off", False)] * 2,
        *[("1-3-on", True)] * 2,
        *[("", True)] * 2,
    ]
    assert world.steps.turns is None


def test_turns_end_with_the_recording(world: World) -> None:
    world.made.answer({"on": False, "turns": TURNS[1:], "steps": 2})
    world.mark_step()
    assert world.within == {False}
    world.now_s += LEASE_S + 1.0
    world.made.tend()
    assert (world.within, world.steps.turns, world.steps.log.arm) == ({True}, None, "")
    world.mark_step()
    assert world.within == {True}


def test_work_that_needs_the_wrappers_ends_turns_that_have_not_begun(world: World) -> None:
    world.made.answer({"on": False, "turns": TURNS[1:], "steps": 2})
    world.made.end()
    world.mark_step()
    assert (world.within, world.steps.log.arm) == ({True}, "")


@pytest.mark.parametrize(
    "turns",
    [[], [["a"]], [["a", 1]], [["", True]], "ab", [["a", True]] * 65, [[None, True]]],
)
def test_turns_are_labels_and_whether_the_arm_is_on(world: World, turns: object) -> None:
    with raises_code(Refused, "bad-request"):
        world.made.answer({"on": False, "turns": turns, "steps": 2})
    for steps in (0, 65, True, None, "2"):
        with raises_code(Refused, "bad-request"):
            world.made.answer({"on": False, "turns": TURNS, "steps": steps})
    assert world.steps.turns is None


def test_wrappers_return_when_the_daemon_is_gone(world: World) -> None:
    world.arm(on=False)
    world.now_s += LEASE_S
    world.made.tend()
    assert world.within == {False}
    world.now_s += 1.0
    world.made.tend()
    assert world.within == {True}
    assert world.steps.log.arm == ""


def test_wrappers_return_at_once_before_work_that_needs_them(world: World) -> None:
    world.arm(on=False)
    world.made.end()
    assert world.within == {True}
    assert world.steps.log.arm == ""  # the rest of the block belongs to no arm


def share_within(world: World, *, seconds: float = 100.0) -> float:
    """Let time pass; return the share of it with the wrappers in the server's calls."""
    within, ticks = 0, int(seconds * 20)
    for _ in range(ticks):
        world.now_s += 0.05
        world.made.tend()
        within += world.within == {True}
    return within / ticks


def test_wrappers_are_in_the_calls_for_a_share_of_the_time(world: World) -> None:
    world.steps.log.stop()
    assert share_within(world) == 1.0
    world.made.set_share({"op": "overhead-share", "share": 0.1})
    before = world.made.state()
    assert share_within(world) == pytest.approx(0.1, abs=0.02)
    assert not world.made.out, "windows of a profiler are not held back"
    now = world.made.state()
    assert now["out_s"] - before["out_s"] == pytest.approx(90.0, abs=2.0)
    assert now["now_s"] - before["now_s"] == pytest.approx(100.0, abs=0.1)
    world.made.set_share({"op": "overhead-share", "share": 1.0})
    assert share_within(world) > 0.999


def test_wrappers_stay_while_a_swap_or_a_measurement_needs_them(world: World) -> None:
    world.made.set_share({"share": 0.1})
    world.swapped = "rms_norm"
    assert share_within(world) == 1.0
    world.swapped = ""
    world.steps.log.start()
    assert share_within(world, seconds=30.0) == 1.0, "steps are recorded"
    world.steps.log.stop()
    assert share_within(world) < 0.2
    world.made.end()  # a swap is prepared
    assert world.within == {True}
    assert share_within(world, seconds=500.0) == 1.0
    assert share_within(world, seconds=400.0) < 0.9


@pytest.mark.parametrize("share", [0.0, 1.1, "0.1", None])
def test_a_share_is_a_number_up_to_one(world: World, share: object) -> None:
    with raises_code(Refused, "bad-request"):
        world.made.set_share({"share": share})


def test_a_host_brings_them_back_before_a_swap_and_at_its_end() -> None:
    host, part = RuntimeHost("kept"), Wrapped()
    host.overhead = OwnOverhead(host.steps, wrappers=lambda: {"part": part}, in_force=str)

    def out() -> None:
        host.steps.log.start()
        host.overhead.answer({"on": False, "arm": "a"})
        assert not part.within

    out()
    with raises_code(Refused, "order-invalid"):
        host.answer({"op": "prepare"})
    assert part.within
    out()
    host.reset()
    assert part.within


def test_a_hosts_own_wrappers_can_all_leave() -> None:
    host = RuntimeHost("kept")
    host.steps.log.start()
    assert host.answer({"op": "overhead-arm", "on": False, "arm": "a"})["on"] is False
    assert host.answer({"op": "overhead-arm", "on": True, "arm": "b"})["on"] is True


class Watcher:
    """Follows nothing."""

    unknowns = 0

    def began(self, graph: Any) -> None:
        pass

    def ended(self, graph: Any, *, ok: bool) -> None:
        pass

    def gone(self, graph: Any) -> None:
        pass

    def unknown(self) -> None:
        self.unknowns += 1


@pytest.mark.parametrize("own", [True, False], ids=["own-method", "of-the-base"])
def test_replays_are_the_servers_own_while_they_are_not_counted(own: bool) -> None:
    class Base:
        def __getattr__(self, name: str) -> Any:
            raise AttributeError(name)

        def capture_begin(self) -> None: ...
        def capture_end(self) -> None: ...
        def reset(self) -> None: ...
        def replay(self) -> str:
            return "replayed"

    class Graph(Base):
        pass

    if own:
        Graph.replay = Base.replay  # type: ignore[method-assign]
    module = type("Torch", (), {"cuda": type("Cuda", (), {"CUDAGraph": Graph})})
    stock, watcher = dict(vars(Graph)), Watcher()
    graphs = TorchGraphs(watcher)
    assert graphs.watch(module)
    for _ in range(2):
        graphs.suspend()
        assert Graph().replay() == "replayed"
    assert watcher.unknowns == 0
    for _ in range(2):
        graphs.resume()
    assert Graph().replay() == "replayed"
    assert watcher.unknowns == 1
    graphs.suspend()
    graphs.uninstall()
    graphs.resume()
    assert {k: v for k, v in vars(Graph).items() if not k.startswith("__")} == {
        k: v for k, v in stock.items() if not k.startswith("__")
    }


def test_a_block_of_a_live_proof_holds_profiler_windows_back() -> None:
    host, now_s = RuntimeHost("kept"), [0.0]
    host.steps.log = StepLog(now_s=lambda: now_s[0])
    assert host.why_no_window() == ""
    host.steps.log.start()
    assert host.why_no_window() == "", "steps are recorded before a swap, too: no block is labelled"
    host.steps.log.arm = "31-0-on"
    assert host.why_no_window() == "steps-timed"
    now_s[0] = LEASE_S + 1.0
    assert host.why_no_window() == "", "the daemon is gone"
    host.steps.log.start()
    host.answer({"op": "overhead-arm", "on": False, "arm": "a"})
    assert host.why_no_window() == "overhead-measured"
