"""Bytes of a file in order, decompressed, with bounds and the place where it broke."""

from __future__ import annotations

import hashlib
import os
import zlib
from pathlib import Path
from typing import BinaryIO

from retuned.adapters.traces.limits import ReadLimits
from retuned.errors import UnreadableInput
from retuned.plain_files import NotPlain, open_plain

_GZIP = b"\x1f\x8b"
_STEP = 2**18


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading.

    Raises
    ------
    UnreadableInput
        ``not-found``, ``not-a-file`` (folder, pipe, device), ``not-readable`` or ``empty-file``.
    """
    where = str(path)
    try:
        file = open_plain(path)
        if os.fstat(file.fileno()).st_size == 0:
            file.close()
            raise UnreadableInput(
                "empty-file", where=where, message="the file is empty; was the profiler killed?"
            )
        return file
    except NotPlain as error:
        what = f"the traces in it, such as {path}/*.json.gz" if path.is_dir() else "a trace file"
        raise UnreadableInput(
            "not-a-file", where=where, message=f"{error.strerror}; name {what}"
        ) from None
    except FileNotFoundError:
        raise UnreadableInput(
            "not-found", where=where, message="no such file; check the path"
        ) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UnreadableInput(
            "not-readable", where=where, message=f"cannot be opened: {reason}"
        ) from None


def content_digest(path: Path) -> str:
    """Return the digest of a file's content, compressed or not as it lies there."""
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while step := file.read(_STEP):
            digest.update(step)
    return "sha256:" + digest.hexdigest()


def check_size(path: Path, *, limits: ReadLimits) -> None:
    """Refuse what is too large before a byte of it is read; what expands is watched as it does.

    Raises
    ------
    UnreadableInput
        ``too-large``, or as `open_regular`.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
    if size > limits.input_bytes:
        raise UnreadableInput(
            "too-large",
            where=str(path),
            message=f"{size} bytes, more than {limits.input_bytes}; record a shorter window",
        )


class ByteSource:
    """Sequential reader of a plain or gzip file.

    Parameters
    ----------
    path
        The file.
    limits
        Bounds on what comes out.
    """

    def __init__(self, path: Path, *, limits: ReadLimits) -> None:
        self.where = str(path)
        self.read_bytes = 0
        """Decompressed bytes handed out so far."""
        self._limits = limits
        self._file = open_regular(path)
        head = self._file.peek(2)[:2] if hasattr(self._file, "peek") else b""
        self.compressed = head == _GZIP
        self._inflate = zlib.decompressobj(wbits=31) if self.compressed else None
        self._raw_bytes = 0
        self._pending = b""

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def read(self, count: int) -> bytes:
        """Return up to `count` bytes; empty only at the end.

        Raises
        ------
        UnreadableInput
            ``truncated-gzip``, ``damaged-gzip``, ``gzip-bomb``, ``too-large`` or ``not-readable``.
        """
        data = self._expand(count) if self._inflate else self._load(count)
        self.read_bytes += len(data)
        if self.read_bytes > self._limits.input_bytes:
            raise self.refuse(
                "too-large",
                f"more than {self._limits.input_bytes} bytes; record a shorter window",
            )
        return data

    def refuse(self, code: str, message: str, *, at: int | None = None) -> UnreadableInput:
        """Return an error that names the file and the byte."""
        where = self.where if at is None else f"{self.where}: byte {at}"
        return UnreadableInput(code, where=where, message=message)

    def _load(self, count: int) -> bytes:
        try:
            data = self._file.read(count)
        except OSError as error:
            raise self.refuse("not-readable", f"read failed: {error.strerror}") from None
        self._raw_bytes += len(data)
        return data

    def _expand(self, count: int) -> bytes:
        parts: list[bytes] = []
        wanted = count
        while wanted > 0:
            part = self._member(min(wanted, _STEP))
            if part is None:
                break
            parts.append(part)
            wanted -= len(part)
            self._check_ratio(self.read_bytes + count - wanted)
        return b"".join(parts)

    def _member(self, count: int) -> bytes | None:
        """Up to `count` bytes, maybe none yet; None at the end of the last member."""
        assert self._inflate is not None
        if self._inflate.eof:
            rest = self._inflate.unused_data or self._load(_STEP)
            if not rest.strip(b"\0"):  # padding after the last member is allowed
                return None
            self._inflate = zlib.decompressobj(wbits=31)
            self._pending = rest
        data = self._pending or self._load(_STEP)
        if not data:
            raise self.refuse(
                "truncated-gzip",
                "the compressed data stops early; copy the file again or wait until it is written",
                at=self._raw_bytes,
            )
        try:
            out = self._inflate.decompress(data, count)
        except zlib.error as error:
            raise self.refuse(
                "damaged-gzip", f"cannot be decompressed ({error})", at=self._raw_bytes
            ) from None
        self._pending = self._inflate.unconsumed_tail
        return out

    def _check_ratio(self, out_bytes: int) -> None:
        bound = max(self._limits.gzip_free_bytes, self._limits.gzip_ratio * self._raw_bytes)
        if out_bytes > bound:
            raise self.refuse(
                "gzip-bomb",
                f"{self._raw_bytes} bytes expand to more than {bound}; no trace compresses so well",
            )


def printable(name: str) -> str:
    r"""Return a file's name as text that can be stored: bytes that are no UTF-8 become escapes.

    Examples
    --------
    >>> printable("bad\udcff.json")
    'bad\\udcff.json'
    """
    return name.encode("utf-8", "backslashreplace").decode("utf-8")
