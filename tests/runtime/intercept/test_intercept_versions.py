"""The whole of interception on three versions of Triton, compiled and interpreted.

The installed version runs interpreted in this process; everything else in a child of its own: which
Triton there is, and whether it interprets, is settled when it is imported.
"""

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

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
LOCKS = HERE / "versions"
pytestmark = pytest.mark.timeout(1_500)
"""Each is a suite of its own, after an installation."""
_INSTALL_S = 600.0
_RUN_S = 800.0
_EVERY = ["counting", "swapping", "repeats", "leading", "pressure", "timing"]


def _python(lock_file: Path) -> Path:
    """Return an interpreter with that version before all else; made once, kept outside the tree."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "retuned-tests"
    cache.mkdir(parents=True, exist_ok=True)
    shared = next(path for path in sys.path if path.endswith("site-packages"))
    known = lock_file.read_bytes() + sys.version.encode() + shared.encode()
    folder = cache / f"{lock_file.stem}-{hashlib.sha256(known).hexdigest()[:16]}"
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two test runs do not install into one folder
        if not (folder / "ready").exists():
            _install(folder, lock_file, shared)
            (folder / "ready").touch()
    return folder / "bin" / "python"


def _install(folder: Path, lock_file: Path, shared: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, symlinks=True, with_pip=False)
    python = folder / "bin" / "python"
    command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--require-hashes"]
    command += ["--no-deps", "--python", str(python), "-r", str(lock_file)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_INSTALL_S, check=False
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"the package index did not answer within {_INSTALL_S:g} s")
    if done.returncode:
        pytest.skip(f"{lock_file.stem} cannot be had from the index: {done.stderr.strip()[-300:]}")
    # PyTorch and all else are shared: what lies in the folder itself comes first
    (own,) = folder.glob("lib/python*/site-packages")
    (own / "shared.pth").write_text(f"import site; site.addsitedir({shared!r})\n", "utf-8")


def _run(python: Path, *, interpret: bool, expected: str) -> None:
    """Run the suite in a child, and make sure that it was that version and that it ran."""
    environment = os.environ | {
        "TRITON_INTERPRET": "1" if interpret else "0",
        "TRITON_DEFAULT_FP_FUSION": "1",  # unset, the newest version warns of its next default
        "RETUNED_EXPECTED_TRITON": expected,
    }
    files = [str(HERE / f"test_intercept_{name}.py") for name in _EVERY]
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rs", *files]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=_RUN_S,
        check=False,
        cwd=ROOT,
        env=environment,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
    assert "another Triton" not in done.stdout


def test_compiled_kernels_are_intercepted_in_the_installed_version() -> None:
    import triton

    _run(Path(sys.executable), interpret=False, expected=triton.__version__)


@pytest.mark.index
@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "interpret"), [("3.5.1", False), ("3.5.1", True), ("3.7.1", False)]
)
def test_other_versions_are_intercepted(version: str, interpret: bool) -> None:
    python = _python(LOCKS / f"triton-{version}.txt")
    _run(python, interpret=interpret, expected=version)
