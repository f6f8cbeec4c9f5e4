"""A compiled kernel launched as Triton's own runner does, without what nobody listens to.

``compiled[grid]`` gives a function that describes each launch for hooks and calls a chain of them
before and after it, also where the chains are empty. Where nobody hangs on them none of that can be
seen, and is left out. What Triton's function does is found by looking at it; where it is not as
expected, it is what launches.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

from retuned.runtime.intercept.call import GridNumbers

Runner = Callable[[tuple[Any, ...]], object]
"""Launches once, with the arguments of all parameters in order, on the current stream."""

_DOES = frozenset(
    (
        *("driver", "active", "get_current_device", "get_current_stream", "launch_metadata"),
        *("run", "function", "packed_metadata", "knobs", "runtime"),
        *("launch_enter_hook", "launch_exit_hook"),
    )
)
"""All that Triton's function names, from version 3.5 to 3.9."""


def runner_of(compiled: Any, grid: GridNumbers) -> Runner:  # noqa: ANN401 - triton.CompiledKernel
    """Return what launches compiled code that is loaded.

    Parameters
    ----------
    compiled
        Triton's.
    grid
        Programs per dimension.
    """
    plain = compiled[grid]
    home = sys.modules.get(type(compiled).__module__)
    knobs, drivers = getattr(home, "knobs", None), getattr(home, "driver", None)
    if knobs is None or drivers is None or not _is_as_known(plain):
        return lambda args: plain(*args)
    runtime, (x, y, z) = knobs.runtime, grid
    run, function, packed = compiled.run, compiled.function, compiled.packed_metadata

    def launch(args: tuple[Any, ...]) -> object:
        enter, leave = runtime.launch_enter_hook, runtime.launch_exit_hook
        if getattr(enter, "calls", enter) or getattr(leave, "calls", leave):
            return plain(*args)
        active = drivers.active
        stream = active.get_current_stream(active.get_current_device())
        return run(x, y, z, stream, function, packed, None, None, None, *args)

    return launch


def _is_as_known(plain: object) -> bool:
    """Whether Triton's function does what is done here, and nothing else."""
    return isinstance(plain, types.FunctionType) and set(plain.__code__.co_names) == _DOES
