"""Profiler windows that a server takes of itself, as its owner would set them up without Retuned.

A window is a few engine steps under `torch.profiler` with shapes and without stacks. The engine's
thread pays for recording; a second thread writes the file: first under a hidden name, then renamed,
so that a program that watches the folder reads complete files only.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retuned.demo.batches import StepReport
from retuned.runtime.profiler.folder import SUFFIX, FolderUnusable, plain_path, publish

log = logging.getLogger(__name__)

_MAX_TRACE_BYTES = 1 << 30
"""Of one window, before it is compressed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSettings:
    """How often and how long."""

    every_s: float = 2.5
    """From the start of one window to the start of the next."""
    max_steps: int = 10
    """A window ends after so many steps."""
    max_s: float = 0.8
    """Or after this time, whichever is first; steps are ten times as long while prompts run."""
    keep_files: int = 64
    """The oldest files beyond this are removed."""


class ProfilerWindows:
    """A step hook that profiles some steps.

    Parameters
    ----------
    trace_dir
        Where the files go; made if absent.
    settings
        How often and how long.
    gpu
        Also record what runs on the GPU.
    """

    def __init__(self, trace_dir: Path, *, settings: WindowSettings, gpu: bool = False) -> None:
        trace_dir.mkdir(parents=True, exist_ok=True)
        self.paused = False
        """Begins no window while True; one that is open goes on."""
        self.disturbs: Callable[[], bool] = lambda: False
        """Says that steps are timed now, so that no window begins: a profiled step is slower."""
        self._gpu = gpu
        self._dir = trace_dir
        self._settings = settings
        self._profiler: Any = None
        self._steps = 0
        self._started_s = 0.0
        self._next_s = time.monotonic() + settings.every_s
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="trace-writer")
        self._writing: Future[None] | None = None
        self._count = 0
        self._broken = False

    def warm_up(self) -> None:
        """Start and stop the profiler once: its first start loads libraries for seconds."""
        self._start()
        self._discard()

    def before_step(self) -> None:
        """Begin a window if it is time and the last one is written."""
        busy = self._writing is not None and not self._writing.done()
        if self._profiler is None and not (self._broken or self.paused or busy or self.disturbs()):
            now_s = time.monotonic()
            if now_s >= self._next_s:
                self._next_s = now_s + self._settings.every_s
                self._start()

    def after_step(self, report: StepReport) -> None:
        """End the window once it is long enough."""
        if self._profiler is None:
            return
        self._steps += 1
        long_enough = time.monotonic() - self._started_s >= self._settings.max_s
        if self._steps < self._settings.max_steps and not long_enough:
            return
        profiler, self._profiler = self._profiler, None
        try:
            profiler.stop()
        except RuntimeError:
            log.exception("the profiler does not stop; no more windows")
            self._broken = True
            return
        self._count += 1
        self._writing = self._writer.submit(self._write, profiler, self._count)

    def stopped(self) -> None:
        """Drop a window that is open and wait for the file being written."""
        self._discard()
        self._writer.shutdown(wait=True)

    def _start(self) -> None:
        from torch.profiler import ProfilerActivity, profile

        activities = [ProfilerActivity.CPU]
        if self._gpu:
            activities.append(ProfilerActivity.CUDA)
        try:
            profiler = profile(activities=activities, record_shapes=True)
            profiler.start()
        except RuntimeError:
            log.exception("the profiler does not start; no more windows")
            self._broken = True
            return
        self._profiler, self._steps, self._started_s = profiler, 0, time.monotonic()

    def _discard(self) -> None:
        if self._profiler is not None:
            self._profiler.stop()
            self._profiler = None

    def _write(self, profiler: Any, number: int) -> None:  # noqa: ANN401 - torch.profiler.profile
        name = f"demo-{os.getpid()}-{number:06d}{SUFFIX}"
        plain = plain_path(self._dir, name)
        try:
            profiler.export_chrome_trace(str(plain))
            publish(plain, self._dir / name, max_bytes=_MAX_TRACE_BYTES)
            self._forget_oldest()
        except (OSError, RuntimeError, FolderUnusable):
            log.exception("trace %s could not be written", name)

    def _forget_oldest(self) -> None:
        files = sorted(self._dir.glob(f"demo-*{SUFFIX}"), key=lambda path: path.stat().st_mtime_ns)
        for path in files[: -self._settings.keep_files]:
            path.unlink(missing_ok=True)
