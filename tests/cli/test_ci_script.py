"""``.ci/run``: stricter than a laptop, also where nobody says that it is CI."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run_ci(folder: Path, *, report: str) -> subprocess.CompletedProcess[str]:
    """Run it with a ``make`` that only says what it was asked for, and writes a report."""
    make = folder / "make"
    lines = ['echo "$1 CI=$CI"', f"[ $1 = test ] && printf %s '{report}' > \"${{2##*=}}\"", "true"]
    make.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    make.chmod(0o755)
    env = {k: v for k, v in os.environ.items() if k != "CI"}
    env["PATH"] = f"{folder}:{env['PATH']}"
    return subprocess.run([ROOT / ".ci" / "run"], env=env, capture_output=True, text=True)


def test_ci_says_itself_that_it_is_ci(tmp_path: Path) -> None:
    done = run_ci(tmp_path, report='<testsuite failures="0"/>')
    assert done.stdout.splitlines() == [
        "check CI=true",
        "cluster-tools CI=true",
        "test CI=true",
    ]
    assert done.returncode == 0, done.stderr


def test_tests_that_end_without_their_report_are_not_green(tmp_path: Path) -> None:
    done = run_ci(tmp_path, report="")
    assert done.returncode == 1
    assert "before their report" in done.stderr
