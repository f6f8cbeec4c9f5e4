"""One daemon on one state folder: its lock, and whether a process holds it."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from retuned.errors import TemporaryError, UsageError

_NAME = "daemon.lock"
_TRIES = 3
_PAUSE_S = 0.05
"""`daemon_runs` holds the lock for an instant; so long is worth waiting."""
_RETRY_S = 10.0


@contextmanager
def only_one(state_dir: Path) -> Iterator[None]:
    """Hold the lock of a state folder: two daemons on one state would pay everything twice.

    Raises
    ------
    TemporaryError
        If another daemon holds it.
    UsageError
        If the folder cannot be made or written.
    """
    with _open_lock(state_dir):
        yield


def daemon_runs(state_dir: Path) -> bool:
    """Say whether a daemon runs on a state folder; yes where that cannot be found out.

    The process number in the file is not used: it outlives the daemon, and means nothing in
    another container. The lock itself ends with the process that holds it.
    """
    try:
        with (state_dir / _NAME).open("r") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:  # held, or not ours to read
        return True
    return False


def _open_lock(state_dir: Path) -> IO[str]:
    try:
        state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        lock = os.fdopen(os.open(state_dir / _NAME, flags, 0o600), "a+")
        try:
            os.fchmod(lock.fileno(), 0o600)  # one that an earlier version made was not private
            _take(lock, state_dir)
        except BaseException:
            lock.close()
            raise
    except OSError as error:
        raise UsageError(
            f"{error.filename or state_dir}: cannot keep state here ({error.strerror}); "
            "name another state_dir or fix its owner"
        ) from error
    return lock


def _take(lock: IO[str], state_dir: Path) -> None:
    for remaining in reversed(range(_TRIES)):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if not remaining:
                lock.seek(0)
                raise _held(lock.read(), state_dir) from None
            time.sleep(_PAUSE_S)
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()


def _held(holder: str, state_dir: Path) -> TemporaryError:
    error = TemporaryError(
        f"another daemon (pid {holder.strip() or 'unknown'}) runs on {state_dir}; "
        "stop it or name another state_dir",
        delay_s=_RETRY_S,
    )
    error.code, error.where = "state-busy", str(state_dir)
    return error
