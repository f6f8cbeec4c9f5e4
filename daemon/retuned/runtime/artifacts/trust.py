"""Trust in artifacts: this process loads those that a trusted Ed25519 key has signed.

The signature is a file in the same folder as the manifest. It states which artifact was published
for which definition and server, and the SHA-256 of the manifest's bytes, which contain the digest
of the code. So the signature is checked before the manifest is parsed. It has no epoch: an artifact
that was valid stays valid for a rollback.

Keys come from ``RETUNED_TRUSTED_KEY``: hex, PEM files, files of hex, or a folder of ``*.pub`` such
as the daemon's own, several separated by commas. They are read at every use, so a new key is
trusted immediately and a removed or revoked key is refused. With ``RETUNED_TRUST=pin``
the first key that the daemon sends over the control socket, whose peer the kernel has identified,
is pinned until the process ends. With neither, artifacts are loaded for every peer that may use the
socket. If a configured key cannot be read, nothing is loaded.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from retuned.runtime.artifacts import ed25519
from retuned.runtime.schema import Refused

SIGNATURE_FILE = "artifact.sig"
"""In the same folder as the manifest."""
MAX_SIGNATURE_BYTES = 16 << 10
PURPOSE = b"retuned artifact 1"
"""Prefix of the signed bytes: a signature for another purpose must never be valid here."""
_ENVELOPE = b"retuned evidence 1"
"""The daemon's notary puts this and the key's name before everything that it signs."""
_MAX_KEYS = 64
_MAX_KEY_FILE_BYTES = 16 << 10
_HEX_KEY = re.compile(r"[0-9a-fA-F]{64}\Z")
_PEM = re.compile(r"-----BEGIN PUBLIC KEY-----\s*([A-Za-z0-9+/=\s]+)-----END PUBLIC KEY-----\s*\Z")
_DER_PREFIX = bytes.fromhex("302a300506032b6570032100")
_REVOKED = ".revoked"
_FIELDS = ("artifact", "definition", "target", "manifest_sha256")


class Trust:
    """The trusted keys.

    Parameters
    ----------
    sources
        As ``RETUNED_TRUSTED_KEY``; empty configures no key.
    pin
        Whether the first key that the daemon sends is trusted from then on.
    target
        Name of this server; empty uses the name in the order.
    """

    def __init__(self, sources: str = "", *, pin: bool = False, target: str = "") -> None:
        self._sources = [part.strip() for part in sources.split(",") if part.strip()]
        self._pin = pin and not self._sources
        self._pinned: dict[str, bytes] = {}
        self._target = target

    @classmethod
    def from_environment(cls) -> Trust:
        """Read ``RETUNED_TRUSTED_KEY``, ``RETUNED_TRUST`` and ``RETUNED_SERVER_TARGET``."""
        return cls(
            os.environ.get("RETUNED_TRUSTED_KEY", ""),
            pin=os.environ.get("RETUNED_TRUST", "").strip().lower() == "pin",
            target=os.environ.get("RETUNED_SERVER_TARGET", ""),
        )

    @property
    def policy(self) -> str:
        """``required``, ``pin`` (no key yet), ``pinned`` or ``off``."""
        if self._sources:
            return "required"
        if self._pinned:
            return "pinned"
        return "pin" if self._pin else "off"

    def pin(self, shown: object) -> bool:
        """Trust the daemon's key from now on; False if this server does not pin keys.

        Raises
        ------
        Refused
            ``key-invalid``, or ``key-not-pinned`` if another one is pinned already.
        """
        if not self._pin:
            return False
        if not isinstance(shown, str) or not _HEX_KEY.match(shown):
            raise Refused("key-invalid", detail="'key' is not a public key of 64 hex digits")
        name, public = _named(bytes.fromhex(shown), "the received key")
        if self._pinned and name not in self._pinned:
            detail = f"{next(iter(self._pinned))} is pinned; restart the server to trust another"
            raise Refused("key-not-pinned", detail=detail)
        self._pinned[name] = public
        return True

    def keys(self) -> dict[str, bytes]:
        """Return the keys that are trusted now, by name.

        Raises
        ------
        Refused
            ``key-unreadable``, ``key-exposed`` or ``key-invalid``.
        """
        found = dict(self._pinned)
        for source in self._sources:
            if _HEX_KEY.match(source):
                found |= [_named(bytes.fromhex(source), "RETUNED_TRUSTED_KEY")]
            else:
                found |= _keys_at(Path(source))
        if len(found) > _MAX_KEYS:
            raise Refused("key-invalid", detail=f"more than {_MAX_KEYS} keys are trusted")
        return found

    def check(
        self,
        manifest: bytes,
        *,
        signature: bytes | None,
        artifact: str,
        definition: str,
        target: str,
    ) -> None:
        """Verify, before it is parsed, that a trusted key has signed a manifest for this use.

        Raises
        ------
        Refused
            ``signature-missing``, ``signature-invalid``, ``signature-unknown-key``,
            ``signature-mismatch`` (of another artifact, definition or server), or as `keys`.
        """
        if self.policy == "off":
            return
        if signature is None:
            detail = f"{artifact:.80} is not signed, and this server loads signed artifacts only"
            raise Refused("signature-missing", detail=detail)
        signed = self._statement(signature)
        wanted = {
            "artifact": artifact,
            "definition": definition,
            "target": self._target or target,
            "manifest_sha256": hashlib.sha256(manifest).hexdigest(),
        }
        for field in _FIELDS:
            if signed.get(field) != wanted[field]:
                detail = f"'{field}' was signed as {signed.get(field)!r:.100}, which differs"
                raise Refused("signature-mismatch", detail=detail)

    def _statement(self, data: bytes) -> Mapping[str, Any]:
        try:
            body = json.loads(data)
            key, text = body["key"], body["statement"]
            signature = bytes.fromhex(body["signature"])
            signed = text.encode()
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise Refused("signature-invalid", detail=f"{SIGNATURE_FILE} cannot be read") from error
        public = self.keys().get(key) if isinstance(key, str) else None
        if public is None:
            detail = f"{key!r:.60} is not one of the keys that this server trusts"
            raise Refused("signature-unknown-key", detail=detail)
        if not ed25519.verify(public, message_of(key, signed), signature=signature):
            raise Refused("signature-invalid", detail=f"{key} did not sign this statement")
        return _parsed(signed)


def message_of(key: str, statement: bytes) -> bytes:
    return b"\0".join((_ENVELOPE, key.encode(), PURPOSE, statement))


def key_name(public: bytes) -> str:
    return f"ed25519:{hashlib.sha256(public).hexdigest()[:32]}"


def _parsed(statement: bytes) -> Mapping[str, Any]:
    try:
        body = json.loads(statement)
    except (ValueError, RecursionError) as error:
        raise Refused("signature-invalid", detail="the statement is not JSON") from error
    if not isinstance(body, dict):
        raise Refused("signature-invalid", detail="the statement is not an object")
    return body


def _named(public: bytes, where: str) -> tuple[str, bytes]:
    if not ed25519.usable(public):
        raise Refused("key-invalid", detail=f"{where} has no usable Ed25519 key")
    return key_name(public), public


def _keys_at(path: Path) -> dict[str, bytes]:
    """Read a file of keys, or the ``*.pub`` files of a folder that are not revoked there."""
    try:
        facts = path.stat()
        _check_owner(path, facts)
        if not stat.S_ISDIR(facts.st_mode):
            return dict(_named(key, str(path)) for key in _read_keys(path))
        paths = sorted(path.glob("*.pub"))
        revoked = {each.stem for each in path.glob(f"*{_REVOKED}")}
        wanted = [each for each in paths if each.stem not in revoked]
        return dict(_named(key, str(each)) for each in wanted for key in _read_keys(each))
    except OSError as error:
        raise Refused("key-unreadable", detail=f"{path}: {error.strerror}") from error


def _check_owner(path: Path, facts: os.stat_result) -> None:
    """Refuse a file that another user could have written: the key decides which code is loaded."""
    if facts.st_uid not in (0, os.geteuid()) or facts.st_mode & 0o022:
        detail = f"{path}: others may write it; give it to this user or root, and chmod go-w"
        raise Refused("key-exposed", detail=detail)


def _read_keys(path: Path) -> list[bytes]:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        facts = os.fstat(fd)
        _check_owner(path, facts)
        if not stat.S_ISREG(facts.st_mode):
            raise Refused("key-unreadable", detail=f"{path} is not a regular file")
        data = file.read(_MAX_KEY_FILE_BYTES + 1)
    text = data.decode("ascii", "replace").strip()
    pem = _PEM.match(text)
    if pem is not None:
        return [_from_der(pem[1], path)]
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    keys = [line for line in lines if line]
    if not keys or not all(_HEX_KEY.match(key) for key in keys) or len(data) > _MAX_KEY_FILE_BYTES:
        raise Refused("key-invalid", detail=f"{path} must be PEM or lines of 64 hex digits")
    return [bytes.fromhex(key) for key in keys]


def _from_der(text: str, path: Path) -> bytes:
    try:
        der = base64.b64decode("".join(text.split()), validate=True)
    except binascii.Error:
        der = b""
    if len(der) != len(_DER_PREFIX) + ed25519.KEY_BYTES or not der.startswith(_DER_PREFIX):
        raise Refused("key-invalid", detail=f"{path} is not an Ed25519 key in PEM")
    return der[len(_DER_PREFIX) :]
