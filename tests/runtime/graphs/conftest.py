"""The played device, built once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.runtime.graphs.played import Played, build_library


@pytest.fixture(scope="session")
def played_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library(tmp_path_factory.mktemp("played"))


@pytest.fixture(params=("nvidia", "amd"))
def played(request: pytest.FixtureRequest, played_library: Path) -> Iterator[Played]:
    made = Played(request.param, played_library)
    yield made
    made.library.fake_heal()
    made.library.fake_fail_exec(0, 0)
    made.library.fake_fail_node(0, 0)
    made.library.fake_wrong_readback(0)
    made.library.fake_pack(0)
    made.driver.unload(made.module)
