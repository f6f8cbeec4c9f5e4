"""Ed25519 keys as text, and what exactly they sign; nothing is kept here."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)

from retuned.errors import UnreadableInput
from retuned.stages.verdict import EvidenceFault

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
            If it is no public Ed25519 key.
        """
        public = load_public(data)
        if public is None:
            raise UnreadableInput("bad-key", where=where, message="is no Ed25519 key in PEM")
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
    """Read PEM; None where it is no public Ed25519 key."""
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
