"""What all conversations of a state cost within a day: one file, one lock, whoever asks.

Before a question its largest price is set aside here, in one step with the check that the day's
money suffices; afterwards the entry is settled. A process that dies in between leaves its entry as
it was: the question counts as paid. Daemons that share a state see each other's entries at once.

A line is ``[id, seconds since 1970, dollars]``; a later line with the same id replaces the price.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import math
import os
import secrets
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path

from retuned.errors import HarnessError
from retuned.plain_files import make_private
from retuned.ports import Clock

log = logging.getLogger(__name__)

LEDGER = "spending.ledger"
"""Name of the file, beside the transcripts."""
DAY_S = 86_400.0
"""What is older does not count."""
_FOLD_BYTES = 256 * 2**10
_MAX_BYTES = 16 * 2**20
_LOCK = ".lock"


class DayLedger:
    """The day's money.

    Parameters
    ----------
    path
        The file; made on first use, readable by its owner only.
    clock
        For the entries.
    before
        Says what was spent since a time where there is no ledger yet.
    """

    def __init__(
        self, path: Path, *, clock: Clock, before: Callable[[datetime], float] = lambda _: 0.0
    ) -> None:
        self._path = path
        self._clock = clock
        self._before = before

    def reserve(self, usd: float, *, most_usd: float) -> tuple[str, float]:
        """Set money aside if the day's bound allows it.

        Returns
        -------
        str
            Name of the entry, for `settle`; empty where the money does not suffice.
        float
            What is left of the day's money, dollars, before this.

        Raises
        ------
        HarnessError
            If the ledger cannot be read or written: nothing is spent then.
        """
        now = self._clock.now()
        with self._locked(now):
            entries = self._entries()
            since = now.timestamp() - DAY_S
            spent = math.fsum(usd for at, usd in entries.values() if at >= since)
            left = most_usd - spent
            if usd > left:
                return "", max(left, 0.0)
            if self._path.stat().st_size > _FOLD_BYTES:
                self._fold({name: entry for name, entry in entries.items() if entry[0] >= since})
            name = secrets.token_hex(8)
            self._append(name, now.timestamp(), usd)
            return name, left

    def settle(self, name: str, usd: float) -> None:
        """Replace what was set aside by what it came to.

        Raises
        ------
        HarnessError
            If the ledger cannot be written; the entry stays as it was.
        """
        now = self._clock.now()
        with self._locked(now):
            entry = self._entries().get(name)
            self._append(name, entry[0] if entry is not None else now.timestamp(), usd)

    @contextlib.contextmanager
    def _locked(self, now: datetime) -> Iterator[None]:
        """Hold the lock, which lies beside the file: the file itself is replaced at times."""
        try:
            make_private(self._path.parent)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            lock = os.open(self._path.with_name(self._path.name + _LOCK), flags, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not self._path.exists():
                    self._begin(now)
                yield
            finally:
                os.close(lock)
        except OSError as error:
            raise HarnessError(f"the ledger of the model's money: {error.strerror}") from error

    def _begin(self, now: datetime) -> None:
        """Make the file; conversations of before it was kept count as one entry."""
        spent = self._before(now - timedelta(seconds=DAY_S))
        self._fold({"before": (now.timestamp(), spent)} if spent > 0.0 else {})

    def _entries(self) -> dict[str, tuple[float, float]]:
        """Return when and how much, by entry; a torn line is left aside, what it replaces stays.

        Raises
        ------
        HarnessError
            If the file is no ledger's size.
        """
        if self._path.stat().st_size > _MAX_BYTES:
            raise HarnessError(f"the ledger of the model's money has more than {_MAX_BYTES} bytes")
        entries: dict[str, tuple[float, float]] = {}
        for row in self._path.read_bytes().splitlines():
            try:
                name, at, usd = json.loads(row)
                entry = float(at), float(usd)
            except (ValueError, TypeError, OverflowError, RecursionError):
                log.warning("a line of the ledger %s is torn", self._path.name)
                continue
            if isinstance(name, str) and all(map(math.isfinite, entry)) and entry[1] >= 0.0:
                entries[name] = entry
        return entries

    def _append(self, name: str, at: float, usd: float) -> None:
        file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            size = os.fstat(file).st_size
            torn = size > 0 and os.pread(file, 1, size - 1) != b"\n"
            data = (b"\n" if torn else b"") + _line(name, at, usd)
            while data:
                data = data[os.write(file, data) :]
            os.fsync(file)
        finally:
            os.close(file)

    def _fold(self, entries: dict[str, tuple[float, float]]) -> None:
        """Write the file anew, with one line an entry; a kill leaves the old one."""
        partial = self._path.with_name(f".{self._path.name}.partial")
        with contextlib.suppress(FileNotFoundError):
            partial.unlink()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with open(os.open(partial, flags, 0o600), "wb") as stream:
            for name, (at, usd) in entries.items():
                stream.write(_line(name, at, usd))
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(self._path)


def _line(name: str, at: float, usd: float) -> bytes:
    return json.dumps([name, at, usd], allow_nan=False).encode() + b"\n"
