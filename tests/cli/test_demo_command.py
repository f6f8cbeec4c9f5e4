"""``retuned demo`` around its story: where it writes, and when it says that it succeeded."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from retuned.cli import demo
from retuned.demo.journal import live_proof_of
from retuned.demo.options import DemoOptions
from retuned.demo.outcome import Plot
from retuned.errors import UsageError
from retuned.stages.watch.proof import ProofReason, ProofReport, Verdict
from retuned.store.sqlite import SqliteStore


def proven(verdict: Verdict, effect: float) -> dict[str, Any]:
    report = ProofReport(
        verdict=verdict,
        reason=ProofReason.FASTER if effect < 0 else ProofReason.SLOWER,
        effect=effect,
        low=effect - 0.01,
        high=effect + 0.01,
        pairs=9,
        seconds=20.0,
        exposed_s=10.0,
    )
    return live_proof_of(report, confidence=0.99)


def told(**changes: Any) -> dict[str, Any]:
    """What a good run tells."""
    speedup = {"lower": 1.2, "point": 1.3, "upper": 1.4, "confidence": 0.99}
    return {
        "plot": "helpful",
        "requests": {"sent": 100, "ok": 100, "failed": 0},
        "tokens_per_s": {"after_swap": 90.0, "after_drift": 100.0},
        "drift": {"detected": True, "reasons": [], "distance": 0.5, "sentence": "drifted"},
        "experiments": [],
        "swaps": [
            {
                "kernel": "linear_w8",
                "guard": {"bounds": {}},
                "digest": "sha256:" + "ab" * 32,
                "speedup": speedup,
                "swap_us": 12.0,
                "live_proof": proven(Verdict.HELPS, -0.12),
                "kept": True,
                "rolled_back": True,
            }
        ],
        "rollback": {"detected_after_s": 1.0, "reverted": True},
        "duration_s": 100.0,
    } | changes


def ended(verdict: Verdict, effect: float, *, kept: bool) -> list[dict[str, Any]]:
    proof = proven(verdict, effect)
    return [{**told()["swaps"][0], "live_proof": proof, "kept": kept, "rolled_back": not kept}]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "_check", lambda *_: None)
    monkeypatch.setattr(demo, "choose_device", lambda _: (demo.Device.CPU, "on the CPU"))
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(demo.demo)

    plots: list[Plot] = []

    def invoke(data: dict[str, Any] | None, *arguments: str) -> Result:
        class Story:
            def __init__(self, options: DemoOptions, _: object) -> None:
                assert data is not None, "the story must not begin"
                plots.append(options.plot)

            def run(self) -> dict[str, Any]:
                return dict(data or {})

        monkeypatch.setattr(demo, "Story", Story)
        return CliRunner().invoke(app, [*arguments])

    invoke.plots = plots  # type: ignore[attr-defined]
    return invoke


def test_a_run_that_shows_everything_passes_whatever_the_throughput_was(run: Any) -> None:
    result = run(told(), "--json")
    body = json.loads(result.stdout)
    assert (result.exit_code, body["passed"], body["shortcomings"]) == (0, True, [])
    assert body["tokens_per_s"]["after_swap"] < body["tokens_per_s"]["after_drift"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"requests": {"sent": 100, "ok": 99, "failed": 1}}, "1 of 100 requests failed"),
        ({"requests": {"sent": 0, "ok": 0, "failed": 0}}, "0 of 0 requests"),
        ({"swaps": []}, "no kernel was swapped"),
        (
            {"swaps": ended(Verdict.HARMS, 0.3, kept=True)},
            "linear_w8 stayed, and the server is slower with it",
        ),
        ({"swaps": ended(Verdict.HARMS, 0.3, kept=False)}, "no swap is proven to help"),
        (
            {"plot": "harmful", "rollback": {}, "swaps": ended(Verdict.HARMS, 0.3, kept=True)},
            "linear_w8 stayed, and the server is slower with it",
        ),
        ({"plot": "harmful"}, "no harmful swap was rolled back by its live proof"),
        ({"rollback": {"reverted": False}}, "not rolled back"),
        ({"rollback": {}}, "not rolled back"),
    ],
)
def test_a_run_that_falls_short_exits_with_one_and_says_why(
    run: Any, changes: dict[str, Any], says: str
) -> None:
    result = run(told(**changes), "--json")
    body = json.loads(result.stdout)
    assert (result.exit_code, body["passed"]) == (1, False)
    assert says in body["shortcomings"][0]
    text = run(told(**changes))
    assert text.exit_code == 1
    assert says in text.stderr


def test_a_harmful_swap_that_its_live_proof_took_back_passes_and_the_report_says_so(
    run: Any,
) -> None:
    story = told(plot="harmful", rollback={}, swaps=ended(Verdict.HARMS, 0.3, kept=False))
    result = run(story, "--harmful-swap")
    assert (result.exit_code, run.plots[-1]) == (0, Plot.HARMFUL)
    assert "1 swap that made the server slower was rolled back" in " ".join(result.stdout.split())
    assert "harms (slower): steps take 35.0 % longer" in result.stdout


def test_a_kept_folder_with_the_state_of_another_run_is_refused(run: Any, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    assert run(told(), "--keep", str(kept)).exit_code == 0
    SqliteStore(kept / "state").close()
    result = run(None, "--keep", str(kept))
    assert isinstance(result.exception, UsageError)
    assert "state of an earlier run" in str(result.exception)
    (tmp_path / "file").touch()
    assert "not a folder" in str(run(None, "--keep", str(tmp_path / "file")).exception)


def test_a_page_that_cannot_be_written_ends_the_demo_before_it_begins(
    run: Any, tmp_path: Path
) -> None:
    result = run(None, "--html", str(tmp_path / "none" / "page.html"))
    assert isinstance(result.exception, UsageError)
    assert "cannot be written" in str(result.exception)


def test_a_demo_that_is_terminated_ends_as_if_it_was_interrupted() -> None:
    def terminate() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()  # until it has arrived

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), demo._terminate_interrupts():
        terminate()
    assert signal.getsignal(signal.SIGTERM) is before
