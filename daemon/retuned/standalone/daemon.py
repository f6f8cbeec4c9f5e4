"""``retuned run``: the daemon on one machine. Connects ports to steps and schedules them."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler

from retuned.node import windows
from retuned.node.loops import attempt, wait_until
from retuned.standalone import (
    cleanup,
    experiments,
    hypotheses,
    kernels,
    metrics,
    proposals,
    savings,
)
from retuned.standalone.context import Context
from retuned.standalone.proofs import attribution, end_to_end, live_proof, sentinel, server_pace
from retuned.standalone.reconciler import Reconciler
from retuned.standalone.tunables import captured_inputs, tuned_files
from retuned.standalone.tunables import observation as tunables

log = logging.getLogger(__name__)

_ROUNDS = 4
"""A decision leads to an order, its outcome to a phase, and that may lead to another order."""
_STOP_S = 5.0
"""Longest wait for the steps in flight once the daemon is to stop."""


class Loop:
    """The steps of the loop over one context. Each method may be called at any time, in any order.

    `observe`, `experiment` and `steer` run on their own threads; what writes orders holds one lock,
    so that a watch alarm and a person's request cannot write the same epoch twice.
    """

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.reconciler = Reconciler(ctx)
        self._orders = threading.Lock()
        self._host = threading.Lock()
        """Held by an experiment or a live proof: an experiment makes steps of the server slower."""
        self._stopping = threading.Event()
        self._shown = metrics.StateMetrics(ctx)
        self._beside = metrics.DevicePoller(ctx)

    def observe(self) -> None:
        """Stages 1 to 4: what is running, has it drifted, what might help."""
        with self.ctx.spans.span("observe", about={"target": self.ctx.settings.target}):
            kernels.observe(self.ctx)
            windows.ingest(self.ctx)
            windows.close_windows(self.ctx)
            hypotheses.settle(self.ctx)
            windows.judge_windows(self.ctx, holds=partial(attribution.holds, self.ctx))
            tuned_files.observe(self.ctx)
            tunables.observe(self.ctx)
            hypotheses.explain(self.ctx)
        captured_inputs.settle(self.ctx)
        savings.keep_up(self.ctx)

    def experiment(self) -> None:
        """Stages 5 to 7: run at most one experiment to its end, then propose what won."""
        cleanup.keep_house(self.ctx)
        if not live_proof.is_wanted(self.ctx) and self._host.acquire(blocking=False):
            try:
                plan = experiments.open_experiment(self.ctx)
                if plan is not None:
                    experiments.run_experiment(self.ctx, plan)
            finally:
                self._host.release()
        proposals.propose(self.ctx)

    def steer(self) -> None:
        """Stages 8 to 10: watch, decide, order, commit. Short: a rollback waits for it.

        The watch comes first, and each part stands alone: an error in one delays no other.
        """
        reconciler = self.reconciler
        with self._orders:
            attempt(self.ctx.telemetry, "watch", reconciler.watch)
            attempt(self.ctx.telemetry, "alarms", lambda: attribution.send(self.ctx))
            for _ in range(_ROUNDS):
                changed = [self._attempt("reconcile", reconciler.reconcile)]
                changed.append(self._attempt("deliver", reconciler.deliver))
                if not any(changed):
                    break

    def _attempt(self, name: str, part: Callable[[], bool]) -> bool:
        """Do a part; return whether it changed anything, False after an error."""
        changed: list[bool] = []
        attempt(self.ctx.telemetry, name, lambda: changed.append(part()))
        return any(changed)

    def show(self) -> None:
        """Show what stands, as numbers; nothing waits for it."""
        self._shown.show()
        self._beside.look()

    def measure(self) -> None:
        """Measure swaps in the server: for alarms, gate G7 and live proofs. Long.

        Nothing waits for it but an alarm, for a minute.
        """
        attribution.try_off(self.ctx, self._stopping)
        end_to_end.measure(self.ctx, self._stopping)
        server_pace.observe(self.ctx)
        live_proof.switch_on(self.ctx)
        if self._host.acquire(blocking=False):
            try:
                live_proof.prove(self.ctx, self._stopping)
                server_pace.measure_own_overhead(self.ctx, self._stopping)
            finally:
                self._host.release()
        sentinel.keep_up(self.ctx, self._stopping)

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
    wait_until(stop)
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
    """Wait until no step runs: the next holder of the state's lock must be the only writer.

    A step that hangs, on a server that does not answer, ends with the process, as by a kill; the
    lock is held until then.
    """
    scheduler.pause()
    ending = threading.Thread(target=scheduler.shutdown, name="shutdown", daemon=True)
    ending.start()
    ending.join(_STOP_S)
    if ending.is_alive():
        log.warning(
            "a step has not ended after %.0f s; the daemon leaves it, no state is lost", _STOP_S
        )
        logging.shutdown()
        os._exit(status)


def _guard(ctx: Context, step: Callable[[], None]) -> Callable[[], None]:
    """Make a step of the schedule one that never raises."""

    def guarded() -> None:
        attempt(ctx.telemetry, step.__name__, step)

    return guarded
