"""Reports that wait for the operator: files in a folder, bounded, and there after a restart.

A report is written to disk first, and removed once the operator has accepted it. So it is sent at
least once, and the operator ignores repetitions. When the spool is full, the oldest report of the
least important kind is removed first: windows, then drift, and outcomes of orders last.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from retuned.api.agent import DriftPost, OrderDone, ProfileReport, wire_json
from retuned.contract import digest_of
from retuned.errors import TemporaryError
from retuned.files import make_private, read_plain

log = logging.getLogger(__name__)

Kept = ProfileReport | DriftPost | OrderDone
"""Reports that are kept until the operator accepts them."""

_KINDS: dict[str, type[Kept]] = {
    "0-done": OrderDone,
    "1-drift": DriftPost,
    "2-profile": ProfileReport,
}
"""By prefix of the file name: the first in order is sent first and removed last."""
_NAME = re.compile(r"(0-done|1-drift|2-profile)-(\d{12})-([0-9a-f]{16})\.json\Z")
_LOST = "lost"
_MAX_FILES = 4096
_MAX_FILE_BYTES = 4 << 20
_RETRY_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """One report in the spool."""

    path: Path
    """Its file."""
    report: Kept
    """Its content."""


class Spool:
    """A folder of reports, for one process; safe for threads that add and one that sends.

    Parameters
    ----------
    folder
        Made where it is not there.
    max_bytes
        Most bytes of all reports.

    Raises
    ------
    TemporaryError
        If the folder cannot be made or read.
    """

    def __init__(self, folder: Path, *, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        try:
            make_private(folder)
            for left in folder.glob(".*.partial"):
                left.unlink(missing_ok=True)
            self._sizes = {path.name: path.stat().st_size for path in self._files()}
        except OSError as error:
            raise _failed(folder, error) from error
        self._next = 1 + max((int(_NAME.match(name)[2]) for name in self._sizes), default=0)  # type: ignore[index]

    def __len__(self) -> int:
        return len(self._sizes)

    @property
    def size_bytes(self) -> int:
        """Bytes of all reports."""
        return sum(self._sizes.values())

    @property
    def lost(self) -> int:
        """Reports that were thrown away since the folder was made."""
        try:
            data = read_plain(self._folder / _LOST, max_bytes=32)
        except OSError:
            return 0
        text = (data or b"").strip()
        return int(text) if text.isdigit() else 0

    def add(self, report: Kept, *, key: str) -> None:
        """Keep a report; one of the same kind and key is there once, in its newest form.

        Raises
        ------
        TemporaryError
            If it cannot be written.
        """
        kind = next(name for name, each in _KINDS.items() if isinstance(report, each))
        mark = digest_of(key).removeprefix("sha256:")[:16]
        data = wire_json(report).encode()
        if len(data) > min(_MAX_FILE_BYTES, self._max_bytes):
            self._lose(1, f"{key} has {len(data)} bytes")
            return
        former = next(
            (n for n in list(self._sizes) if n.startswith(kind) and n.endswith(f"-{mark}.json")), ""
        )
        name = former or f"{kind}-{self._next:012d}-{mark}.json"
        self._next += not former
        self._write(name, data)
        self._sizes[name] = len(data)
        self._make_room()

    def waiting(self) -> Iterator[Waiting]:
        """Yield what waits, the most important first, each kind oldest first.

        One that cannot be read is removed and counts as lost.
        """
        for name in sorted(self._sizes):
            path = self._folder / name
            try:
                data = read_plain(path, max_bytes=_MAX_FILE_BYTES, follow=False)
                kind = _KINDS[name[: name.index("-", 2)]]
                report = kind.model_validate_json(data or b"")
            except (OSError, ValidationError) as error:
                log.error("%s cannot be read and is not reported: %s", name, type(error).__name__)
                self._remove(name)
                self._lose(1, "unreadable")
                continue
            yield Waiting(path=path, report=report)

    def told(self, waiting: Waiting) -> None:
        """Forget a report that the operator has taken, or will never take."""
        self._remove(waiting.path.name)

    def _make_room(self) -> None:
        gone = 0
        while self._sizes and (self.size_bytes > self._max_bytes or len(self._sizes) > _MAX_FILES):
            last = max(name[:2] for name in self._sizes)
            self._remove(min(name for name in self._sizes if name.startswith(last)))
            gone += 1
        if gone:
            self._lose(gone, "the spool is full")

    def _lose(self, count: int, why: str) -> None:
        log.warning("%d reports are lost: %s", count, why)
        self._write(_LOST, str(self.lost + count).encode())

    def _remove(self, name: str) -> None:
        self._sizes.pop(name, None)
        try:
            (self._folder / name).unlink(missing_ok=True)
        except OSError as error:  # it is sent again after a restart, without effect
            log.warning("%s stays in the spool: %s", name, error.strerror)

    def _files(self) -> list[Path]:
        return [path for path in self._folder.iterdir() if _NAME.match(path.name)]

    def _write(self, name: str, data: bytes) -> None:
        partial = self._folder / f".{secrets.token_hex(8)}.partial"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            try:
                with os.fdopen(os.open(partial, flags, 0o600), "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(partial, self._folder / name)
            finally:
                partial.unlink(missing_ok=True)
        except OSError as error:
            raise _failed(self._folder, error) from error


def _failed(folder: Path, error: OSError) -> TemporaryError:
    return TemporaryError(f"{folder}: {error.strerror}; reports wait", delay_s=_RETRY_S)
