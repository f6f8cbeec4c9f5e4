"""Kernels whose Triton launches a server's runtime observed, by process; and a fake for tests."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retuned.errors import CandidateError, TemporaryError
from retuned.runtime_client.client import RuntimeSocket

__all__ = ["FakeKernelTap", "RuntimeKernels"]

log = logging.getLogger(__name__)

MOST_RECORDS = 4096
"""Records of all processes that are read."""
_MOST_PAGES = 64
_RETRY_S = 1.0


class RuntimeKernels:
    """A `KernelTap` over the sockets of a server.

    Parameters
    ----------
    path
        A socket, or a folder of ``<pid>.sock``.
    server
        Lists the processes; the folder by default.
    most
        Records of all processes that are read.
    """

    def __init__(
        self, path: Path, *, server: RuntimeSocket | None = None, most: int = MOST_RECORDS
    ) -> None:
        self._server = server or RuntimeSocket(path)
        self._most = most

    def observed(self) -> Sequence[Mapping[str, Any]]:
        found: list[Mapping[str, Any]] = []
        for path in self._server.processes():
            for record in self._of(RuntimeSocket(path)):
                if len(found) >= self._most:
                    log.warning("more than %d kinds of launches; the rest is skipped", len(found))
                    return found
                found.append(record)
        return found

    def _of(self, process: RuntimeSocket) -> Iterator[Mapping[str, Any]]:
        after: object = 0
        for _ in range(_MOST_PAGES):
            try:
                (answer,) = process.ask({"op": "observed", "after": after})
            except CandidateError as error:  # an older runtime, or one that does not intercept
                log.debug("no launches are reported: %s", error)
                return
            yield from _joined(answer)
            before, after = after, answer.get("next")
            if type(after) is not int or type(before) is not int or after <= before:
                return


def _joined(answer: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Put the sources of a page back into its records; the page is untrusted."""
    records, sources = answer.get("records"), answer.get("sources")
    if not isinstance(records, list) or not isinstance(sources, Mapping):
        return
    for record in records:
        if isinstance(record, Mapping):
            digest = record.get("source_digest")
            yield {**record, "source": sources.get(digest) if isinstance(digest, str) else None}


@dataclass(slots=True)
class FakeKernelTap:
    """Returns the records that a test has set."""

    records: list[Mapping[str, Any]] = field(default_factory=list)
    away: bool = False
    """Whether the server does not answer."""

    def observed(self) -> Sequence[Mapping[str, Any]]:
        if self.away:
            raise TemporaryError("the fake server is away", delay_s=_RETRY_S)
        return list(self.records)
