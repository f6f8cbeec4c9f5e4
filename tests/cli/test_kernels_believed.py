"""``retuned kernels show`` says what experiments here make believe of a kernel."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.search_sim.replay import finding
from typer.testing import CliRunner

from retuned import catalog
from retuned.cli.kernels import app
from retuned.contract import digest_of
from retuned.lab.generators.spaces import Grid
from retuned.store.sqlite import DATABASE, SqliteStore

TRIED, SHOWN = "rmsnorm_h64", "rmsnorm_h128"


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state with one experiment on another size of the kernel that is shown."""
    monkeypatch.setenv("RETUNED_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.delenv("RETUNED_CONFIG", raising=False)
    store = SqliteStore(tmp_path / "state")
    entry = catalog.get(TRIED)
    points = sorted(Grid(entry, cores=1).points)[:3]
    here = digest_of("here")
    store.add("experiment", "e1", {"definition": TRIED, "environment": here}, phase="done")
    for number, point in enumerate(points):
        found = finding(
            Grid(entry, cores=1).solution(point), entry.incumbent, 50.0 + number, base_us=100.0
        )
        body = {
            "solution": found.solution.model_dump(mode="json"),
            "verdict": found.verdict.model_dump(mode="json"),
            "seconds": 1.0,
        }
        store.add("finding", f"e1/{found.solution.digest}", body, phase="final")
    store.close()
    return tmp_path / "state"


def show(*words: str) -> str:
    result = CliRunner().invoke(app, ["show", *words])
    assert result.exit_code == 0, result.output
    return str(result.stdout)


def test_other_sizes_of_the_operator_say_what_is_believed_with_their_counts(state: Path) -> None:
    (entry,) = json.loads(show(SHOWN, "--json"))["believed"]
    assert (entry["family"], entry["language"]) == ("rmsnorm", "cpu_cpp")
    assert (entry["experiments"], entry["findings"]) == (1, 3)
    assert sum(each["tried"] for each in entry["structures"]) == 3
    assert 1.0 < entry["structures"][0]["gain_ratio"] < 2.0
    assert len(entry["points"]) == 3
    text = show(SHOWN)
    assert "3 variants of 1 experiments on rmsnorm" in text
    assert "best known:" in text


def test_where_nothing_was_tried_nothing_is_believed(state: Path) -> None:
    assert json.loads(show("softmax_n2048", "--json"))["believed"] == []
    assert "believed" not in show("softmax_n2048")


def test_a_state_that_cannot_be_read_takes_nothing_from_what_a_kernel_is(state: Path) -> None:
    (state / DATABASE).write_bytes(b"no database at all, whatever its name says" * 100)
    assert json.loads(show(SHOWN, "--json"))["believed"] == []
