"""Files: the only module that writes; completely or not at all, with the original next to it.

Next to a file ``x`` are ``x.retuned.json``, which records which order made which bytes of which,
who and when; and ``x.retuned-before.<digest>``, the previous bytes. Both exist before ``x``
changes, so a rollback is possible wherever a process dies. A file that another program has changed
since is neither changed nor restored.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from retuned.runtime.schema import Refused
from retuned.runtime.tuned_files.strict import MAX_FILE_BYTES, digest_of

MAX_ENTRIES = 16
"""Changes of one file that can be rolled back, the last one first."""
_MAX_SIDECAR_BYTES = 1 << 20
_MODE = 0o644
_FIELDS = {"order": str, "epoch": int, "who": str, "when": str, "after": str}


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    order: str
    epoch: int
    """Its epoch among the orders for this file; 0 for a person's."""
    who: str
    """Daemon or person."""
    when: str
    """UTC, ISO 8601."""
    before: str | None
    """Digest of the previous bytes; None if there was no file."""
    after: str
    rows: tuple[str, ...] = ()


def read_file(path: Path, *, limit: int = MAX_FILE_BYTES) -> bytes | None:
    """Return a regular file's bytes; None if the file does not exist.

    Raises
    ------
    Refused
        ``file-not-regular`` (links included), ``file-too-large`` or ``file-unreadable``.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        if path.is_symlink():
            detail = f"{path} is a link; name the file itself"
            raise Refused("file-not-regular", detail=detail) from error
        raise Refused("file-unreadable", detail=f"{path}: {error}") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise Refused("file-not-regular", detail=f"{path} is not a regular file")
    with os.fdopen(fd, "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise Refused("file-too-large", detail=f"{path} has more than {limit} bytes")
    return data


def entries(path: Path) -> list[FileChange]:
    """Return the changes of a file that can be rolled back, the newest last.

    Raises
    ------
    Refused
        ``provenance-invalid`` if the record next to it is invalid, or as `read_file`.
    """
    beside = _beside(path)
    data = read_file(beside, limit=_MAX_SIDECAR_BYTES)
    if data is None:
        return []
    try:
        body = json.loads(data)
        return [_entry(each) for each in body["entries"]][-MAX_ENTRIES:]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        detail = f"{beside} cannot be read ({error!r:.200}); restore the file by hand"
        raise Refused("provenance-invalid", detail=detail) from error


def replace(path: Path, data: bytes, *, expected: bytes | None, entry: FileChange) -> bool:
    """Replace a whole file; False if it has these bytes already by the same order.

    Parameters
    ----------
    path
        Its folder must exist.
    expected
        Current bytes; None expects no file.
    entry
        Record of the change; its digests must match.

    Raises
    ------
    Refused
        ``changed-by-others``, ``tuned-busy`` (another writer), ``file-unwritable``, or as
        `read_file` and `entries`. Then nothing has changed.
    """
    if (entry.before, entry.after) != (digest_of(expected), digest_of(data)):
        raise Refused("provenance-invalid", detail="the entry has the digests of other bytes")
    with _locked(path):
        now = read_file(path)
        listed = entries(path)
        if now == data and listed and _is_same(listed[-1], entry):
            return False
        if now != expected:
            raise _by_others(path, now, "")
        valid = _valid_entries(listed, now)
        dropped = listed[len(valid) :] + valid[: max(0, len(valid) + 1 - MAX_ENTRIES)]
        kept = [*valid, entry][-MAX_ENTRIES:]
        try:
            if expected is not None:
                _write(_kept(path, entry.before), expected, like=path)
            _write(_beside(path), _listing(kept), like=path)
            _write(path, data, like=path)
        except OSError as error:
            detail = f"{path}: {error.strerror or error}; the file is unchanged"
            raise Refused("file-unwritable", detail=detail) from error
        _forget(path, dropped, kept)
    return True


def restore(path: Path, *, order: str) -> bool:
    """Roll back the newest change; False if that is done already.

    Parameters
    ----------
    order
        The order that made it; a change of another order is not rolled back.

    Raises
    ------
    Refused
        ``nothing-to-restore``, ``not-the-newest``, ``changed-by-others``, ``before-lost`` (the
        stored bytes are missing or changed), or as `replace`.
    """
    with _locked(path):
        listed = entries(path)
        now = read_file(path)
        if not any(entry.order == order for entry in listed):
            detail = f"{path} has no change by {order!r:.100} that can be rolled back"
            raise Refused("nothing-to-restore", detail=detail)
        last = listed[-1]
        if last.order != order:
            detail = f"{last.order!r:.100} has changed {path} since; roll that back first"
            raise Refused("not-the-newest", detail=detail)
        done = digest_of(now) == last.before
        if not done and digest_of(now) != last.after:
            raise _by_others(path, now, f"; the previous bytes are in {_kept(path, last.before)}")
        try:
            if not done:
                _put_back(path, last)
            _forget(path, [last], listed[:-1])
            if listed[:-1]:
                _write(_beside(path), _listing(listed[:-1]), like=path)
            else:
                _beside(path).unlink(missing_ok=True)
        except OSError as error:
            raise Refused("file-unwritable", detail=f"{path}: {error.strerror or error}") from error
    return not done


def kept_before(path: Path, entry: FileChange) -> bytes | None:
    """Return the bytes before a change; None if there was no file.

    Raises
    ------
    Refused
        ``before-lost``, or as `read_file`.
    """
    if entry.before is None:
        return None
    data = read_file(_kept(path, entry.before))
    if digest_of(data) != entry.before:
        detail = f"{_kept(path, entry.before)} is missing or has other bytes"
        raise Refused("before-lost", detail=detail)
    return data


def _put_back(path: Path, entry: FileChange) -> None:
    data = kept_before(path, entry)
    if data is None:
        path.unlink()
        _sync_folder(path.parent)
    else:
        _write(path, data, like=path)


def _is_same(entry: FileChange, other: FileChange) -> bool:
    return (entry.order, entry.before, entry.after) == (other.order, other.before, other.after)


def _valid_entries(listed: Sequence[FileChange], now: bytes | None) -> list[FileChange]:
    """Return the changes that led to the current file.

    Changes whose writer died before its write are left out. If others have changed the file since,
    no change can be rolled back.
    """
    found = list(listed)
    while found and found[-1].after != digest_of(now):
        found.pop()
    return found


def _forget(path: Path, dropped: Sequence[FileChange], kept: Sequence[FileChange]) -> None:
    needed = {entry.before for entry in kept}
    for entry in dropped:
        if entry.before is not None and entry.before not in needed:
            _kept(path, entry.before).unlink(missing_ok=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock a file against other writers of Retuned."""
    lock = path.with_name(path.name + ".retuned.lock")
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        fd = os.open(lock, flags, 0o600)
    except (OSError, ValueError) as error:
        detail = f"{lock}: {error}; the folder must exist, and this user must be able to write it"
        raise Refused("file-unwritable", detail=detail) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        detail = f"another writer is changing {path}; try again"
        raise Refused("tuned-busy", detail=detail) from error
    finally:
        os.close(fd)  # the lock file stays: removing it would allow two holders at a time


def _write(path: Path, data: bytes, *, like: Path) -> None:
    """Write a file atomically, with mode and owner of another."""
    partial = path.with_name(f".{path.name[:100]}.{secrets.token_hex(6)}.retuned")
    mode, owner = _mode_of(like)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(partial, flags, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            if owner is not None and owner != (os.geteuid(), os.getegid()):
                os.fchown(fd, *owner)
            os.fchmod(fd, mode)
            os.fsync(fd)
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _mode_of(path: Path) -> tuple[int, tuple[int, int] | None]:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return _MODE, None
    return stat.S_IMODE(found.st_mode) & 0o777, (found.st_uid, found.st_gid)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _beside(path: Path) -> Path:
    return path.with_name(path.name + ".retuned.json")


def _kept(path: Path, digest: str | None) -> Path:
    """Return where bytes are stored; the name is safe for any claimed digest."""
    short = hashlib.sha256((digest or "").encode()).hexdigest()[:16]
    return path.with_name(f"{path.name}.retuned-before.{short}")


def _listing(listed: Sequence[FileChange]) -> bytes:
    body = {"version": 1, "entries": [asdict(entry) for entry in listed]}
    return (json.dumps(body, indent=2) + "\n").encode("ascii")


def _entry(body: Mapping[str, Any]) -> FileChange:
    for field, kind in _FIELDS.items():
        if type(body[field]) is not kind:
            raise TypeError(field)
    if body["before"] is not None and not isinstance(body["before"], str):
        raise TypeError("before")
    rows = tuple(str(row)[:200] for row in list(body.get("rows", ()))[:1000])
    known = {field: body[field] for field in _FIELDS}
    return FileChange(before=body["before"], rows=rows, **known)


def _by_others(path: Path, now: bytes | None, more: str) -> Refused:
    found = digest_of(now) or "no file"
    detail = f"another program has changed {path} ({found}); it is not changed{more}"
    return Refused("changed-by-others", detail=detail)
