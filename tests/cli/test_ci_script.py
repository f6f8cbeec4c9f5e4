"""``.ci/run``: stricter than a laptop, also where nobody says that it is CI."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_ci_says_itself_that_it_is_ci(tmp_path: Path) -> None:
    make = tmp_path / "make"
    make.write_text('#!/bin/sh\necho "$1 CI=$CI"\n')
    make.chmod(0o755)
    env = {k: v for k, v in os.environ.items() if k != "CI"}
    env["PATH"] = f"{tmp_path}:{env['PATH']}"
    done = subprocess.run([ROOT / ".ci" / "run"], env=env, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["check CI=true", "test CI=true"]
    assert done.returncode == 0
