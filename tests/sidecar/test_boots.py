"""A canary replica's sidecar measures its boot once, and reports it whatever happens to it."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.sidecar.sidecar_world import CLEAN, FIRST, PodWorld, back, swap

from retuned.api.agent import BootOrder, BootPhase, PodBoot, ProofPost, wire_json
from retuned.errors import CandidateError, TemporaryError
from retuned.ports import ObservedSteps
from retuned.sidecar import boots
from retuned.sidecar.main import Sidecar
from retuned.stages.watch.proof import Arm, StepRecord, check_window

ORDER = swap()
CANARY = BootOrder(
    proposal="p1",
    definition="gemm",
    replica="chat-0",
    arm=Arm.ON,
    order=ORDER.id,
    leave_out_s=600.0,
    window_s=60.0,
)
CONTROL = CANARY.model_copy(update={"arm": Arm.OFF, "order": ""})


class Steps:
    """Steps of the server, ten a second, in a time of their own."""

    def __init__(self) -> None:
        self.now_s, self.looks, self.waited_s = 50.0, 0, 0.0
        self.instance, self.chance = "i-1", random.Random(1)
        self.before: Callable[[int], None] = lambda _: None
        """Called before each look, with its number."""

    def unavailable(self) -> str:
        return "not-switchable"

    def engine(self) -> str:
        return "vllm 1"

    def wait(self, seconds: float) -> None:
        self.waited_s += seconds
        self.now_s += seconds

    def observe(self, seconds: float) -> ObservedSteps:
        self.looks += 1
        self.before(self.looks)
        count, began_s = round(seconds * 10.0), self.now_s
        self.now_s += seconds
        steps = [self.step(began_s + 0.1 * (n + 1)) for n in range(count)]
        return ObservedSteps(engine="vllm 1", steps=steps, instance=self.instance)

    def step(self, ended_s: float) -> StepRecord:
        return StepRecord(
            index=0,
            arm=Arm.OFF,
            prefill=0,
            decode=self.chance.randrange(1, 9),
            context=64,
            graph=None,
            period_s=0.1,
            busy_s=None,
            host_s=None,
            ended_s=ended_s,
        )


class Replica(PodWorld):
    """A pod that the operator asks for its boot."""

    steps: Steps

    def start(self, *, configured: str = "") -> Sidecar:
        made = super().start(configured=configured)
        if not hasattr(self, "steps"):
            self.steps = Steps()
        live: Any = self.steps
        self.sidecar = Sidecar(replace(made.ctx, live_steps=live, step_observer=self.steps))
        return self.sidecar

    def work(self) -> PodBoot:
        """Let the sidecar measure, and return what the operator is told."""
        self.sidecar.prove(threading.Event())
        self.turn()
        found = self.said(ProofPost)[-1].boot
        assert found is not None
        return found

    def ask(self, boot: BootOrder) -> None:
        self.operator.measure(boot)
        self.turn()


@pytest.fixture
def world(tmp_path: Path) -> Replica:
    found = Replica(tmp_path)
    found.publish(FIRST)
    found.swapper.counts["gemm"] = dict(CLEAN)
    return found


def test_a_pod_that_is_not_asked_measures_nothing_and_reports_no_boot(world: Replica) -> None:
    world.turn()
    world.sidecar.prove(threading.Event())
    world.turn()
    post = world.said(ProofPost)[-1]
    assert post.boot is None
    assert '"boot"' not in wire_json(post), "an operator of an older release does not know it"
    assert world.steps.looks == 0


@pytest.mark.parametrize(("asked", "ordered"), [(CANARY, True), (CONTROL, False)])
def test_a_boot_is_measured_once_with_what_it_must_hold(
    world: Replica, asked: BootOrder, ordered: bool
) -> None:
    if ordered:
        world.order(ORDER)
    world.ask(asked)
    began_s = world.clock.now().timestamp()
    found = world.work()
    assert found.phase is BootPhase.DONE
    window = found.window
    assert window is not None
    check_window(window)
    assert (window.arm, window.replica, window.boot) == (asked.arm, "chat-0", "u-0/i-1")
    assert window.environment == world.ctx.environment != ""
    assert window.began_s == pytest.approx(began_s, abs=2.0)
    assert (window.sums.wall_s, window.sums.steps) == (60.0, 600)
    assert world.steps.waited_s == 600.0
    looks = world.steps.looks
    assert world.work() == found
    assert world.steps.looks == looks


def test_a_canary_waits_until_its_swap_is_in_force(world: Replica) -> None:
    world.ask(CANARY)
    found = world.work()
    assert (found.phase, found.reason) == (BootPhase.WAITING, boots.NOT_IN_FORCE)
    began_s = world.ctx.standing.boot_began_s
    world.order(ORDER)
    world.clock.advance(100.0)
    window = world.work().window
    assert window is not None
    assert window.began_s == began_s, "the boot began with the first step"


def test_a_control_replica_with_the_swap_is_not_measured(world: Replica) -> None:
    world.order(ORDER)
    world.ask(CONTROL)
    found = world.work()
    assert (found.phase, found.reason) == (BootPhase.WAITING, boots.NOT_IN_FORCE)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (TemporaryError("no worker", delay_s=1.0), "server-starting"),
        (CandidateError("several-servers", detail="two"), "several-servers"),
    ],
)
def test_a_server_without_a_step_is_waited_for_by_name(
    world: Replica, error: Exception, reason: str
) -> None:
    def fails(_: int) -> None:
        raise error

    world.steps.before = fails
    world.ask(CONTROL)
    found = world.work()
    assert (found.phase, found.reason) == (BootPhase.WAITING, reason)
    world.steps.before = lambda _: None
    assert world.work().phase is BootPhase.DONE


def test_a_sidecar_that_restarts_reports_the_same_window(world: Replica) -> None:
    world.ask(CONTROL)
    found = world.work()
    world.start()
    world.turn()
    assert world.work() == found


def test_a_boot_that_is_interrupted_has_failed_by_name(world: Replica) -> None:
    def dies(number: int) -> None:
        if number == 3:
            raise KeyboardInterrupt

    world.steps.before = dies
    world.ask(CONTROL)
    with pytest.raises(KeyboardInterrupt):
        world.work()
    world.start()
    world.turn()
    looks = world.steps.looks
    found = world.work()
    assert (found.phase, found.reason) == (BootPhase.FAILED, boots.INTERRUPTED)
    assert world.work() == found
    assert world.steps.looks == looks


def test_a_sidecar_that_is_stopped_leaves_the_boot_to_its_next_life(world: Replica) -> None:
    stop = threading.Event()

    def stops(number: int) -> None:
        if number == 3:
            stop.set()

    world.steps.before = stops
    world.ask(CONTROL)
    world.sidecar.prove(stop)
    world.start()
    world.turn()
    found = world.work()
    assert (found.phase, found.reason) == (BootPhase.FAILED, boots.INTERRUPTED)


def test_a_sidecar_that_is_stopped_does_not_sleep_to_the_window(world: Replica) -> None:
    stop, wait = threading.Event(), world.steps.wait

    def waits(seconds: float) -> None:
        wait(seconds)
        if world.steps.waited_s >= 5.0:
            stop.set()

    world.steps.wait = waits  # type: ignore[method-assign]
    world.ask(CONTROL)
    world.sidecar.prove(stop)
    assert world.steps.waited_s <= 6.0
    assert world.steps.looks == 1, "the first step alone"


def restarts(world: Replica) -> None:
    world.steps.instance = "i-2"


def asks_no_more(world: Replica) -> None:
    world.ctx.standing.boot = None


def asks_otherwise(world: Replica) -> None:
    world.ctx.standing.boot = CANARY.model_copy(update={"window_s": 61.0})


def goes_back(world: Replica) -> None:
    world.order(back(ORDER, epoch=ORDER.epoch + 1))


def silent(world: Replica) -> None:
    raise TemporaryError("no answer", delay_s=1.0)


@pytest.mark.parametrize(
    ("happens", "reason"),
    [
        (restarts, boots.RESTARTED),
        (asks_otherwise, boots.WITHDRAWN),
        (goes_back, boots.NOT_IN_FORCE),
        (silent, "no-answer"),
    ],
)
def test_what_ends_a_window_is_named(
    world: Replica, happens: Callable[[Replica], None], reason: str
) -> None:
    world.order(ORDER)
    world.ask(CANARY)

    def before(number: int) -> None:
        if number == 4:
            happens(world)

    world.steps.before = before
    world.sidecar.prove(threading.Event())
    world.ctx.standing.boot = CANARY
    found = boots.reported(world.ctx)
    assert found is not None
    assert (found.phase, found.reason, found.window) == (BootPhase.FAILED, reason, None)


def test_a_pod_without_a_target_is_asked_no_more(world: Replica) -> None:
    world.ask(CONTROL)
    assert world.ctx.standing.boot == CONTROL
    world.operator.measure(None)
    world.turn()
    assert world.ctx.standing.boot is None
