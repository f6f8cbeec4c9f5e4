"""Pure parts of the loop over tunables: usage, replays, places, pauses, rules and captures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.expect import raises_naming

from retuned.contract import Guard
from retuned.errors import CandidateError, HarnessError, TemporaryError
from retuned.runtime_client.tunable_use import used_classes
from retuned.runtime_client.tunables import (
    CountedTime,
    TunableMemory,
    TunableProcess,
    TunableReport,
    process_of,
)
from retuned.stages.hypothesis import together
from retuned.stages.proposal.tables import captures_of, within
from retuned.standalone.context import Tunables
from retuned.standalone.tunables.experiments import Pauses
from retuned.standalone.tunables.observation import expected_gain

NAME = "tunable:attention:kernel_unified_attention:00000000"
HELLO = {"pid": 1, "environment": {"cpu": "cpu:a", "numerics": {}}}


def asked(rows: int, launches: int, **more: Any) -> dict[str, Any]:
    axes = {"rows": rows, "sequences": 1, "decode": 0, "longest": 8192}
    return {"axes": axes, "launches": launches, "ready": True, "how": "literal"} | more


def report(*classes: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "id": NAME,
        "family": "attention",
        "kernel": "kernel_unified_attention",
        "module": "m",
        "source": "sha256:" + "0" * 64,
        "geometry": {"kv_heads": 4, "head_size": 128, "kv_dtype": "bfloat16"},
        "asked": list(classes),
        "ways": {"next-call": "on", "recapture": "on"},
    } | more


def process(*tunables: dict[str, Any], seen_s: float = 0.0, **steps: Any) -> TunableProcess:
    answer = {
        "environment": {"device": None},
        "steps": {"hook": "on", "busy_s": 1.0, "sizes": {}, "recent": []} | steps,
        "tunables": list(tunables),
    }
    return process_of(Path("/run/1.sock"), answer, hello=HELLO, seen_s=seen_s)


def test_usage_is_what_was_launched_between_two_reports() -> None:
    before = process(report(asked(8192, 100, timed=2, timed_us=4000.0)))
    now = process(report(asked(8192, 160, timed=4, timed_us=8000.0), asked(64, 9)))
    large, small = used_classes(NAME, before, now, gain=expected_gain)
    assert (large.launches, large.time_us) == (60.0, 60 * 2000.0)
    assert large.gain_ratio > 3.0
    assert (small.launches, small.time_us) == (9.0, 0.0)


def test_launches_on_an_idle_stream_are_known_and_take_no_time() -> None:
    before, now = (process(report(asked(8192, n, idle=i))) for n, i in ((100, 1), (160, 4)))
    (used,) = together(used_classes(NAME, before, now) * 2)
    assert (used.launches, used.time_us, used.idle) == (120.0, 0.0, 6)
    graph = process(report(asked(8192, 160, idle=4, captured=2, sizes=[64])))
    assert used_classes(NAME, before, graph)[0].idle == 0, "a replay does not wait for the host"


def test_usage_is_scaled_where_the_runtime_counts_in_a_share_of_the_time() -> None:
    def counted(launches: int, *, out_s: float, now_s: float) -> TunableProcess:
        time = CountedTime(out_s=out_s, now_s=now_s)
        made = process(report(asked(8192, launches, timed=2, timed_us=4000.0)))
        return replace(made, counted=time)

    before, now = counted(100, out_s=5.0, now_s=50.0), counted(160, out_s=50.0, now_s=100.0)
    (used,) = used_classes(NAME, before, now)
    assert (used.launches, used.time_us) == (600.0, 600 * 2000.0)
    (always,) = used_classes(NAME, before, replace(now, counted=before.counted))
    assert always.launches == 60.0


def test_replays_follow_from_steps_and_their_time_from_the_keys_that_are_read() -> None:
    axes = {"rows": 16, "sequences": 16, "decode": 1, "longest": 16384}
    graph = asked(16, 48, captured=48, sizes=[16], timed=1, timed_us=1.0) | {"axes": axes}
    step = {"queries": [1] * 16, "keys": [8192] * 16}
    before = process(report(graph), sizes={"16": [10, 10]})
    now = process(report(graph), sizes={"16": [110, 60]}, recent=[step])
    (used,) = used_classes(NAME, before, now, gain=expected_gain)
    assert used.launches == 50 * 48
    read_bytes = 2 * 2 * 4 * 128 * 16 * 8192
    assert used.time_us == pytest.approx(50 * 48 * 1e6 * read_bytes / 8e12)


def test_replays_of_experts_take_what_reading_their_weights_takes() -> None:
    graph = asked(0, 96, captured=96, sizes=[248, 256], how="default") | {"axes": {"tokens": 256}}
    geometry = {"E": 512, "N": 128, "K": 2048, "top_k": 8, "dtype": "fp8_w8a8"}
    experts = report(graph, family="moe", kernel="fused_moe_kernel", geometry=geometry)
    before = process(experts, sizes={"256": [10, 0]})
    now = process(experts, sizes={"256": [110, 90]})
    (used,) = used_classes(NAME, before, now)
    assert used.launches == 100 * 48
    every = 512 * 3 * 128 * 2048  # bytes; a 56th of the experts is chosen by no token
    assert used.time_us == pytest.approx(100 * 48 * 1e6 * every / 8e12, rel=0.02)
    timed = report(graph | {"timed": 2, "timed_us": 800.0}, family="moe", geometry=geometry)
    (used,) = used_classes(NAME, process(timed), process(timed, sizes={"256": [1, 0]}))
    assert used.time_us == 48 * 400.0


def test_a_size_that_was_captured_in_two_graphs_counts_as_steps_without_a_graph_do() -> None:
    """A server captures a size in pieces and whole; a step replays one of the two."""
    graph = asked(0, 96, captured=96, sizes=[248, 256]) | {"axes": {"tokens": 256}}

    def eager(launches: int) -> dict[str, Any]:
        return asked(0, launches) | {"axes": {"tokens": 1024}}

    def experts(launches: int, **steps: Any) -> TunableProcess:
        return process(report(graph, eager(launches), family="moe"), **steps)

    before = experts(240, sizes={"256": [10, 0], "1024": [10, 0]})
    now = experts(240 + 40 * 24, sizes={"256": [110, 90], "1024": [50, 0]})
    captured, other = used_classes(NAME, before, now)
    assert (captured.launches, other.launches) == (100 * 24, 40 * 24)
    few = experts(240 + 5 * 24, sizes={"256": [110, 90], "1024": [15, 0]})
    assert used_classes(NAME, before, few)[0].launches == 100 * 48, "too few steps to tell"


@pytest.mark.parametrize(
    "wrong", [{"E": 0}, {"top_k": 513}, {"top_k": "8"}, {"N": -1}, {"K": 1 << 40}, {"E": None}]
)
def test_a_geometry_that_cannot_be_gives_no_time(wrong: dict[str, Any]) -> None:
    graph = asked(0, 8, captured=8, sizes=[64]) | {"axes": {"tokens": 64}}
    geometry = {"E": 64, "N": 128, "K": 2048, "top_k": 8, "dtype": None} | wrong
    experts = report(graph, family="moe", geometry=geometry)
    (used,) = used_classes(NAME, process(experts), process(experts, sizes={"64": [5, 0]}))
    assert (used.launches, used.time_us) == (40.0, 0.0)


def test_a_tunable_that_cannot_be_read_hides_no_other_and_no_report_is_trusted() -> None:
    bad: list[dict[str, Any]] = [
        report(id="elsewhere"),
        report(asked(8192, -1)),
        report(asked(8192, 10**400)),
        report(asked(8192, 9, config={"kwargs": {"B": float("nan")}})),
        report(asked(8192, 9, timed=1, timed_us=1e305)),
        report(asked(8192, 9) | {"axes": {"Rows!": 1}}),
        report(asked(8192, 1, timed_us=float("nan"))),
        report(geometry=7),
    ]
    found = process(*bad, report(asked(64, 9)))
    assert [each.asked[0].launches for each in found.tunables.values()] == [9]
    with raises_naming(TemporaryError, "/run/1.sock"):
        process_of(Path("/run/1.sock"), {"tunables": 3}, hello=HELLO)


def test_a_server_that_began_anew_is_observed_anew() -> None:
    memory = TunableMemory()
    for at, launches in ((0.0, 5), (10.0, 50), (20.0, 90), (30.0, 120)):
        memory.add([process(report(asked(64, launches)), seen_s=at)], horizon_s=15.0)
    assert memory.span_s == 20.0
    before = memory.before("1.sock")
    assert before is not None
    assert before.tunables[NAME].asked[0].launches == 50
    memory.add([process(report(asked(64, 3)), seen_s=40.0)], horizon_s=15.0)
    assert memory.span_s == 0.0


def test_rules_are_cut_to_what_was_measured() -> None:
    rules = [
        {"when": {"rows": [1, 64], "decode": [1, 1]}, "config": {"a": 1}},
        {"when": {"rows": [65, 8192], "decode": [0, 0]}, "config": {"a": 2}},
    ]
    guard = Guard(bounds={"rows": (4097, 8192), "decode": (0, 0)})
    assert within(rules, guard) == [
        {"when": {"rows": [4097, 8192], "decode": [0, 0]}, "config": {"a": 2}}
    ]
    assert within(rules, Guard()) == rules


def test_captured_sizes_are_those_of_the_rules_where_graphs_can_be_captured_again() -> None:
    axes = {"rows": 16, "sequences": 16, "decode": 1, "longest": 16384}
    graph = asked(16, 48, captured=48, sizes=[9, 16]) | {"axes": axes}
    rules = [{"when": {"rows": [9, 16], "decode": [1, 1]}, "config": {"a": 1}}]
    parsed = TunableReport.model_validate(report(graph))
    assert captures_of(parsed, rules) == [
        {"size": 9, "axes": {"longest": 16384}},
        {"size": 16, "axes": {"longest": 16384}},
    ]
    assert captures_of(parsed, [{"when": {"rows": [65, 128]}, "config": {}}]) == []
    shut = TunableReport.model_validate(report(graph, ways={"recapture": "several-ranks"}))
    assert captures_of(shut, rules) == []


class Clock:
    """Time that passes when somebody sleeps or is paused."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.refuses = ""
        self.asked: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    @contextmanager
    def paused(self, _: TunableProcess, *, seconds: float) -> Iterator[None]:
        if self.refuses:
            raise CandidateError(self.refuses, detail="a test")
        self.asked.append(seconds)
        yield
        self.now_s += 0.1


def pauses(clock: Clock) -> Pauses:
    tunables = Tunables(tap=clock, sleep=clock.sleep)  # type: ignore[arg-type]
    return Pauses(tunables, [process()], longest_s=0.5, max_share=0.2, now_s=lambda: clock.now_s)


def test_pauses_keep_to_their_share_of_the_time() -> None:
    clock = Clock()
    made = pauses(clock)
    for _ in range(5):
        with made():
            pass
    assert clock.asked == [0.5] * 5
    assert made.count == 5
    assert made.total_s == pytest.approx(0.5)
    assert made.total_s / clock.now_s == pytest.approx(0.5 / 2.1)  # four waits of 0.4 s


def test_a_policy_that_changes_ends_the_experiment_before_the_next_pause() -> None:
    clock, allowed = Clock(), [True]
    tunables = Tunables(tap=clock, sleep=clock.sleep)  # type: ignore[arg-type]
    made = Pauses(
        tunables,
        [process()],
        longest_s=0.5,
        max_share=0.5,
        now_s=lambda: clock.now_s,
        allowed=lambda: allowed[0],
    )
    with made():
        pass
    allowed[0] = False
    with raises_naming(HarnessError, "pauses"), made():
        pass
    assert len(clock.asked) == 1


def test_a_refused_pause_ends_the_experiment_and_says_nothing_of_a_configuration() -> None:
    clock = Clock()
    clock.refuses = "no-safe-point"
    with raises_naming(HarnessError, "no-safe-point"), pauses(clock)():
        pass
