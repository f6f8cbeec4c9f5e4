"""The settings of the show's daemon, as a user would write them; time runs faster than usual."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

POLICY = """apiVersion: retuned.dev/v1alpha1
kind: KernelTuningPolicy
metadata: {name: live-show}
spec:
  priority: 10
  mode: Enforce
  validation: {minSpeedup: 1.01, confidence: 0.99}
  gates:
  - {name: by-itself, approvals: {required: 0}}
"""
"""No person has to approve; the evidence decides."""
SHADOW_EVERY = 200
"""One swapped launch in so many is checked."""


def write_settings(folder: Path, config: Path, *, cores: Sequence[int]) -> None:
    """Write settings and policy of a daemon whose state, traces and sockets are in a folder.

    Parameters
    ----------
    folder
        Of all of it.
    config
        Where the settings go.
    cores
        For the lab.
    """
    policy = folder / "policy.yaml"
    policy.write_text(POLICY, encoding="utf-8")
    settings = {
        "state_dir": str(folder / "state"),
        "watch_dirs": [str(folder / "traces")],
        "socket_dir": str(folder / "sockets"),
        "policy_files": [str(policy)],
        "target": "live",
        "env": "show",
        "window_s": 4.0,
        "settle_s": 0.5,
        "baseline_windows": 4,
        "explain_windows": 2,
        "detector_preset": "demo",
        "lab_cores": list(cores),
        "lab_language": "triton",
        "experiments_per_day": 6,
        "experiment_s_per_day": 300.0,
        "max_candidates": 30,
        "max_experiment_s": 120.0,
        "max_shapes": 2,
        "max_attempts": 2,
        "min_saving_ratio": 0.0001,
        "shadow_every": SHADOW_EVERY,
        "observe_poll_s": 0.5,
        "steer_poll_s": 0.2,
        "metrics_port": 0,
    }
    config.write_text(json.dumps(settings, indent=2), encoding="utf-8")  # JSON is YAML
