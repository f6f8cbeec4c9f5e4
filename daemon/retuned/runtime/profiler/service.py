"""Service thread that takes windows, and its report. Its failures do not reach the server."""

from __future__ import annotations

import logging
import os
import random
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from retuned.runtime.profiler import ownership
from retuned.runtime.profiler.folder import SUFFIX, FolderUnusable, check, plain_path, publish
from retuned.runtime.profiler.recorder import Quiet, Recorder
from retuned.runtime.profiler.schedule import (
    Cost,
    Rule,
    first_length,
    first_pause,
    next_length,
    next_pause,
)
from retuned.runtime.schema import Refused

log = logging.getLogger(__name__)

MAX_EMPTY = 3
"""Windows are stopped after this many in a row without a kernel of a busy GPU."""
MAX_FAILED = 3
"""Windows are stopped after this many failures in a row."""
_CLOSE_S = 10.0
_FORK_S = 5.0


class Windows:
    """Windows of this process; nothing begins before `start`.

    Parameters
    ----------
    launched
        Returns a number that grows while the server works.
    quiet
        Blocks captures of graphs in its context.
    captured
        Whether this process may hold a captured graph.
    held
        Returns why no window may begin now, a reason code; empty if one may.
    """

    def __init__(
        self,
        folder: Path,
        rule: Rule,
        *,
        launched: Callable[[], int],
        quiet: Quiet,
        captured: Callable[[], bool],
        held: Callable[[], str] = str,
    ) -> None:
        self._folder = folder
        self._rule = rule
        self._launched = launched
        self._quiet = quiet
        self._captured = captured
        self._held = held
        self._chance = random.Random()  # only spreads replicas
        self._renew()

    def _renew(self) -> None:
        self._recorder = Recorder(self._quiet, self._captured)
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._instance = os.urandom(4).hex()
        self._length_s = first_length(self._rule)
        self._seen = 0
        self._written = 0
        self._kernels = 0
        self._empty = 0
        self._failed = 0
        self._skipped: Counter[str] = Counter()
        self._last = ""
        self._off = ""
        self._spent = Cost()

    def start(self) -> None:
        """Start to take windows, once. Never raises."""
        if self._thread is not None or self._ended.is_set():
            return
        thread = threading.Thread(target=self._run, name="retuned-windows", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            log.error("no profiler windows, the server runs without them: %s", error)
            return
        self._thread = thread

    def close(self) -> None:
        self._ended.set()
        self._recorder.turns.give_way(_CLOSE_S)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_CLOSE_S)
        profiler = sys.modules.get("torch.autograd.profiler")
        if profiler is not None:
            ownership.remove(profiler, self._recorder.turns)

    def before_fork(self) -> None:
        """Close an open window: a child would continue a recording that nothing reads."""
        self._recorder.turns.give_way(_FORK_S)

    def after_fork(self) -> None:
        profiler, turns = sys.modules.get("torch.autograd.profiler"), self._recorder.turns
        if profiler is not None:
            ownership.remove(profiler, turns)
        self._renew()

    def state(self) -> dict[str, Any]:
        """Return the written windows, their cost and why others were skipped, as JSON data."""
        spent = self._spent
        return {
            "folder": str(self._folder),
            "every_s": self._rule.every_s,
            "length_s": self._length_s,
            "written": self._written,
            "kernels": self._kernels,
            "skipped": dict(self._skipped.copy()),
            "last": self._last,
            "off": self._off,
            "spent_s": round(spent.total_s, 6),
            "open_s": round(spent.open_s, 6),
            "stalled_s": round(spent.stalled_s, 6),
        }

    def _run(self) -> None:
        try:
            self._recorder.guard()
        except Exception:  # another module under PyTorch's name
            log.exception("no profiler windows: the server's own profiler cannot be observed")
            self._off = "profiler-unknown"
        pause_s = first_pause(self._rule, self._chance.random())
        while not self._ended.wait(pause_s) and not self._off:
            pause_s = self.turn()

    def turn(self) -> float:
        """Take a window if allowed; return the seconds until the next. Never raises."""
        self._recorder.cost = Cost()
        try:
            self._window()
            self._failed = 0
        except (Refused, FolderUnusable) as error:
            self._skip(error.reason)
        except Exception as error:  # loop of a thread in another project's server
            self._skip("failed")
            self._failed += 1
            log.exception(
                "a profiler window failed, the server continues: %s", type(error).__name__
            )
            if self._failed >= MAX_FAILED:
                self._stop("failed")
        cost = self._recorder.cost
        if cost.total_s:
            self._spent += cost
            self._length_s = next_length(self._rule, self._length_s, cost)
        return next_pause(self._rule, cost, self._chance.random())

    def _window(self) -> None:
        reason = self._held() or self._recorder.unready()
        if reason:
            self._skip(reason)
            return
        now = self._launched() + self._recorder.allocations()
        idle, self._seen = now == self._seen, now
        if idle:
            self._skip("idle")
            return
        check(self._folder, self._rule.folder_bytes)
        name = f"retuned-{os.getpid()}-{self._instance}-{self._written + 1:06d}{SUFFIX}"
        plain = plain_path(self._folder, name)
        try:
            self._recorder.take(self._length_s, plain)
            kernels = publish(plain, self._folder / name, max_bytes=self._rule.folder_bytes)
        finally:
            plain.unlink(missing_ok=True)
        self._written += 1
        self._kernels += kernels
        self._last = "written"
        self._judge(kernels)

    def _judge(self, kernels: int) -> None:
        """Stop the windows if recordings on a GPU contain no kernel: they cost and have no use."""
        self._empty = 0 if kernels or not self._recorder.on_device else self._empty + 1
        if self._empty >= MAX_EMPTY:
            self._stop("no-kernels")

    def _stop(self, reason: str) -> None:
        self._off = reason
        log.warning("no more profiler windows in this process: %s", reason)

    def _skip(self, reason: str) -> None:
        self._skipped[reason] += 1
        self._last = reason
