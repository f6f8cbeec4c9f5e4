"""Interception of Triton launches in this process.

`install` puts one hook where every launch of a ``@triton.jit`` function passes; `uninstall` takes
it away. Launches are counted by shape; what was seen can be lifted into definitions, and a variant
can take launches over, shape by shape. Triton is never imported from here: it is hooked once the
server has imported it.
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
        ``on`` or a reason code, for compiled kernels (``jit``) and for the ``interpreter``. Where
        Triton is not imported yet, the control thread hooks it when it is.
    """
    if os.environ.get("RETUNED_RUNTIME", "").strip().lower() in ("off", "0", "false"):
        return {"jit": "runtime-off", "interpreter": "runtime-off"}
    return current().install()


def uninstall() -> None:
    """Put everything back as it was; idempotent."""
    current().uninstall()
