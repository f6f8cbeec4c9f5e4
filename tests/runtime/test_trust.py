"""Whose artifacts a server loads: signatures, keys, and what a byte changed anywhere does."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.expect import raises_code

from retuned.runtime.artifacts.artifact import read_artifact
from retuned.runtime.artifacts.trust import SIGNATURE_FILE, Trust, key_name
from retuned.runtime.core import epochs
from retuned.runtime.core.host import RuntimeHost
from retuned.runtime.core.slots import Slot
from retuned.runtime.native.cpu import LOADERS
from retuned.runtime.schema import Refused
from retuned.store.artifact_folder import sign_artifact
from retuned.store.keys import Ed25519Notary

DIGEST = "sha256:" + "1" * 64
NAME, TARGET = "copy_m", "server-a"
DEFINITION = {
    "name": NAME,
    "op_type": "copy",
    "axes": {"M": {"type": "var"}},
    "inputs": {"x": {"shape": ["M"], "dtype": "float32"}},
    "outputs": {"y": {"shape": ["M"], "dtype": "float32"}},
}
CODE = b"def copy(x): return x\n"


class Rehearsed:
    """A variant without code, in a language of its own."""

    def __init__(self, *_: object) -> None:
        pass

    def launcher(self, _: tuple[int, ...]) -> Callable[[tuple[Any, ...]], Any]:
        return lambda inputs: inputs[0]

    checked_launcher = launcher

    def capturing(self) -> None:
        return None

    def fingerprint(self, _: tuple[Any, ...]) -> object:
        return 0


@pytest.fixture
def notary(tmp_path: Path) -> Ed25519Notary:
    return Ed25519Notary(tmp_path / "keys")


@pytest.fixture
def folder(tmp_path: Path, notary: Ed25519Notary) -> Path:
    """A published artifact."""
    folder = tmp_path / "artifact"
    folder.mkdir()
    (folder / "kernel.txt").write_bytes(CODE)
    manifest = {
        "digest": DIGEST,
        "definition": DEFINITION,
        "language": "rehearsed",
        "entry": "copy",
        "binary": "kernel.txt",
        "binary_sha256": hashlib.sha256(CODE).hexdigest(),
    }
    (folder / "artifact.json").write_text(json.dumps(manifest))
    publish(folder, notary)
    return folder


def publish(folder: Path, notary: Ed25519Notary, **changed: str) -> None:
    said = {"artifact": DIGEST, "definition": NAME, "target": TARGET} | changed
    sign_artifact(folder, notary=notary, **said)


def read(folder: Path, trust: Trust, target: str = TARGET) -> None:
    read_artifact(folder, digest=DIGEST, trust=trust, definition=NAME, target=target)


def refusal(folder: Path, trust: Trust, target: str = TARGET) -> str:
    with pytest.raises(Refused) as caught:
        read(folder, trust, target)
    return caught.value.reason


def reason_of(folder: Path, trust: Trust) -> str:
    """Return why it is refused; empty if it is not."""
    try:
        read(folder, trust)
    except Refused as error:
        return error.reason
    return ""


def test_what_the_daemon_signed_is_loaded_and_what_nobody_signed_is_not(
    folder: Path, notary: Ed25519Notary
) -> None:
    trust = Trust(notary.public_hex())
    read(folder, trust)
    (folder / SIGNATURE_FILE).unlink()
    assert refusal(folder, trust) == "signature-missing"
    read(folder, Trust())


def test_without_a_key_a_server_says_so(notary: Ed25519Notary) -> None:
    assert Trust().policy == "off"
    assert Trust(pin=True).policy == "pin"
    assert Trust(notary.public_hex(), pin=True).policy == "required"


@pytest.mark.parametrize("changed", ["artifact", "definition", "target"])
def test_a_signature_holds_for_one_artifact_definition_and_server(
    changed: str, folder: Path, notary: Ed25519Notary
) -> None:
    publish(folder, notary, **{changed: "another" if changed != "artifact" else DIGEST[:-1] + "2"})
    assert refusal(folder, Trust(notary.public_hex())) == "signature-mismatch"


def test_a_server_that_knows_its_name_takes_no_order_made_for_another(
    folder: Path, notary: Ed25519Notary
) -> None:
    trust = Trust(notary.public_hex(), target="server-b")
    assert refusal(folder, trust, TARGET) == "signature-mismatch"
    publish(folder, notary, target="server-b")
    read(folder, trust)


@pytest.mark.parametrize("file", ["artifact.json", "kernel.txt", SIGNATURE_FILE])
def test_a_byte_changed_anywhere_is_refused_before_anything_is_loaded(
    file: str, folder: Path, notary: Ed25519Notary
) -> None:
    """Every byte: manifest (its header, names, digests, source), code, and signature."""
    trust = Trust(notary.public_hex())
    path = folder / file
    whole = path.read_bytes()
    reasons = []
    for place in range(0, len(whole), 1 if len(whole) < 200 else 5):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x20]) + whole[place + 1 :])
        reasons.append(reason_of(folder, trust))
    # a signature file spells its digits in either case, and its blanks
    allowed = len(reasons) // 3 if file == SIGNATURE_FILE else 0
    assert reasons.count("") <= allowed
    known = {"signature-invalid", "signature-mismatch", "signature-unknown-key"}
    assert set(reasons) <= known | {"artifact-tampered", ""}
    path.write_bytes(whole)
    read(folder, trust)


@pytest.mark.parametrize("file", ["artifact.json", "kernel.txt", SIGNATURE_FILE])
@pytest.mark.parametrize("kept", [0, 1, -1])
def test_a_file_cut_short_or_with_more_at_its_end_is_refused(
    file: str, kept: int, folder: Path, notary: Ed25519Notary
) -> None:
    trust = Trust(notary.public_hex())
    whole = (folder / file).read_bytes()
    for data in (whole[:kept], whole + b"x"):
        (folder / file).write_bytes(data)
        assert refusal(folder, trust).startswith(("signature-", "artifact-tampered"))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b"7",
        b'{"key": 7, "statement": "{}", "signature": ""}',
        b'{"key": "ed25519:00", "statement": 7, "signature": "00"}',
        b'{"key": "ed25519:00", "statement": "{}", "signature": "zz"}',
        b"[" * 5000,
    ],
)
def test_a_signature_that_is_nonsense_is_refused(
    body: bytes, folder: Path, notary: Ed25519Notary
) -> None:
    (folder / SIGNATURE_FILE).write_bytes(body)
    trust = Trust(notary.public_hex())
    assert refusal(folder, trust) in {"signature-invalid", "signature-unknown-key"}


def test_what_was_signed_as_evidence_is_no_artifact(folder: Path, notary: Ed25519Notary) -> None:
    """The same key signs evidence; none of it may pass as a statement about an artifact."""
    statement = json.loads((folder / SIGNATURE_FILE).read_text())["statement"]
    key, signature = notary.sign(statement.encode())
    body = {"key": key, "statement": statement, "signature": signature.hex()}
    (folder / SIGNATURE_FILE).write_text(json.dumps(body))
    assert refusal(folder, Trust(notary.public_hex())) == "signature-invalid"


# --- keys -------------------------------------------------------------------------------------


def test_a_folder_of_keys_follows_rotation_and_revocation(
    folder: Path, notary: Ed25519Notary, tmp_path: Path
) -> None:
    trust = Trust(str(tmp_path / "keys"))
    read(folder, trust)
    old = notary.current()
    notary.rotate()
    read(folder, trust)
    publish(folder, notary)
    read(folder, trust)
    notary.revoke(old, at=datetime.now(UTC))
    read(folder, trust)
    assert set(trust.keys()) == {notary.current()}


def test_a_key_that_was_rotated_away_is_unknown_to_a_server_that_lists_the_new_one(
    folder: Path, notary: Ed25519Notary
) -> None:
    old = notary.public_hex()
    notary.rotate()
    assert refusal(folder, Trust(notary.public_hex())) == "signature-unknown-key"
    read(folder, Trust(f"{old}, {notary.public_hex()}"))


def test_keys_are_read_from_pem_from_lines_of_hex_and_from_the_variable(
    notary: Ed25519Notary, tmp_path: Path
) -> None:
    pem = next((tmp_path / "keys").glob("*.pub"), None)
    expected = {notary.current()}
    pem = next((tmp_path / "keys").glob("*.pub"))
    lines = tmp_path / "lines"
    lines.write_text(f"# ours\n{notary.public_hex()}  # since May\n")
    for source in (notary.public_hex(), str(pem), str(lines), f"{pem},{lines}"):
        assert set(Trust(source).keys()) == expected
    assert key_name(bytes.fromhex(notary.public_hex())) == notary.current()


def write(path: Path, data: bytes, mode: int = 0o600) -> str:
    path.write_bytes(data)
    path.chmod(mode)
    return str(path)


def test_a_key_that_cannot_be_used_loads_nothing(folder: Path, tmp_path: Path) -> None:
    wrong = [
        (str(tmp_path / "absent"), "key-unreadable"),
        (write(tmp_path / "empty", b""), "key-invalid"),
        (write(tmp_path / "words", b"no key at all"), "key-invalid"),
        (write(tmp_path / "long", b"00" * 32 + b"\n" + b"x" * 70_000), "key-invalid"),
        (write(tmp_path / "open", b"d7" * 32, 0o666), "key-exposed"),
        ("00" * 32, "key-invalid"),
        ("ff" * 32, "key-invalid"),
    ]
    for source, reason in wrong:
        assert refusal(folder, Trust(source)) == reason, source
    link = tmp_path / "fifo"
    os.mkfifo(link, 0o600)
    assert refusal(folder, Trust(str(link))) == "key-unreadable"


def test_the_first_key_that_is_shown_is_pinned_and_no_other_after_it(
    folder: Path, notary: Ed25519Notary, tmp_path: Path
) -> None:
    trust = Trust(pin=True)
    assert trust.pin(notary.public_hex())
    assert trust.policy == "pinned"
    read(folder, trust)
    assert trust.pin(notary.public_hex()), "the same again is no change"
    stranger = Ed25519Notary(tmp_path / "stranger")
    with pytest.raises(Refused) as caught:
        trust.pin(stranger.public_hex())
    assert caught.value.reason == "key-not-pinned"
    publish(folder, stranger)
    assert refusal(folder, trust) == "signature-unknown-key"


@pytest.mark.parametrize("shown", [None, 7, "", "00" * 31, "zz" * 32, "00" * 32])
def test_what_is_no_key_is_not_pinned(shown: object) -> None:
    trust = Trust(pin=True)
    with raises_code(Refused, "key-invalid"):
        trust.pin(shown)
    assert trust.policy == "pin"


def test_a_key_in_the_environment_is_never_replaced_by_one_that_is_shown(
    notary: Ed25519Notary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETUNED_TRUSTED_KEY", notary.public_hex())
    monkeypatch.setenv("RETUNED_TRUST", "pin")
    trust = Trust.from_environment()
    stranger = Ed25519Notary(tmp_path / "stranger").public_hex()
    assert trust.pin(stranger) is False
    assert set(trust.keys()) == {notary.current()}


# --- in the host ------------------------------------------------------------------------------


def order(epoch: int = 1) -> dict[str, Any]:
    return {
        "id": f"o{epoch}",
        "kind": "swap",
        "definition": NAME,
        "artifact": DIGEST,
        "guard": {"bounds": {}},
        "epoch": epoch,
        "target": TARGET,
    }


def test_a_server_with_a_key_prepares_what_is_signed_and_nothing_else(
    folder: Path, notary: Ed25519Notary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(LOADERS, "rehearsed", Rehearsed)
    host = RuntimeHost("test", trust=Trust(notary.public_hex()))
    host.add(Slot(DEFINITION, lambda x: x))
    request = {"op": "prepare", "order": order(), "artifact_dir": str(folder)}
    signature = (folder / SIGNATURE_FILE).read_bytes()
    (folder / SIGNATURE_FILE).unlink()
    with raises_code(Refused, "signature-missing"):
        host.answer(request)
    with raises_code(Refused, "not-prepared"):
        host.answer({"op": "commit", "order": order()})
    (folder / SIGNATURE_FILE).write_bytes(signature)
    assert host.answer(request)["already"] is False
    host.answer({"op": "commit", "order": order()})
    (folder / SIGNATURE_FILE).unlink()
    assert host.answer(request)["already"] is True, "what is loaded is loaded"


def test_what_is_prepared_and_never_committed_is_dropped_when_its_lease_ends(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(LOADERS, "rehearsed", Rehearsed)
    host = RuntimeHost("test", trust=Trust())
    host.add(Slot(DEFINITION, lambda x: x))
    request = {"op": "prepare", "order": order(), "artifact_dir": str(folder)}
    standing = {"op": "standing", "order": order()}
    host.answer(request)
    host.housekeeping()
    assert host.answer(standing)["standing"] == "prepared"
    monkeypatch.setattr(epochs, "PREPARED_FOR_S", -1.0)
    host.housekeeping()
    assert host.answer(standing)["standing"] == "unprepared"
    with raises_code(Refused, "not-prepared"):
        host.answer({"op": "commit", "order": order()})
    host.answer(request)
    host.answer({"op": "commit", "order": order()})
    host.housekeeping()
    assert host.answer(standing)["standing"] == "committed", "what was committed has no lease"
    assert host.answer({"op": "abort", "order": order()}) == {"dropped": False, "committed": True}
