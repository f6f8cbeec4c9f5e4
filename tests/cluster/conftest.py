"""One cluster with our images for all tests of this folder, which run only when asked for."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tests.cluster.cluster import Cluster
from tests.cluster.images import TARGETS, images
from tests.cluster.needs import lacks
from tests.cluster.serving import torch_folder
from tests.plane.control_plane import tools

TAG = "e2e"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave these tests out of every run that does not name their mark."""
    if "e2e" in (config.option.markexpr or ""):
        return
    left_out = [item for item in items if "e2e" in item.keywords]
    items[:] = [item for item in items if "e2e" not in item.keywords]
    config.hook.pytest_deselected(items=left_out)


@pytest.fixture(scope="session")
def programs() -> Path:
    """Return the built Kubernetes; a machine that lacks something is a failure in CI."""
    missing = lacks()
    found = tools()
    if missing or found is None:
        reason = f"this machine lacks {'; '.join(missing)}"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


@pytest.fixture(scope="session")
def built(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Return archives of the checkout's images, by target."""
    folder = tmp_path_factory.mktemp("images")
    torch = "none" if torch_folder() is not None else "locked"
    with images() as kept:
        names = kept.build(TARGETS, tag=TAG, torch=torch)
        return {
            target: kept.archive(name, folder / f"{target}.tar") for target, name in names.items()
        }


@pytest.fixture(scope="session")
def cluster(
    programs: Path, built: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """Return a cluster whose node has the checkout's images."""
    with Cluster(tmp_path_factory.mktemp("cluster"), programs) as started:
        for archive in built.values():
            started.load(archive)
            archive.unlink()  # gigabytes
        yield started
