"""Records of steps, over the sockets of a server's processes; for proofs on live traffic.

Every rank of a server has its own steps. Answers are untrusted data: a record outside the known
ranges refuses the whole answer of its process (``steps-invalid``).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retuned.errors import CandidateError, RetunedError
from retuned.runtime.steps.launch_times import MOST_KEYS, MOST_SAMPLES
from retuned.runtime.steps.log import FIELDS, MAX_ARM
from retuned.runtime.steps.service import MAX_RECORDS
from retuned.runtime_client.connection import Said, told
from retuned.runtime_client.processes import RuntimeProcesses
from retuned.stages.watch.proof import Arm, ArmLaunches
from retuned.stages.watch.proof.records import MOST_AXES

TIMEOUT_S = 5.0
_MAX_TEXT = 200
_MAX_INDEX = 2**53
_MAX_TOKENS = 2**40
_MAX_US = 3.6e9
"""An hour: no step takes longer."""
_MAX_CLOCK_S = 1e12
_MAX_LAUNCHES = 2**40


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One step of a server's process."""

    index: int
    arm: str
    """Label in force when the step began; empty without one."""
    prefill: int
    """New tokens of sequences with more than one new token."""
    decode: int
    """Sequences with one new token."""
    context: int
    """Tokens of all its sequences that were computed before."""
    graph: int
    """Padded tokens of the captured graph that it ran in; 0 if it ran without one."""
    period_s: float | None
    """From the end of the previous step to the end of this one; None after idling."""
    busy_s: float | None
    """From begin to end on the device's timeline; None without a GPU."""
    host_s: float
    """Time of the launching thread."""
    ended_s: float
    """End on the host, seconds of the server's monotonic clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSteps:
    """Answer of one process."""

    name: str
    """Name of its socket."""
    hook: str
    """``on`` where its steps are known; else a reason code."""
    recording: bool
    fault: str
    """Reason code if recording has ended by an error."""
    instance: str
    """Changes with a restart of the process's runtime; indexes begin again then."""
    rank: str
    engine: str
    """Name and version of the server's engine; empty if unknown."""
    arm: str
    """Label of the steps that begin now."""
    overlapping: int
    """Steps that ran beside another one: the others are then not the whole of the server."""
    records: tuple[StepRecord, ...]
    next: int
    """Index to ask from, next time."""
    lost: int
    """Steps between the asked index and `next` that have no record."""
    pending: int
    """Steps that have ended on the host and not on the device."""
    now_s: float
    """The server's monotonic clock at the answer."""


class StepTap:
    """Reads records of steps of all processes of a server.

    Parameters
    ----------
    path
        A socket, or a folder of ``<pid>.sock``.
    """

    def __init__(self, path: Path, *, timeout_s: float = TIMEOUT_S) -> None:
        self._processes = RuntimeProcesses(path, timeout_s=timeout_s)
        self._timeout_s = timeout_s
        self._seen: dict[str, tuple[str, int]] = {}
        """Instance and next index of each process."""

    def begin(self) -> list[ProcessSteps]:
        """Begin to record in every process; records of before are left out.

        Raises
        ------
        CandidateError
            ``steps-invalid``, or the refusal of a process.
        TemporaryError
            If a process does not answer.
        """
        self._seen.clear()
        return self._all(record=True, limit=0)

    def read(self, *, limit: int = MAX_RECORDS) -> list[ProcessSteps]:
        """Return the steps since the last call, at most `limit` of each process; as `begin`.

        Repeat it while an answer has `limit` records. It extends the recordings.
        """
        return self._all(record=None, limit=limit)

    def end(self) -> list[ProcessSteps]:
        """End the recordings; as `begin`. Without it they end by themselves after a minute."""
        return self._all(record=False, limit=0)

    def launches(self, name: str) -> tuple[ArmLaunches, ...]:
        """Return the launches of the slot that is proven, of one process; as `begin`.

        An older runtime times none.
        """
        request = {"op": "steps", "limit": 0, "launches": True}
        answers, errors = self._processes.each(
            lambda path: (
                told(path, request, timeout_s=self._timeout_s) if path.name == name else None
            )
        )
        for error in errors:
            raise error
        return parse_launches(name, answers[name]) if name in answers else ()

    def _all(self, *, record: bool | None, limit: int) -> list[ProcessSteps]:
        answers, errors = self._processes.each(
            lambda path: self._ask(path, record=record, limit=limit)
        )
        for error in errors:
            if not (isinstance(error, CandidateError) and error.reason == "unknown-op"):
                raise error  # an older runtime has no records
        found = [parse_steps(name, answer) for name, answer in sorted(answers.items())]
        for each in found:
            self._seen[each.name] = (each.instance, each.next)
        return found

    def _ask(self, path: Path, *, record: bool | None, limit: int) -> Said:
        request: dict[str, Any] = {"op": "steps", "limit": limit}
        if record is not None:
            request["record"] = record
        instance, since = self._seen.get(path.name, ("", None))
        answer = told(path, request | {"since": since}, timeout_s=self._timeout_s)
        if isinstance(answer, RetunedError) or answer is None:
            return answer
        if since is not None and answer.get("instance") != instance:
            # indexes have begun again: the answer may lack the first ones
            return told(path, request | {"since": 0}, timeout_s=self._timeout_s)
        return answer


def parse_steps(name: str, answer: Mapping[str, Any]) -> ProcessSteps:
    """Parse the answer of a process.

    Raises
    ------
    CandidateError
        ``steps-invalid``.
    """
    rows = answer.get("records")
    if answer.get("fields") != list(FIELDS) or not isinstance(rows, list):
        raise _invalid(name, "fields")
    if len(rows) > MAX_RECORDS:
        raise _invalid(name, "records")
    records = tuple(_record(name, row) for row in rows)
    if any(a.index >= b.index for a, b in itertools.pairwise(records)):
        raise _invalid(name, "index")
    end = _whole(name, answer, "next", most=_MAX_INDEX)
    if records and records[-1].index >= end:
        raise _invalid(name, "next")
    return ProcessSteps(
        name=name,
        hook=_text(name, answer, "hook"),
        recording=answer.get("recording") is True,
        fault=_text(name, answer, "fault"),
        instance=_text(name, answer, "instance"),
        rank=_text(name, answer, "rank"),
        engine=_text(name, {"engine": ""} | dict(answer), "engine"),  # an older runtime has none
        arm=_text(name, answer, "arm"),
        overlapping=_whole(name, answer, "overlapping", most=_MAX_INDEX),
        records=records,
        next=end,
        lost=_whole(name, answer, "lost", most=_MAX_INDEX),
        pending=_whole(name, answer, "pending", most=_MAX_INDEX),
        now_s=_real(name, answer.get("now_s"), "now_s", most=_MAX_CLOCK_S),
    )


def parse_launches(name: str, answer: Mapping[str, Any]) -> tuple[ArmLaunches, ...]:
    """Parse the launches in the answer of a process.

    Raises
    ------
    CandidateError
        ``steps-invalid``.
    """
    rows = answer.get("launches", [])
    if not isinstance(rows, list) or len(rows) > 2 * MOST_KEYS:
        raise _invalid(name, "launches")
    return tuple(_launch_row(name, row) for row in rows)


def _launch_row(name: str, row: object) -> ArmLaunches:
    if not isinstance(row, Mapping) or row.get("arm") not in tuple(Arm):
        raise _invalid(name, "launches")
    lengths, times = row.get("lengths"), row.get("us")
    if not isinstance(lengths, list) or len(lengths) > MOST_AXES:
        raise _invalid(name, "lengths")
    if not isinstance(times, list) or len(times) > MOST_SAMPLES:
        raise _invalid(name, "us")
    return ArmLaunches(
        arm=Arm(row["arm"]),
        lengths=tuple(
            _whole(name, {"lengths": each}, "lengths", most=_MAX_INDEX) for each in lengths
        ),
        launches=_whole(name, row, "launches", most=_MAX_LAUNCHES),
        times_s=tuple(1e-6 * _real(name, each, "us", most=_MAX_US) for each in times),
    )


def _record(name: str, row: object) -> StepRecord:
    if not isinstance(row, Sequence) or isinstance(row, str) or len(row) != len(FIELDS):
        raise _invalid(name, "records")
    given = dict(zip(FIELDS, row, strict=True))
    arm = given["arm"]
    if not isinstance(arm, str) or len(arm) > MAX_ARM:
        raise _invalid(name, "arm")
    return StepRecord(
        index=_whole(name, given, "index", most=_MAX_INDEX),
        arm=arm,
        prefill=_whole(name, given, "prefill", most=_MAX_TOKENS),
        decode=_whole(name, given, "decode", most=_MAX_TOKENS),
        context=_whole(name, given, "context", most=_MAX_TOKENS),
        graph=_whole(name, given, "graph", most=_MAX_TOKENS),
        period_s=_seconds(name, given, "period_us"),
        busy_s=_seconds(name, given, "busy_us"),
        host_s=_real(name, given["host_us"], "host_us", most=_MAX_US) / 1e6,
        ended_s=_real(name, given["ended_s"], "ended_s", most=_MAX_CLOCK_S),
    )


def _seconds(name: str, given: Mapping[str, Any], field: str) -> float | None:
    value = given[field]
    return None if value is None else _real(name, value, field, most=_MAX_US) / 1e6


def _real(name: str, value: object, field: str, *, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _invalid(name, field)
    if not (math.isfinite(value) and 0.0 <= value <= most):
        raise _invalid(name, field)
    return float(value)


def _whole(name: str, given: Mapping[str, Any], field: str, *, most: int) -> int:
    value = given.get(field)
    if type(value) is not int or not 0 <= value <= most:
        raise _invalid(name, field)
    return value


def _text(name: str, given: Mapping[str, Any], field: str) -> str:
    value = given.get(field)
    if not isinstance(value, str) or len(value) > _MAX_TEXT:
        raise _invalid(name, field)
    return value


def _invalid(name: str, field: str) -> CandidateError:
    return CandidateError("steps-invalid", detail=f"{name}: {field!r} of an answer on steps")
