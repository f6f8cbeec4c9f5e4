"""Process-wide graphs, found through the PyTorch that the server has loaded."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from retuned.runtime.graphs.calls import GraphCalls
from retuned.runtime.graphs.followers import Graphs
from retuned.runtime.native.gpu_driver import driver_of
from retuned.runtime.schema import Refused

OFF = "graphs-off"
_LOCK = threading.Lock()
_FOUND: list[tuple[int, Graphs]] = []
_CALLS: dict[int, GraphCalls] = {}


def process_graphs() -> Graphs:
    """Return the one `Graphs` of this process; after a fork, without the parent's data."""
    with _LOCK:
        if not _FOUND:
            _FOUND.append((os.getpid(), Graphs(_calls_of, capturing=_capturing, device=_device)))
        pid, found = _FOUND[0]
        if pid != os.getpid():
            _CALLS.clear()
            found.abandon()
            _FOUND[0] = (os.getpid(), found)
    follow_torch(found)
    return found


def captures_under_way() -> bool:
    """Whether any thread captures a graph that is followed."""
    return any(pid == os.getpid() and found.gate.captures for pid, found in list(_FOUND))


def quiet() -> AbstractContextManager[None]:
    """Block captures of followed graphs in this context; raises `Refused` during one."""
    own = [found for pid, found in list(_FOUND) if pid == os.getpid()]
    return own[0].gate.changing() if own else nullcontext()


def follow_torch(graphs: Graphs) -> None:
    """Follow PyTorch's graphs as soon as PyTorch is loaded.

    With ``RETUNED_GRAPHS=off``, and where they cannot be kept, their captures are only observed: a
    check must not end a capture, and launches of replays must not be counted as followed.
    """
    if graphs.torch.watched:
        return
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "cuda") or not hasattr(torch, "version"):
        torch = None  # not loaded, or not fully: checked again later
    if os.environ.get("RETUNED_GRAPHS", "").strip().lower() in ("off", "0", "false"):
        graphs.reason = OFF
    if torch is None or (graphs.reason and not hasattr(torch.cuda, "CUDAGraph")):
        return
    if graphs.reason:
        graphs.watch(torch)
    else:
        graphs.install(torch)


def _torch() -> Any:  # noqa: ANN401 - the module
    return sys.modules["torch"]


def _calls_of(device: int) -> GraphCalls:
    found = _CALLS.get(device)
    if found is None:
        torch = _torch()
        if not torch.cuda.is_available():
            raise Refused("gpu-missing", detail="PyTorch sees no GPU")
        vendor = "amd" if getattr(torch.version, "hip", None) else "nvidia"
        found = _CALLS[device] = GraphCalls(driver_of(vendor, device=device))
    return found


def _device() -> int:
    return int(_torch().cuda.current_device())


def _capturing() -> tuple[int, int] | None:
    cuda = _torch().cuda
    if not cuda.is_current_stream_capturing():
        return None
    stream = cuda.current_stream()
    return int(stream.device.index or 0), int(stream.cuda_stream)


def _new_lock() -> None:
    global _LOCK
    _LOCK = threading.Lock()


os.register_at_fork(after_in_child=_new_lock)
