"""The verifier against RFC 8032's vectors, an independent implementation, and known tricks."""

from __future__ import annotations

import time

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given, settings
from hypothesis import strategies as st

from retuned.runtime.artifacts import ed25519
from retuned.runtime.artifacts.ed25519 import usable, verify

L = 2**252 + 27742317777372353535851937790883648493
P = 2**255 - 19

VECTORS = [  # RFC 8032 section 7.1: secret, public, message, signature
    (
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e3970"
        "1cf9b46bd25bf5f0595bbe24655141438e7a100b",
    ),
    (
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613"
        "d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
    ),
    (
        "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760"
        "984dc6594a7c15e9716ed28dc027beceea1ec40a",
    ),
    (  # the message is SHA-512 of "abc"
        "833fe62409237b9d62ec77587520911e9a759cec1d19755b7da901b96dca3d42",
        "ec172b93ad5e563bf4932c70e1245034c35467ef2efd4d64ebf819683467e2bf",
        "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a2192992a274fc1a836ba3c23"
        "a3feebbd454d4423643ce80e2a9ac94fa54ca49f",
        "dc2a4459e7369633a52b1bf277839a00201009a3efbf3ecb69bea2186c26b58909351fc9ac90b3ecfdfbc7c6"
        "6431e0303dca179c138ac17ad9bef1177331a704",
    ),
]
SMALL = [  # every canonical encoding of a point whose order divides eight
    "0100000000000000000000000000000000000000000000000000000000000000",
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0000000000000000000000000000000000000000000000000000000000000080",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
]
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = KEY.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)


@pytest.mark.parametrize(("secret", "public", "message", "signature"), VECTORS)
def test_the_vectors_of_the_rfc_verify_and_no_changed_byte_does(
    secret: str, public: str, message: str, signature: str
) -> None:
    key, said, signed = (bytes.fromhex(each) for each in (public, message, signature))
    made = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(secret))
    assert made.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw) == key
    assert verify(key, said, signature=signed)
    assert not verify(key, said + b"\0", signature=signed)
    for place in (0, 15, 31, 32, 47, 63):
        changed = bytearray(signed)
        changed[place] ^= 1
        assert not verify(key, said, signature=bytes(changed))
    other = bytes([key[0] ^ 2]) + key[1:]
    assert not verify(other, said, signature=signed)


@settings(max_examples=40, deadline=None)
@given(st.binary(min_size=32, max_size=32), st.binary(max_size=200))
def test_what_another_implementation_signs_verifies(secret: bytes, message: bytes) -> None:
    key = Ed25519PrivateKey.from_private_bytes(secret)
    public = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    assert usable(public)
    assert verify(public, message, signature=key.sign(message))
    assert not verify(public, message + b"x", signature=key.sign(message))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_nothing_verifies_that_another_implementation_refuses(data: st.DataObject) -> None:
    """One byte of key, message or signature changed, anywhere."""
    message = b"retuned artifact 1"
    signature = bytearray(KEY.sign(message))
    public = bytearray(PUBLIC)
    place = data.draw(st.integers(0, 95))
    target, at = (public, place) if place < 32 else (signature, place - 32)
    target[at] ^= data.draw(st.integers(1, 255))
    if verify(bytes(public), message, signature=bytes(signature)):
        try:
            Ed25519PublicKey.from_public_bytes(bytes(public)).verify(bytes(signature), message)
        except (InvalidSignature, ValueError):  # pragma: no cover - would be a forgery
            pytest.fail(f"a change at {place} verifies")


def test_a_signature_cannot_be_made_into_another_of_the_same_message() -> None:
    signature = KEY.sign(b"order")
    scalar = int.from_bytes(signature[32:], "little")
    for larger in (scalar + L, scalar + 8 * L):
        other = signature[:32] + larger.to_bytes(32, "little")
        assert not verify(PUBLIC, b"order", signature=other)
    assert verify(PUBLIC, b"order", signature=signature)


@pytest.mark.parametrize("encoded", SMALL)
def test_a_key_of_small_order_signs_nothing(encoded: str) -> None:
    """With such a key S = 0 and R = the neutral element fit every eighth message or more."""
    public = bytes.fromhex(encoded)
    assert not usable(public)
    for commitment in SMALL:
        signature = bytes.fromhex(commitment) + bytes(32)
        for message in (b"", b"a", b"b", b"c", b"d", b"e", b"f", b"g", b"h"):
            assert not verify(public, message, signature=signature)


@pytest.mark.parametrize("commitment", SMALL)
def test_a_commitment_of_small_order_is_refused(commitment: str) -> None:
    assert not verify(PUBLIC, b"m", signature=bytes.fromhex(commitment) + bytes(32))


@pytest.mark.parametrize("y", [P, P + 1, 2**255 - 1, P + 3])
@pytest.mark.parametrize("sign", [0, 1])
def test_encodings_that_are_not_canonical_are_no_points(y: int, sign: int) -> None:
    encoded = (y | sign << 255).to_bytes(32, "little")
    assert not usable(encoded)
    assert not verify(encoded, b"m", signature=KEY.sign(b"m"))
    assert not verify(PUBLIC, b"m", signature=encoded + KEY.sign(b"m")[32:])


def test_zero_has_no_negative_and_half_of_all_numbers_are_no_points() -> None:
    assert ed25519._decode((1 | 1 << 255).to_bytes(32, "little")) is None
    found = sum(ed25519._decode(y.to_bytes(32, "little")) is not None for y in range(2, 66))
    assert 16 <= found <= 48


@pytest.mark.parametrize("length", [0, 31, 33, 63, 64, 65])
def test_what_has_another_length_is_no_signature_and_no_key(length: int) -> None:
    if length != 64:
        assert not verify(PUBLIC, b"m", signature=bytes(length))
    assert not verify(bytes(length), b"m", signature=KEY.sign(b"m"))
    assert not usable(bytes(length))


def test_a_check_is_cheap_off_the_request_path() -> None:
    signature = KEY.sign(b"m")
    best_s = float("inf")
    for _ in range(5):
        begin = time.thread_time()
        assert verify(PUBLIC, b"m", signature=signature)
        best_s = min(best_s, time.thread_time() - begin)
    assert best_s < 0.2, "5 ms on an idle core; the bound allows for a busy machine"
