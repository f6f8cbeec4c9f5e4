"""What the operator waits for is told at once, by the program's own threads; the rest in time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.sidecar.sidecar_world import CLEAN, FIRST, PodWorld, swap

from retuned.api.agent import Hello, Outcome, ProfileReport, WatchPost
from retuned.sidecar import main
from retuned.sidecar.reports import flush
from retuned.stages.watch import WatchAction

_NEVER_S = 3600.0


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PodWorld:
    monkeypatch.setattr(main, "_LEAST_TELL_S", 0.02)
    found = PodWorld(tmp_path)
    found.publish(FIRST)
    return found


@pytest.fixture
def running(world: PodWorld) -> Iterator[threading.Event]:
    """Run the program, whose clocks alone would do nothing for an hour; yield what wakes it."""
    stop, wake = threading.Event(), threading.Event()
    threads = main.start(
        world.sidecar,
        stop=stop,
        wake=wake,
        observe_s=_NEVER_S,
        steer_s=_NEVER_S,
        tell_s=_NEVER_S,
    )
    yield wake
    stop.set()
    wake.set()
    world.ctx.standing.news.set()
    world.operator.order(swap(epoch=99))  # who waits for orders is answered, and ends
    for thread in threads:
        thread.join(200.0)
    assert not any(thread.is_alive() for thread in threads)
    world.ctx.store.close()


def until(seen: Callable[[], bool]) -> None:
    end = time.monotonic() + 200.0
    while not seen():
        assert time.monotonic() < end, "nobody was told"
        time.sleep(0.005)


def silence(world: PodWorld) -> None:
    """Let the operator be away for eight windows."""
    world.turn()
    world.operator.said.clear()
    world.operator.away = True
    for number in range(8):
        world.trace(number=number)
        world.turn(70.0)


def test_an_order_and_harm_are_told_without_waiting_for_the_next_report(
    world: PodWorld, running: threading.Event
) -> None:
    world.operator.order(swap())
    until(lambda: ("swap-p1-2", Outcome.DONE, "") in world.outcomes())
    world.swapper.counts["gemm"] = {**CLEAN, "shadow_mismatches": 1, "worst_ratio": 9.0}
    running.set()
    until(lambda: ("swap-p1-2", Outcome.ROLLED_BACK, "shadow-mismatch") in world.outcomes())

    def told() -> bool:
        report = world.slot().report
        return report is not None and report.action is WatchAction.ROLLBACK

    until(told)
    assert world.active() is None


def test_an_answer_that_is_judged_as_before_is_no_news(world: PodWorld) -> None:
    world.order(swap())
    world.swapper.counts["gemm"] = dict(CLEAN)
    world.turn(5.0)
    news = world.ctx.standing.news
    assert not news.is_set(), "it was told"
    world.clock.advance(15.0)
    world.sidecar.steer()
    assert news.is_set(), "now it may be kept"
    world.sidecar.tell()
    world.clock.advance(5.0)
    world.sidecar.steer()
    assert not news.is_set()


def test_after_a_silence_how_slots_stand_is_told_before_windows_that_have_waited(
    world: PodWorld,
) -> None:
    silence(world)
    waited = len(world.ctx.spool)
    assert waited > 6
    world.operator.away = False
    world.sidecar.tell()
    kinds = [type(each) for each in world.operator.said]
    assert kinds.index(WatchPost) == 2 + main._FIRST_WINDOWS, "hello, a few windows, proofs"
    assert kinds.count(ProfileReport) == waited
    assert len(world.ctx.spool) == 0


def test_an_operator_that_began_anew_hears_who_is_here_with_the_next_look(world: PodWorld) -> None:
    world.turn()
    world.turn()
    assert len(world.said(Hello)) == 1
    world.operator.heard = False
    world.turn()
    world.turn()
    world.turn()
    assert len(world.said(Hello)) == 2


def test_windows_let_pass_what_is_news_meanwhile(world: PodWorld) -> None:
    silence(world)
    world.operator.away = False
    world.ctx.standing.news.set()
    assert flush(world.ctx) == 0
    world.ctx.standing.news.clear()
    assert flush(world.ctx, most_windows=3) == 3
