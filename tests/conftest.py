"""Shared by all tests: where the real traces lie, and the rule that CI may not skip them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"
collect_ignore = ["data"]
"""Doctests are looked for by importing modules, and hostile kernels and problems would run."""
_NEVER_SKIPPED = frozenset({"shared", "index", "plane", "browser", "monitoring"})
_skipped_shared: list[str] = []

# CI asks the same questions every time, so that it refuses a change and not a coincidence; whoever
# works on the project asks new ones with every run
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI") == "true":
    settings.load_profile("ci")

if not (Path("/dev/nvidiactl").exists() or Path("/dev/kfd").exists()):
    # Triton reads this when it is imported: without a GPU its kernels run in Python, on CPU tensors
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests on real data where it is absent, and GPU tests where there is no GPU."""
    absent = pytest.mark.skip(
        reason=f"real traces and traffic are not beside the project ({SHARED.name}/)"
    )
    no_gpu = pytest.mark.skip(reason="no GPU on this machine")
    for item in items:
        if "shared" in item.keywords and not SHARED.is_dir():
            item.add_marker(absent)
        if "gpu" in item.keywords and not _has_gpu():
            item.add_marker(no_gpu)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Remember tests on real data and on real packages that were skipped."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    if report.skipped and _NEVER_SKIPPED & set(item.keywords):
        _skipped_shared.append(item.nodeid)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """In CI the real data and the index are there; a skip would be a hole nobody sees."""
    if os.environ.get("CI") == "true" and _skipped_shared and exitstatus == 0:
        print(f"CI skipped tests on real data or packages: {_skipped_shared}")  # noqa: T201
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _has_gpu() -> bool:
    return Path("/dev/nvidiactl").exists() or Path("/dev/kfd").exists()


@pytest.fixture
def shared() -> Path:
    """Folder of real traces and traffic beside the project."""
    return SHARED


@pytest.fixture(scope="session")
def monitoring() -> Path:
    """Folder with promtool, prometheus, alertmanager and amtool; in CI their absence is a fault."""
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
