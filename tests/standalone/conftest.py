"""Fixtures of the loop's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.coins import coins
from tests.standalone.local_world import World
from tests.unsynced import unsynced

__all__ = ["coins", "unsynced", "world"]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A daemon, a server, a folder of traces and people."""
    made = World(tmp_path)
    yield made
    assert made.unexpected() == 0, "a step failed and was logged; see the output"
    made.store.close()
