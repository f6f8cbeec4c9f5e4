"""A lane of tests that was asked for and cannot run fails; one that nobody asked for may skip."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def run_lane(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run tests of the control plane on a machine where Kubernetes was never built."""
    env = {k: v for k, v in os.environ.items() if k != "CI" and not k.startswith("PYTEST_")}
    return subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments),
            "tests/dashboards/test_runbooks.py",
        ],
        cwd=ROOT,
        env=env | {"RETUNED_CLUSTER_TOOLS": str(tmp_path / "absent")},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(("arguments", "code"), [(("-m", "plane"), 1), (("-k", "kubectl"), 0)])
def test_a_lane_that_was_named_and_cannot_run_fails(
    tmp_path: Path, arguments: tuple[str, ...], code: int
) -> None:
    done = run_lane(tmp_path, *arguments)
    assert done.returncode == code, done.stdout
    assert "make cluster-tools" in done.stdout
