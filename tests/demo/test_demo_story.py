"""The story with its real server, client and daemon: a swap that harms does not stay."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from retuned.cli import demo
from retuned.demo.options import DemoOptions
from retuned.demo.outcome import Ending, Plot, shortcomings
from retuned.demo.story import Story

pytest.importorskip("torch", reason="the demo's server needs PyTorch")

SHORT = {
    "window_s": 2.0,
    "baseline_windows": 4,
    "explain_windows": 2,
    "max_shapes": 3,
    "experiments_per_day": 16,
    "experiment_s_per_day": 700.0,
}
"""As on call: less is learned, and where an experiment ends without a winner, which happens on a
busy machine, there is time for others."""
_PATIENCE_S = 600.0


@pytest.mark.story
@pytest.mark.timeout(1_800)  # four minutes on two cores of its own
def test_a_swap_that_its_experiment_has_proven_and_that_harms_the_server_is_taken_back(
    tmp_path: Path,
) -> None:
    policy = tmp_path / "policy.yaml"
    text = demo._POLICY.read_text(encoding="utf-8")
    assert "maxDuration: 3m" in text
    policy.write_text(text.replace("maxDuration: 3m", "maxDuration: 5m"), encoding="utf-8")
    config = demo._write_config(tmp_path, policy, demo.Device.CPU)
    config.write_text(json.dumps(json.loads(config.read_text()) | SHORT))
    options = DemoOptions(
        folder=tmp_path,
        config=config,
        approve=demo._approver(tmp_path),
        plot=Plot.HARMFUL,
        measure_s=0.5,
        ramp_s=0.0,
        baseline_timeout_s=_PATIENCE_S,
        drift_timeout_s=_PATIENCE_S,
        experiments_timeout_s=_PATIENCE_S,
    )
    data = Story(options, print).run()
    end = Ending.of(data)
    assert shortcomings(end) == ()
    assert [swap.kernel for swap in end.swaps if swap.kept] == []
    assert data["swaps"][0]["speedup"]["lower"] > 1.0
    # the same run under a daemon that ignores its verdict
    kept = [{**swap, "kept": True, "rolled_back": False} for swap in data["swaps"]]
    assert any("stayed" in each for each in shortcomings(Ending.of({**data, "swaps": kept})))
