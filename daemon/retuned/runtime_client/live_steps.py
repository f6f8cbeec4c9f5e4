"""Steps of a server, labelled by the blocks of a live proof, or observed before one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from retuned.errors import CandidateError, TemporaryError
from retuned.ports import ObservedSteps
from retuned.runtime_client.connection import RETRY_S
from retuned.runtime_client.step_records import ProcessSteps, StepTap
from retuned.runtime_client.step_records import StepRecord as Recorded
from retuned.stages.watch.proof import Arm, ArmLaunches, StepRecord

ON = "on"
NOT_SWITCHABLE = "not-switchable"
SEVERAL = "several-servers"
"""Reason code: processes that are not ranks of one server record steps."""
RESTARTED = "server-restarted"
_FIRST_RANK = "0"
_STARTING = "no-worker"


class ServerSteps:
    """Reads the steps of the first rank of one server; see `ports.LiveSteps`.

    Parameters
    ----------
    sockets
        A socket, or a folder of them.
    """

    def __init__(self, sockets: Path) -> None:
        self._tap = StepTap(sockets)
        self._looks = StepTap(sockets)
        """Of other threads: `_tap` remembers what was read."""
        self._instance, self._overlapping = "", 0
        self._engine = self._name = ""

    def unavailable(self) -> str:
        """Return why steps cannot be recorded, a reason code; see `ports.LiveSteps`."""
        try:
            self._engine = _first(self._looks.read(limit=0)).engine
        except CandidateError as error:
            self._engine = ""
            return error.reason
        return ""

    def engine(self) -> str:
        """Return name and version of the engine; see `ports.LiveSteps`."""
        return self._engine

    def begin(self) -> None:
        """Record from now on; see `ports.LiveSteps`."""
        process = _first(self._tap.begin())
        self._instance, self._overlapping = process.instance, process.overlapping
        self._name = process.name

    def read(self) -> Sequence[tuple[str, StepRecord]]:
        """Return the labelled steps since the last call; see `ports.LiveSteps`."""
        process = _first(self._tap.read())
        if process.instance != self._instance:
            raise CandidateError(RESTARTED, detail=process.name)
        if process.overlapping > self._overlapping:
            detail = f"{process.name} runs steps beside each other"
            raise CandidateError(NOT_SWITCHABLE, detail=detail)
        if process.fault:
            raise CandidateError(process.fault, detail=f"{process.name} records no steps")
        return [
            (each.arm, _step(each)) for each in process.records if each.arm.endswith(tuple(Arm))
        ]

    def launches(self) -> Sequence[ArmLaunches]:
        """Return the launches of the proven slot; see `ports.LiveSteps`."""
        return self._tap.launches(self._name)

    def end(self) -> None:
        """Record no longer."""
        self._tap.end()

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        time.sleep(seconds)

    def now_s(self) -> float:
        """Return the monotonic time, seconds."""
        return time.monotonic()


class StepLook:
    """Records steps for a moment, outside of live proofs; see `ports.StepObserver`.

    Parameters
    ----------
    sockets
        A socket, or a folder of them.
    sleep
        Waits, seconds.
    """

    def __init__(self, sockets: Path, *, sleep: Callable[[float], object] = time.sleep) -> None:
        self._tap, self._sleep = StepTap(sockets), sleep

    def observe(self, seconds: float) -> ObservedSteps:
        """Record the steps of so many seconds; see `ports.StepObserver`."""
        _first(self._tap.begin())
        try:
            self._sleep(seconds)
            process = _first(self._tap.read())
        finally:
            self._tap.end()
        if process.fault:
            raise CandidateError(process.fault, detail=f"{process.name} records no steps")
        return ObservedSteps(
            engine=process.engine,
            steps=[_step(each) for each in process.records],
            instance=process.instance,
        )


def _first(found: Sequence[ProcessSteps]) -> ProcessSteps:
    """Return the process whose steps are the server's."""
    known = [each for each in found if each.hook == ON and each.rank in ("", _FIRST_RANK)]
    if not known and any(each.hook == _STARTING for each in found):
        raise TemporaryError("the server has not begun its first step", delay_s=RETRY_S)
    if not known:
        hooks = ", ".join(sorted({each.hook for each in found})) or "no process"
        raise CandidateError(NOT_SWITCHABLE, detail=f"no steps are known: {hooks}")
    if len(known) > 1:
        raise CandidateError(SEVERAL, detail=", ".join(each.name for each in known)[:200])
    return known[0]


def _step(record: Recorded) -> StepRecord:
    return StepRecord(
        index=record.index,
        arm=Arm.ON if record.arm.endswith(f"-{Arm.ON}") else Arm.OFF,
        prefill=record.prefill,
        decode=record.decode,
        context=record.context,
        graph=record.graph or None,
        period_s=record.period_s,
        busy_s=record.busy_s,
        host_s=record.host_s,
        ended_s=record.ended_s,
    )
