"""Tables and orders without a kernel: what is parsed, refused, captured and put back."""

from __future__ import annotations

import json
import sys
import time
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.expect import raises_code

from retuned.runtime.artifacts.trust import Trust
from retuned.runtime.core.epochs import Fence
from retuned.runtime.schema import Refused
from retuned.runtime.tunables import captures
from retuned.runtime.tunables.records import (
    Capture,
    bucket,
    canonical,
    digest_of_text,
    parse_table,
)
from retuned.runtime.tunables.service import Tunables
from retuned.runtime.tunables.state import MAX_CLASSES, Tunable, spec_of, timed

SOURCE = "sha256:" + "1" * 64


def table(name: str, *, captures: Sequence[int] = (), **changed: Any) -> str:
    body: dict[str, Any] = {
        "format": "table",
        "tunable": name,
        "family": "played",
        "source": SOURCE,
        "rules": [{"when": {"rows": [1, 64]}, "config": {"tile": 32}}],
        "captures": [{"size": size, "axes": {"longest": 8192}} for size in captures],
        "before": None,
    }
    return canonical({**body, **changed})


def tunable(kernel: str = "k") -> Tunable:
    return Tunable(
        "played",
        kernel=kernel,
        module="m",
        source=SOURCE,
        geometry={},
        axes=("rows",),
        space={},
        check=lambda _: None,
    )


@given(st.integers(1, 2**40))
def test_a_size_lies_in_its_own_class(size: int) -> None:
    assert bucket(size) // 2 < size <= bucket(size)


@pytest.mark.parametrize(
    "changed",
    [
        {"rules": [{"when": {"rows": [2, 1]}, "config": {"a": 1}}]},
        {"rules": [{"when": {"rows": [1]}, "config": {"a": 1}}]},
        {"rules": [{"when": {"rows": [1, True]}, "config": {"a": 1}}]},
        {"rules": [{"when": {"Rows!": [1, 2]}, "config": {"a": 1}}]},
        {"rules": [{"when": {}, "config": {}}]},
        {"rules": [{"when": {}}]},
        {"rules": [{"when": {}, "config": {"a": 1}}] * 65},
        {"captures": [{"size": 0}]},
        {"captures": [{"size": 4, "axes": {"longest": -1}}]},
        {"format": "moe-vllm"},
        {"before": "sha256:short"},
        {"family": ""},
        {"capture_after_s": "2m"},
        {"capture_share": 0},
        {"capture_share": True},
        {"capture_share": "0.2"},
        {"unknown": 1},
    ],
)
def test_a_table_that_is_not_understood_is_refused(changed: dict[str, Any]) -> None:
    text = table("t", **changed)
    with raises_code(Refused, "table-invalid"):
        parse_table(json.loads(text), text=text)


def test_a_long_table_is_refused() -> None:
    text = table("t", family="f" * 40_000)
    with raises_code(Refused, "table-invalid"):
        parse_table(json.loads(text), text=text)


def test_the_first_rule_that_matches_decides() -> None:
    rules = [
        {"when": {"rows": [1, 8], "decode": [1, 1]}, "config": {"a": 1}},
        {"when": {"rows": [1, 64]}, "config": {"a": 2}},
    ]
    text = table("t", rules=rules)
    parsed = parse_table(json.loads(text), text=text)
    assert parsed.choose({"rows": 4, "decode": 1}) == {"a": 1}
    assert parsed.choose({"rows": 4, "decode": 0}) == {"a": 2}
    assert parsed.choose({"rows": 65, "decode": 1}) is None
    assert parsed.choose({"decode": 1}) is None


def test_an_infinite_argument_is_described_in_json() -> None:
    described = spec_of(float("inf"), budget=[0])
    assert float(json.loads(canonical(described))["number"]) == float("inf")


def test_size_classes_are_bounded() -> None:
    made = Tunable(
        "played", kernel="k", module="m", source=SOURCE, geometry={}, axes=("rows", "longest"),
        space={}, check=lambda _: None,
    )  # fmt: skip
    for rows in range(40):
        for longest in range(40):
            axes = {"rows": 2**rows, "longest": 2**longest}
            made.choose(axes, made.sized(axes))
    asked = made.asked()
    assert len(asked) <= MAX_CLASSES
    assert sum(each["launches"] for each in asked) == 1600


class Graphs:
    """Graph sets that log each call."""

    def __init__(self) -> None:
        self.busy, self.beside = False, True
        self.held: dict[int, str] = {}
        """By size: the tables that the graph in force was captured with."""
        self.kept: set[tuple[str, int]] = set()
        self.log: list[tuple[str, tuple[int, ...]]] = []

    def way(self, _: object) -> str:
        return "on"

    def again(self, captures: Sequence[Capture], *, tables: str) -> list[int]:
        done = [each.size for each in captures if (tables, each.size) in self.kept]
        self.held |= dict.fromkeys(done, tables)
        return done

    def capture(
        self, _: object, captures: Sequence[Capture], *, tables: str, beside: bool
    ) -> list[int]:
        if self.busy and not (beside and self.beside):
            reason = "needs-idle-server" if beside else "server-busy"
            raise Refused(reason, detail="requests are under way")
        sizes = [each.size for each in captures]
        self.kept |= {(tables, size) for size in sizes}
        self.held |= dict.fromkeys(sizes, tables)
        self.log.append(("capture", tuple(sizes)))
        return sizes

    def restore(self, _: object, sizes: Sequence[int]) -> list[int]:
        self.log.append(("restore", tuple(sizes)))
        for size in sizes:
            self.held.pop(size, None)
        return list(sizes)

    def forget(self) -> None:
        self.log.append(("forget", ()))

    def after_fork(self) -> None:
        self.log.append(("left", ()))


class World:
    """A service with two tunables that graphs have captured."""

    def __init__(self) -> None:
        fence = Fence()
        self.service = Tunables(trust=Trust(), fence=lambda: fence)
        self.service.turn_on(lambda: None)
        self.graphs = Graphs()
        self.service.captures.graphs = self.graphs  # type: ignore[assignment]
        self.service.steps.worker = types.SimpleNamespace()
        self.epoch = 0
        self.ids = []
        for kernel in ("k", "l"):
            made = self.service.registry.add(tunable(kernel))
            assert made is not None
            made.sized({"rows": 16}).captured = 1
            self.ids.append(made.id)

    def order(self, text: str, **changed: Any) -> dict[str, Any]:
        self.epoch += 1
        body = {
            "id": f"o{self.epoch}",
            "kind": "swap",
            "definition": json.loads(text)["tunable"],
            "target": "chat",
            "epoch": self.epoch,
            "change": text,
            "artifact": "sha256:" + "a" * 64,
        }
        return {"order": {**body, **changed}}

    def swap(self, text: str) -> dict[str, Any]:
        request = self.order(text)
        self.service.prepare(request)
        return {**self.service.commit(request), "request": request["order"]}

    def back(self, swapped: dict[str, Any]) -> dict[str, Any]:
        was = swapped["request"]
        request = self.order(was["change"], kind="rollback", undoes=was["id"], artifact="")
        return self.service.rollback(request)

    def both(self) -> str:
        """Name all tables in force, as kept sets are named."""
        return self.alone(*self.ids)

    def alone(self, *names: str) -> str:
        """Name the tables of some tunables."""
        tables = {name: self.service.registry.find(name) for name in names}
        found = {n: t.table.digest for n, t in tables.items() if t is not None and t.table}
        return digest_of_text(canonical(found))

    def report(self, name: str) -> dict[str, Any]:
        return next(t for t in self.service.state({})["tunables"] if t["id"] == name)


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.service.close()


def test_named_sizes_are_captured_with_the_table_and_put_back(world: World) -> None:
    name = world.ids[0]
    result = world.swap(table(name, captures=[16, 8]))
    assert (result["captured"], result["reach"]) == ([16, 8], "all")
    assert world.back(result)["reach"] == "all"
    assert world.report(name)["table"] is None
    assert world.graphs.log == [("capture", (16,)), ("capture", (8,)), ("restore", (8, 16))]


def test_a_table_that_names_no_size_does_not_reach_graphs(world: World) -> None:
    assert world.swap(table(world.ids[0]))["reach"] == "needs-recapture"


def test_a_busy_server_is_captured_at_its_next_idle_moment(world: World) -> None:
    name = world.ids[0]
    world.graphs.busy = True
    result = world.swap(table(name, captures=[16]))
    assert (result["captured"], result["reach"]) == ([], "needs-recapture")
    world.graphs.busy = False
    world.service.housekeeping()
    assert world.report(name)["table"]["captured"] == [16]


def busy(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.graphs.busy = True
    monkeypatch.setattr(world.service.steps, "idle", lambda: False)


def awaited(world: World) -> list[int]:
    (report,) = world.service.state({})["files"]
    return list(report["awaited"])


def test_a_server_that_is_never_idle_is_captured_beside_requests_where_its_table_allows_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy(world, monkeypatch)
    name = world.ids[0]
    swapped = world.swap(table(name, captures=[8, 16]))
    for _ in range(3):
        world.service.housekeeping()
    assert awaited(world) == [8, 16], "it waits without end"
    world.back(swapped)

    swapped = world.swap(table(name, captures=[8, 16], capture_after_s=3600))
    world.service.housekeeping()
    assert awaited(world) == [8, 16], "the time is not over"
    world.back(swapped)

    world.swap(table(name, captures=[8, 16], capture_after_s=0, capture_share=1.0))
    for left in ([16], [], []):
        world.service.housekeeping()
        assert awaited(world) == left, "one size after the other"
    assert world.graphs.held == dict.fromkeys((8, 16), world.alone(name))


def test_captures_beside_requests_take_no_more_than_their_share_of_the_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy(world, monkeypatch)
    now_s = time.monotonic()
    clock = types.SimpleNamespace(monotonic=lambda: now_s)
    monkeypatch.setattr(captures, "time", clock)

    def slow(work: Callable[[Any], Any]) -> tuple[Any, float]:
        nonlocal now_s
        now_s += 2.0
        return work(None), 2e6

    sizes = [8, 16, 24]
    world.swap(table(world.ids[0], captures=sizes, capture_after_s=0, capture_share=0.25))
    monkeypatch.setattr(world.service.steps, "at_safe_point", slow)
    begin_s, seen = now_s, []
    for _ in range(200):
        if len(awaited(world)) < len(sizes):
            sizes = awaited(world)
            seen.append(round(now_s - begin_s))
        now_s += 0.1
        world.service.housekeeping()
    assert seen == [2, 10, 18], "two seconds of captures, and six for the requests"


def test_a_capture_beside_requests_that_fails_counts_in_their_share(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy(world, monkeypatch)
    world.swap(table(world.ids[0], captures=[8], capture_after_s=0, capture_share=0.5))
    begin_s = now_s = time.monotonic()
    tries: list[float] = []
    monkeypatch.setattr(captures, "time", types.SimpleNamespace(monotonic=lambda: now_s))

    def fails(_: Callable[[Any], Any]) -> tuple[Any, float]:
        nonlocal now_s
        tries.append(round(now_s - begin_s, 1))
        now_s += 2.0
        raise Refused("capture-failed", detail="out of memory")

    monkeypatch.setattr(world.service.steps, "at_safe_point", fails)
    for _ in range(100):
        world.service.housekeeping()
        now_s += 0.5
    assert tries == [0.0, 4.0, 8.0]


def test_sizes_that_recent_steps_would_use_are_captured_first(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [{"tokens": tokens} for tokens in (20, 23, 9, 4000)]
    monkeypatch.setattr(world.service.steps, "report", lambda: {"recent": steps})
    world.swap(table(world.ids[0], captures=[8, 16, 24, 32]))
    world.service.housekeeping()
    assert [sizes for _, sizes in world.graphs.log[:4]] == [(24,), (16,), (8,), (32,)]


def test_a_server_that_cannot_be_captured_beside_requests_waits_for_an_idle_moment(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy(world, monkeypatch)
    world.graphs.beside = False
    world.swap(table(world.ids[0], captures=[16], capture_after_s=0, capture_share=1.0))
    for _ in range(9):
        world.service.housekeeping()
    assert awaited(world) == [16]
    world.graphs.busy = False
    world.service.housekeeping()
    assert awaited(world) == []


def test_nothing_is_captured_while_steps_are_recorded(world: World) -> None:
    world.graphs.busy = True
    world.swap(table(world.ids[0], captures=[16]))
    world.graphs.busy = False
    world.service.steps.log.start()
    world.service.housekeeping()
    assert awaited(world) == [16]
    world.service.steps.log.stop()
    world.service.housekeeping()
    assert awaited(world) == []


def test_a_capture_that_fails_leaves_the_table_known_and_is_not_tried_for_ever(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[int] = []

    def fails(*_: object, **__: object) -> list[int]:
        tries.append(1)
        raise RuntimeError("out of memory")

    monkeypatch.setattr(world.graphs, "capture", fails)
    name = world.ids[0]
    result = world.swap(table(name, captures=[16]))
    assert (result["outcome"], result["reach"]) == ("engaged", "needs-recapture")
    assert world.report(name)["table"] is not None
    assert [each["definition"] for each in world.service.state({})["files"]] == [name]
    for _ in range(9):
        world.service.housekeeping()
    assert len(tries) == 3
    assert world.back(result)["outcome"] == "engaged"


def test_a_bypass_exchanges_graphs_and_captures_none(world: World) -> None:
    name = world.ids[0]
    swapped = world.swap(table(name, captures=[16]))
    for on in (True, True, False, False):
        said = world.service.bypass({"definition": name, "on": on})
        assert said["bypassed"] is on
        assert world.report(name)["table"]["captured"] == ([] if on else [16])
        world.service.housekeeping()
    assert world.graphs.log == [("capture", (16,)), ("restore", (16,))]
    (status,) = world.service.state({"orders": True})["files"]
    assert (status["state"], status["bypassed"]) == ("engaged", False)
    world.service.bypass({"definition": name, "on": True})
    world.back(swapped)
    assert world.service.bypass({"definition": name, "on": True}) == {"bypassed": False}


def test_a_bypass_labels_the_steps_after_it(world: World) -> None:
    name, log = world.ids[0], world.service.steps.log
    swapped = world.swap(table(name, captures=[16]))
    said = [
        world.service.bypass({"definition": name, "on": on, "arm": arm})["arm"]
        for on, arm in ((True, "sham-a"), (True, "sham-b"), (False, "on"))
    ]
    assert said == ["sham-a", "sham-b", "on"]
    assert world.graphs.log == [("capture", (16,)), ("restore", (16,))]  # labels exchange nothing
    world.service.bypass({"definition": name, "on": True})
    assert log.arm == "on"  # no label was asked for
    with raises_code(Refused, "bad-request"):
        world.service.bypass({"definition": name, "on": False, "arm": "x" * 33})
    assert world.service.bypass({"definition": name, "on": True})["bypassed"] is True
    world.back(swapped)
    assert log.arm == ""
    log.arm = "on"
    assert world.service.bypass({"definition": name, "on": True, "arm": "off"}) == {
        "bypassed": False
    }
    assert log.arm == ""


def test_launches_of_a_proven_table_are_timed_by_size_class(world: World) -> None:
    name = world.ids[0]
    world.swap(table(name))
    steps, proven = world.service.steps, world.service.registry.find(name)
    assert proven is not None

    def launch(size: int) -> None:
        sized = proven.sized(dict.fromkeys(proven.axes, size))
        assert timed(sized, lambda: "launched", in_capture=False) == "launched"

    launch(100)
    steps.log.start()
    for on, arm in ((True, "0-0-off"), (False, "0-1-on")):
        world.service.bypass({"definition": name, "on": on, "arm": arm})
        launch(100)
        launch(100)
        launch(9)  # its class is new
    counts = {(row["arm"], row["lengths"][0]): row["launches"] for row in steps.launches.rows()}
    assert counts == {(arm, bucket(n)): k for arm in ("off", "on") for n, k in ((100, 2), (9, 1))}
    steps.log.stop()
    launch(100)
    assert proven.sized(dict.fromkeys(proven.axes, 100)).proof is None
    assert sum(row["launches"] for row in steps.launches.rows()) == 6


def test_a_table_that_has_ended_gets_no_label(world: World) -> None:
    name = world.ids[0]
    world.swap(table(name))
    ended = world.service.registry.find(name)
    assert ended is not None
    ended.tripped = "shadow-mismatch"
    assert world.service.bypass({"definition": name, "on": False, "arm": "on"})["arm"] == ""


@pytest.mark.parametrize("request_", [{"on": True}, {"definition": "tunable:x:y:0", "on": True}])
def test_a_bypass_of_what_is_not_there_is_refused(world: World, request_: dict[str, Any]) -> None:
    with raises_code(Refused, "unknown-tunable"):
        world.service.bypass(request_)
    with raises_code(Refused, "bad-request"):
        world.service.bypass({"definition": world.ids[0], "on": "yes"})


def test_graphs_of_a_table_that_ended_are_put_back_without_a_daemon(world: World) -> None:
    name = world.ids[0]
    world.swap(table(name, captures=[16]))
    ended = world.service.registry.find(name)
    assert ended is not None
    ended.tripped = "shadow-mismatch"
    world.service.housekeeping()
    world.service.housekeeping()
    assert world.graphs.log == [("capture", (16,)), ("restore", (16,))]
    assert world.report(name)["table"]["state"] == "lost"


def test_a_kept_set_needs_no_second_capture(world: World) -> None:
    text = table(world.ids[0], captures=[16])
    world.back(world.swap(text))
    world.graphs.busy = True
    assert world.swap(text)["captured"] == [16]


def test_a_rollback_of_one_table_brings_back_the_graphs_of_another(world: World) -> None:
    first, second = world.ids
    world.swap(table(first, captures=[16]))
    swapped = world.swap(table(second, captures=[16]))
    assert world.graphs.held == {16: world.both()}
    world.back(swapped)
    assert world.report(first)["table"]["captured"] == [16]
    assert world.graphs.held == {16: world.alone(first)}


@pytest.mark.parametrize("end", ["trips", "bypass", "rollback"])
def test_a_table_that_no_longer_acts_is_in_no_graph_of_another(world: World, end: str) -> None:
    """The graph of a size that only the second names holds the first's choice too."""
    first, second = world.ids
    swapped = world.swap(table(first))
    world.swap(table(second, captures=[32]))
    assert world.graphs.held == {32: world.both()}
    if end == "trips":
        ended = world.service.registry.find(first)
        assert ended is not None
        ended.tripped = "shadow-mismatch"
        world.service.housekeeping()
    elif end == "bypass":
        world.service.bypass({"definition": first, "on": True})
    else:
        world.back(swapped)
    world.service.housekeeping()  # captures again, at an idle moment
    assert world.graphs.held == {32: world.alone(second)}
    if end == "bypass":
        world.service.bypass({"definition": first, "on": False})
        assert world.graphs.held == {32: world.both()}


def test_leaving_restores_graphs_and_frees_the_second_sets(world: World) -> None:
    world.swap(table(world.ids[0], captures=[16]))
    world.service.close()
    assert world.graphs.log[-2:] == [("restore", (16,)), ("forget", ())]


@pytest.mark.parametrize(
    ("when", "code"),
    [({"tokens": [1, 9]}, "axis-unknown"), ({"rows": [17, 99]}, "rule-without-launch")],
)
def test_a_rule_that_no_launch_matches_is_refused(
    world: World, when: dict[str, Any], code: str
) -> None:
    text = table(world.ids[0], rules=[{"when": when, "config": {"tile": 1}}])
    with raises_code(Refused, code):
        world.service.prepare(world.order(text))


def test_a_fork_leaves_counts_tables_and_graphs_behind(world: World) -> None:
    world.swap(table(world.ids[0], captures=[16]))
    world.service.after_fork()
    report = world.report(world.ids[0])
    assert (report["table"], report["asked"]) == (None, [])
    assert world.graphs.log[-1] == ("left", ())


def test_nothing_is_exchanged_before_the_first_step(world: World) -> None:
    request = world.order(table(world.ids[0]))
    world.service.prepare(request)
    world.service.steps.worker, world.service.steps.state = None, "on"
    with raises_code(Refused, "no-safe-point"):
        world.service.commit(request)
    world.service.steps.state = "vllm-missing"


def test_a_former_daemon_is_refused(world: World) -> None:
    text = table(world.ids[0])
    world.service.prepare({**world.order(text), "term": 5})
    with raises_code(Refused, "former-daemon"):
        world.service.prepare({**world.order(text), "term": 4})


def test_an_order_names_its_tunable_twice(world: World) -> None:
    with raises_code(Refused, "order-invalid"):
        world.service.prepare(world.order(table(world.ids[0]), definition=world.ids[1]))


def test_a_compiler_that_fails_ends_the_preparation(world: World) -> None:
    def fails(_: object) -> None:
        raise RuntimeError("ptxas died")

    found = world.service.registry.find(world.ids[0])
    assert found is not None
    found.warm = fails
    with raises_code(Refused, "compile-failed"):
        world.service.prepare(world.order(table(world.ids[0])))
    assert world.report(world.ids[0])["table"] is None


def test_nothing_is_accepted_before_the_runtime_turned_it_on() -> None:
    service = Tunables(trust=Trust(), fence=Fence)
    assert service.state({})["on"] is False
    with raises_code(Refused, "tunables-off"):
        service.pause({"id": "p", "seconds": 0.1})


def test_no_secret_is_reported(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "hidden")
    monkeypatch.setenv("VLLM_CACHE_ROOT", "/cache")
    variables = world.service.state({})["environment"]["variables"]
    assert "VLLM_API_KEY" not in variables
    assert variables["VLLM_CACHE_ROOT"] == "/cache"
    assert world.service.state({})["environment"]["executable"] == sys.executable


def test_an_order_that_was_rolled_back_comes_into_force_again_under_a_later_epoch(
    world: World,
) -> None:
    name = world.ids[0]
    text = table(name)

    def swap() -> dict[str, Any]:
        request = world.order(text, id="p")
        world.service.prepare(request)
        return {**world.service.commit(request), "request": request["order"]}

    first = swap()
    assert swap()["already"] is True, "it is in force"
    world.back(first)
    assert world.report(name)["table"] is None
    again = swap()
    assert (again["already"], world.report(name)["table"]["epoch"]) == (False, world.epoch)
    stale = world.order(text, id="p", epoch=1)
    world.back(again)
    with raises_code(Refused, "not-prepared"):
        world.service.commit(stale)


def test_an_order_that_is_prepared_again_under_a_later_epoch_can_be_committed(
    world: World,
) -> None:
    text = table(world.ids[0])
    early, late = (world.order(text, id="p") for _ in range(2))
    world.service.prepare(early)
    world.service.prepare(late)
    assert world.service.commit(late)["already"] is False
