"""Processes of a server behind a socket or a folder of sockets: same requests, at the same time.

All processes get a request before an error is raised: one that hangs or refuses must not delay a
rollback of the others. A socket without a listener belongs to a process that died, and is skipped.
"""

from __future__ import annotations

import logging
import stat
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from retuned.errors import CandidateError, RetunedError, TemporaryError
from retuned.runtime_client.connection import RETRY_S, Said, told
from retuned.stages.swap import NOT_YET

log = logging.getLogger(__name__)

T = TypeVar("T")

_MOST_AT_ONCE = 32
"""Processes that are called at the same time."""


class RuntimeProcesses:
    """The processes of a server.

    Parameters
    ----------
    path
        A socket, or a folder of ``<pid>.sock``.
    timeout_s
        Longest wait for an answer, seconds.
    """

    def __init__(self, path: Path, *, timeout_s: float) -> None:
        self._path = path
        self._timeout_s = timeout_s

    def reports(
        self,
        request: Mapping[str, Any],
        parse: Callable[[Mapping[str, Any]], T],
        *,
        complete: bool = False,
    ) -> dict[str, T]:
        """Return parsed answers of processes, by their socket's name; those that fail are left out.

        Parameters
        ----------
        request
            The request.
        parse
            Parses an answer.
        complete
            Whether every process that listens must give a valid answer.

        Raises
        ------
        TemporaryError
            If no answer is valid, or one is missing and `complete` is set.
        """
        answers, errors = self.tell(request)
        reports: dict[str, T] = {}
        for name, answer in answers.items():
            try:
                reports[name] = parse(answer)
            except TemporaryError as error:
                errors.append(error)
        if complete and errors and reports:
            message = f"{len(errors)} of the server's processes do not answer: {errors[0]}"
            raise TemporaryError(message[:1000], delay_s=RETRY_S) from errors[0]
        if not reports:
            raise errors[0]
        for left_out in errors:
            log.warning("missing in the report: %s", left_out)
        return reports

    def tell(
        self, request: Mapping[str, Any]
    ) -> tuple[dict[str, dict[str, Any]], list[RetunedError]]:
        """Return the answers by socket, and the errors; there is one if no process listens."""
        return self.each(lambda path: told(path, request, timeout_s=self._timeout_s))

    def each(
        self, do: Callable[[Path], Said]
    ) -> tuple[dict[str, dict[str, Any]], list[RetunedError]]:
        """Call a function for every process; return answers and errors as `tell` does."""
        answers: dict[str, dict[str, Any]] = {}
        errors: list[RetunedError] = []
        for path, answer in self.say(do):
            if isinstance(answer, RetunedError):
                errors.append(answer)
            elif answer is not None:
                answers[path.name] = answer
        if not answers and not errors:
            message = f"{self._path}: no server listens; it may be starting"
            errors.append(TemporaryError(message, delay_s=RETRY_S))
        return answers, errors

    def say(self, do: Callable[[Path], Said]) -> list[tuple[Path, Said]]:
        """Call a function for every process at the same time."""
        paths = self.sockets()
        with ThreadPoolExecutor(max(1, min(len(paths), _MOST_AT_ONCE))) as pool:
            return list(zip(paths, pool.map(do, paths), strict=True))

    def sockets(self) -> list[Path]:
        """Return the sockets.

        Raises
        ------
        TemporaryError
            If the folder cannot be read.
        """
        try:
            if not self._path.is_dir():
                return [self._path]
            paths = sorted(self._path.glob("*.sock"))
            return [path for path in paths if stat.S_ISSOCK(path.lstat().st_mode)]
        except OSError as error:
            raise TemporaryError(f"{self._path}: {error}", delay_s=RETRY_S) from error


def worst_first(errors: Sequence[RetunedError]) -> list[RetunedError]:
    """Sort refusals to the front: they are final, missing answers are not."""

    def weight(error: RetunedError) -> int:
        if not isinstance(error, CandidateError):
            return 2
        return 1 if error.reason in NOT_YET else 0

    return sorted(errors, key=weight)
