"""Plugins for servers of other projects: entry points of vLLM and SGLang, a ``sitecustomize``.

All call `register`. The servers call it in each of their processes, and vLLM does not catch
exceptions: an exception would end the server.
"""

from __future__ import annotations

import logging

log = logging.getLogger(__name__)


def register(*, arrived: str = "") -> None:
    """Attach to this process.

    Does nothing the second time, if Retuned is off, or without a socket folder.

    Never raises. Loads neither PyTorch nor Triton: parts that need them are installed once they are
    loaded. The process does not listen before one of its kernels can be swapped.

    Parameters
    ----------
    arrived
        Module whose code has just run; Python still marks it as being imported.
    """
    try:
        from retuned.runtime.plugins.join import join

        join(arrived=arrived)
    except Exception:  # another project's server: it runs without Retuned, and logs why
        log.exception("cannot attach to this process; it runs without Retuned")
