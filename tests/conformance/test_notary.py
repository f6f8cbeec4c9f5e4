"""One suite over both notaries: keys in a folder and the fake promise the same."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retuned.errors import UsageError
from retuned.ports import Notary
from retuned.stages.verdict import EvidenceFault
from retuned.store.keys import Ed25519Notary, FakeNotary, Revocation

FLIPPED = FakeNotary()
NOON, HOUR = datetime(2026, 11, 21, 12, tzinfo=UTC), timedelta(hours=1)


class Rotating(Notary, Protocol):
    """Both can take another key and revoke one; the port does not need it."""

    def rotate(self) -> str: ...

    def revoke(
        self, key: str, *, at: datetime, reason: str = "", trust_until: datetime | None = None
    ) -> Revocation: ...


@pytest.fixture(params=["fake", "keys"])
def notary(request: pytest.FixtureRequest, tmp_path: Path) -> Rotating:
    return FakeNotary() if request.param == "fake" else Ed25519Notary(tmp_path / "keys")


def test_what_was_signed_is_known_again(notary: Notary) -> None:
    key, signature = notary.sign(b"numbers")
    assert notary.check(b"numbers", key=key, signature=signature) is None


@pytest.mark.parametrize("payload", [b"", b"number", b"numbers ", b"Numbers"])
def test_other_bytes_do_not_fit_the_signature(notary: Notary, payload: bytes) -> None:
    key, signature = notary.sign(b"numbers")
    assert notary.check(payload, key=key, signature=signature) is EvidenceFault.ALTERED


@pytest.mark.parametrize("signature", [b"", b"x", b"\0" * 64, b"\0" * 32])
def test_another_signature_does_not_fit(notary: Notary, signature: bytes) -> None:
    key, _ = notary.sign(b"numbers")
    assert notary.check(b"numbers", key=key, signature=signature) is EvidenceFault.ALTERED


def test_a_key_that_never_was_is_not_known(notary: Notary) -> None:
    _, signature = notary.sign(b"numbers")
    for key in ("", "ed25519:" + "0" * 32, "fake:" + "0" * 32, "../current"):
        found = notary.check(b"numbers", key=key, signature=signature)
        assert found is EvidenceFault.UNKNOWN_KEY


def test_nothing_is_known_before_anything_was_signed(notary: Notary) -> None:
    key = "ed25519:" + "0" * 32
    assert notary.check(b"numbers", key=key, signature=b"\0") is EvidenceFault.UNKNOWN_KEY


def test_after_a_rotation_the_old_signature_holds_and_the_new_key_signs(notary: Rotating) -> None:
    old, signature = notary.sign(b"numbers")
    new = notary.rotate()
    assert new != old
    assert notary.check(b"numbers", key=old, signature=signature) is None
    assert notary.sign(b"more")[0] == new
    # bound to its key: another key's name does not carry it
    assert notary.check(b"numbers", key=new, signature=signature) is EvidenceFault.ALTERED


def document(written_at: datetime) -> bytes:
    return json.dumps({"written_at": written_at.isoformat()}).encode()


def test_a_revoked_key_carries_nothing_that_it_ever_signed(notary: Rotating) -> None:
    old, signature = notary.sign(document(NOON))
    notary.rotate()
    notary.revoke(old, at=NOON, reason="it was on a stick")
    found = notary.check(document(NOON), key=old, signature=signature)
    assert found is EvidenceFault.REVOKED_KEY
    new, fresh = notary.sign(document(NOON))
    assert notary.check(document(NOON), key=new, signature=fresh) is None


@pytest.mark.parametrize(
    ("payload", "fault"),
    [
        (document(NOON - HOUR), None),
        (document(NOON), None),
        (document(NOON + HOUR), EvidenceFault.REVOKED_KEY),
        (b"no document", EvidenceFault.REVOKED_KEY),
        (b'{"written_at": "yesterday"}', EvidenceFault.REVOKED_KEY),
        (b'{"written_at": "2026-11-21T10:00:00"}', EvidenceFault.REVOKED_KEY),
        (b"[" * 100_000, EvidenceFault.REVOKED_KEY),
    ],
)
def test_whoever_revokes_may_say_until_when_the_key_was_trusted(
    notary: Rotating, payload: bytes, fault: EvidenceFault | None
) -> None:
    old, signature = notary.sign(payload)
    notary.rotate()
    notary.revoke(old, at=NOON + HOUR, trust_until=NOON)
    assert notary.check(payload, key=old, signature=signature) is fault
    assert notary.check(payload, key=old, signature=b"\0" * 64) is EvidenceFault.ALTERED


def test_a_revocation_stands_as_it_was_first_said(notary: Rotating) -> None:
    old, signature = notary.sign(document(NOON))
    notary.rotate()
    first = notary.revoke(old, at=NOON, reason="first")
    again = notary.revoke(old, at=NOON + HOUR, reason="again", trust_until=NOON + HOUR)
    assert again == first
    found = notary.check(document(NOON), key=old, signature=signature)
    assert found is EvidenceFault.REVOKED_KEY


def test_neither_the_key_that_signs_nor_one_that_never_did_is_revoked(notary: Rotating) -> None:
    current, signature = notary.sign(b"x")
    for key in (current, "ed25519:" + "0" * 32, "fake:" + "0" * 32, "../current"):
        with pytest.raises(UsageError):
            notary.revoke(key, at=NOON)
    assert notary.check(b"x", key=current, signature=signature) is None


@given(st.binary(max_size=64), st.integers(0, 511))
def test_one_flipped_bit_of_a_signature_is_found(payload: bytes, place: int) -> None:
    notary = FLIPPED
    key, signature = notary.sign(payload)
    place %= 8 * len(signature)
    flipped = bytearray(signature)
    flipped[place // 8] ^= 1 << place % 8
    found = notary.check(payload, key=key, signature=bytes(flipped))
    assert found is EvidenceFault.ALTERED
