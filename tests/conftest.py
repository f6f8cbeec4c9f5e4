"""Shared by all tests: where the real traces lie, and the rule that CI may not skip them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"
collect_ignore = ["data"]
"""Doctests are looked for by importing modules, and hostile kernels and problems would run."""
_HELP = {
    "browser": "make browser-packages",
    "index": "no package index can be reached",
    "monitoring": "make monitoring-tools",
    "plane": "make cluster-tools",
    "shared": "real traces and traffic are not beside the project",
}
"""Marks whose tests CI may not skip, and what brings them back."""
_NEVER_SKIPPED = frozenset(_HELP)
_OF_THEIR_OWN = ("e2e", "newest", "story", "vllm")
"""Marks of lanes that run only where ``-m`` names them: a server takes minutes, the demo needs a
machine of its own, and an upstream release must not block other work."""
_skipped: set[tuple[str, str]] = set()

# CI asks the same questions every time, so that it refuses a change and not a coincidence; whoever
# works on the project asks new ones with every run. How long an answer takes is the machine's.
settings.register_profile("here", deadline=None)
settings.register_profile("ci", derandomize=True, deadline=None)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "here")

# Two processes of tests share the cores: threads of a matrix product that wait for each other's
# cores take three times as long as one thread.
for _library in ("OMP", "OPENBLAS", "MKL"):
    os.environ.setdefault(f"{_library}_NUM_THREADS", "1")

# Images of Python set this. Then each program that a test starts would compile all that it imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

if not (Path("/dev/nvidiactl").exists() or Path("/dev/kfd").exists()):
    # Triton reads this when it is imported: without a GPU its kernels run in Python, on CPU tensors
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(autouse=True)
def users_allowed_before() -> Iterator[None]:
    """Restore the users that may connect: a sidecar of a test writes them into its environment."""
    before = os.environ.get("RETUNED_ALLOWED_UIDS")
    yield
    if before is None:
        os.environ.pop("RETUNED_ALLOWED_UIDS", None)
    else:
        os.environ["RETUNED_ALLOWED_UIDS"] = before


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave lanes out that nobody named, and skip what this machine has no data or GPU for."""
    selected = re.findall(r"\w+", config.option.markexpr or "")
    absent_lanes = [mark for mark in _OF_THEIR_OWN if mark not in selected]
    left_out = [item for item in items if any(mark in item.keywords for mark in absent_lanes)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    absent = pytest.mark.skip(
        reason=f"real traces and traffic are not beside the project ({SHARED.name}/)"
    )
    no_gpu = pytest.mark.skip(reason="no GPU on this machine")
    for item in items:
        if "shared" in item.keywords and not SHARED.is_dir():
            item.add_marker(absent)
        if "gpu" in item.keywords and not _has_gpu():
            item.add_marker(no_gpu)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Remember tests on real data, packages and programs that were skipped, whoever ran them."""
    if report.skipped and not hasattr(report, "wasxfail"):  # an expected failure did run
        _skipped.update((mark, report.nodeid) for mark in _NEVER_SKIPPED & set(report.keywords))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many tests of each such kind did not run: a skip is easily overlooked."""
    for mark, count in sorted(Counter(mark for mark, _ in _skipped).items()):
        terminalreporter.write_line(f"NOT RUN: {count} tests marked {mark!r} ({_HELP[mark]})")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Fail a run in which a lane was skipped that CI or the user demanded.

    CI demands every lane; a user demands the lanes that ``-m`` names.
    """
    named = set(re.findall(r"\w+", session.config.option.markexpr or ""))
    demanded = _NEVER_SKIPPED if os.environ.get("CI") == "true" else _NEVER_SKIPPED & named
    skipped = sorted((mark, test) for mark, test in _skipped if mark in demanded)
    if skipped and exitstatus == 0:
        print(f"a lane that was asked for was skipped: {skipped}")  # noqa: T201
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
        timeout=240,
        check=False,
    )
    if done.returncode != 0:
        reason = "Prometheus is not here: make monitoring-tools"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return Path(done.stdout.strip())
