"""``retuned report``: a kernel that nobody knows is an error, one that cost nothing is not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.expect import raises_naming
from tests.stages.watch_proof.test_calibration import found

from retuned.cli import status
from retuned.errors import UsageError
from retuned.stages.watch import Account
from retuned.store.sqlite import SqliteStore


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("RETUNED_CONFIG", raising=False)
    store = SqliteStore(tmp_path / "state")
    store.add("proposal", "sha256:" + "aa" * 32, {"definition": "softmax_n1024"}, phase="rejected")
    store.close()
    spent = [
        Account(month="2026-11", target="chat", definition=name, spent_h=1.5, experiments=3)
        for name in ("rmsnorm_h512", "rmsnorm_h2048")
    ]
    monkeypatch.setattr(status, "accounts", lambda _: spent)
    return tmp_path / "state"


def test_a_kernel_that_nobody_knows_is_an_error_with_those_that_are_near(state: Path) -> None:
    with raises_naming(UsageError, "'rmsnorm_h51'", "rmsnorm_h512, rmsnorm_h2048"):
        status.report(kernel="rmsnorm_h51", state_dir=state)
    with raises_naming(UsageError, "'nope'", "rmsnorm_h2048, rmsnorm_h512, softmax_n1024"):
        status.report(kernel="nope", state_dir=state)


def test_a_kernel_is_reported_alone_and_one_that_cost_nothing_is_no_error(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status.report(kernel="rmsnorm_h512", state_dir=state)
    text = capsys.readouterr().out
    assert "rmsnorm_h512" in text
    assert "rmsnorm_h2048" not in text
    status.report(kernel="softmax_n1024", state_dir=state)
    assert "Nothing was spent" in capsys.readouterr().out


def test_claims_are_shown_beside_what_live_proofs_measured(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status.report(calibration=True, state_dir=state)
    assert "No swap was proven" in capsys.readouterr().out
    one = found(low=-0.03, high=-0.01)
    assert one is not None
    store = SqliteStore(state)
    store.add("calibration", "p", one.model_dump(mode="json"), phase="differs")
    store.close()
    status.report(calibration=True, state_dir=state)
    text = " ".join(capsys.readouterr().out.split())
    for part in ("2026-11-27", "gemm", "helps", "-10.0 %", "-5.0 %", "-2.0 % (-3.0 to -1.0)",
                 "0.20", "differs", "1 of 1", "0.20 of the claim was measured"):  # fmt: skip
        assert part in text
    status.report(calibration=True, json=True, state_dir=state)
    body = json.loads(capsys.readouterr().out)
    (row,) = body["swaps"]
    assert (row["differs"], row["share"], row["speedup"]["point"]) == (True, 0.2, 2.0)
    assert row["forecast"]["pace"]["gpu_bound"] == 100
    status.report(calibration=True, month="2026-10", state_dir=state)
    assert "No swap was proven" in capsys.readouterr().out
