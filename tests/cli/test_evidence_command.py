"""``retuned evidence``: pages, answers with exit codes, keys; and what ``retuned show`` says."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.cli.test_review import put
from tests.expect import raises_code, raises_naming
from tests.standalone.local_world import INCUMBENT, LOSER, WINNER
from tests.standalone.proofs import MACHINE, interval, proof
from typer.testing import CliRunner

from retuned.cli import evidence, review
from retuned.clock import FakeClock
from retuned.contract import Solution
from retuned.errors import Refused, RetunedError, UnreadableInput, UsageError
from retuned.store.approvals import Identity
from retuned.store.envelopes import seal
from retuned.store.keys import Ed25519Notary
from retuned.store.sqlite import SqliteStore

Run = Callable[..., Any]
FACTOR = {WINNER.digest: 2.0, LOSER.digest: 0.9}


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqliteStore]:
    for name in ("RETUNED_CONFIG", "RETUNED_STATE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(
        "retuned.cli.session.local_identity", lambda group_map: Identity(user="ada", groups=())
    )
    store = SqliteStore(tmp_path / "state")
    yield store
    store.close()


@pytest.fixture
def run(state: SqliteStore) -> Run:
    app = typer.Typer()
    app.add_typer(evidence.app, name="evidence")
    app.command("show")(review.show)

    def invoke(*args: str, code: int = 0) -> Any:
        words = [*args, "--state-dir", str(state.path.parent)]
        result = CliRunner().invoke(app, words, env={"COLUMNS": "300"})
        if isinstance(result.exception, RetunedError):
            raise result.exception
        assert result.exit_code == code, result.output
        return json.loads(result.stdout) if "--json" in args else result.output

    return invoke


def keep(state: SqliteStore, candidate: Solution, *, altered: bool = False) -> str:
    """Keep signed evidence and the finding that names it."""
    document = proof(
        candidate,
        incumbent=INCUMBENT.digest,
        plan="plan",
        speedup=interval(FACTOR[candidate.digest]),
        at=FakeClock().now(),
    )
    data = seal(document.model_dump_json().encode(), notary=Ed25519Notary(keys(state)))
    if altered:
        data = data.replace(rb"\"tried\":2", rb"\"tried\":1")
    digest = state.put_blob(data)
    verdict = document.verdict.model_copy(update={"evidence": digest})
    body = {"experiment": "plan", "verdict": verdict.model_dump(mode="json")}
    state.add("finding", f"plan/{candidate.digest}", body, phase="final")
    return digest


def keys(state: SqliteStore) -> Path:
    return state.path.parent / "keys"


def test_a_page_says_gates_numbers_floor_environment_and_signature(
    state: SqliteStore, run: Run
) -> None:
    digest = keep(state, WINNER)
    text = run("evidence", "show", digest)
    key = Ed25519Notary(keys(state)).current()
    for said in ("promote: faster", *(f"G{n}" for n in range(7)), key, digest, MACHINE.arch):
        assert said in text
    assert "2.000x [1.904, 2.101]" in text
    assert "1.0100x" in text
    assert "1 looks" in text


def test_evidence_is_found_by_its_candidate_its_proposal_and_beginnings(
    state: SqliteStore, run: Run
) -> None:
    digest = keep(state, WINNER)
    keep(state, LOSER)
    proposed = put(state, artifact=WINNER.digest, evidence=digest)
    for name in (digest, digest[7:20], WINNER.digest, WINNER.digest[7:20], proposed.id[7:15]):
        assert run("evidence", "show", name, "--json")["digest"] == digest


def test_a_rejected_candidate_has_a_page_too(state: SqliteStore, run: Run) -> None:
    keep(state, LOSER)
    assert "reject: slower at gate G6" in run("evidence", "show", LOSER.digest)


def test_json_holds_the_whole_document(state: SqliteStore, run: Run) -> None:
    keep(state, WINNER)
    body = run("evidence", "show", WINNER.digest, "--json")
    assert body["verified"] is True
    assert body["doubt"] is None
    assert body["document"]["candidate"] == WINNER.digest
    assert len(body["document"]["evidence"]["checks"]) == 7


def test_verify_says_yes(state: SqliteStore, run: Run) -> None:
    digest = keep(state, WINNER)
    assert run("evidence", "verify", digest).startswith("yes")
    body = run("evidence", "verify", digest, "--json")
    assert (body["verified"], body["doubt"]) == (True, None)


def test_verify_says_no_with_its_reason_and_exit_code(state: SqliteStore, run: Run) -> None:
    digest = keep(state, WINNER, altered=True)
    with raises_code(Refused, "refused", digest, "[evidence-altered]") as caught:
        run("evidence", "verify", digest)
    assert caught.value.exit_code == 1
    body = run("evidence", "verify", digest, "--json", code=1)
    assert (body["verified"], body["doubt"]["reason"]) == (False, "evidence-altered")
    assert "NOT VERIFIED" in run("evidence", "show", digest)


def test_a_saved_file_is_verified_with_the_public_key_alone(
    state: SqliteStore, run: Run, tmp_path: Path
) -> None:
    digest = keep(state, WINNER)
    file, pem = tmp_path / "e.json", tmp_path / "key.pem"
    run("evidence", "save", digest, str(file))
    pem.write_text(run("evidence", "key", "--json")["public"])
    assert run("evidence", "verify", str(file), "--key", str(pem)).startswith("yes")
    run("evidence", "rotate")
    assert run("evidence", "verify", str(file)).startswith("yes"), "old public keys are kept"
    other = tmp_path / "other.pem"
    other.write_text(run("evidence", "key", "--json")["public"])
    with raises_code(Refused, "refused", str(file), "[evidence-key-unknown]"):
        run("evidence", "verify", str(file), "--key", str(other))
    with raises_naming(UsageError, str(file), os.strerror(errno.EEXIST)):
        run("evidence", "save", digest, str(file))


def test_a_rotation_prints_the_new_key_and_counts_the_old(state: SqliteStore, run: Run) -> None:
    first = run("evidence", "key", "--json")
    second = run("evidence", "rotate", "--json")
    assert first["older"] == []
    assert second["older"] == [first["key"]]
    assert "BEGIN PUBLIC KEY" in run("evidence", "key")
    assert "PRIVATE" not in json.dumps(second) + run("evidence", "key")


def test_a_revoked_key_is_listed_and_its_evidence_carries_nothing(
    state: SqliteStore, run: Run
) -> None:
    digest = keep(state, WINNER)
    old = run("evidence", "key", "--json")["key"]
    body = run("evidence", "rotate", "--revoke", "current", "--reason", "a lost disk", "--json")
    assert body["key"] != old
    assert [(each["key"], each["reason"]) for each in body["revoked"]] == [(old, "a lost disk")]
    assert run("evidence", "key", "--json")["revoked"] == body["revoked"]
    with raises_code(Refused, "refused", digest, "[evidence-key-revoked]"):
        run("evidence", "verify", digest)
    assert "NOT VERIFIED" in run("evidence", "show", digest)


@pytest.mark.parametrize("by_name", [False, True])
def test_a_key_that_others_may_have_read_is_revoked_in_one_step(
    state: SqliteStore, run: Run, by_name: bool
) -> None:
    digest = keep(state, WINNER)
    old = run("evidence", "key", "--json")["key"]
    (keys(state) / "current.key").chmod(0o644)
    body = run("evidence", "rotate", "--revoke", old if by_name else "current", "--json")
    assert body["key"] != old
    assert [each["key"] for each in body["revoked"]] == [old]
    with raises_code(Refused, "refused", digest, "[evidence-key-revoked]"):
        run("evidence", "verify", digest)


def test_an_older_key_is_revoked_without_another_rotation(state: SqliteStore, run: Run) -> None:
    digest = keep(state, WINNER)
    old = run("evidence", "key", "--json")["key"]
    new = run("evidence", "rotate", "--json")["key"]
    until = datetime.now(UTC).replace(microsecond=0).isoformat()
    body = run("evidence", "rotate", "--revoke", old, "--trust-until", until, "--json")
    assert body["key"] == new
    assert run("evidence", "verify", digest).startswith("yes"), "it was trusted when it signed"


@pytest.mark.parametrize(
    "words",
    [
        ("--reason", "why"),
        ("--revoke", "ed25519:" + "0" * 32),
        ("--revoke", "../../etc"),
        ("--revoke", "current", "--trust-until", "2999-01-01T00:00:00+0000"),
    ],
)
def test_a_revocation_of_nothing_changes_nothing(
    state: SqliteStore, run: Run, words: tuple[str, ...]
) -> None:
    before = run("evidence", "key", "--json")
    with pytest.raises(UsageError):
        run("evidence", "rotate", *words)
    assert run("evidence", "key", "--json") == before


@pytest.mark.parametrize("what", ["ab", "abcdef", "sha256:" + "0" * 64])
def test_what_is_not_there_is_said(what: str, state: SqliteStore, run: Run) -> None:
    keep(state, WINNER)
    with pytest.raises(UsageError):
        run("evidence", "show", what)


def test_a_blob_that_is_gone_is_said(state: SqliteStore, run: Run) -> None:
    proposed = put(state)
    with raises_code(UnreadableInput, "missing-evidence"):
        run("evidence", "show", proposed.id)
    body = run("evidence", "verify", proposed.id, "--json", code=1)
    assert body["doubt"]["reason"] == "missing-evidence"


def test_a_file_that_is_no_evidence_is_not_believed(
    state: SqliteStore, run: Run, tmp_path: Path
) -> None:
    file = tmp_path / "nonsense.json"
    file.write_text("{}")
    with raises_code(Refused, "refused", str(file), "[evidence-unreadable]"):
        run("evidence", "verify", str(file))
    with raises_code(UnreadableInput, "bad-key", str(file)):
        run("evidence", "verify", str(file), "--key", str(file))


def test_show_names_the_gates_and_whether_they_are_to_be_believed(
    state: SqliteStore, run: Run
) -> None:
    digest = keep(state, WINNER)
    proposed = put(state, artifact=WINNER.digest, evidence=digest)
    assert "G0 G1 G2 G3 G4 G5 G6 passed; the evidence is signed" in run("show", proposed.id)
    body = run("show", proposed.id, "--json")["evidence"]
    assert body["verified"] is True
    assert body["gates"] == {f"G{number}": True for number in range(7)}


def test_show_says_that_evidence_is_not_verified(state: SqliteStore, run: Run) -> None:
    proposed = put(state)
    assert "NOT VERIFIED" in run("show", proposed.id)
    body = run("show", proposed.id, "--json")["evidence"]
    assert (body["verified"], body["reason"]) == (False, "missing-evidence")
