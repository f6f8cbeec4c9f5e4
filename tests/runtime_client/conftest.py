"""A runtime in this process, with its socket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from retuned.runtime.core.attach import Runtime, attach


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[Runtime]:
    made = attach(server="test", socket_dir=tmp_path / "s")
    yield made
    made.close()
