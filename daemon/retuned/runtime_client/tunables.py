"""Tunables of a server: reports, described launches and pauses, over the sockets of its processes.

Orders for tables go through `retuned.runtime_client.tuned_files`. Reports are parsed as untrusted
data: unknown fields are ignored, known ones are checked.
"""

from __future__ import annotations

import contextlib
import logging
import math
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from retuned.errors import CandidateError, RetunedError, TemporaryError
from retuned.runtime.tunables.records import canonical
from retuned.runtime_client.client import RuntimeSocket, server_environment
from retuned.runtime_client.connection import RETRY_S, told
from retuned.stages.verdict import ServerEnvironment

log = logging.getLogger(__name__)

_TIMEOUT_S = 20.0
_MAX_PAGES = 64
_Text = Annotated[str, Field(max_length=2000)]
_Count = Annotated[int, Field(ge=0, le=2**53)]
_Time = Annotated[float, Field(ge=0.0, le=1e15)]
_Axis = Annotated[str, Field(pattern=r"^[a-z_]{1,32}$")]
_Axes = Annotated[dict[_Axis, Annotated[int, Field(ge=0, le=2**40)]], Field(max_length=16)]


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class SizeClassReport(_Answer):
    """Launches of one size class since the process began."""

    axes: _Axes
    """Upper end of each axis."""
    launches: _Count
    captured: _Count = 0
    """Launches during captures of graphs; their replays are not counted."""
    sizes: tuple[_Count, ...] = Field(default=(), max_length=64)
    """Exact sizes on the first axis of captured launches."""
    timed: _Count = 0
    timed_us: _Time = 0.0
    """Device time of the timed launches, microseconds."""
    idle: _Count = 0
    """Launches that were due to be timed, and for which the device may have waited."""
    config: dict[str, Any] = Field(default_factory=dict, max_length=64)
    ready: bool = True
    """Whether an experiment can repeat a launch of it, as it was described."""
    how: _Text = ""
    """How the server chose: ``frozen``, ``exact``, ``nearest``, ``default``, ``literal`` or
    ``table``."""


class TableInForce(_Answer):
    """A table in one process."""

    artifact: str | None = None
    digest: _Text = ""
    matched: _Count = 0
    """Launches under its rules since it was exchanged."""


class TunableReport(_Answer):
    """One tunable of one process."""

    id: Annotated[str, Field(pattern=r"^tunable:[a-zA-Z0-9_.:-]{1,119}$")]
    family: _Text
    kernel: _Text
    module: _Text
    source: _Text
    """Digest of the kernel's source."""
    geometry: dict[str, Any] = Field(default_factory=dict, max_length=64)
    asked: tuple[SizeClassReport, ...] = Field(default=(), max_length=256)
    space: dict[str, Any] = Field(default_factory=dict)
    ways: dict[str, _Text] = Field(default_factory=dict, max_length=16)
    """``on`` or a reason code, by way of change."""
    refused: _Text = ""
    """Reason code if it cannot be changed in this server."""
    table: TableInForce | None = None
    recording: bool = False
    """Whether values of integer tensors are recorded."""


class RecentStep(_Answer):
    """One step of the recent past, as far as the host knows it."""

    queries: tuple[_Count, ...] = Field(default=(), max_length=256)
    """New tokens of each sequence."""
    keys: tuple[_Count, ...] = Field(default=(), max_length=256)
    """Length of each sequence after the step; empty if unknown."""


class StepCounts(_Answer):
    """Steps of a process's server."""

    hook: _Text = ""
    """``on`` where the runtime knows the steps, and can pause between two; else a reason code."""
    busy_s: _Time = 0.0
    """Time between steps that followed each other, seconds."""
    sizes: dict[_Text, tuple[_Count, _Count]] = Field(default_factory=dict, max_length=64)
    """By size class of tokens: steps, and those of decode alone."""
    recent: tuple[RecentStep, ...] = Field(default=(), max_length=256)


class CountedTime(_Answer):
    """In which time a process has counted launches; see `runtime.core.own_overhead`."""

    out_s: _Time = 0.0
    """Time in which it has not, seconds."""
    now_s: _Time = 0.0
    """Its monotonic clock, seconds; 0 in an older runtime, which always counts."""

    def scale_since(self, before: CountedTime) -> float:
        """Return by how much counts since an earlier report are too small.

        Examples
        --------
        >>> before, now = CountedTime(out_s=0.0, now_s=10.0), CountedTime(out_s=45.0, now_s=60.0)
        >>> now.scale_since(before)
        10.0
        """
        all_s, out_s = self.now_s - before.now_s, self.out_s - before.out_s
        return all_s / (all_s - out_s) if 0.0 < out_s < all_s else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TunableProcess:
    """One process that has tunables."""

    name: str
    path: Path = field(hash=False)
    facts: ServerEnvironment = field(hash=False)
    """What it says that it runs on."""
    environment: Mapping[str, Any] = field(hash=False)
    """Interpreter, paths and variables, for experiments."""
    steps: StepCounts = field(hash=False)
    tunables: Mapping[str, TunableReport] = field(hash=False)
    raw: Mapping[str, Mapping[str, Any]] = field(hash=False)
    """The same as it came: what experiments are given."""
    seen_s: float = 0.0
    """When it was asked, seconds of the monotonic clock."""
    counted: CountedTime = field(default=CountedTime(), hash=False)
    """In which time launches were counted."""


@dataclass(slots=True)
class TunableMemory:
    """Recent reports; a restart of the daemon or the server clears them."""

    reports: deque[Sequence[TunableProcess]] = field(default_factory=deque)
    looked_s: float = -math.inf
    """When the server was last asked, seconds of the monotonic clock."""

    def add(self, processes: Sequence[TunableProcess], *, horizon_s: float) -> None:
        """Remember a look at the server, and forget what is older than the horizon."""
        last = self.reports[-1] if self.reports else ()
        if _restarted(last, processes):
            self.reports.clear()
        self.reports.append([replace(each, raw={}) for each in processes])
        now_s = _seen_s(processes)
        while len(self.reports) > 2 and now_s - _seen_s(self.reports[1]) >= horizon_s:
            self.reports.popleft()

    @property
    def span_s(self) -> float:
        """Time between the first and the last look, seconds."""
        return _seen_s(self.reports[-1]) - _seen_s(self.reports[0]) if self.reports else 0.0

    def before(self, process: str) -> TunableProcess | None:
        """Return the first remembered report of a process."""
        return next((each for each in self.reports[0] if each.name == process), None)


def _seen_s(processes: Sequence[TunableProcess]) -> float:
    return max((each.seen_s for each in processes), default=0.0)


def _restarted(old: Sequence[TunableProcess], new: Sequence[TunableProcess]) -> bool:
    """Whether counts were reset: other processes, or fewer launches."""
    known = {each.name: each for each in old}
    return known.keys() != {each.name for each in new} or any(
        _launches(each) < _launches(known[each.name]) for each in new
    )


def _launches(process: TunableProcess) -> int:
    return sum(a.launches for t in process.tunables.values() for a in t.asked)


class TunableTap(Protocol):
    """Reads the tunables of a server, and pauses it."""

    def processes(self) -> Sequence[TunableProcess]:
        """Return the processes that have tunables.

        Raises
        ------
        TemporaryError
            If one does not answer, or its answer is invalid.
        """
        ...

    def recipes(self, process: TunableProcess, tunable: str) -> list[dict[str, Any]]:
        """Return descriptions of launches, one for each size class.

        Raises
        ------
        CandidateError
            If the process refuses.
        TemporaryError
            If it does not answer.
        """
        ...

    def record(self, process: TunableProcess, tunable: str, *, on: bool) -> None:
        """Let descriptions hold values of integer tensors from now on, or no longer.

        Raises
        ------
        CandidateError
            ``capture-off`` where the server's owner forbids it.
        TemporaryError
            If it does not answer.
        """
        ...

    def paused(
        self, process: TunableProcess, *, seconds: float
    ) -> contextlib.AbstractContextManager[None]:
        """Return a context in which the process launches nothing, for at most some seconds.

        Entering it raises `CandidateError` or `TemporaryError` if the process does not pause.
        """
        ...


class RuntimeTunables:
    """A `TunableTap` over the sockets of a server.

    Parameters
    ----------
    path
        A socket, or a folder of ``<pid>.sock``.
    """

    def __init__(self, path: Path, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._server = RuntimeSocket(path)
        self._clock_s = clock_s

    def processes(self) -> list[TunableProcess]:
        found = []
        for path in self._server.processes():
            said = self._tell(path, {"op": "tunables"})
            if said is None or said.get("on") is not True or not said.get("tunables"):
                continue
            hello = self._tell(path, {"op": "hello"})
            if hello is not None:
                found.append(process_of(path, said, hello=hello, seen_s=self._clock_s()))
        return found

    def recipes(self, process: TunableProcess, tunable: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        offset: object = 0
        for _ in range(_MAX_PAGES):
            request = {"op": "tunable-recipes", "id": tunable, "offset": offset}
            said = self._tell(process.path, request)
            if said is None:
                raise TemporaryError(f"{process.name} no longer listens", delay_s=RETRY_S)
            found += [each for each in said.get("recipes", ()) if isinstance(each, dict)]
            offset = said.get("next")
            if not isinstance(offset, int):
                break
        return found

    def record(self, process: TunableProcess, tunable: str, *, on: bool) -> None:
        self._tell(process.path, {"op": "tunable-record", "id": tunable, "on": on})

    @contextlib.contextmanager
    def paused(self, process: TunableProcess, *, seconds: float) -> Iterator[None]:
        name = f"experiment-{secrets.token_hex(8)}"
        request = {"op": "tunable-pause", "id": name, "seconds": seconds}
        resumed: dict[str, Any] | None = {}
        try:
            if self._tell(process.path, request) is None:
                raise TemporaryError(f"{process.name} no longer listens", delay_s=RETRY_S)
            yield
        finally:  # also where it was refused: a pause may begin late
            try:
                resumed = self._tell(process.path, {"op": "tunable-resume", "id": name})
            except RetunedError as error:  # it ends by itself after `seconds`
                log.warning("the end of a pause was not delivered: %s", error)
        if not resumed or resumed.get("resumed") is not True:
            raise CandidateError("slice-too-long", detail=f"the pause of {seconds} s was over")

    def _tell(self, path: Path, request: Mapping[str, Any]) -> dict[str, Any] | None:
        said = told(path, request, timeout_s=_TIMEOUT_S)
        if isinstance(said, CandidateError) and said.reason in ("unknown-op", "tunables-off"):
            return None
        if isinstance(said, RetunedError):
            raise said
        return said


def process_of(
    path: Path, answer: Mapping[str, Any], *, hello: Mapping[str, Any], seen_s: float = 0.0
) -> TunableProcess:
    """Parse the report of a process; one tunable that cannot be read hides no other.

    Raises
    ------
    TemporaryError
        If it is invalid as a whole; the request may be repeated.
    """
    try:
        environment = dict(answer["environment"])
        steps = StepCounts.model_validate(answer["steps"])
        counted = CountedTime.model_validate(answer.get("overhead", {}))
        listed = list(answer["tunables"])
    except (KeyError, TypeError, ValueError) as error:
        message = f"{path}: the runtime's report on tunables cannot be read: {error!r:.200}"
        raise TemporaryError(message, delay_s=RETRY_S) from error
    tunables, raw = {}, {}
    for each in listed:
        try:
            report = TunableReport.model_validate(each)
            canonical(each)  # what experiments and records get must be JSON
        except (ValidationError, ValueError, TypeError) as error:
            log.warning("%s: a tunable is left out: %s", path.name, str(error).splitlines()[0])
            continue
        tunables[report.id], raw[report.id] = report, each
    return TunableProcess(
        name=path.name,
        path=path,
        facts=server_environment(hello),
        environment=environment,
        steps=steps,
        tunables=tunables,
        raw=raw,
        seen_s=seen_s,
        counted=counted,
    )
