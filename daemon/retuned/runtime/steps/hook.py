"""Steps of a server: the moment between two steps at which a table may be exchanged.

vLLM's worker runs ``Worker.execute_model`` once a step, on the thread that launches. Where that
returns None, the engine calls ``Worker.sample_tokens`` for the same step, which launches the
sampler and the drafts (vLLM 0.26.0 and 0.33.0, both runners). So a step begins with
``execute_model`` and ends with the return of ``sample_tokens``. It ends with ``execute_model``
where that returns an answer (pooling, a step without tokens) or the worker has no
``sample_tokens``. The hook holds a lock during both calls, and no action runs between them.

Actions of the control thread run at the start of the next step, on the launching thread, or on the
control thread while the server is idle. A server without known steps has no such moment: there an
exchange is one assignment, and the next launch sees it. A server of another kind marks its steps by
`retuned.runtime.step`.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from retuned.runtime.schema import Refused
from retuned.runtime.steps.composition import Composition, GraphNote, composition, described
from retuned.runtime.steps.launch_times import LaunchTimes
from retuned.runtime.steps.log import StepLog
from retuned.runtime.steps.turns import Turns
from retuned.runtime.tunables.records import bucket

log = logging.getLogger(__name__)

MODULE = "vllm.v1.worker.gpu_worker"
WAIT_S = 10.0
"""Longest wait for the start of a step."""
ARM_WAIT_S = 3.0
"""The same, for the arm of a proof: shorter than the daemon waits for its answer."""
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
        self.graph = GraphNote()
        self.log = StepLog(when_off=self._when_off)
        self.launches = LaunchTimes(self.log)
        self._seen: Callable[[], None] = lambda: None
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
        self._halfway_s = 0.0
        """When the first call of a step returned whose second one is due; 0 if none is."""
        self.turns: Turns | None = None
        """Switches an arm every few steps that are recorded."""
        self._marked = False
        """Whether the server marks its steps itself."""
        self._owner: int | None = None
        """Thread of the marked step under way."""
        self.overlapping = 0
        """Marked steps that ran beside another one, so that they are not steps of this server."""

    def _when_off(self) -> None:
        self.graph.leave()
        self.launches.leave()

    def after_fork(self) -> None:
        """Start over: no worker of the parent runs in its child."""
        self.worker = None
        self.log.after_fork()
        self.launches.after_fork()
        self._renew()

    @property
    def known(self) -> bool:
        """Whether steps of this server were seen, so that there are safe points."""
        return self.worker is not None or self._marked

    def install(self, when_seen: Callable[[], None]) -> str:
        """Follow the steps of vLLM's worker; return ``on`` or a reason code. Idempotent.

        Parameters
        ----------
        when_seen
            Called with the first step; must not raise.
        """
        self._seen = when_seen
        return self.follow()

    def follow(self) -> str:
        """Follow the steps of vLLM's worker, if it is loaded; see `install`."""
        cls = getattr(sys.modules.get(MODULE), "Worker", None)
        stock = cls.__dict__.get("execute_model") if cls is not None else None
        if stock is None or getattr(stock, "_retuned_steps", None) is not None:
            return self.state
        sampling = cls.__dict__.get("sample_tokens")

        @functools.wraps(stock)
        def execute_model(worker: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as vLLM's
            with self._lock:
                self._open(worker, scheduler_output)
                try:
                    answer = stock(worker, scheduler_output, *args, **kwargs)
                except BaseException:
                    self._failed()
                    raise
                more = answer is None and sampling is not None
                more = more and getattr(scheduler_output, "total_num_scheduled_tokens", 0) > 0
                self._halfway_s = time.monotonic() if more else 0.0
                if self.log.under_way:
                    self._close(more=more)
                return answer

        execute_model._retuned_steps = stock  # type: ignore[attr-defined]
        setattr(cls, "execute_model", execute_model)  # noqa: B010 - as mypy sees it, a None
        if sampling is not None:
            setattr(cls, "sample_tokens", self._sampled(sampling))  # noqa: B010
        self.state = "on"
        return self.state

    def _sampled(self, stock: Any) -> Any:  # noqa: ANN401 - vLLM's
        @functools.wraps(stock)
        def sample_tokens(worker: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as vLLM's
            with self._lock:
                if self.log.under_way:
                    self.log.go_on()
                try:
                    answer = stock(worker, *args, **kwargs)
                except BaseException:
                    self._failed()
                    raise
                self._halfway_s = 0.0
                if self.log.under_way:
                    self._close(more=False)
                return answer

        sample_tokens._retuned_steps = stock  # type: ignore[attr-defined]
        return sample_tokens

    def uninstall(self) -> None:
        """Restore the worker's methods, unless other code has wrapped them since."""
        self.log.stop()
        cls = getattr(sys.modules.get(MODULE), "Worker", None)
        for name in ("execute_model", "sample_tokens") if cls is not None else ():
            stock = getattr(cls.__dict__.get(name), "_retuned_steps", None)
            if stock is not None:
                setattr(cls, name, stock)
                self.state = "uninstalled"

    def _failed(self) -> None:
        """Forget a step whose call has raised."""
        self._halfway_s = 0.0
        self.log.drop()

    def _open(self, worker: Any, scheduler_output: Any) -> None:  # noqa: ANN401
        try:
            if self.worker is not worker:
                self.worker = worker
                self._seen()
            self._begin(worker, scheduler_output)
        except Exception:
            log.exception("a step is not counted; it runs as the server's own")

    def _close(self, *, more: bool) -> None:
        """End a call of a step that is recorded; `more` says that another one is due."""
        try:
            graph = self.graph.size()
            if more:
                self.log.rest(graph)
            else:
                self.log.end(graph)
        except Exception:
            log.exception("steps are not recorded any more; they run as the server's own")
            self.log.fail("record-failed")

    def _begin(self, worker: Any, scheduler_output: Any) -> None:  # noqa: ANN401
        self._act()
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
            self._recent.append(described(scheduler_output))
        self.log.drop()
        if self.log.recording and tokens:
            self._turn()
            self._record(worker, scheduler_output)

    def _turn(self) -> None:
        turns = self.turns
        if turns is None:
            return
        more = turns.begin_step(self.log)
        if self.turns is not turns:  # ended by the control thread meanwhile
            self.log.arm = ""
        elif not more:
            self.turns = None

    def _act(self) -> None:
        with contextlib.suppress(IndexError):  # the control thread removes actions, too
            while self._pending:
                self._pending.popleft().run(self.worker)

    def _record(self, worker: Any, scheduler_output: Any) -> None:  # noqa: ANN401
        try:
            work = composition(scheduler_output)
            self.graph.begin(getattr(worker, "model_runner", None))
            self.log.begin(work)
        except AttributeError:
            log.exception("steps are not recorded: this scheduler's output is not known")
            self.log.fail("scheduler-unknown")
        except Exception:
            log.exception("steps are not recorded any more; they run as the server's own")
            self.log.fail("record-failed")

    def enter(self, work: Composition) -> bool:
        """Begin a step that the server marks; False if it lies within or beside another one."""
        own = threading.get_ident()
        if self.worker is not None or self._owner == own:
            return False
        if not self._lock.acquire(blocking=False) and not self._waited():
            self.overlapping += 1
            return False
        self._owner = own
        try:
            if self._pending or not self._marked:
                self._marked = True
                self._seen()
                self._act()
            self._count += 1
            now_s = time.monotonic()
            gap_s, self._last_s = now_s - self._last_s, now_s
            if gap_s < _IDLE_S:
                self._busy_s += gap_s
            if self.log.recording:
                self._turn()
                idle = work.after_idle or gap_s > _IDLE_S
                self.log.begin(work._replace(after_idle=idle))
        except Exception:
            log.exception("a step is not recorded; it runs as the server's own")
            self.log.fail("record-failed")
        return True

    def _waited(self) -> bool:
        """Wait while the control thread has the lock for a moment; False if another step has it."""
        while True:
            if self._owner is not None:
                return False
            if self._lock.acquire(timeout=_TRY_S):
                return True

    def leave(self, *, failed: bool) -> None:
        """End a marked step that `enter` has begun."""
        try:
            if failed:
                self.log.drop()
            elif self.log.under_way:
                self._close(more=False)
        finally:
            self._owner = None
            with contextlib.suppress(RuntimeError):  # in a forked child the lock is another one
                self._lock.release()

    def at_safe_point(self, work: Callable[[Any], T], *, wait_s: float = WAIT_S) -> tuple[T, float]:
        """Run work between two steps; return its result, and how long launches were held, us.

        Raises
        ------
        Refused
            ``no-safe-point`` before the first step of a server with known steps, or if no step
            began and none ended in time; or as the work.
        """
        if not self.known and self.state == "on":
            raise Refused("no-safe-point", detail="the server has not begun its first step")
        if not self.known:  # no steps here: the work must be safe beside launches
            begin_s = time.perf_counter()
            return work(None), 1e6 * (time.perf_counter() - begin_s)
        action = Action(work)
        self._pending.append(action)
        deadline_s = time.monotonic() + wait_s
        while not action.done.wait(_TRY_S):
            if self._lock.acquire(timeout=_TRY_S):  # no call of a step is under way
                try:
                    if not self._halfway():
                        action.run(self.worker)
                finally:
                    self._lock.release()
            if time.monotonic() > deadline_s and action.withdraw():
                detail = f"no step of the server began or ended within {wait_s:.0f} s"
                raise Refused("no-safe-point", detail=detail)
        with contextlib.suppress(ValueError):  # a step has taken it
            self._pending.remove(action)
        if action.error is not None:
            raise action.error
        return action.result, action.held_us  # type: ignore[return-value]

    def in_arm(
        self, change: Callable[[Any], T], *, arm: str | None, wait_s: float = WAIT_S
    ) -> tuple[T, float]:
        """Make a change at a safe point, and label the steps that begin after it.

        Where no steps are known, the change is made at once. A change that returns False was not
        made, and the steps get no label. As `at_safe_point` otherwise; after a refusal the label
        is as it was.
        """

        def work(worker: Any) -> T:  # noqa: ANN401
            result = change(worker)
            if arm is not None:
                self.log.arm = "" if result is False else arm
            return result

        return self.at_safe_point(work, wait_s=wait_s)

    def _halfway(self) -> bool:
        """Whether the second call of a step is due; one that does not come has failed."""
        return bool(self._halfway_s) and time.monotonic() - self._halfway_s < _IDLE_S

    def pause(self, name: str, *, seconds: float) -> dict[str, Any]:
        """Hold the launching thread from the next safe point until `resume`, or for `seconds`.

        Raises
        ------
        Refused
            ``no-step-hook``, ``bad-request``, ``paused-already``, or as `at_safe_point`.
        """
        if not self.known:
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

    def hook(self) -> str:
        """Return ``on`` where steps are known, else a reason code."""
        if self.known:
            return "on"
        return "no-worker" if self.state == "on" else self.state

    def report(self) -> dict[str, Any]:
        return {
            "hook": self.hook(),
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
