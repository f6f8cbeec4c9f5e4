"""One real control plane for all tests of this folder; about five seconds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.plane.control_plane import ROOT, ControlPlane, needed_tools

DEFINITIONS = tuple(sorted((ROOT / "charts" / "retuned" / "files" / "crds").glob("*.yaml")))
"""Our CRDs; they are there from the start."""


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Return a control plane that is ready; absent tools are a failure in CI."""
    programs = needed_tools()
    folder = tmp_path_factory.mktemp("plane")
    with ControlPlane(folder, programs, definitions=DEFINITIONS) as started:
        yield started


@pytest.fixture(scope="session")
def admin(plane: ControlPlane) -> Path:
    """Return the kubeconfig of somebody who may do all."""
    return plane.admin()
