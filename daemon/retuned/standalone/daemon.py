"""``retuned run``: the daemon on one machine. Connects ports to steps and schedules them."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler

from retuned.node import windows
from retuned.node.history import History
from retuned.node.loops import attempt
from retuned.standalone import (
    captured_inputs,
    cleanup,
    devices,
    end_to_end,
    experiments,
    hypotheses,
    kernels,
    metrics,
    order_delivery,
    proposal_steps,
    rollout_start,
    savings,
    tuned_files,
    watch,
)
from retuned.standalone.context import Context

log = logging.getLogger(__name__)

_STOP_S = 5.0
"""Longest wait for the steps in flight once the daemon is to stop."""


class Loop:
    """The steps of the loop over one context. Each method may be called at any time, in any order.

    `observe`, `experiment` and `steer` run on their own threads; what writes orders holds one lock,
    so that a watch alarm and a person's request cannot write the same epoch twice.
    """

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self._history = History()
        self._orders = threading.Lock()
        self._stopping = threading.Event()
        self._shown = metrics.StateMetrics(ctx)
        self._beside = devices.DevicePoller(ctx)

    def observe(self) -> None:
        """Stages 1 to 4: what is running, has it drifted, what might help."""
        with self.ctx.spans.span("observe", about={"target": self.ctx.settings.target}):
            kernels.observe(self.ctx)
            windows.ingest(self.ctx)
            windows.close_windows(self.ctx)
            hypotheses.settle(self.ctx)
            windows.judge_windows(self.ctx)
            tuned_files.observe(self.ctx)
            hypotheses.explain(self.ctx)
        captured_inputs.settle(self.ctx)
        savings.keep_up(self.ctx)

    def experiment(self) -> None:
        """Stages 5 to 7: run at most one experiment to its end, then propose what won."""
        cleanup.keep_house(self.ctx)
        plan = experiments.open_experiment(self.ctx)
        if plan is not None:
            experiments.run_experiment(self.ctx, plan)
        proposal_steps.propose(self.ctx)

    def steer(self) -> None:
        """Stages 8 to 10: people, policy, orders, watching. Short: a rollback waits for it.

        Ways back come first, and each part stands alone: no error in one keeps a later one from
        running, least of all the watch.
        """
        ctx = self.ctx
        parts: tuple[tuple[str, Callable[[], object]], ...] = (
            ("requests", lambda: proposal_steps.carry_out_requests(ctx)),
            ("freezes", lambda: proposal_steps.take_back(ctx)),
            ("delivered", lambda: order_delivery.close_carried_out(ctx)),
            ("watch", lambda: watch.watch(ctx, self._history)),
            ("gate", lambda: proposal_steps.gate(ctx)),
            ("hold", lambda: rollout_start.hold_back(ctx)),
            ("start", lambda: rollout_start.start_swaps(ctx)),
            ("drive", lambda: self._history.restart(order_delivery.drive_orders(ctx))),
        )
        with self._orders:
            for name, part in parts:
                attempt(ctx.telemetry, name, part)

    def show(self) -> None:
        """Show what stands, as numbers; nothing waits for it."""
        self._shown.show()
        self._beside.look()

    def measure(self) -> None:
        """Gate G7: measure a swap on the whole server. Long, and nobody waits for it."""
        end_to_end.measure(self.ctx, self._stopping)

    def stop_measuring(self) -> None:
        """Begin no further pass, and leave no swap switched off."""
        self._stopping.set()
        end_to_end.switch_on(self.ctx)

    def turn(self) -> None:
        """Do every step once, in order: what tests and replays use."""
        self.observe()
        self.experiment()
        self.steer()
        self.measure()
        self.show()


def serve(loop: Loop, *, observe_s: float, steer_s: float) -> None:
    """Schedule the steps until SIGTERM or SIGINT. An error in one step never stops another.

    Raises
    ------
    KeyboardInterrupt
        If SIGINT was what stopped it, once every thread has ended.
    """
    stop = threading.Event()
    signals: list[int] = []

    def on_signal(number: int, _frame: FrameType | None) -> None:
        signals.append(number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    scheduler = BackgroundScheduler(
        executors={"default": ThreadPoolExecutor(4)},
        job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
        timezone="UTC",
    )
    steps: tuple[tuple[Callable[[], None], float], ...] = (
        (loop.observe, observe_s),
        (loop.experiment, observe_s),
        (loop.steer, steer_s),
        (loop.measure, observe_s),
        (loop.show, observe_s),
    )
    for step, seconds in steps:
        scheduler.add_job(_guard(loop.ctx, step), "interval", seconds=seconds, id=step.__name__)
    scheduler.start()
    stop.wait()
    log.info("stopping on signal %d", signals[0])
    # an experiment in flight is not waited for: what it has stored is kept, the rest is resumed
    loop.ctx.bench.stop()
    attempt(loop.ctx.telemetry, "stop_measuring", loop.stop_measuring)
    loop.ctx.spans.close()
    interrupted = signals[0] == signal.SIGINT
    _end_threads(scheduler, status=130 if interrupted else 0)
    if interrupted:
        raise KeyboardInterrupt


def _end_threads(scheduler: BackgroundScheduler, *, status: int) -> None:
    """Wait until no step runs: who takes the state's lock after us must find nobody at work.

    A step that hangs, on a server that does not answer, ends with the process, as by a kill; the
    lock is held until then.
    """
    scheduler.pause()
    ending = threading.Thread(target=scheduler.shutdown, name="shutdown", daemon=True)
    ending.start()
    ending.join(_STOP_S)
    if ending.is_alive():
        log.warning("a step has not ended after %.0f s; leaving it, nothing is lost", _STOP_S)
        logging.shutdown()
        os._exit(status)


def _guard(ctx: Context, step: Callable[[], None]) -> Callable[[], None]:
    """Make a step of the schedule one that never raises."""

    def guarded() -> None:
        attempt(ctx.telemetry, step.__name__, step)

    return guarded
