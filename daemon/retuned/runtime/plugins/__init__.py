"""Ways into a server that is not ours: entry points of vLLM and SGLang, and a ``sitecustomize``.

All lead to `register`. The servers call it in every one of their processes, vLLM without a net:
what it raised would end the server.
"""

from __future__ import annotations

import logging

log = logging.getLogger(__name__)


def register(*, arrived: str = "") -> None:
    """Join this process; does nothing the second time, where Retuned is off, or is not told where.

    Never raises. Loads neither PyTorch nor Triton: what needs them is installed once they are
    there. Nothing listens before a kernel of this process can be swapped.

    Parameters
    ----------
    arrived
        Module whose code has just run; Python still says that it is being imported.
    """
    try:
        from retuned.runtime.plugins.join import join

        join(arrived=arrived)
    except Exception:  # a stranger's server: it goes on without Retuned, and says so in its log
        log.exception("cannot join this process; it goes on without Retuned")
