"""A fake API server for each test, and short time-outs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.fakeapi.server import FakeApi


@pytest.fixture
def fake() -> Iterator[FakeApi]:
    """Return a fake API server with a bookmark every tenth of a second."""
    with FakeApi(bookmark_s=0.1) as found:
        yield found
