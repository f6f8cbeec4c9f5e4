"""The list by number is whole: forty-six rows, each stopped in time by tests that exist."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from tests.hostile.cheats import GATES
from tests.hostile.cpu_kernels import CPU_CHEATS
from tests.hostile.host_code import numbered
from tests.hostile.numbers import ROWS, Row
from tests.hostile.triton_cheats import TRITON_CHEATS

TESTS = Path(__file__).resolve().parents[1]
HOST = {
    1, 7, 11, *range(14, 23), *range(24, 31), 32, 33, 44, 45, 46,
}  # fmt: skip
HOST_BY_TIMING = {23}
"""Needs host code in the list; here it is a kernel and a rule of the verdict."""
IDS = [row.number for row in ROWS]


def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text("utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_the_list_has_forty_six_numbers_in_order() -> None:
    assert [f"H{number:02}" for number in range(1, 47)] == IDS
    assert len({row.sentence for row in ROWS}) == len(ROWS)


def test_what_needs_host_code_is_refused_by_the_contract() -> None:
    sources = numbered(Path("canary"))
    told = {int(row.number[1:]) for row in ROWS if row.host}
    assert told == HOST | HOST_BY_TIMING
    assert {int(number[1:]) for number in sources} == HOST


@pytest.mark.parametrize("row", ROWS, ids=IDS)
def test_every_number_names_cheats_that_are_tried_and_stopped_in_time(row: Row) -> None:
    assert row.gate in GATES
    assert row.host or row.cpp or row.triton or row.tests, "nothing stands for it"
    for sentence in row.cpp:
        assert CPU_CHEATS[sentence].gate <= row.gate
    for sentence in row.triton:
        assert TRITON_CHEATS[sentence].gate <= row.gate


@pytest.mark.parametrize("row", ROWS, ids=IDS)
def test_every_test_that_a_number_names_exists(row: Row) -> None:
    for name in row.tests:
        file, _, function = name.partition("::")
        assert function in functions(TESTS / file), name


def test_every_kernel_that_cheats_stands_for_a_number() -> None:
    """Those that do not are attacks of our own on the contract, and kernels no compiler takes."""
    named = {sentence for row in ROWS for sentence in (*row.cpp, *row.triton)}
    for sentence, cheat in {**CPU_CHEATS, **TRITON_CHEATS}.items():
        assert sentence in named or cheat.gate in ("G1", "G2"), sentence
