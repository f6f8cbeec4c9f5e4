"""Helm, started once for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.charts.rendering import Helm


@pytest.fixture(scope="session")
def helm() -> Iterator[Helm]:
    """Return Helm."""
    with Helm() as started:
        yield started
