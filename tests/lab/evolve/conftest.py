"""An interpreter that has the search packages, as the lock names them; made once, kept outside."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

LOCK = Path(__file__).resolve().parents[3] / "requirements" / "backends.txt"
_INSTALL_S = 900.0


@pytest.fixture(scope="session")
def backends_python() -> Path:
    """Return the interpreter; installs it into the cache of this user where it is not there yet."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "retuned-tests"
    cache.mkdir(parents=True, exist_ok=True)
    mark = hashlib.sha256(LOCK.read_bytes() + sys.version.encode()).hexdigest()[:16]
    folder = cache / f"backends-{mark}"
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two test runs do not install into one folder
        if not (folder / "ready").exists():
            _install(folder)
            (folder / "ready").touch()
    return folder / "bin" / "python"


def _install(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, symlinks=True, with_pip=False)
    command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--require-hashes"]
    command += ["--python", str(folder / "bin" / "python"), "-r", str(LOCK)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_INSTALL_S, check=False
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"the package index did not answer within {_INSTALL_S:g} s")
    if done.returncode:
        pytest.skip(f"the packages cannot be had from the index: {done.stderr.strip()[-300:]}")
