"""``retuned run``: the daemon on one machine. Connects ports to steps and schedules them."""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler

from retuned.errors import RetunedError, UsageError
from retuned.local import deciding, experimenting, observing, reasoning, swapping
from retuned.local.context import Context

log = logging.getLogger(__name__)


class Loop:
    """The steps of the loop over one context. Each method may be called at any time, in any order.

    `observe`, `experiment` and `steer` run on their own threads; what writes orders holds one lock,
    so that a watch alarm and a person's request cannot write the same epoch twice.
    """

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self._history = swapping.History()
        self._orders = threading.Lock()

    def observe(self) -> None:
        """Stages 1 to 4: what is running, has it drifted, what might help."""
        observing.ingest(self.ctx)
        observing.close_windows(self.ctx)
        reasoning.settle(self.ctx)
        observing.judge_windows(self.ctx)
        reasoning.explain(self.ctx)

    def experiment(self) -> None:
        """Stages 5 to 7: run at most one experiment to its end, then propose what won."""
        plan = experimenting.open_experiment(self.ctx)
        if plan is not None:
            experimenting.run_experiment(self.ctx, plan)
        deciding.propose(self.ctx)

    def steer(self) -> None:
        """Stages 8 to 10: people, policy, orders, watching. Short: a rollback waits for it."""
        with self._orders:
            deciding.carry_out_requests(self.ctx)
            deciding.gate(self.ctx)
            swapping.start_swaps(self.ctx)
            swapping.drive_orders(self.ctx)
            swapping.watch(self.ctx, self._history)

    def turn(self) -> None:
        """Do every step once, in order: what tests and replays use."""
        self.observe()
        self.experiment()
        self.steer()


@contextmanager
def only_one(state_dir: Path) -> Iterator[None]:
    """Hold the lock of a state folder: two daemons on one state would pay everything twice.

    Raises
    ------
    UsageError
        If another daemon holds it.
    """
    state_dir.mkdir(parents=True, exist_ok=True)
    with (state_dir / "daemon.lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            holder = lock.read().strip() or "unknown"
            raise UsageError(
                f"another daemon (pid {holder}) runs on {state_dir}; "
                "stop it or name another state_dir"
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def serve(loop: Loop, *, observe_s: float, steer_s: float) -> None:
    """Schedule the steps until SIGTERM or SIGINT. An error in one step never stops another."""
    stop = threading.Event()

    def on_signal(number: int, _frame: FrameType | None) -> None:
        log.info("stopping on signal %d", number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    scheduler = BackgroundScheduler(
        executors={"default": ThreadPoolExecutor(3)},
        job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
        timezone="UTC",
    )
    steps: tuple[tuple[Callable[[], None], float], ...] = (
        (loop.observe, observe_s),
        (loop.experiment, observe_s),
        (loop.steer, steer_s),
    )
    for step, seconds in steps:
        scheduler.add_job(_guard(loop.ctx, step), "interval", seconds=seconds, id=step.__name__)
    scheduler.start()
    stop.wait()
    # an experiment in flight is not waited for: what it has stored is kept, the rest is resumed
    scheduler.shutdown(wait=False)


def _guard(ctx: Context, step: Callable[[], None]) -> Callable[[], None]:
    """One of the program's loops: the only place where any exception is caught, logged, counted."""
    name = step.__name__

    def guarded() -> None:
        try:
            step()
        except RetunedError as error:
            log.warning("%s: %s", name, error)
            ctx.telemetry.count("retuned_step_errors_total", step=name, expected="true")
        except Exception:
            log.exception("%s failed", name)
            ctx.telemetry.count("retuned_step_errors_total", step=name, expected="false")

    return guarded
