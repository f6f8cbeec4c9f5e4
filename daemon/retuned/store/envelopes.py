"""Envelopes around evidence: a document's exact bytes, the key's name and the signature."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import ValidationError

from retuned.contract import Digest
from retuned.errors import UnreadableInput
from retuned.ports import Notary, Store, Verifier
from retuned.stages.verdict import Doubt, EvidenceDocument, EvidenceFault, SignedEvidence

_MAX_BYTES = 64 << 20
"""Longest envelope that is read."""
_DETAILS = {
    EvidenceFault.UNKNOWN_KEY: "its key never signed here",
    EvidenceFault.REVOKED_KEY: "its key was revoked",
    EvidenceFault.ALTERED: "the signature does not fit the text",
}


PASSING = frozenset({"key-unreadable", "blob-unreadable"})
"""Codes of temporary errors: the evidence cannot be read now and may be valid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """Evidence as it was found."""

    document: EvidenceDocument | None
    """Its document; None if it cannot be read."""
    doubt: Doubt | None
    """Why it is not valid; None if its bytes and its signature are."""
    passing: bool = False
    """Whether the doubt is about this machine and not about the evidence: try again."""


def seal(payload: bytes, *, notary: Notary) -> bytes:
    """Return the envelope of a document."""
    key, signature = notary.sign(payload)
    envelope = SignedEvidence(payload=payload.decode(), key=key, signature=signature.hex())
    return envelope.model_dump_json().encode()


def unseal(data: bytes, *, verifier: Verifier) -> tuple[EvidenceDocument | None, Doubt | None]:
    """Open an envelope: the document, and why it is not valid; None if it is.

    A readable document is returned also if it is not valid, so that people can read it.
    """
    envelope = _envelope(data)
    if isinstance(envelope, Doubt):
        return None, envelope
    try:
        document = EvidenceDocument.model_validate_json(envelope.payload)
    except ValidationError as error:
        return None, _unreadable(error)
    return document, _doubt(envelope, verifier)


def payload_of(data: bytes, *, verifier: Verifier) -> bytes | Doubt:
    """Return the document of an envelope of any kind, or why it is not valid."""
    envelope = _envelope(data)
    if isinstance(envelope, Doubt):
        return envelope
    return _doubt(envelope, verifier) or envelope.payload.encode()


def _doubt(envelope: SignedEvidence, verifier: Verifier) -> Doubt | None:
    """Return what is wrong with a signature; None if nothing is."""
    try:
        signature = bytes.fromhex(envelope.signature)
    except ValueError:
        return Doubt(fault=EvidenceFault.ALTERED, detail="the signature is not hexadecimal")
    fault = verifier.check(envelope.payload.encode(), key=envelope.key, signature=signature)
    if fault is None:
        return None
    detail = f"{envelope.key}: {_DETAILS.get(fault, 'the signature cannot be verified')}"
    return Doubt(fault=fault, detail=detail)


def read(store: Store, verifier: Verifier, digest: Digest | None) -> Read:
    """Find evidence and verify its bytes and its signature."""
    if digest is None:
        detail = "no evidence is named"
        return Read(document=None, doubt=Doubt(fault=EvidenceFault.MISSING, detail=detail))
    try:
        data = store.get_blob(digest)
        document, doubt = unseal(data, verifier=verifier)
    except OSError as error:
        detail = f"{digest} cannot be read now: {error.strerror or error}"
        return _later(detail)
    except UnreadableInput as error:
        if error.code in PASSING:
            return _later(str(error))
        known = {
            "blob-corrupt": EvidenceFault.ALTERED,
            "blob-missing": EvidenceFault.MISSING,
        }
        fault = known.get(error.code, EvidenceFault.UNREADABLE)
        return Read(document=None, doubt=Doubt(fault=fault, detail=str(error)))
    return Read(document=document, doubt=doubt)


def _later(detail: str) -> Read:
    doubt = Doubt(fault=EvidenceFault.UNREADABLE, detail=f"{detail}; try again")
    return Read(document=None, doubt=doubt, passing=True)


def signed_by(data: bytes) -> str:
    """Return the key that an envelope names; empty if it is not an envelope."""
    envelope = _envelope(data)
    return envelope.key if isinstance(envelope, SignedEvidence) else ""


def _envelope(data: bytes) -> SignedEvidence | Doubt:
    if len(data) > _MAX_BYTES:
        return Doubt(fault=EvidenceFault.UNREADABLE, detail=f"{len(data)} bytes are too many")
    try:
        return SignedEvidence.model_validate_json(data)
    except ValidationError as error:
        return _unreadable(error)


def _unreadable(error: ValidationError) -> Doubt:
    first = error.errors(include_input=False, include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"]) or "the whole text"
    return Doubt(fault=EvidenceFault.UNREADABLE, detail=f"{place}: {first['msg']}"[:300])
