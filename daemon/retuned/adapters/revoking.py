"""Keys that sign no more and are believed no more: one file a key, written once, never taken back.

Whoever has a key can sign any time of day into a document, so a revoked key carries nothing at all,
unless the person who revoked it said until when it was trusted. Decision 0007.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
from datetime import datetime
from pathlib import Path

from pydantic import AwareDatetime, Field, ValidationError

from retuned.contract import Record
from retuned.errors import TemporaryError, UnreadableInput
from retuned.stages.verdict import EvidenceFault
from retuned.stages.verdict.documents import KeyId

_SUFFIX = ".revoked"
_MAX_BYTES = 1 << 16
_NAME = re.compile(r"[0-9a-f]{32}")


class Revocation(Record):
    """Why a key is believed no more."""

    key: KeyId
    """Which."""
    at: AwareDatetime
    """When that was said."""
    reason: str = Field(default="", max_length=500)
    """Why, for people."""
    trust_until: AwareDatetime | None = None
    """Documents written no later than this are believed still; None: not one is."""


class Revocations:
    """The revocations in a folder of keys.

    Parameters
    ----------
    folder
        Readable and writable by its owner only.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def revoke(self, revocation: Revocation) -> Revocation:
        """Keep a revocation and return the one that stands: the first.

        Raises
        ------
        TemporaryError
            If the folder cannot be written.
        """
        path = self._path(revocation.key)
        temporary = self._folder / f".{secrets.token_hex(8)}.partial"
        try:
            with open(temporary, "x", encoding="utf-8") as file:
                file.write(revocation.model_dump_json())
                file.flush()
                os.fsync(file.fileno())
            with contextlib.suppress(FileExistsError):
                os.link(temporary, path)
        except OSError as error:
            message = f"{self._folder}: cannot keep a revocation ({error.strerror}); fix the folder"
            raise TemporaryError(message, delay_s=30.0) from error
        finally:
            temporary.unlink(missing_ok=True)
        return self.of(revocation.key) or revocation

    def of(self, key: str) -> Revocation | None:
        """Return the revocation of a key; None where it is not revoked.

        One that is damaged revokes without exception: nobody knows what was to be believed still.

        Raises
        ------
        UnreadableInput
            ``key-unreadable``, if it is there and cannot be read.
        """
        path = self._path(key)
        try:
            with path.open("rb") as file:
                data = file.read(_MAX_BYTES)
        except FileNotFoundError:
            return None
        except OSError as error:
            message = f"cannot be read ({error.strerror}); give it back to this user"
            raise UnreadableInput("key-unreadable", where=str(path), message=message) from error
        try:
            found = Revocation.model_validate_json(data)
        except ValidationError:
            found = None
        if found is None or found.key != key:
            return Revocation(key=key, at=datetime.fromisoformat("1970-01-01T00:00:00+00:00"))
        return found

    def all(self) -> tuple[Revocation, ...]:
        """Return every revocation, by key.

        Raises
        ------
        UnreadableInput
            As `of`.
        """
        names = (path.name.removesuffix(_SUFFIX) for path in self._folder.glob(f"*{_SUFFIX}"))
        keys = sorted(name for name in names if _NAME.fullmatch(name))  # else a person's own file
        found = (self.of(f"ed25519:{key}") for key in keys)
        return tuple(each for each in found if each is not None)

    def _path(self, key: str) -> Path:
        return self._folder / f"{key.removeprefix('ed25519:')}{_SUFFIX}"


def fault_of(revocation: Revocation | None, payload: bytes) -> EvidenceFault | None:
    """Say whether a revoked key may still have signed a document; its signature is sound."""
    if revocation is None:
        return None
    written = _written_at(payload)
    until = revocation.trust_until
    if until is None or written is None or written > until:
        return EvidenceFault.REVOKED_KEY
    return None


def _written_at(payload: bytes) -> datetime | None:
    """Return when a document says that it was written; None where it does not say."""
    try:
        body = json.loads(payload)
        at = datetime.fromisoformat(str(body["written_at"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return at if at.tzinfo is not None else None
