"""Prometheus' own tools; absent ones are a failure in CI."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def monitoring() -> Path:
    """Return the folder with promtool, prometheus, alertmanager and amtool."""
    done = subprocess.run(
        [ROOT / "scripts" / "monitoring-tools", "--path"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode != 0:
        reason = "Prometheus is not here: make monitoring-tools"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return Path(done.stdout.strip())
