"""Tuned-config files of vLLM, SGLang, AITER and TunableOp: orders on them are taken once joined."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from retuned.runtime.core.attach import Runtime


def tune_files(runtime: Runtime) -> object:
    """Take orders on files; which servers are there is found out with each.

    A process that reads no such file refuses them. It opens no socket for their sake: a server
    whose kernels run here has one.
    """
    return {kind: module for kind, module in runtime.tune_files().items() if module} or "on"
