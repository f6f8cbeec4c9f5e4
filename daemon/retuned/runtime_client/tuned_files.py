"""Changes of a server's configuration: reports of its processes, over their sockets.

Orders for tuned-config files and tables of tunables: `change_orders`. Reports are parsed as
untrusted data.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from retuned.contract import Digest
from retuned.errors import CandidateError, RetunedError, TemporaryError
from retuned.ports import SlotState
from retuned.runtime_client.client import RuntimeSocket
from retuned.runtime_client.connection import RETRY_S, Said, told
from retuned.stages.proposal import TUNABLE
from retuned.stages.watch import WatchSample
from retuned.tuned_files.records import FORMATS, Format, Look, read_look

_Text = Annotated[str, Field(max_length=2000)]


_Count = Annotated[int, Field(ge=0, le=1 << 53)]
_Size = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


class CheckCounts(BaseModel):
    """Checks of a table's launches in one process; unknown fields are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    checks: _Count = 0
    mismatches: _Count = 0
    nonfinite: _Count = 0
    errors: _Count = 0
    throttled: _Count = 0
    worst_ratio: _Size = 0.0
    mean_ratio: _Size = 0.0
    slowdown: _Size = 0.0
    seconds: _Size = 0.0


class FileReport(BaseModel):
    """Status of one kernel's file or table in one process; unknown fields are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    definition: _Text
    order: _Text
    artifact: Digest | None
    epoch: int = Field(ge=0)
    state: Literal["engaged", "needs-restart", "lost"]
    reason: _Text = ""
    checks: CheckCounts | None = None
    """None of a file, whose launches are not compared."""
    bypassed: bool = False
    """Whether the server's choice runs for a while although a table is in force."""
    awaited: tuple[int, ...] = Field(default=(), max_length=64)
    """Batch sizes whose graphs keep the server's choice until they are captured again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process of a server that accepts orders for changes."""

    path: Path
    """Its socket."""
    formats: frozenset[Format]
    """Files that it reads; ``table`` where it has tunables."""
    prepared: frozenset[str]
    """Orders that it could execute immediately."""
    entries: Mapping[str, FileReport]
    """By kernel, the result of the last order."""
    known: frozenset[str] | None = None
    """Tunables that were launched; None for a process that answers about files."""

    def takes(self, definition: str, format: Format) -> bool:
        """Whether it gets orders for a kernel."""
        return format in self.formats and (self.known is None or definition in self.known)


def process_of(path: Path, answer: Mapping[str, Any]) -> Process:
    """Parse the report of a process.

    Raises
    ------
    TemporaryError
        If it is invalid; the request may be repeated.
    """
    try:
        entries = [FileReport.model_validate(each) for each in answer.get("files", ())]
        servers = answer["servers"]
        return Process(
            path=path,
            formats=frozenset(each for each in FORMATS if servers.get(each)),
            prepared=frozenset(str(each) for each in answer["prepared"]),
            entries={entry.definition: entry for entry in entries},
            known=frozenset(map(str, answer["known"])) if "known" in answer else None,
        )
    except (KeyError, TypeError, AttributeError, ValidationError) as error:
        first = str(error).splitlines()[0][:200]
        message = f"{path}: the runtime's report on changes cannot be read: {first}"
        raise TemporaryError(message, delay_s=RETRY_S) from error


def entry_state(definition: str, process: Process, _name: str) -> SlotState:
    """Return a kernel that a file configures as a slot; one without an order is at epoch 0."""
    entry = process.entries.get(definition)
    return SlotState(
        definition=definition,
        active=entry.artifact if entry is not None else None,
        epoch=entry.epoch if entry is not None else 0,
        launches={},
        tripped=_tripped(entry),
        counted=False,
        bypassed=entry is not None and entry.bypassed,
        awaits_graphs=entry is not None and bool(entry.awaited),
    )


def entry_sample(definition: str, process: Process, name: str) -> WatchSample:
    """Return the verified state of a kernel that a file configures, in one process."""
    entry = process.entries.get(definition)
    counts = (entry.checks if entry is not None else None) or CheckCounts()
    return WatchSample(
        definition=definition,
        artifact=entry.artifact if entry is not None else None,
        epoch=entry.epoch if entry is not None else 0,
        swapped_launches=0,
        fallback_launches=0,
        shadow_checks=counts.checks,
        shadow_mismatches=counts.mismatches,
        shadow_nonfinite=counts.nonfinite,
        worst_ratio=counts.worst_ratio,
        last_mean_ratio=counts.mean_ratio,
        errors=counts.errors,
        shadow_s=counts.seconds,
        throttled_checks=counts.throttled,
        slowdown=counts.slowdown,
        tripped=_tripped(entry),
        members=(name,),
        configured="needs-restart" if entry and entry.state == "needs-restart" else "engaged",
    )


_SUMMED = (
    *("shadow_checks", "shadow_mismatches", "shadow_nonfinite", "errors"),
    *("shadow_s", "throttled_checks"),
)
_WORST = ("worst_ratio", "last_mean_ratio", "slowdown")
"""Numbers of a merged sample that are those of all processes together, or the largest."""


def merged(samples: Sequence[WatchSample]) -> WatchSample:
    """Merge processes: one that is behind, or that lost the row, determines the result."""
    epoch = max(sample.epoch for sample in samples)
    newest = [sample for sample in samples if sample.epoch == epoch]
    behind = tuple(name for s in samples if s.epoch != epoch for name in s.members)
    worst = next((sample for sample in newest if sample.tripped), newest[0])
    waits = any(sample.configured == "needs-restart" for sample in newest)
    return worst.model_copy(
        update={
            "processes": len(samples),
            "idle_processes": len(behind),
            "members": tuple(sorted(name for s in samples for name in s.members)),
            "idle_members": behind,
            "configured": "needs-restart" if waits else "engaged",
            **{name: sum(getattr(s, name) for s in newest) for name in _SUMMED},
            **{name: max(getattr(s, name) for s in newest) for name in _WORST},
        }
    )


def _tripped(entry: FileReport | None) -> str:
    """Return why the server no longer picks a row; empty while it does."""
    if entry is None or entry.artifact is None or entry.state != "lost":
        return ""
    kind = "table" if entry.definition.startswith(TUNABLE) else "file"
    return f"{kind}-{(entry.reason or 'lost').removeprefix('table-')}"


_ELSEWHERE = frozenset({"unknown-op", "tuned-off", "tunables-off", "server-not-here"})
"""Refusals of a process that reads no such file, or has no tunables."""
_BUSY = frozenset({"tuned-busy", "no-safe-point", "server-busy", "paused-already"})
"""Another process writes the file now, or the server is in the middle of a long step."""
_TIMEOUT_S = 20.0


class FileTap(Protocol):
    """Reads the state of a server's files; nothing changes."""

    def formats(self) -> frozenset[Format]:
        """Return the files that some process of the server reads.

        Raises
        ------
        TemporaryError
            If the server does not answer.
        """
        ...

    def look(self, format: Format, lookup: Mapping[str, Any]) -> Look:
        """Return what is picked now.

        Raises
        ------
        CandidateError
            With the server's reason, or ``processes-differ``.
        TemporaryError
            If the server does not answer.
        UnreadableInput
            If its answer cannot be parsed.
        """
        ...


class RuntimeFiles:
    """A `FileTap` over the sockets of a server.

    Parameters
    ----------
    path
        A socket, or a folder of ``<pid>.sock``.
    server
        Lists the processes; the path by default.
    """

    def __init__(self, path: Path, *, server: RuntimeSocket | None = None) -> None:
        self._server = server or RuntimeSocket(path)

    def processes(
        self, *, tables: bool = False, silent: list[TemporaryError] | None = None
    ) -> dict[str, Process]:
        """Return the reports of processes that accept orders for files, by their socket's name.

        Parameters
        ----------
        tables
            Report on tables of tunables instead.
        silent
            Gets the errors of processes that listen and do not answer; they are left out then.

        Raises
        ------
        TemporaryError
            If one that listens does not answer, or its answer is invalid; unless `silent` is given.
        """
        found = {}
        request = {"op": "tunables", "orders": True} if tables else {"op": "tuned"}
        for path in self._server.processes():
            try:
                said = self.tell(path, request)
                if said is not None and said.get("on") is True:
                    found[path.name] = process_of(path, said)
            except TemporaryError as error:
                if silent is None:
                    raise
                silent.append(error)
        return found

    def tell(self, path: Path, request: Mapping[str, Any]) -> dict[str, Any] | None:
        """Send a request to one process; None if it has ended, or reads no such file.

        Raises
        ------
        CandidateError
            If it refuses.
        TemporaryError
            If it does not answer.
        """
        said: Said = told(path, request, timeout_s=_TIMEOUT_S)
        if isinstance(said, CandidateError) and said.reason in _ELSEWHERE:
            return None
        if isinstance(said, CandidateError) and said.reason in _BUSY:
            raise TemporaryError(said.detail, delay_s=RETRY_S)
        if isinstance(said, RetunedError):
            raise said
        return said

    def formats(self) -> frozenset[Format]:
        processes = self.processes().values()
        return frozenset(each for each in FORMATS if any(each in p.formats for p in processes))

    def look(self, format: Format, lookup: Mapping[str, Any]) -> Look:
        request = {"op": "tuned-look", "format": format, "lookup": dict(lookup)}
        looks = []
        for process in self.processes().values():
            said = self.tell(process.path, request) if format in process.formats else None
            if said is not None:
                looks.append(read_look(said))
        if not looks:
            raise TemporaryError(f"no process of the server reads {format} files", delay_s=RETRY_S)
        if any(look != looks[0] for look in looks):
            detail = f"processes of the server pick differently from {looks[0].path}"
            raise CandidateError("processes-differ", detail=detail[:500])
        return looks[0]


log = logging.getLogger(__name__)
