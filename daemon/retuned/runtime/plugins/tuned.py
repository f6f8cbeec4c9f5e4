"""Tuned-config files of vLLM, SGLang, AITER and TunableOp: orders for them after attaching."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from retuned.runtime.core.attach import Runtime


def tune_files(runtime: Runtime) -> object:
    """Accept orders for files; the servers in this process are detected at each order.

    A process that reads no such file refuses them. It opens no socket for them: a server whose
    kernels run here has one.
    """
    return {kind: module for kind, module in runtime.tune_files().items() if module} or "on"
