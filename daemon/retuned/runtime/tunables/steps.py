"""Steps of a server: the moment between two steps at which a table may be exchanged.

vLLM's worker runs ``Worker.execute_model`` once a step, on the thread that launches. The hook holds
a lock during a step. Actions of the control thread run at the start of the next step, on the
launching thread, or on the control thread while the server is idle. A server without known steps
has no such moment: there an exchange is one assignment, and the next launch sees it.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from retuned.runtime.schema import Refused
from retuned.runtime.tunables.records import bucket

log = logging.getLogger(__name__)

MODULE = "vllm.v1.worker.gpu_worker"
WAIT_S = 10.0
"""Longest wait for the start of a step."""
MAX_PAUSE_S = 2.0
_IDLE_S = 1.0
"""A gap between steps over this is idle time of the server."""
_RECENT = 64
_TRY_S = 0.02
T = TypeVar("T")


class Action:
    """Work for the next safe point, and its result."""

    def __init__(self, work: Callable[[Any], object]) -> None:
        self._work = work
        self._taken = threading.Lock()
        self.done = threading.Event()
        self.result: object = None
        self.error: BaseException | None = None
        self.held_us = 0.0
        """How long the launching thread was held."""

    def run(self, worker: Any) -> None:  # noqa: ANN401 - the server's worker
        """Run once, on whichever thread comes first."""
        if not self._taken.acquire(blocking=False):
            return
        begin_s = time.perf_counter()
        try:
            self.result = self._work(worker)
        except Exception as error:
            self.error = error
        self.held_us = 1e6 * (time.perf_counter() - begin_s)
        self.done.set()

    def withdraw(self) -> bool:
        """Prevent the run; False if it has begun."""
        return self._taken.acquire(blocking=False)


class Steps:
    """Steps of this process's server."""

    def __init__(self) -> None:
        self.state = "vllm-missing"
        self.worker: Any = None
        self._renew()

    def _renew(self) -> None:
        self._lock = threading.RLock()
        self._pending: deque[Action] = deque()
        self._count = 0
        self._tokens = 0
        self._busy_s = 0.0
        self._last_s = 0.0
        self._recent: deque[dict[str, Any]] = deque(maxlen=_RECENT)
        self._sizes: dict[int, list[int]] = {}
        """By size class of tokens: steps, and those of decode alone."""
        self._resume: dict[str, threading.Event] = {}
        self._paused = threading.Lock()
        """Held by the thread of a pause."""

    def after_fork(self) -> None:
        """Start over: no worker of the parent runs in its child."""
        self.worker = None
        self._renew()

    def install(self, when_seen: Callable[[], None]) -> str:
        """Follow the steps of vLLM's worker; return ``on`` or a reason code. Idempotent."""
        cls = getattr(sys.modules.get(MODULE), "Worker", None)
        stock = cls.__dict__.get("execute_model") if cls is not None else None
        if stock is None or getattr(stock, "_retuned_steps", None) is not None:
            return self.state

        @functools.wraps(stock)
        def execute_model(worker: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as vLLM's
            with self._lock:
                try:
                    if self.worker is not worker:
                        self.worker = worker
                        when_seen()
                    self._begin(worker, scheduler_output)
                except Exception:
                    log.exception("a step is not counted; it runs as the server's own")
                return stock(worker, scheduler_output, *args, **kwargs)

        execute_model._retuned_steps = stock  # type: ignore[attr-defined]
        setattr(cls, "execute_model", execute_model)  # noqa: B010 - as mypy sees it, a None
        self.state = "on"
        return self.state

    def uninstall(self) -> None:
        """Restore the worker's method, unless other code has wrapped it since."""
        cls = getattr(sys.modules.get(MODULE), "Worker", None)
        ours = cls.__dict__.get("execute_model") if cls is not None else None
        stock = getattr(ours, "_retuned_steps", None)
        if cls is not None and stock is not None:
            cls.execute_model = stock
            self.state = "uninstalled"

    def _begin(self, worker: Any, scheduler_output: Any) -> None:  # noqa: ANN401
        while self._pending:
            self._pending.popleft().run(worker)
        now_s = time.monotonic()
        if self._last_s and now_s - self._last_s < _IDLE_S:
            self._busy_s += now_s - self._last_s
        self._last_s = now_s
        scheduled = scheduler_output.num_scheduled_tokens
        self._count += 1
        tokens = int(scheduler_output.total_num_scheduled_tokens)
        self._tokens += tokens
        counts = self._sizes.setdefault(bucket(tokens), [0, 0])
        counts[0] += 1
        counts[1] += tokens == len(scheduled)
        if self._count % 16 == 1 and scheduled:
            self._recent.append(_described(worker, scheduled))

    def at_safe_point(self, work: Callable[[Any], T], *, wait_s: float = WAIT_S) -> tuple[T, float]:
        """Run work between two steps; return its result, and how long launches were held, us.

        Raises
        ------
        Refused
            ``no-safe-point`` before the first step of a server with known steps, or if no step
            began and none ended in time; or as the work.
        """
        if self.worker is None and self.state == "on":
            raise Refused("no-safe-point", detail="the server has not begun its first step")
        if self.worker is None:  # no steps here: the work must be safe beside launches
            begin_s = time.perf_counter()
            return work(None), 1e6 * (time.perf_counter() - begin_s)
        action = Action(work)
        self._pending.append(action)
        deadline_s = time.monotonic() + wait_s
        while not action.done.wait(_TRY_S):
            if self._lock.acquire(timeout=_TRY_S):  # no step is under way
                try:
                    action.run(self.worker)
                finally:
                    self._lock.release()
            elif time.monotonic() > deadline_s and action.withdraw():
                detail = f"no step of the server began or ended within {wait_s:.0f} s"
                raise Refused("no-safe-point", detail=detail)
        with contextlib.suppress(ValueError):  # a step has taken it
            self._pending.remove(action)
        if action.error is not None:
            raise action.error
        return action.result, action.held_us  # type: ignore[return-value]

    def pause(self, name: str, *, seconds: float) -> dict[str, Any]:
        """Hold the launching thread from the next safe point until `resume`, or for `seconds`.

        Raises
        ------
        Refused
            ``no-step-hook``, ``bad-request``, ``paused-already``, or as `at_safe_point`.
        """
        if self.worker is None:
            raise Refused("no-step-hook", detail="the steps of this server are not known")
        if not 0.0 < seconds <= MAX_PAUSE_S or not 0 < len(name) <= 64:
            raise Refused("bad-request", detail=f"a pause has a name and at most {MAX_PAUSE_S} s")
        if self._paused.locked():
            raise Refused("paused-already", detail="another pause is in force")
        resume, begun = threading.Event(), threading.Event()
        self._resume[name] = resume
        began_s = time.monotonic()

        def hold(_: Any) -> None:  # noqa: ANN401
            synchronize()
            begun.set()
            resume.wait(seconds)

        def run() -> None:
            with self._paused:
                try:
                    self.at_safe_point(hold)
                except Refused as error:
                    log.warning("no pause: %s", error)
                finally:
                    self._resume.pop(name, None)

        threading.Thread(target=run, name="retuned-pause", daemon=True).start()
        if not begun.wait(WAIT_S):
            raise Refused("no-safe-point", detail="the server reached no safe point")
        return {"paused": True, "waited_us": round(1e6 * (time.monotonic() - began_s), 1)}

    def resume(self, name: str) -> dict[str, Any]:
        """End a pause, and wait until launches go on; a pause that has ended is accepted."""
        event = self._resume.get(name)
        if event is not None:
            event.set()
            if self._paused.acquire(timeout=WAIT_S):
                self._paused.release()
        return {"resumed": event is not None}

    def idle(self) -> bool:
        """Whether no step began for a while."""
        return time.monotonic() - self._last_s > _IDLE_S

    def report(self) -> dict[str, Any]:
        return {
            "hook": self.state if self.state != "on" or self.worker is not None else "no-worker",
            "count": self._count,
            "tokens": self._tokens,
            "busy_s": round(self._busy_s, 6),
            "sizes": {str(size): list(counts) for size, counts in sorted(self._sizes.items())},
            "recent": list(self._recent),
        }


def synchronize() -> None:
    """Wait for the device, if there is one."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _described(worker: Any, scheduled: Mapping[str, int]) -> dict[str, Any]:  # noqa: ANN401
    """Describe a step: new tokens and context of each sequence, as far as the host has them."""
    queries = [int(each) for each in list(scheduled.values())[:256]]
    return {
        "sequences": len(scheduled),
        "tokens": sum(int(each) for each in scheduled.values()),
        "queries": queries,
        "keys": _contexts(worker, list(scheduled)[:256], queries),
    }


def _contexts(worker: Any, names: list[str], queries: list[int]) -> list[int]:  # noqa: ANN401
    """Return the length of each sequence after the step; [] where the host does not have it."""
    runner = getattr(worker, "model_runner", None)
    batch = getattr(runner, "input_batch", None)  # V1
    if batch is not None and hasattr(batch, "req_id_to_index"):
        places, computed = batch.req_id_to_index, batch.num_computed_tokens_cpu
        return [
            int(computed[places[name]]) + query if name in places else query
            for name, query in zip(names, queries, strict=True)
        ]
    states = getattr(runner, "req_states", None)  # V2
    if states is not None and hasattr(states, "req_id_to_index"):
        computed = getattr(states, "num_computed_tokens_np", None)
        if computed is not None:
            places = states.req_id_to_index
            return [
                int(computed[places[name]]) + query if name in places else query
                for name, query in zip(names, queries, strict=True)
            ]
    return []
