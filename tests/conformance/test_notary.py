"""One suite over both notaries: keys in a folder and the fake promise the same."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retuned.adapters.signing import Ed25519Notary, FakeNotary
from retuned.ports import Notary
from retuned.stages.verdict import EvidenceFault

FLIPPED = FakeNotary()


class Rotating(Notary, Protocol):
    """Both can take another key; the port does not need it."""

    def rotate(self) -> str: ...


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


@given(st.binary(max_size=64), st.integers(0, 511))
def test_one_flipped_bit_of_a_signature_is_found(payload: bytes, place: int) -> None:
    notary = FLIPPED
    key, signature = notary.sign(payload)
    place %= 8 * len(signature)
    flipped = bytearray(signature)
    flipped[place // 8] ^= 1 << place % 8
    found = notary.check(payload, key=key, signature=bytes(flipped))
    assert found is EvidenceFault.ALTERED
