"""Interception of Triton launches in this process.

`install` puts one hook where every launch of a ``@triton.jit`` function passes; `uninstall` removes
it. Launches are counted by shape. Observed launches can be lifted into definitions, and a variant
can replace launches, shape by shape. This package never imports Triton: it installs the hook after
the server has imported Triton.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from retuned.runtime.intercept.hook import Interceptor

__all__ = ["current", "install", "uninstall"]

_CURRENT: list[Interceptor] = []


def current() -> Interceptor:
    """Return the one interceptor of this process, installed or not."""
    if not _CURRENT:
        from retuned.runtime.intercept.hook import Interceptor

        _CURRENT.append(Interceptor())
        os.register_at_fork(after_in_child=_CURRENT[0].reset)
    return _CURRENT[0]


def install() -> dict[str, str]:
    """Intercept Triton's launches from now on; idempotent, never raises.

    Returns
    -------
    dict
        ``on`` or a reason code, for compiled kernels (``jit``) and for the ``interpreter``. If
        Triton is not imported yet, the control thread installs the hook later.
    """
    if os.environ.get("RETUNED_RUNTIME", "").strip().lower() in ("off", "0", "false"):
        return {"jit": "runtime-off", "interpreter": "runtime-off"}
    return current().install()


def uninstall() -> None:
    """Restore what was there before; idempotent."""
    current().uninstall()
