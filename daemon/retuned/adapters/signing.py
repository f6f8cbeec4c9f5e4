"""The installation's signature: Ed25519 keys in a folder.

The daemon signs what its lab hands over; decision 0006 says why. A public key is kept for ever, so
that what an earlier key signed can be verified after a rotation; of private keys there is one.
"""

from __future__ import annotations

import hmac
import os
import re
import secrets
import stat
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)

from retuned.adapters.revoking import Revocation, Revocations, fault_of
from retuned.adapters.signing_keys import (
    check_signature,
    key_id,
    load_public,
    message_of,
    private_pem,
    public_pem,
)
from retuned.errors import TemporaryError, UnreadableInput, UsageError
from retuned.plain_files import make_private
from retuned.stages.verdict import EvidenceFault

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
        """Keys of this folder that are believed no more."""

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
        """Return the id of the key that signs now, and make one where there is none.

        With `exposed` also of one that others may have read: it signs nothing, and has a name.
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
        """Believe a key no more; what it signed until `trust_until` is believed still, if given.

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
        """Return every key that ever signed here, by id; files that are no such key are left out.

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
        """Read one public key; None where there is none that has this name by right."""
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
        """Make a key; where another process was first and `replace` is not said, return its own."""
        private = Ed25519PrivateKey.generate()
        public = private.public_key()
        temporary = self._folder / f".{secrets.token_hex(8)}.partial"
        target = self._folder / _PRIVATE
        try:
            make_private(self._folder)
            # The public half first: no signature may exist that nobody can verify.
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
            raise UsageError(f"{key!r:.60} is no older key")
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
    message = "is no Ed25519 key in PEM; run `retuned evidence rotate` to make another"
    return UnreadableInput("bad-key", where=str(path), message=message)
