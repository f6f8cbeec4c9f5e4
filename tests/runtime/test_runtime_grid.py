"""Grid expressions: strangers write them, so only integer arithmetic gets through."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.expect import raises_code

from retuned.runtime.core.grid import MAX_GRID, parse_grid
from retuned.runtime.schema import Refused

NAMES = ("M", "N", "BLOCK_M", "BLOCK_N")


@given(m=st.integers(1, 2**20), n=st.integers(1, 2**20), block=st.integers(1, 1024))
def test_a_tiled_grid_covers_every_element_once(m: int, n: int, block: int) -> None:
    grid = parse_grid(("cdiv(M, BLOCK_M)", "cdiv(N, BLOCK_N)"), NAMES)
    lengths = {"M": m, "N": n, "BLOCK_M": block, "BLOCK_N": 2 * block}
    assert grid.at(lengths) == (math.ceil(m / block), math.ceil(n / (2 * block)), 1)


@given(a=st.integers(0, 10**6), b=st.integers(1, 10**6))
def test_arithmetic_is_that_of_whole_numbers(a: int, b: int) -> None:
    grid = parse_grid(
        ("(M + N) * 2 // N + M % N + 1", "max(M, N, 1)", "next_pow2(min(M, N))"), NAMES
    )
    small = min(a, b)
    power = 1 << max(0, (small - 1).bit_length()) if small > 1 else 1
    assert grid.at({"M": a, "N": b}) == ((a + b) * 2 // b + a % b + 1, max(a, b), power)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "M; N",
        "K",
        "M ** N",
        "M / N",
        "-M",
        "M << 40",
        "True",
        "1.5",
        "'a'",
        "M if N else 1",
        "[M for M in (1,)][0]",
        "(lambda: 1)()",
        "M.real",
        "M.__class__",
        "__import__('os').system('true')",
        "min(M)",
        "min(*M)",
        "cdiv(M, N, N)",
        "cdiv(a=M, b=N)",
        "pow(M, N)",
        "(M := 3)",
        "f'{M}'",
        "9999999999",
        "\uff2d",
        "M\x00",
        "(" * 90 + "M" + ")" * 90 + "(",
        "+".join(["M"] * 150),
        "0x7fffffffff",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(Refused) as refused:
        parse_grid((text,), NAMES)
    assert refused.value.reason == "grid-invalid"


@pytest.mark.parametrize("expressions", [(), ("M",) * 4, "M"])
def test_a_grid_has_one_to_three_dimensions(expressions: tuple[str, ...]) -> None:
    with raises_code(Refused, "grid-invalid"):
        parse_grid(expressions, NAMES)


@pytest.mark.parametrize(
    "text", ["M - N", "M * M", "M // (N - N)", "M % (N - N)", "cdiv(M, N - N)"]
)
def test_results_no_device_launches_are_refused_at_the_lengths(text: str) -> None:
    grid = parse_grid((text,), NAMES)
    with pytest.raises(Refused) as refused:
        grid.at({"M": 2**20, "N": 2**20})
    assert refused.value.reason == "grid-invalid"


def test_numbers_cannot_grow_without_end_on_the_way() -> None:
    grid = parse_grid(("*".join(["M"] * 60) + " % 7",), NAMES)
    with raises_code(Refused, "grid-invalid"):
        grid.at({"M": MAX_GRID})


@given(st.text(max_size=60))
def test_no_text_does_anything_but_parse_or_be_refused(text: str) -> None:
    try:
        grid = parse_grid((text,), NAMES)
    except Refused:
        return
    assert grid.names <= set(NAMES)
