"""Envelopes around evidence: a document's exact bytes, the key's name and the signature."""

from __future__ import annotations

from pydantic import ValidationError

from retuned.ports import Notary, Verifier
from retuned.stages.verdict import Doubt, EvidenceDocument, EvidenceFault, SignedEvidence

_MAX_BYTES = 64 << 20
"""Longest envelope that is read."""
_DETAILS = {
    EvidenceFault.UNKNOWN_KEY: "its key never signed here",
    EvidenceFault.REVOKED_KEY: "its key was revoked",
    EvidenceFault.ALTERED: "the signature does not fit the text",
}


def seal(payload: bytes, *, notary: Notary) -> bytes:
    """Return the envelope of a document."""
    key, signature = notary.sign(payload)
    envelope = SignedEvidence(payload=payload.decode(), key=key, signature=signature.hex())
    return envelope.model_dump_json().encode()


def unseal(data: bytes, *, verifier: Verifier) -> tuple[EvidenceDocument | None, Doubt | None]:
    """Open an envelope: the document, and why it is not to be believed; None if it is.

    A document that can be read comes back unbelieved too, so that people can look at it.
    """
    envelope = _envelope(data)
    if isinstance(envelope, Doubt):
        return None, envelope
    try:
        document = EvidenceDocument.model_validate_json(envelope.payload)
    except ValidationError as error:
        return None, _unreadable(error)
    try:
        signature = bytes.fromhex(envelope.signature)
    except ValueError:
        return document, Doubt(fault=EvidenceFault.ALTERED, detail="the signature is no bytes")
    fault = verifier.check(envelope.payload.encode(), key=envelope.key, signature=signature)
    if fault is None:
        return document, None
    detail = f"{envelope.key}: {_DETAILS.get(fault, 'the signature cannot be verified')}"
    return document, Doubt(fault=fault, detail=detail)


def signed_by(data: bytes) -> str:
    """Return the key that an envelope names; empty if it is no envelope."""
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
