"""One cluster with our images for all tests of this folder, which run only when asked for."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tests.cluster.cluster import Cluster
from tests.cluster.images import TARGETS, archives
from tests.cluster.needs import lacks
from tests.cluster.reporting import Report
from tests.cluster.serving import torch_folder
from tests.plane.control_plane import tools

TAG = "e2e"
ARCHIVES = "RETUNED_E2E_IMAGES"
"""Names a folder with archives of the images, TARGET.tar, that an earlier run has made and kept."""
_LONGEST_S = 1800
"""Of a test with all that is set up for it: the first one waits for the images."""
_REPORT = Report()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give each test the time of all that is set up for it."""
    if "e2e" in (config.option.markexpr or ""):
        for item in items:
            item.add_marker(pytest.mark.timeout(_LONGEST_S))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note how each test ended, and how long it took; a set-up that failed is its end, too."""
    ours = "tests/cluster/" in report.nodeid
    if ours and (report.when == "call" or report.outcome != "passed"):
        ended = {"outcome": report.outcome, "seconds": round(report.duration, 2)}
        _REPORT.tests[report.nodeid.partition("cluster/")[2]] = ended


def pytest_sessionfinish() -> None:
    """Write the report where somebody asked for one."""
    if _REPORT.seconds:
        _REPORT.write()


@pytest.fixture(scope="session")
def report() -> Report:
    """Return what the run is written down in."""
    return _REPORT


@pytest.fixture(scope="session")
def programs() -> Path:
    """Return the built Kubernetes; fail on a machine that lacks something.

    These tests run only if ``-m e2e`` asks for them, so a skip would report a lane that did not run
    as passed.
    """
    missing = lacks()
    found = tools()
    if missing or found is None:
        pytest.fail(f"this machine lacks {'; '.join(missing)}: run make cluster-lacks")
    return found


@pytest.fixture(scope="session")
def built(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Return archives of the checkout's images, by target."""
    given = os.environ.get(ARCHIVES)
    if given and all(Path(given, f"{target}.tar").exists() for target in TARGETS):
        return {target: Path(given, f"{target}.tar") for target in TARGETS}
    folder = Path(given) if given else tmp_path_factory.mktemp("images")
    folder.mkdir(exist_ok=True)
    torch = "none" if torch_folder() is not None else "locked"
    began = time.monotonic()
    made = archives(folder, tag=TAG, torch=torch)
    _REPORT.seconds["images built"] = time.monotonic() - began
    return made


@pytest.fixture(scope="session")
def cluster(
    programs: Path, built: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """Return a cluster whose node has the checkout's images."""
    began = time.monotonic()
    with Cluster(tmp_path_factory.mktemp("cluster"), programs) as started:
        _REPORT.seconds["cluster up"] = time.monotonic() - began
        for archive in built.values():
            started.load(archive)
            if ARCHIVES not in os.environ:
                archive.unlink()  # gigabytes
        _REPORT.seconds["images loaded"] = time.monotonic() - began - _REPORT.seconds["cluster up"]
        yield started
