"""The loop over a kernel that a file configures: from traffic to a row that is picked, and back.

The server is real processes that read a file as vLLM does; the lab is scripted.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.local.file_world import LARGE, SMALL, WON, FileWorld


@pytest.fixture
def files(tmp_path: Path) -> Iterator[FileWorld]:
    made = FileWorld(tmp_path)
    yield made
    made.close()


def test_a_row_goes_from_traffic_to_the_server_and_back_byte_by_byte(files: FileWorld) -> None:
    server = files.start()
    id = files.swap()
    assert files.phase(id) == "watching", files.trail(id)
    assert server.picks(16, 64, 65, 128) == [WON, SMALL, LARGE, LARGE]
    assert files.file.read_bytes() != files.original
    files.look(3)
    assert files.phase(id) == "promoted"
