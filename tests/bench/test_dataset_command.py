"""``retuned dataset export``: whole folders, nothing unproven, nothing twice, nothing private."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import socket
import tracemalloc
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.bench.dataset_world import NORM, OTHER, State, points, written
from tests.expect import raises_code, raises_naming
from tests.standalone.proofs import interval
from typer.testing import CliRunner

from retuned import catalog
from retuned.cli.kernels_bench import learn
from retuned.errors import Refused, RetunedError, UnreadableInput, UsageError
from retuned.stages.verdict import Reason
from retuned_bench.dataset import commands as dataset

Run = Callable[..., Any]
_SPLITS = ("train", "validation", "test")


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[State]:
    for name in ("RETUNED_CONFIG", "RETUNED_STATE_DIR"):
        monkeypatch.delenv(name, raising=False)
    made = State(tmp_path / "state")
    yield made
    made.store.close()


@pytest.fixture
def run(state: State, tmp_path: Path) -> Run:
    app = typer.Typer()
    app.add_typer(dataset.app, name="dataset")

    def invoke(*args: str, out: str = "out") -> Any:
        words = ["dataset", "export", "--out", str(tmp_path / out), "--json", *args]
        words += ["--state-dir", str(state.folder)]
        result = CliRunner().invoke(app, words)
        if isinstance(result.exception, RetunedError):
            raise result.exception
        assert result.exit_code == 0, (result.output, result.exception)
        return json.loads(result.stdout)["manifest"]

    return invoke


def rows(folder: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for split in _SPLITS
        for line in (folder / f"{split}.jsonl").read_text().splitlines()
    ]


def test_a_winner_becomes_a_question_and_an_answer(state: State, run: Run, tmp_path: Path) -> None:
    plan = state.experiment(NORM)
    (point,) = points(NORM, 1)
    state.won(plan, point, 2.0)
    manifest = run()
    (row,) = rows(tmp_path / "out")
    prompt, answer = json.loads(row["prompt"]), json.loads(row["completion"])
    incumbent = catalog.get(NORM).incumbent
    assert prompt["definition"]["name"] == NORM
    assert [shape["share"] for shape in prompt["shapes"]] == [0.25, 0.75]
    assert prompt["device"]["arch"] == "cpu:of a test"
    assert prompt["incumbent"]["sources"][0]["content"] == incumbent.sources[0].content
    assert answer["params"] == point.params
    assert answer["sources"][0]["content"] == point.sources[0].content
    assert row["speedup"]["lower"] == interval(2.0).lower
    assert row["licenses"] == dict.fromkeys(("definition", "incumbent", "completion"), "Apache-2.0")
    assert (row["author"], row["candidate"]) == ("parameters", point.digest)
    assert manifest["licenses"] == {"Apache-2.0": 1}


def test_variants_in_parameters_only_give_one_row_the_best(
    state: State, run: Run, tmp_path: Path
) -> None:
    plan = state.experiment(NORM)
    for point, speedup in zip(points(NORM, 3), (1.5, 3.0, 2.0), strict=True):
        state.won(plan, point, speedup)
    manifest = run()
    (row,) = rows(tmp_path / "out")
    assert row["speedup"]["point"] == pytest.approx(3.0)
    assert manifest["left_out"] == {"near-duplicate": 2}


def test_the_same_question_and_source_in_another_experiment_is_one_row(
    state: State, run: Run, tmp_path: Path
) -> None:
    for seed in (1, 2):
        state.won(state.experiment(NORM, seed=seed), points(NORM, 2)[seed - 1], 2.0)
    assert run()["left_out"] == {"near-duplicate": 1}
    assert len(rows(tmp_path / "out")) == 1


def test_an_episode_holds_failures_too_in_the_order_of_the_turns(
    state: State, run: Run, tmp_path: Path
) -> None:
    plan = state.experiment(NORM)
    first, second, third = points(NORM, 3)
    state.won(plan, third, 2.0)
    state.failed(plan, first, Reason.COMPILE_FAILED)
    state.failed(plan, second, Reason.WRONG_OUTPUT)
    state.turns(plan, ("search", [first.digest, second.digest]), ("recipes", [third.digest]))
    manifest = run("--format", "episodes")
    (row,) = rows(tmp_path / "out")
    told = [(a["number"], a["reason"], a["reward"], a["generator"]) for a in row["attempts"]]
    assert told[:2] == [
        (1, "compile-failed", -0.8, "search"),
        (2, "wrong-output", -0.6, "search"),
    ]
    assert told[2][1:] == ("faster", row["best_reward"], "recipes")
    assert 0.9 < row["best_reward"] < 1.0
    assert {a["evidence"] for a in row["attempts"]} == {"verified"}
    assert manifest["reward"]["does not run"].startswith("-0.8")


def test_lineage_is_told(state: State, run: Run, tmp_path: Path) -> None:
    plan = state.experiment(NORM)
    (parent,) = points(NORM, 1)
    state.failed(plan, parent, Reason.SLOWER)
    child = written(NORM, "int x;", parents=(parent.digest,))
    state.failed(plan, child, Reason.COMPILE_FAILED)
    run("--format", "episodes")
    attempts = rows(tmp_path / "out")[0]["attempts"]
    assert attempts[1]["parents"] == [attempts[0]["candidate"]]
    assert [a["author"] for a in attempts] == ["parameters", "model"]


def test_the_same_text_twice_is_one_attempt(state: State, run: Run, tmp_path: Path) -> None:
    plan = state.experiment(NORM)
    state.failed(plan, written(NORM, "int x;"), Reason.COMPILE_FAILED)
    state.failed(plan, written(NORM, "int  x; // again"), Reason.COMPILE_FAILED)
    state.failed(plan, written(NORM, "int x;", params={"VEC": 32}), Reason.COMPILE_FAILED)
    manifest = run("--format", "episodes")
    attempts = rows(tmp_path / "out")[0]["attempts"]
    assert manifest["left_out"] == {"duplicate": 1}
    assert len({a["group"] for a in attempts}) == 1
    assert len(attempts) == 2


def test_a_winner_without_evidence_that_carries_it_is_left_out(state: State, run: Run) -> None:
    plan = state.experiment(NORM)
    one, two, three = points(NORM, 3)
    state.failed(plan, one, Reason.COMPILE_FAILED)
    digest = state.won(state.experiment(NORM, seed=9, phase="running"), two, 2.0)
    stolen = json.loads(json.loads(state.store.get_blob(digest))["payload"])["verdict"]
    state.finding(plan, two, stolen | {"evidence": digest})
    state.finding(plan, three, stolen | {"evidence": None, "candidate": three.digest})
    with raises_code(
        Refused, "refused", "1 evidence-of-another-plan", "1 still-running"
    ) as refused:
        run()
    assert "1 evidence-of-another-plan" in str(refused.value)
    assert "1 missing-evidence" in str(refused.value)
    assert "1 still-running" in str(refused.value)


def test_a_raised_number_earns_no_reward(state: State, run: Run, tmp_path: Path) -> None:
    plan = state.experiment(NORM)
    one, two = points(NORM, 2)
    state.failed(plan, one, Reason.COMPILE_FAILED)
    state.won(plan, two, 2.0, claimed={"speedup": interval(9.0).model_dump(mode="json")})
    manifest = run("--format", "episodes")
    (row,) = rows(tmp_path / "out")
    assert [a["reward"] for a in row["attempts"]] == [-0.8, None]
    assert row["attempts"][1]["evidence"] == "evidence-contradicted"
    assert row["attempts"][1]["speedup"] is None
    assert manifest["left_out"] == {"reward-not-verified": 1}


def test_evidence_that_nobody_here_signed_earns_nothing(
    state: State, run: Run, tmp_path: Path
) -> None:
    plan = state.experiment(NORM)
    state.won(plan, points(NORM, 1)[0], 2.0)
    elsewhere = State(tmp_path / "elsewhere")
    state.notary = elsewhere.notary
    other = written(NORM, "int x;")
    state.won(plan, other, 3.0)
    elsewhere.store.close()
    assert run()["left_out"] == {"evidence-key-unknown": 1}
    assert other.digest not in {row["candidate"] for row in rows(tmp_path / "out")}


@pytest.mark.parametrize("format", ["sft", "episodes"])
def test_a_revoked_key_is_named_as_the_reason(state: State, run: Run, format: str) -> None:
    plan = state.experiment(NORM)
    one, two = points(NORM, 2)
    state.failed(plan, one, Reason.COMPILE_FAILED)
    state.won(plan, two, 2.0)
    old = state.notary.current()
    state.notary.rotate()
    state.notary.revoke(old, at=datetime.now(UTC))
    with raises_code(Refused, "refused", "2 evidence-key-revoked"):
        run("--format", format)


def test_no_kernel_and_no_source_is_in_two_splits(state: State, run: Run, tmp_path: Path) -> None:
    for definition in (NORM, "layernorm_h512", OTHER, "silu_mul_i512", "rmsnorm_h256"):
        state.won(state.experiment(definition), points(definition, 1)[0], 2.0)
    same = "int shared;"
    state.won(state.experiment(NORM, seed=2), written(NORM, same), 2.0)
    state.won(state.experiment(OTHER, seed=2), written(OTHER, same, entry=_entry(NORM)), 2.0)
    manifest = run()
    places: dict[str, set[str]] = {}
    for row in rows(tmp_path / "out"):
        for key in (row["kin"], row["group"]):
            places.setdefault(key, set()).add(row["split"])
    assert all(len(splits) == 1 for splits in places.values())
    assert manifest["left_out"] == {"source-in-another-split": 1}
    assert set(manifest["kins"].values()) == set(_SPLITS)


def test_an_attempt_that_gives_another_split_away_leaves_its_episode(
    state: State, run: Run, tmp_path: Path
) -> None:
    same = "int shared;"
    state.failed(state.experiment(NORM), written(NORM, same), Reason.COMPILE_FAILED)
    plan = state.experiment(OTHER)
    state.failed(plan, written(OTHER, same, entry=_entry(NORM)), Reason.COMPILE_FAILED)
    state.failed(plan, written(OTHER, "int own;"), Reason.COMPILE_FAILED)
    assert run("--format", "episodes")["left_out"] == {"source-in-another-split": 1}
    assert [len(row["attempts"]) for row in rows(tmp_path / "out")] == [1, 1]


def test_memory_does_not_grow_with_the_store(state: State, run: Run) -> None:
    def fill(seeds: range) -> None:
        with state.store.transaction():
            for seed in seeds:
                plan = state.experiment(NORM, seed=seed, rate=1.0 + seed)
                state.won(plan, written(NORM, f"{'int filler; ' * 2_000} int x{seed};"), 2.0)

    def peak(out: str) -> tuple[int, int]:
        tracemalloc.start()
        try:
            manifest = run(out=out)
            return tracemalloc.get_traced_memory()[1], sum(f["bytes"] for f in manifest["files"])
        finally:
            tracemalloc.stop()

    fill(range(4))
    run(out="warm")  # imports and caches are not the store's
    few, little = peak("few")
    fill(range(4, 24))
    many, much = peak("many")
    assert much - little > 400_000
    assert many - few < (much - little) / 2, (few, many)


def _entry(definition: str) -> str:
    return catalog.get(definition).incumbent.entry


def test_paths_hosts_people_and_rates_stay_here(state: State, run: Run, tmp_path: Path) -> None:
    plan = state.experiment(NORM, rate=123456.5)
    host = socket.gethostname()
    text = "// see /home/ada/secret/k.cpp on build7.corp or 10.1.2.3, ada@example.org\nint x;"
    solution = written(NORM, text)
    state.won(plan, solution, 2.0)
    bad = written(NORM, "int y;")
    state.failed(plan, bad, Reason.COMPILE_FAILED, detail="/tmp/lab/k.cpp:1: error on build7.corp")
    for format in ("sft", "episodes"):
        assert run("--format", format, out=format)["redacted_rows"] == 1
        whole = "".join(p.read_text() for p in sorted((tmp_path / format).iterdir()))
        told = (host,) if len(host) >= 4 and host != "localhost" else ()
        for private in ("/home", "ada", "build7", "10.1.2.3", "/tmp", "123456", "a person", *told):
            assert private not in whole
        assert str(tmp_path) not in whole


def test_licences_are_unknown_unless_given(state: State, run: Run) -> None:
    plan = state.experiment(NORM)
    state.won(plan, written(NORM, "int x;"), 2.0)
    state.won(plan, points(NORM, 1)[0], 2.0)
    assert run(out="a")["licenses"] == {"Apache-2.0": 1, "unknown": 1}
    given = run("--license", "MIT OR Apache-2.0", out="b")["licenses"]
    assert given == {"Apache-2.0": 1, "MIT OR Apache-2.0": 1}


def test_a_definition_of_ones_own_has_no_known_licence_and_its_own_kin(
    state: State, run: Run, tmp_path: Path
) -> None:
    file = Path(__file__).resolve().parents[2] / "docs/examples/scale_bias"
    catalog.forget()  # of tests before this one
    try:
        learn(None, [file])
        (own,) = catalog.own_definitions()
        state.won(state.experiment(own.name), written(own.name, "int x;"), 2.0)
        run("--definition-file", str(file))
    finally:
        catalog.forget()
    (row,) = rows(tmp_path / "out")
    assert set(row["licenses"].values()) == {"unknown"}
    assert row["kin"] == row["op_type"] == own.definition.op_type
    with raises_code(Refused, "refused", "1 definition-unknown"):
        run(out="forgotten")


def test_a_changed_catalog_source_is_not_the_catalogs(state: State, run: Run) -> None:
    (point,) = points(NORM, 1)
    first = point.sources[0]
    changed = first.model_copy(update={"content": first.content + "int mine;\n"})
    point = point.model_copy(update={"sources": (changed, *point.sources[1:])})
    state.won(state.experiment(NORM), point, 2.0)
    assert run()["licenses"] == {"unknown": 1}


def test_the_same_store_gives_the_same_bytes_and_the_manifest_names_them(
    state: State, run: Run, tmp_path: Path
) -> None:
    for definition in (NORM, OTHER):
        state.won(state.experiment(definition), points(definition, 1)[0], 2.0)
    one, two = run(out="a"), run(out="b")
    assert one == two == json.loads((tmp_path / "a" / "manifest.json").read_text())
    for entry in one["files"]:
        data = (tmp_path / "a" / entry["name"]).read_bytes()
        assert data == (tmp_path / "b" / entry["name"]).read_bytes()
        assert entry["sha256"] == "sha256:" + hashlib.sha256(data).hexdigest()
        assert (entry["rows"], entry["bytes"]) == (data.count(b"\n"), len(data))


def test_an_incumbent_that_an_experiment_found_is_found_again(
    state: State, run: Run, tmp_path: Path
) -> None:
    first = state.experiment(NORM)
    winner = written(NORM, "int first;")
    state.won(first, winner, 2.0)
    second = first.model_copy(update={"id": "sha256:" + "e" * 64, "incumbent": winner.digest})
    state.store.add("experiment", second.id, second.model_dump(mode="json"), phase="won")
    state.won(second, written(NORM, "int second;"), 2.0)
    run()
    prompts = [json.loads(row["prompt"]) for row in rows(tmp_path / "out")]
    assert prompts[1]["incumbent"]["sources"][0]["content"] == "int first;"


def test_what_is_not_known_any_more_is_counted(state: State, run: Run) -> None:
    state.won(state.experiment(NORM), points(NORM, 1)[0], 2.0)
    plan = state.experiment(NORM, seed=3)
    gone = plan.model_copy(update={"id": "sha256:" + "1" * 64, "incumbent": "sha256:" + "2" * 64})
    state.store.add("experiment", gone.id, gone.model_dump(mode="json"), phase="done")
    state.won(gone, points(NORM, 1)[0], 2.0)
    other = plan.model_copy(update={"id": "sha256:" + "3" * 64, "definition": "nobodys"})
    state.store.add("experiment", other.id, other.model_dump(mode="json"), phase="done")
    state.won(other, points(NORM, 1)[0], 2.0)
    left = {"definition-unknown": 1, "incumbent-unknown": 1, "no-candidates": 1}
    assert run()["left_out"] == left


def test_a_folder_that_is_there_is_not_touched(state: State, run: Run, tmp_path: Path) -> None:
    state.won(state.experiment(NORM), points(NORM, 1)[0], 2.0)
    (tmp_path / "out").mkdir()
    with raises_naming(UsageError, str(tmp_path / "out"), "already"):
        run()
    os.symlink(tmp_path / "nowhere", tmp_path / "link")
    with raises_naming(UsageError, str(tmp_path / "link"), "already"):
        run(out="link")
    with raises_naming(UsageError, "no/such/place", os.strerror(errno.ENOENT)):
        run(out="no/such/place")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_failure_leaves_nothing_behind(state: State, run: Run, tmp_path: Path) -> None:
    plan = state.experiment(NORM)
    state.won(plan, points(NORM, 1)[0], 2.0)
    before = sorted(path.name for path in tmp_path.iterdir())
    state.store.add("finding", f"{plan.id}/odd", {"solution": {}}, phase="final")
    with raises_code(UnreadableInput, "record-unreadable", f"{plan.id}/odd") as error:
        run()
    assert (error.value.exit_code, error.value.code) == (3, "record-unreadable")
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_damaged_or_absent_state_ends_with_code_three(
    state: State, run: Run, tmp_path: Path
) -> None:
    state.store.close()
    state.store.path.write_bytes(b"no database" * 1000)
    with pytest.raises(UnreadableInput) as damaged:
        run()
    assert (damaged.value.exit_code, damaged.value.code) == (3, "state-corrupt")
    state.store.path.unlink()
    with pytest.raises(UnreadableInput) as absent:
        run()
    assert (absent.value.exit_code, absent.value.code) == (3, "no-state")
    assert not (tmp_path / "out").exists()


def test_an_empty_state_is_a_no(state: State, run: Run, tmp_path: Path) -> None:
    with raises_code(Refused, "refused", "export: nothing") as error:
        run()
    assert error.value.exit_code == 1
    assert not (tmp_path / "out").exists()


def test_a_licence_that_is_none_is_refused(run: Run) -> None:
    with raises_naming(UsageError, "--license", "SPDX"):
        run("--license", "do what you like\n{}")
