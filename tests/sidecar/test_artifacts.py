"""Nothing is loaded that is not signed for this very use, by a key that is believed."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.expect import raises_naming
from tests.sidecar.sidecar_world import FIRST, SECOND, PodWorld, swap

from retuned.api.agent import Outcome
from retuned.errors import TemporaryError, UnreadableInput
from retuned.store.keys import Ed25519Notary


@pytest.fixture
def world(tmp_path: Path) -> PodWorld:
    found = PodWorld(tmp_path)
    found.publish(FIRST)
    return found


def changed(world: PodWorld, **files: bytes) -> None:
    names = {"binary": "kernel.so", "manifest": "artifact.json", "signature": "artifact.sig"}
    stored = dict(world.operator.artifacts[FIRST])
    world.operator.artifacts[FIRST] = stored | {names[n]: data for n, data in files.items()}


def refusal(world: PodWorld) -> str:
    """Order it, and return why it is not carried out."""
    world.order(swap())
    assert world.active() is None
    assert world.swapper.flips == []
    ((_, outcome, reason),) = world.outcomes()
    assert outcome is Outcome.REFUSED
    assert not list((world.folder / "state" / "artifacts").iterdir()), "nothing of it is kept"
    return reason


def test_a_binary_that_was_tampered_with_is_refused(world: PodWorld) -> None:
    changed(world, binary=b"other code")
    assert refusal(world) == "artifact-tampered"


def test_a_manifest_that_was_tampered_with_is_refused(world: PodWorld) -> None:
    manifest = world.operator.artifacts[FIRST]["artifact.json"]
    changed(world, manifest=manifest.replace(b'"parts": 1', b'"parts": 2'))
    assert refusal(world) == "signature-mismatch"


def test_an_artifact_without_a_signature_is_refused(world: PodWorld) -> None:
    stored = dict(world.operator.artifacts[FIRST])
    del stored["artifact.sig"]
    world.operator.artifacts[FIRST] = stored
    assert refusal(world) == "signature-missing"


def test_an_artifact_that_a_stranger_signed_is_refused(world: PodWorld, tmp_path: Path) -> None:
    world.turn()  # the operator has shown its key
    world.notary = Ed25519Notary(tmp_path / "stranger")
    world.publish(FIRST)
    assert refusal(world) == "signature-unknown-key"


@pytest.mark.parametrize("name", ["norm", "gemm"])
def test_an_artifact_that_was_signed_for_another_slot_or_server_is_refused(
    world: PodWorld, name: str
) -> None:
    if name == "norm":
        world.publish(FIRST, name="norm")
    else:
        world.publish(FIRST, target="serving/other")
    assert refusal(world) == "signature-mismatch"


def test_another_artifact_under_the_digest_that_was_asked_for_is_refused(world: PodWorld) -> None:
    world.operator.artifacts[FIRST] = world.signed(SECOND)
    assert refusal(world) == "signature-mismatch"


def test_an_artifact_that_was_changed_on_the_pods_disk_is_not_loaded(world: PodWorld) -> None:
    world.turn()
    world.operator.order(swap())
    world.sidecar.listen(wait_s=0.0)
    folder = world.ctx.artifacts.folder_of(swap())
    (folder / "kernel.so").chmod(0o600)
    (folder / "kernel.so").write_bytes(b"other code")
    world.sidecar.steer()
    assert world.active() is None
    assert not folder.exists()


def test_no_key_means_that_nothing_is_loaded_and_the_order_waits(world: PodWorld) -> None:
    world.operator.key = ""
    world.order(swap())
    assert world.active() is None
    assert world.outcomes() == []
    world.operator.key = world.notary.public_hex()
    world.turn(400.0)
    assert world.active() == FIRST


def test_the_first_key_that_the_operator_shows_stays_the_one(
    world: PodWorld, tmp_path: Path
) -> None:
    world.turn()
    world.notary = Ed25519Notary(tmp_path / "stranger")
    world.operator.key = world.notary.public_hex()
    world.publish(FIRST)
    world.turn(400.0)
    world.start()
    assert refusal(world) == "signature-unknown-key"


def test_with_configured_keys_the_operators_word_counts_nothing(
    world: PodWorld, tmp_path: Path
) -> None:
    other = Ed25519Notary(tmp_path / "other")
    world.start(configured=other.public_hex())
    assert refusal(world) == "signature-unknown-key"


def test_an_artifact_is_fetched_once_and_removed_when_nothing_leads_to_it(world: PodWorld) -> None:
    world.order(swap())
    folder = world.folder / "state" / "artifacts" / FIRST.removeprefix("sha256:")
    assert folder.is_dir()
    world.operator.artifacts = {}
    world.swapper.restart()
    world.turn()
    assert world.active() == FIRST, "it is still on the pod's disk"
    world.ctx.artifacts.keep_only(())
    assert not folder.exists()


def test_an_answer_that_is_cut_off_makes_the_order_wait(
    world: PodWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_off(*_: object, folder: Path) -> None:
        (folder / "artifact.json").write_bytes(b"{")
        raise UnreadableInput("bundle-cut-off", where=FIRST, message="ends too early")

    monkeypatch.setattr(world.operator, "artifact", cut_off)
    world.order(swap())
    assert world.outcomes() == []
    assert not list((world.folder / "state" / "artifacts").iterdir()), "no half of it is left"
    monkeypatch.undo()
    world.turn()
    assert world.active() == FIRST


def test_a_disk_that_is_full_makes_the_order_wait(
    world: PodWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, folder: Path) -> None:
        raise OSError(28, "No space left on device")

    world.turn()
    monkeypatch.setattr(world.operator, "artifact", full)
    world.order(swap())
    assert world.outcomes() == []
    with raises_naming(TemporaryError, "No space left"):
        world.ctx.artifacts.folder_of(swap())
    monkeypatch.undo()
    world.turn()
    assert world.active() == FIRST
