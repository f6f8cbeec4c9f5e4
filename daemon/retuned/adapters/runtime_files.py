"""What a server says of its tuned-config files, asked of each of its processes over its socket."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from retuned.adapters.runtime_link import RETRY_S, Said, told
from retuned.adapters.runtime_socket import RuntimeSocket
from retuned.adapters.tuned_reports import Process, process_of
from retuned.configured.records import FORMATS, Format, Look, read_look
from retuned.errors import CandidateError, RetunedError, TemporaryError

_ELSEWHERE = frozenset({"unknown-op", "tuned-off", "server-not-here"})
"""Refusals of a process that reads no such file."""
_BUSY = "tuned-busy"
"""Somebody else writes at this moment."""
_TIMEOUT_S = 20.0


class FileTap(Protocol):
    """What a server says of its files; nothing changes."""

    def formats(self) -> frozenset[Format]:
        """Return the files that some process of the server reads.

        Raises
        ------
        TemporaryError
            If the server does not answer.
        """
        ...

    def look(self, format: Format, lookup: Mapping[str, Any]) -> Look:
        """Return what is picked today.

        Raises
        ------
        CandidateError
            With the server's reason, or ``processes-differ``.
        TemporaryError
            If the server does not answer.
        UnreadableInput
            If its answer cannot be read.
        """
        ...


class RuntimeFiles:
    """A `FileTap` over the sockets of a server.

    Parameters
    ----------
    path
        A socket, or a folder of ``<pid>.sock``.
    """

    def __init__(self, path: Path) -> None:
        self._server = RuntimeSocket(path)

    def processes(self) -> dict[str, Process]:
        """Return what each process says that takes orders on files, by its socket's name.

        Raises
        ------
        TemporaryError
            If one that listens does not answer, or nonsense.
        """
        found = {}
        for path in self._server.processes():
            said = self.tell(path, {"op": "tuned"})
            if said is not None and said.get("on") is True:
                found[path.name] = process_of(path, said)
        return found

    def tell(self, path: Path, request: Mapping[str, Any]) -> dict[str, Any] | None:
        """Ask one process; None where it is gone, or reads no such file.

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
        if isinstance(said, CandidateError) and said.reason == _BUSY:
            raise TemporaryError(said.detail, delay_s=RETRY_S)
        if isinstance(said, RetunedError):
            raise said
        return said

    def formats(self) -> frozenset[Format]:
        """Return the files that are read; see `FileTap.formats`."""
        processes = self.processes().values()
        return frozenset(each for each in FORMATS if any(each in p.formats for p in processes))

    def look(self, format: Format, lookup: Mapping[str, Any]) -> Look:
        """Return what is picked; see `FileTap.look`."""
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
