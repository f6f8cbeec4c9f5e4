"""Loaded inside the server: slots, launches, shadow checks, control socket.

Standard library only; PyTorch is used where the server has loaded it. The names below are imported
on first use, so that those who only need one module load only that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from retuned.runtime.core.attach import Runtime, attach
    from retuned.runtime.core.slots import Slot

__all__ = ["Runtime", "Slot", "attach"]


def __getattr__(name: str) -> object:
    """Import a public name when it is first asked for."""
    if name == "Slot":
        from retuned.runtime.core.slots import Slot

        return Slot
    if name == "Runtime":
        from retuned.runtime.core.attach import Runtime

        return Runtime
    if name == "attach":
        from retuned.runtime.core.attach import attach

        return attach
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
