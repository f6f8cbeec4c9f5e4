"""Launches as columns: what a list of records would be, without the list."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retuned.stages.trace import LaunchRecord
from retuned.traces.blocks import LaunchBlock, gather, timed

_NAMES = ("gemm", "attention", "rms", "gemm")  # two kinds may be equal, and are two
_KINDS = [LaunchRecord(kernel=name, start_ns=0, duration_ns=1) for name in _NAMES]
_ROW = st.tuples(st.integers(0, 3), st.integers(0, 50), st.integers(1, 9))
_BLOCKS = st.lists(st.lists(_ROW, max_size=6), max_size=5)


def _block(rows: list[tuple[int, int, int]], kinds: list[LaunchRecord]) -> LaunchBlock:
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    return LaunchBlock(kinds, table[:, 0], table[:, 1], table[:, 2])


def _plainly(blocks: list[list[tuple[int, int, int]]], most: int | None) -> list[LaunchRecord]:
    rows = [timed(_KINDS[kind], start, long) for block in blocks for kind, start, long in block]
    return sorted(rows[:most], key=lambda launch: launch.start_ns)


@given(_BLOCKS, st.none() | st.integers(0, 12), st.booleans())
def test_they_are_what_a_sorted_list_of_records_is(
    blocks: list[list[tuple[int, int, int]]], most: int | None, shared: bool
) -> None:
    made = (_block(rows, _KINDS if shared else list(_KINDS)) for rows in blocks)
    found, plain = gather(made, most=most), _plainly(blocks, most)
    assert list(found) == plain
    assert found == plain
    assert len(found) == len(plain)
    assert found[1:4] == plain[1:4]
    assert [found[-1 - at] for at in range(len(found))] == plain[::-1]
    ends = [launch.start_ns + launch.duration_ns for launch in plain]
    assert found.span_ns == (max(ends) - plain[0].start_ns if plain else 0)
    assert found != [*plain, timed(_KINDS[0], 99, 9)]


def test_an_index_beyond_them_is_an_error_as_of_any_sequence() -> None:
    found = gather([_block([(0, 5, 1)], _KINDS)])
    with pytest.raises(IndexError):
        found[1]
    with pytest.raises(IndexError):
        found[-2]


def test_of_kinds_only_those_of_kept_launches_are_held() -> None:
    def blocks() -> Iterator[LaunchBlock]:
        for first in range(0, 1_000, 100):
            kinds = [
                LaunchRecord(kernel=f"k{n}", start_ns=0, duration_ns=1)
                for n in range(first, first + 100)
            ]
            yield _block([(n, first + n, 1) for n in range(100)], kinds)

    found = gather(blocks(), most=150)
    assert [launch.kernel for launch in found] == [f"k{n}" for n in range(150)]
    assert len(found._block.kinds) == 150


def test_no_reader_loads_masked_arrays_which_are_six_megabytes(data: Path) -> None:
    code = (
        "import pathlib, sys\n"
        "from retuned.traces import read_trace\n"
        "from retuned.errors import UnreadableInput\n"
        "read = 0\n"
        "for path in map(pathlib.Path, sys.argv[1:]):\n"
        "    try:\n"
        "        read += bool(len(read_trace(path).launches))\n"
        "    except UnreadableInput:\n"
        "        pass\n"
        "print(read >= 12, 'numpy.ma' in sys.modules)"
    )
    files = [str(path) for path in data.iterdir() if path.suffix != ".py"]
    command = [sys.executable, "-c", code, *files]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "True False"
