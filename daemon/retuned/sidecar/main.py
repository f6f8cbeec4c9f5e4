"""The program: each step has a separate thread, so that none waits for another."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Mapping
from types import FrameType

from retuned.errors import Refused, RetunedError, TemporaryError
from retuned.node import order_executor, order_intake, watcher, windows
from retuned.node.loops import attempt, wait_until
from retuned.node.order_store import wanted_artifacts
from retuned.sidecar import (
    attribution,
    boots,
    devices,
    live_kernels,
    live_proofs,
    metrics,
    own_overhead,
    reports,
    sentinels,
    tunables,
)
from retuned.sidecar.context import Context
from retuned.sidecar.store import kept_of

log = logging.getLogger(__name__)

_NO_TARGET = "no-target"
"""The operator's code for a pod that no target selects."""
_WAIT_S = 30.0
_RETRY_S = 10.0
_MOST_RETRY_S = 15.0
"""Longest delay: an operator that answers again gets every pod's reports within it, seconds."""
_FIRST_WINDOWS = 4
"""Windows that are sent before the status of slots, for which decisions wait."""
_LEAST_TELL_S = 1.0
"""Least delay between reports, seconds: changes within it are sent together."""
_STOP_S = 5.0


class Sidecar:
    """The steps of a sidecar. Each may be called at any time, in any order."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx

    def observe(self) -> None:
        """Stages 1 to 3: what is running, and has it drifted."""
        ctx, alarms = self.ctx, attribution.attribution_of(self.ctx)
        parts: tuple[tuple[str, Callable[[], object]], ...] = (
            ("ingest", lambda: windows.ingest(ctx)),
            ("windows", lambda: windows.close_windows(ctx)),
            ("drift", lambda: windows.judge_windows(ctx, holds=alarms.holds)),
            ("alarms", alarms.send),
            ("lift", lambda: live_kernels.look(ctx)),
            ("tunables", lambda: tunables.look(ctx)),
            ("gpus", lambda: devices.look(ctx)),
            ("queue", lambda: reports.queue_reports(ctx)),
            ("prune", self._prune),
        )
        with ctx.spans.span("observe", about={"pod": ctx.pod.name}):
            for name, part in parts:
                attempt(ctx.telemetry, name, part)

    def steer(self) -> None:
        """Stages 9 and 10: the watch first, so that a rollback never waits; then orders."""
        ctx = self.ctx
        with ctx.lock:
            attempt(ctx.telemetry, "watch", lambda: watcher.watch(ctx))
            attempt(ctx.telemetry, "carry", self._carry)

    def prove(self, stop: threading.Event) -> None:
        """Prove the swaps that the operator asks for, until their verdicts; measure kept ones.

        Nothing waits for it but an alarm, for a minute. A canary replica measures its boot instead.
        """
        ctx = self.ctx
        alarms = attribution.attribution_of(ctx)
        attempt(ctx.telemetry, "measure", lambda: alarms.try_off(stop))
        attempt(ctx.telemetry, "measure", lambda: live_proofs.prove(ctx, stop))
        attempt(ctx.telemetry, "measure", lambda: sentinels.keep_up(ctx, stop))
        attempt(ctx.telemetry, "measure", lambda: boots.measure(ctx, stop))
        attempt(ctx.telemetry, "measure", lambda: self._weigh(stop))

    def _weigh(self, stop: threading.Event) -> None:
        """Measure now and then what Retuned itself costs the server."""
        timed = not live_proofs.unavailable(self.ctx)[0]
        own_overhead.keep_up(self.ctx, stop, timed=timed)

    def tell(self) -> None:
        """Send all reports; an error in one part ends the pass, since the operator is away."""
        self.ctx.standing.news.clear()  # the reports below include all news so far
        reports.say_hello(self.ctx)
        # first: it needs no server that answers; but after a silence many windows wait
        reports.flush(self.ctx, most_windows=_FIRST_WINDOWS)
        # before the slots: decisions about them read it
        live_proofs.post(self.ctx, boot=boots.reported(self.ctx))
        reports.tell_slots(self.ctx)
        reports.flush(self.ctx)
        # last: an operator of an older release does not know of them
        live_kernels.tell(self.ctx)
        tunables.post(self.ctx)

    def listen(self, *, wait_s: float = _WAIT_S) -> bool:
        """Ask the operator for orders and take them; True if there is something to commit.

        Raises
        ------
        TemporaryError, Refused, UnreadableInput
            As `Operator.orders`. If no target selects this pod any more, nothing names the orders
            that are in force here.
        """
        ctx = self.ctx
        if not ctx.target:
            return False  # the operator has not named the target yet
        try:
            said = ctx.operator.orders(after=ctx.standing.revision, wait_s=wait_s)
        except Refused as error:
            if error.code == _NO_TARGET:
                with ctx.lock:
                    order_intake.withdraw(ctx, ())
                ctx.standing.named, ctx.standing.revision = frozenset(), 0
                ctx.standing.proofs = ctx.standing.alarms = ()
                ctx.standing.overhead = ctx.standing.boot = None
            raise
        with ctx.lock:
            ctx.standing.proofs = said.proofs  # first: named swaps without a proof are switched on
            ctx.standing.alarms, ctx.standing.overhead = said.alarms, said.overhead
            ctx.standing.boot = said.boot
            something = order_intake.take(ctx, said.orders, traces=said.traces)
            ctx.standing.revision = said.revision
        return something

    def _carry(self) -> None:
        told = order_executor.carry_out(self.ctx)
        self.ctx.standing.history.restart(told)
        metrics.stuck(self.ctx)

    def _prune(self) -> None:
        """Remove old records at intervals."""
        ctx, now_s = self.ctx, self.ctx.clock.monotonic_s()
        if now_s - ctx.standing.pruned_at_s < ctx.settings.prune_s:
            return
        ctx.store.prune(kept_of(ctx.settings.baseline_windows))
        with ctx.lock:
            ctx.artifacts.keep_only(wanted_artifacts(ctx.store))
        ctx.standing.pruned_at_s = now_s


def serve(sidecar: Sidecar, *, observe_s: float, steer_s: float, tell_s: float) -> None:
    """Run until SIGTERM or SIGINT; then end immediately: all state is in the store and the spool.

    Raises
    ------
    KeyboardInterrupt
        If SIGINT was what stopped it.
    """
    stop, wake = threading.Event(), threading.Event()
    signals: list[int] = []

    def on_signal(number: int, _frame: FrameType | None) -> None:
        signals.append(number)
        stop.set()
        wake.set()
        sidecar.ctx.standing.news.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    threads = start(
        sidecar, stop=stop, wake=wake, observe_s=observe_s, steer_s=steer_s, tell_s=tell_s
    )
    wait_until(stop)
    log.info("stopping on signal %d", signals[0])
    for thread in threads:
        thread.join(_STOP_S / len(threads))
    sidecar.ctx.spans.close()
    if signals[0] == signal.SIGINT:
        raise KeyboardInterrupt


def start(
    sidecar: Sidecar,
    *,
    stop: threading.Event,
    wake: threading.Event,
    observe_s: float,
    steer_s: float,
    tell_s: float,
) -> list[threading.Thread]:
    """Start a thread per step.

    Parameters
    ----------
    sidecar
        The steps.
    stop
        Ends them, with `wake` and the sidecar's ``news``, which end their waits.
    wake
        Makes the sidecar check its orders immediately.
    observe_s, steer_s, tell_s
        How often, seconds.
    """
    loops: Mapping[str, Callable[[], None]] = {
        "observe": lambda: _every(sidecar.observe, observe_s, stop, stop),
        "steer": lambda: _every(sidecar.steer, steer_s, stop, wake),
        "prove": lambda: _every(lambda: sidecar.prove(stop), steer_s, stop, stop),
        "tell": lambda: _patiently(
            sidecar, "tell", sidecar.tell, tell_s, stop, news=sidecar.ctx.standing.news
        ),
        "listen": lambda: _patiently(sidecar, "listen", lambda: _heard(sidecar, wake), 0.0, stop),
    }
    threads = [
        threading.Thread(target=loop, name=name, daemon=True) for name, loop in loops.items()
    ]
    for thread in threads:
        thread.start()
    return threads


def _heard(sidecar: Sidecar, wake: threading.Event) -> None:
    if not sidecar.ctx.target:
        raise TemporaryError("the operator has not named this pod's target yet", delay_s=1.0)
    if sidecar.listen():
        wake.set()


def _every(
    step: Callable[[], None], seconds: float, stop: threading.Event, wake: threading.Event
) -> None:
    """Repeat a step; its parts handle their own errors."""
    while not stop.is_set():
        step()
        if wake.wait(seconds) and not stop.is_set():
            wake.clear()


def _patiently(
    sidecar: Sidecar,
    name: str,
    step: Callable[[], None],
    seconds: float,
    stop: threading.Event,
    *,
    news: threading.Event | None = None,
) -> None:
    """Repeat a step; the delay grows with each failure of the operator.

    News end a wait.
    """
    failures = 0
    while not stop.is_set():
        delay_s = seconds
        try:
            step()
            failures = 0
        except TemporaryError as error:
            failures += 1
            delay_s = _pause_s(error.delay_s, failures)
            _say(sidecar, name, error, failures)
        except RetunedError as error:
            failures += 1
            delay_s = _pause_s(_RETRY_S, failures)
            _say(sidecar, name, error, failures)
        except Exception:
            failures += 1
            delay_s = _pause_s(_RETRY_S, failures)
            log.exception("%s failed", name)
            sidecar.ctx.telemetry.count("retuned_step_errors_total", step=name, expected="false")
        if news is not None:
            stop.wait(min(delay_s, _LEAST_TELL_S))
            news.wait(max(0.0, delay_s - _LEAST_TELL_S))
        elif delay_s > 0.0:
            stop.wait(delay_s)


def _pause_s(asked_s: float, failures: int) -> float:
    """Return how long to wait: as long as was asked for, doubled with each failure, bounded.

    Who asks for more than the bound gets it.

    Examples
    --------
    >>> [_pause_s(5.0, n) for n in (1, 2, 3, 9)]
    [5.0, 10.0, 15.0, 15.0]
    >>> _pause_s(60.0, 1)
    60.0
    """
    doubled_s = max(0.1, asked_s) * float(2 ** min(failures - 1, 10))
    return min(max(_MOST_RETRY_S, asked_s), doubled_s)


def _say(sidecar: Sidecar, name: str, error: RetunedError, failures: int) -> None:
    level = logging.WARNING if failures == 1 else logging.DEBUG  # an hour of it is one line
    log.log(level, "%s: %s", name, error)
    sidecar.ctx.telemetry.count("retuned_step_errors_total", step=name, expected="true")
