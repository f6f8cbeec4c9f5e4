"""Record one boot of a server for a proof by canary replicas.

A boot is read in short looks, because a process keeps few records of its steps. Nothing is
switched.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from retuned.contract import Digest
from retuned.errors import CandidateError
from retuned.ports import StepObserver
from retuned.stages.watch.proof import (
    Arm,
    BootSettings,
    BootWindow,
    StepColumns,
    columns_of,
    joined,
    window_of,
)

LOOK_S = 10.0
"""Longest look, seconds."""
_RESTARTED = "server-restarted"


def record_boot(
    observer: StepObserver,
    *,
    replica: str,
    boot: str,
    environment: Digest,
    arm: Arm,
    began_s: float,
    settings: BootSettings,
    sleep: Callable[[float], object],
) -> BootWindow:
    """Leave out the first minutes of a boot, record its window, and return what is measured of it.

    Call it when the server has made its first step, and look afterwards whether its process is the
    same: a restart with the same engine is not seen here.

    Parameters
    ----------
    observer
        Of the server.
    replica, boot, environment, began_s
        As in `BootWindow`.
    arm
        What the server was started with; a process does not know.
    settings
        Lengths of the time that is left out and of the window.
    sleep
        Waits, seconds.

    Raises
    ------
    CandidateError
        The reason why steps cannot be recorded, or ``server-restarted``.
    TemporaryError
        If the server does not answer.
    """
    sleep(settings.leave_out_s)
    left_s, engine = settings.window_s, ""
    looks: list[StepColumns] = []
    while left_s > 0.0:
        look_s = min(LOOK_S, left_s)
        seen = observer.observe(look_s)
        if engine and seen.engine != engine:
            raise CandidateError(_RESTARTED, detail=f"{engine}, then {seen.engine}")
        engine, left_s = seen.engine, left_s - look_s
        looks.append(columns_of(seen.steps))  # a tenth of the memory of the records
    columns = joined(looks)
    opens_s = float(columns.ended_s[0]) if len(columns) else 0.0
    window = window_of(
        replace(columns, on=np.full(len(columns), arm is Arm.ON)),
        replica=replica,
        boot=boot,
        environment=environment,
        began_s=began_s,
        opens_s=opens_s,
        closes_s=opens_s + settings.window_s,
    )
    assert window is not None, "all steps have the arm of the boot"
    return window
