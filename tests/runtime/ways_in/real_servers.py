"""The sources of vLLM, SGLang and Liger from the package index, without what they depend on.

Pinned, so that a release on some day does not refuse somebody's work; by hash where the wheels are
those noted here, because a part of them is run. RETUNED_TEST_NEWEST=1 tests the newest of the day.
"""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PINNED = {
    "vllm": (
        "vllm==0.33.0",
        "4b6bdec4ab269990bf70d45a3c1e94c3760a27064513760193b26d6f0da883aa",
    ),
    "sglang": (
        "sglang==0.5.23",
        "00b3cd5b265ac76c64185fbb6b95424f324ddd9f428d0306b77bc9db9d859937",
    ),
    "liger-kernel": (
        "liger-kernel==0.8.5",
        "60789cd576af073ab9b192b570d2597fd0cdad489cd62fb44fb16256d43754c9",
    ),
}
"""Requirement and the hash of its wheel for CPython 3.11 on x86-64 Linux."""
_INSTALL_S = 600.0


def sources(name: str) -> Path:
    """Return a folder with the package's Python files; downloaded where it is not cached yet."""
    requirement, digest = PINNED[name]
    newest = os.environ.get("RETUNED_TEST_NEWEST") == "1"
    hashed = (platform.machine(), sys.version_info[:2]) == ("x86_64", (3, 11))
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "retuned-tests"
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / (f"{name}-newest" if newest else f"{name}-{digest[:16]}")
    with (cache / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two test runs do not unpack into one folder
        if newest or not (folder / "ready").exists():
            shutil.rmtree(folder, ignore_errors=True)
            pinned = f"{requirement} --hash=sha256:{digest}" if hashed else requirement
            _fetch(name if newest else pinned, folder)
            (folder / "ready").touch()
    return folder


def _fetch(requirement: str, folder: Path) -> None:
    """Install into a folder and keep what is Python: the rest is hundreds of megabytes."""
    folder.mkdir(parents=True)
    listed = folder / "requirement.txt"
    listed.write_text(requirement + "\n")
    command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--no-cache", "--no-deps"]
    command += ["--require-hashes"] if "--hash" in requirement else []
    command += ["--target", str(folder), "-r", str(listed)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_INSTALL_S, check=False
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"the package index did not answer within {_INSTALL_S:g} s")
    if done.returncode:
        pytest.skip(f"the package cannot be had from the index: {done.stderr.strip()[-300:]}")
    for file in folder.rglob("*"):
        if file.is_file() and file.suffix != ".py" and ".dist-info" not in str(file):
            file.unlink()
