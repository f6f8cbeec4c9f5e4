"""Code loaded inside the server: slots, launches, shadow checks, control socket.

It uses the standard library only, and PyTorch if the server has loaded it. The names below are
imported on first use, so that a program that needs one module loads only that module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from retuned.runtime.core.attach import Runtime, attach
    from retuned.runtime.core.slots import Slot
    from retuned.runtime.steps.marks import step

__all__ = ["Runtime", "Slot", "attach", "step"]


def __getattr__(name: str) -> object:
    if name == "Slot":
        from retuned.runtime.core.slots import Slot

        return Slot
    if name == "Runtime":
        from retuned.runtime.core.attach import Runtime

        return Runtime
    if name == "attach":
        from retuned.runtime.core.attach import attach

        return attach
    if name == "step":
        from retuned.runtime.steps.marks import step

        return step
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
