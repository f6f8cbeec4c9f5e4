"""The installation's signature: Ed25519 keys in a folder.

The daemon signs the results of its lab; decision 0006 has the reasons. Public keys are stored
permanently, so that signatures of earlier keys can be verified after a rotation. Only one private
key exists.

Ed25519 keys as text, and the exact bytes that they sign.

Revoked keys, which neither sign nor verify: one file a key, written once and permanent.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import re
import secrets
import stat
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)
from pydantic import AwareDatetime, Field, ValidationError

from retuned.contract import Record
from retuned.errors import TemporaryError, UnreadableInput, UsageError
from retuned.files import make_private
from retuned.stages.verdict import EvidenceFault
from retuned.stages.verdict.documents import KeyId

_CONTEXT = b"retuned evidence 1"
"""What is signed begins so: a signature of ours for another purpose must never fit."""


@dataclass(frozen=True, slots=True)
class PublicKey:
    """One key from elsewhere; it verifies, and signs nothing."""

    public: Ed25519PublicKey
    """The key."""

    @classmethod
    def read(cls, data: bytes, *, where: str) -> PublicKey:
        """Read PEM.

        Raises
        ------
        UnreadableInput
            If it is not a public Ed25519 key.
        """
        public = load_public(data)
        if public is None:
            raise UnreadableInput("bad-key", where=where, message="is not an Ed25519 key in PEM")
        return cls(public)

    def check(self, payload: bytes, *, key: str, signature: bytes) -> EvidenceFault | None:
        """Verify; see `Verifier.check`."""
        if key != key_id(self.public):
            return EvidenceFault.UNKNOWN_KEY
        return check_signature(self.public, payload, key=key, signature=signature)


def key_id(public: Ed25519PublicKey) -> str:
    """Return the name of a key: the beginning of the digest of its bytes."""
    raw = public.public_bytes(serialization.Encoding.Raw, format=serialization.PublicFormat.Raw)
    return f"ed25519:{hashlib.sha256(raw).hexdigest()[:32]}"


def public_pem(public: Ed25519PublicKey) -> str:
    """Return a public key as text that other tools read."""
    return public.public_bytes(
        serialization.Encoding.PEM, format=serialization.PublicFormat.SubjectPublicKeyInfo
    ).decode()


def check_signature(
    public: Ed25519PublicKey, payload: bytes, *, key: str, signature: bytes
) -> EvidenceFault | None:
    """Return why a key has not signed this; None if it has."""
    try:
        public.verify(signature, message_of(key, payload))
    except InvalidSignature:
        return EvidenceFault.ALTERED
    return None


def message_of(key: str, payload: bytes) -> bytes:
    """Bind purpose and key to what is signed; neither can hold the separator."""
    return b"\0".join((_CONTEXT, key.encode(), payload))


def load_public(data: bytes) -> Ed25519PublicKey | None:
    """Read PEM; None if it is not a public Ed25519 key."""
    try:
        public = serialization.load_pem_public_key(data)
    except ValueError:
        return None
    return public if isinstance(public, Ed25519PublicKey) else None


def private_pem(private: Ed25519PrivateKey) -> bytes:
    """Return a private key as it is kept."""
    return private.private_bytes(
        serialization.Encoding.PEM,
        format=serialization.PrivateFormat.PKCS8,
        encryption_algorithm=serialization.NoEncryption(),
    )


_SUFFIX = ".revoked"
_MAX_BYTES = 1 << 16
_NAME = re.compile(r"[0-9a-f]{32}")


class Revocation(Record):
    """Revocation of a key."""

    key: KeyId
    """Which."""
    at: AwareDatetime
    """When it was revoked."""
    reason: str = Field(default="", max_length=500)
    """Why, for people."""
    trust_until: AwareDatetime | None = None
    """Documents written no later than this stay valid; None: no document does."""


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
        """Store a revocation and return the one that is in force: the first.

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

        A damaged file revokes the key without exceptions: the evidence that it excepted is unknown.

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
        keys = sorted(name for name in names if _NAME.fullmatch(name))  # others: files of users
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
    """Return the time of writing in a document; None without one."""
    try:
        body = json.loads(payload)
        at = datetime.fromisoformat(str(body["written_at"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return at if at.tzinfo is not None else None


_PRIVATE = "current.key"
_ID = re.compile(r"ed25519:([0-9a-f]{32})")


class Ed25519Notary:
    """Signs with the key in a folder, which is made on first use.

    Parameters
    ----------
    folder
        Readable by its owner only; made when the first key is.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.revocations = Revocations(folder)
        """Revoked keys of this folder."""

    def sign(self, payload: bytes) -> tuple[str, bytes]:
        """Return key and signature; see `Notary.sign`."""
        private = self._private() or self._make(replace=False)
        key = key_id(private.public_key())
        return key, private.sign(message_of(key, payload))

    def check(self, payload: bytes, *, key: str, signature: bytes) -> EvidenceFault | None:
        """Verify; see `Verifier.check`."""
        public = self._public(key)
        if public is None:
            return EvidenceFault.UNKNOWN_KEY
        fault = check_signature(public, payload, key=key, signature=signature)
        return fault or fault_of(self.revocations.of(key), payload)

    def current(self, *, exposed: bool = False) -> str:
        """Return the id of the current key, and make one if it does not exist.

        With `exposed` also the id of a key that others may have read; it does not sign.
        """
        private = self._private(exposed=exposed) or self._make(replace=False)
        return key_id(private.public_key())

    def public_hex(self) -> str:
        """Return the public key that signs now, as a server pins it: 64 hex digits."""
        private = self._private() or self._make(replace=False)
        raw = private.public_key().public_bytes(
            serialization.Encoding.Raw, format=serialization.PublicFormat.Raw
        )
        return raw.hex()

    def rotate(self) -> str:
        """Make a new key and forget the private half of the old one; return the new id.

        Raises
        ------
        TemporaryError
            If the folder cannot be written.
        """
        return key_id(self._make(replace=True).public_key())

    def revoke(
        self, key: str, *, at: datetime, reason: str = "", trust_until: datetime | None = None
    ) -> Revocation:
        """Revoke a key; documents that it signed until `trust_until` stay valid, if given.

        Raises
        ------
        UsageError
            If no such key ever signed here, or it is the one that signs now: rotate first.
        TemporaryError
            If the folder cannot be written.
        """
        if self._public(key) is None:
            raise UsageError(f"no key {key!r:.60} ever signed here; see `retuned evidence key`")
        if key == self.current():
            raise UsageError(f"{key} signs now; rotate it away first")
        revocation = Revocation(key=key, at=at, reason=reason[:500], trust_until=trust_until)
        return self.revocations.revoke(revocation)

    def public_keys(self) -> dict[str, Ed25519PublicKey]:
        """Return every key that ever signed here, by id; other files are left out.

        Raises
        ------
        UnreadableInput
            If the folder cannot be read.
        """
        try:
            names = sorted(path.name for path in self._folder.glob("*.pub"))
        except OSError as error:
            raise _unreadable(self._folder, error) from error
        found = {}
        for name in names:
            public = self._public(f"ed25519:{name.removesuffix('.pub')}")
            if public is not None:
                found[key_id(public)] = public
        return found

    def _public(self, key: str) -> Ed25519PublicKey | None:
        """Read one public key; None without a key whose digest matches this name."""
        named = _ID.fullmatch(key)
        if named is None:
            return None
        path = self._folder / f"{named[1]}.pub"
        try:
            public = load_public(path.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unreadable(path, error) from error
        return public if public is not None and key_id(public) == key else None

    def _private(self, *, exposed: bool = False) -> Ed25519PrivateKey | None:
        """Read the key on every use: another process may have rotated it."""
        path = self._folder / _PRIVATE
        try:
            number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unreadable(path, error) from error
        with open(number, "rb") as file:
            facts = os.fstat(number)
            ours = facts.st_uid == os.geteuid() and stat.S_ISREG(facts.st_mode)
            if not exposed and (not ours or facts.st_mode & 0o077):
                raise UnreadableInput(
                    "key-exposed",
                    where=str(path),
                    message="others may have read the key; run `retuned evidence rotate`, or give "
                    "the file back to its owner alone (chmod 600)",
                )
            data = file.read(1 << 16)
        try:
            private = serialization.load_pem_private_key(data, password=None)
        except (ValueError, TypeError) as error:
            raise _no_key(path) from error
        if not isinstance(private, Ed25519PrivateKey):
            raise _no_key(path)
        return private

    def _make(self, *, replace: bool) -> Ed25519PrivateKey:
        """Make a key; unless `replace`, return the key of another process that was first."""
        private = Ed25519PrivateKey.generate()
        public = private.public_key()
        temporary = self._folder / f".{secrets.token_hex(8)}.partial"
        target = self._folder / _PRIVATE
        try:
            make_private(self._folder)
            # The public half first: every signature must be verifiable.
            name = key_id(public).removeprefix("ed25519:")
            _write(self._folder / f"{name}.pub", public_pem(public).encode(), mode=0o644)
            _write(temporary, private_pem(private), mode=0o600)
            try:
                if replace:
                    os.replace(temporary, target)
                else:
                    os.link(temporary, target)
            except FileExistsError:
                (self._folder / f"{name}.pub").unlink()
                other = self._private()
                if other is None:
                    raise
                return other
            finally:
                temporary.unlink(missing_ok=True)
            _sync_folder(self._folder)
        except OSError as error:
            message = f"{self._folder}: cannot keep a key ({error.strerror}); fix the folder"
            raise TemporaryError(message, delay_s=30.0) from error
        return private


@dataclass(slots=True)
class FakeNotary:
    """Signs with a secret in memory: for tests of everything that signs or verifies."""

    _secrets: dict[str, bytes] = field(default_factory=dict)
    _revoked: dict[str, Revocation] = field(default_factory=dict)

    def sign(self, payload: bytes) -> tuple[str, bytes]:
        """Return key and signature; see `Notary.sign`."""
        if not self._secrets:
            self.rotate()
        key = list(self._secrets)[-1]
        return key, self._stamp(key, payload)

    def check(self, payload: bytes, *, key: str, signature: bytes) -> EvidenceFault | None:
        """Verify; see `Verifier.check`."""
        if key not in self._secrets:
            return EvidenceFault.UNKNOWN_KEY
        if not hmac.compare_digest(self._stamp(key, payload), signature):
            return EvidenceFault.ALTERED
        return fault_of(self._revoked.get(key), payload)

    def rotate(self) -> str:
        """Sign with another key from now on."""
        key = f"fake:{secrets.token_hex(16)}"
        self._secrets[key] = secrets.token_bytes(32)
        return key

    def revoke(
        self, key: str, *, at: datetime, reason: str = "", trust_until: datetime | None = None
    ) -> Revocation:
        """Believe a key no more; see `Ed25519Notary.revoke`."""
        if key not in self._secrets or key == list(self._secrets)[-1]:
            raise UsageError(f"{key!r:.60} is not an older key")
        made = Revocation(key=key, at=at, reason=reason, trust_until=trust_until)
        return self._revoked.setdefault(key, made)

    def _stamp(self, key: str, payload: bytes) -> bytes:
        return hmac.digest(self._secrets[key], message_of(key, payload), "sha256")


def _write(path: Path, data: bytes, *, mode: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(path, flags, mode), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _unreadable(path: Path, error: OSError) -> UnreadableInput:
    message = f"cannot be read ({error.strerror}); give it back to this user"
    return UnreadableInput("key-unreadable", where=str(path), message=message)


def _no_key(path: Path) -> UnreadableInput:
    message = "is not an Ed25519 key in PEM; run `retuned evidence rotate` to make another"
    return UnreadableInput("bad-key", where=str(path), message=message)
