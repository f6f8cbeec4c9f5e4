"""Recorder of windows, the only module that calls PyTorch's profiler.

A process with a captured CUDA graph gets no window. Once CUPTI was registered, each launch of a
graph costs up to 9 % more until the process ends; after CUPTI was finalised, the next replay of an
older graph can end the process (``docs/known-flaws.md``).

The recording is started and stopped by the same thread of the runtime, and requests the operators
of all threads; otherwise a recording only contains the thread that started it. ``torch.profiler``
is built on ``torch.autograd.profiler``; using the latter directly imports no compiler, which would
take seconds of the server's time. PyTorch is never imported here, only looked up.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from retuned.runtime.core.environment import device_in_use
from retuned.runtime.plugins.ranks import ranks
from retuned.runtime.profiler import ownership
from retuned.runtime.profiler.schedule import Cost
from retuned.runtime.schema import Refused

DETACHES = (12, 6)
"""From this CUDA version on, CUPTI can detach from a process."""
_TEARDOWN = "TEARDOWN_CUPTI"
"""Variable that Kineto reads when a recording ends: ``1`` finalises CUPTI."""
_OTHERS = ("KINETO_USE_DAEMON", "CUDA_INJECTION64_PATH", "ROCP_TOOL_LIBRARIES", "HSA_TOOLS_LIB")
"""Variables that indicate another profiler in the process."""
Quiet = Callable[[], AbstractContextManager[None]]


def cupti_leaves(cuda: str | None, variables: Mapping[str, str]) -> bool:
    """Whether CUPTI detaches from the process after a recording, or can be configured to.

    If it stays attached, every launch after the first window is slower.

    Examples
    --------
    >>> cupti_leaves("13.2", {}), cupti_leaves("12.4", {}), cupti_leaves(None, {})
    (True, False, True)
    >>> cupti_leaves("13.2", {"TEARDOWN_CUPTI": "0"})
    False
    """
    if not cuda:
        return True
    try:
        version = tuple(int(part) for part in cuda.split(".")[:2])
    except ValueError:
        return False
    return version >= DETACHES and variables.get(_TEARDOWN, "1") == "1"


@contextmanager
def _teardown(value: str) -> Iterator[None]:
    """Set Kineto's variable in this context only: the server's own profiler must not inherit it."""
    before = os.environ.get(_TEARDOWN)
    os.environ[_TEARDOWN] = value
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_TEARDOWN, None)
        else:
            os.environ[_TEARDOWN] = before


class Recorder:
    """Takes windows of this process.

    Parameters
    ----------
    quiet
        Blocks captures of graphs in its context; raises `Refused` during one.
    captured
        Whether this process may hold a captured graph.
    """

    def __init__(self, quiet: Quiet, captured: Callable[[], bool]) -> None:
        self.turns = ownership.ProfilerOwnership()
        self.cost = Cost()
        self._quiet = quiet
        self._captured = captured

    def guard(self) -> bool:
        """Detect from now on when the server profiles; False if that is not possible."""
        profiler = sys.modules.get("torch.autograd.profiler")
        return profiler is not None and ownership.install(profiler, self.turns)

    def unready(self) -> str:
        """Return the reason code why no window can be taken now; empty if one can."""
        torch = sys.modules.get("torch")
        profiler = sys.modules.get("torch.autograd.profiler")
        if torch is None or profiler is None or not hasattr(torch, "cuda"):
            return "torch-missing"
        if any(os.environ.get(name) for name in _OTHERS):
            return "another-profiler"
        if ranks().get("rank", 0) != 0:
            return "other-rank"  # ranks wait for each other, so one slow rank delays all
        if _experimental(torch) is None:
            return "no-all-threads"
        if not self.guard():
            return "profiler-unknown"
        if getattr(profiler, "_is_profiler_enabled", False):
            return "another-profiler"
        if torch.cuda.is_available() and not torch.cuda.is_initialized():
            return "device-asleep"
        if torch.cuda.is_initialized():
            if self._captured():
                return "graphs-captured"
            if not cupti_leaves(getattr(torch.version, "cuda", None), os.environ):
                return "cupti-stays"
            if device_in_use(torch) is None:
                return "device-asleep"
        return ""

    @property
    def on_device(self) -> bool:
        torch = sys.modules.get("torch")
        return torch is not None and bool(torch.cuda.is_initialized())

    def allocations(self) -> int:
        """Return the number of device allocations: eager work allocates."""
        torch = sys.modules.get("torch")
        device = device_in_use(torch) if torch is not None and self.on_device else None
        if torch is None or device is None:
            return 0
        return int(torch.cuda.memory_stats(device).get("allocation.all.allocated", 0))

    def take(self, length_s: float, plain: Path) -> None:
        """Record for `length_s` seconds and write the profiler's file.

        Raises
        ------
        Refused
            ``another-profiler``, ``capturing``; ``yielded`` if the server wanted to profile.
        RuntimeError, OSError
            As raised by PyTorch.
        """
        self.cost = Cost()
        torch = sys.modules["torch"]
        device = device_in_use(torch) if self.on_device else None
        if device is not None:
            torch.cuda.set_device(device)  # for this thread: otherwise it would create a context
        if not self.turns.begin():
            raise Refused("another-profiler", detail="the server is profiling")
        try:
            profile = self._record(torch, length_s, device)
            if self.turns.wanted.is_set():
                raise Refused("yielded", detail="the server began to profile")
        finally:
            self.turns.end()
        start_s = time.perf_counter()
        results = profile.kineto_results
        if results is None or results.trace_start_ns() == 0:
            # a recording in C++ has cancelled this one: writing it would end the process
            raise Refused("another-profiler", detail="the recording was cancelled")
        results.save(str(plain))
        self.cost += Cost(stalled_s=time.perf_counter() - start_s)

    def _record(self, torch: Any, length_s: float, device: int | None) -> Any:  # noqa: ANN401
        module = sys.modules["torch.autograd.profiler"]
        profile = module.profile(
            use_cpu=True,
            use_device=None if device is None else "cuda",
            record_shapes=True,
            use_kineto=True,
            experimental_config=_experimental(torch),
        )
        begin_s = time.perf_counter()
        with self._quiet():  # refuses while a graph is being captured
            try:
                profile.__enter__()
            except BaseException:
                getattr(module, "_run_on_profiler_stop", int)()  # otherwise it counts as recording
                raise
        opened_s = time.perf_counter()
        try:
            self.turns.wanted.wait(length_s)
        finally:
            closing_s = time.perf_counter()
            self._stop(torch, profile, device)
            ended_s = time.perf_counter()
            beside_s = (opened_s - begin_s) + (ended_s - closing_s)
            self.cost = Cost(open_s=closing_s - opened_s, beside_s=beside_s)
        return profile

    def _stop(self, torch: Any, profile: Any, device: int | None) -> None:  # noqa: ANN401
        """End the recording; wait for the device only if no graph is being captured."""
        profile.use_device = None  # otherwise it waits for the device, even during a capture
        try:
            with self._quiet():
                if device is not None:
                    torch.cuda.synchronize(device)
        except (Refused, RuntimeError):
            pass  # running launches are not in the file
        # a graph that was captured during the window must survive its end: CUPTI stays then
        with _teardown("0" if device is not None and self._captured() else "1"):
            profile.__exit__(None, None, None)


def _experimental(torch: Any) -> Any | None:  # noqa: ANN401 - a module; its settings
    """Return settings that request all threads; None if this PyTorch has none."""
    made = getattr(getattr(torch._C, "_profiler", None), "_ExperimentalConfig", None)
    for more in ({"trace_only": True}, {}):
        try:
            return made(profile_all_threads=True, **more) if made is not None else None
        except TypeError:
            continue  # an older PyTorch without this setting
    return None
