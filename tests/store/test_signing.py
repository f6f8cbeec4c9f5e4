"""Keys in a folder: made once, private, rotated, and refused where somebody may have seen them."""

from __future__ import annotations

import errno
import os
import stat
import threading
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from tests.expect import raises_code, raises_naming
from tests.standalone.local_world import INCUMBENT, WINNER
from tests.standalone.proofs import interval, proof

from retuned.clock import FakeClock
from retuned.errors import TemporaryError, UnreadableInput
from retuned.stages.verdict import EvidenceFault
from retuned.store.envelopes import seal, signed_by, unseal
from retuned.store.keys import Ed25519Notary, FakeNotary, PublicKey, key_id, public_pem


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "keys"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def document() -> bytes:
    written = proof(
        WINNER,
        incumbent=INCUMBENT.digest,
        plan="p",
        speedup=interval(2.0),
        at=FakeClock().now(),
    )
    return written.model_dump_json().encode()


def test_the_first_signature_makes_a_key_that_only_its_owner_can_read(folder: Path) -> None:
    key, _ = Ed25519Notary(folder).sign(b"x")
    assert (mode(folder), mode(folder / "current.key")) == (0o700, 0o600)
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        ["current.key", f"{key.removeprefix('ed25519:')}.pub"]
    )


def test_two_who_come_first_at_once_have_one_key(folder: Path) -> None:
    found: list[str] = []
    start = threading.Barrier(4)

    def sign() -> None:
        start.wait()
        found.append(Ed25519Notary(folder).sign(b"x")[0])

    threads = [threading.Thread(target=sign) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert [path.name for path in folder.glob("*.pub")] == [f"{found[0][8:]}.pub"]
    assert not list(folder.glob(".*"))


def test_a_rotation_keeps_every_public_key_and_one_private_one(folder: Path) -> None:
    notary = Ed25519Notary(folder)
    keys = [notary.current(), notary.rotate(), notary.rotate()]
    assert notary.current() == keys[-1]
    assert set(notary.public_keys()) == set(keys)
    assert len(list(folder.glob("*.key"))) == 1
    assert mode(folder / "current.key") == 0o600


@pytest.mark.parametrize("bits", [0o640, 0o604, 0o660, 0o644])
def test_a_key_that_others_may_have_read_signs_nothing(folder: Path, bits: int) -> None:
    notary = Ed25519Notary(folder)
    notary.sign(b"x")
    (folder / "current.key").chmod(bits)
    with raises_code(
        UnreadableInput, "key-exposed", "retuned evidence rotate", "chmod 600"
    ) as caught:
        notary.sign(b"x")
    assert caught.value.code == "key-exposed"
    notary.rotate()
    notary.sign(b"x")


def test_a_link_is_no_key(folder: Path, tmp_path: Path) -> None:
    Ed25519Notary(tmp_path / "other").sign(b"x")
    folder.mkdir()
    (folder / "current.key").symlink_to(tmp_path / "other" / "current.key")
    with pytest.raises(UnreadableInput) as caught:
        Ed25519Notary(folder).sign(b"x")
    assert caught.value.code == "key-unreadable"


@pytest.mark.parametrize("text", [b"", b"nonsense", b"-----BEGIN PRIVATE KEY-----\n"])
def test_what_is_no_key_says_so(folder: Path, text: bytes) -> None:
    folder.mkdir()
    (folder / "current.key").write_bytes(text)
    (folder / "current.key").chmod(0o600)
    with pytest.raises(UnreadableInput) as caught:
        Ed25519Notary(folder).sign(b"x")
    assert caught.value.code == "bad-key"


def test_a_public_key_under_another_name_verifies_nothing(folder: Path) -> None:
    notary = Ed25519Notary(folder)
    key, _ = notary.sign(b"x")
    stranger = Ed25519PrivateKey.generate()
    pem = public_pem(stranger.public_key()).encode()
    (folder / f"{key[8:]}.pub").write_bytes(pem)
    assert notary.check(b"x", key=key, signature=b"\0" * 64) is EvidenceFault.UNKNOWN_KEY
    assert notary.public_keys() == {}


def test_a_folder_that_cannot_be_written_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)  # by mode alone, root would not be refused
    with raises_naming(TemporaryError, os.strerror(errno.EACCES)):
        Ed25519Notary(tmp_path / "closed" / "keys").sign(b"x")


def test_a_file_in_the_folder_s_place_is_said(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("")
    with pytest.raises((TemporaryError, UnreadableInput)):
        Ed25519Notary(tmp_path / "keys").sign(b"x")


def test_an_envelope_opens_with_its_document(folder: Path) -> None:
    notary = Ed25519Notary(folder)
    sealed = seal(document(), notary=notary)
    opened, doubt = unseal(sealed, verifier=notary)
    assert doubt is None
    assert opened is not None
    assert opened.candidate == WINNER.digest
    assert signed_by(sealed) == notary.current()


def test_an_envelope_is_verified_elsewhere_with_the_public_key_alone(folder: Path) -> None:
    notary = Ed25519Notary(folder)
    sealed = seal(document(), notary=notary)
    pem = public_pem(notary.public_keys()[notary.current()]).encode()
    assert unseal(sealed, verifier=PublicKey.read(pem, where="mail"))[1] is None
    other = PublicKey(Ed25519PrivateKey.generate().public_key())
    doubt = unseal(sealed, verifier=other)[1]
    assert doubt is not None
    assert doubt.fault is EvidenceFault.UNKNOWN_KEY
    with pytest.raises(UnreadableInput):
        PublicKey.read(b"no key", where="mail")


def test_an_altered_number_is_found(folder: Path) -> None:
    notary = Ed25519Notary(folder)
    sealed = seal(document(), notary=notary)
    altered = sealed.replace(rb"\"tried\":2", rb"\"tried\":1")
    assert altered != sealed
    opened, doubt = unseal(altered, verifier=notary)
    assert opened is not None, "people may look at it"
    assert doubt is not None
    assert doubt.fault is EvidenceFault.ALTERED


@given(st.binary(max_size=200))
def test_nonsense_is_unreadable_and_no_crash(data: bytes) -> None:
    opened, doubt = unseal(data, verifier=FakeNotary())
    assert opened is None
    assert doubt is not None
    assert doubt.fault is EvidenceFault.UNREADABLE


@given(st.data())
def test_an_envelope_cut_short_or_changed_anywhere_is_never_believed(data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(SEALED) - 1))
    changed = bytearray(SEALED)
    changed[place] ^= data.draw(st.integers(1, 255))
    for broken in (SEALED[:place], bytes(changed)):
        assert unseal(broken, verifier=NOTARY)[1] is not None


def test_ids_are_those_of_the_key_s_bytes() -> None:
    public = Ed25519PrivateKey.generate().public_key()
    assert key_id(public) == key_id(public)
    assert len(key_id(public)) == len("ed25519:") + 32


NOTARY = FakeNotary()
SEALED = seal(document(), notary=NOTARY)


@pytest.mark.parametrize("text", ["", "{", '{"key": "ed25519:' + "0" * 32 + '"}'])
def test_a_damaged_revocation_revokes_without_exception(folder: Path, text: str) -> None:
    notary = Ed25519Notary(folder)
    old, signature = notary.sign(document())
    notary.rotate()
    notary.revoke(old, at=FakeClock().now(), trust_until=FakeClock().now())
    assert notary.check(document(), key=old, signature=signature) is None
    (folder / f"{old.removeprefix('ed25519:')}.revoked").write_text(text)
    assert notary.check(document(), key=old, signature=signature) is EvidenceFault.REVOKED_KEY
    assert [each.key for each in notary.revocations.all()] == [old]
    (folder / "kept by hand.revoked").write_text(text)
    assert [each.key for each in notary.revocations.all()] == [old]


def test_evidence_of_a_revoked_key_says_so(folder: Path) -> None:
    notary = Ed25519Notary(folder)
    data = seal(document(), notary=notary)
    old = notary.current()
    notary.rotate()
    notary.revoke(old, at=FakeClock().now())
    read, doubt = unseal(data, verifier=notary)
    assert read is not None
    assert doubt is not None
    assert doubt.fault is EvidenceFault.REVOKED_KEY
    assert "revoked" in doubt.detail
