from __future__ import annotations

import doctest
import math
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retuned import text as words
from retuned.report import story_text, svg

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
FORMATTERS = (
    words.significant,
    words.count,
    words.share,
    words.duration,
    words.seconds,
    words.micros,
    words.times,
    words.percent,
    words.belief,
    words.digest,
    words.shape,
    words.label,
    words.guard,
    words.short,
)


@given(value=ANYTHING)
def test_every_formatter_takes_anything_and_never_lets_control_characters_out(
    value: object,
) -> None:
    for formatter in FORMATTERS:
        shown = formatter(value)
        assert shown == words.clean(shown)


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf, "12", True, 10**400, []])
def test_what_is_no_finite_number_is_shown_as_absent_and_not_as_zero(value: object) -> None:
    for formatter in (words.significant, words.share, words.duration, words.times, words.count):
        assert formatter(value) == words.NOTHING


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (words.share(0.1234), "12.3 %"),
        (words.share(0.0001), "<0.1 %"),
        (words.share(0.0), "0 %"),
        (words.share(1.0), "100.0 %"),
        (words.duration(1), "1.00 ns"),
        (words.duration(61_400), "61.4 \N{MICRO SIGN}s"),
        (words.duration(5_200_000_000), "5.20 s"),
        (words.seconds(281.3), "4 min 41 s"),
        (words.seconds(0.31), "310 ms"),
        (words.times(1.0134), f"1.013{words.TIMES}"),
        (words.times(3.384), f"3.38{words.TIMES}"),
        (words.count(1234567), "1,234,567"),
        (words.significant(1234.5), "1,234"),
        (words.digest("sha256:" + "ab" * 32), "abababababab"),
        (words.shape([[16, 1024], [1024]]), f"16{words.TIMES}1024, 1024"),
        (words.guard({"bounds": {}}), "all shapes"),
        (words.label({"TILE": 32, "fast": True}), "TILE 32, fast yes"),
    ],
)
def test_values_read_as_people_write_them(shown: str, expected: str) -> None:
    assert shown == expected


@given(text=st.text(min_size=1), limit=st.integers(4, 40))
def test_a_cut_name_fits_and_keeps_both_ends(text: str, limit: int) -> None:
    whole = words.clean(text)
    cut = words.short(text, limit)
    assert len(cut) <= limit
    if len(whole) > limit:
        head, _, tail = cut.partition(words.ELLIPSIS)
        assert whole.startswith(head)
        assert cut.endswith(whole[-1])
        assert tail
    elif cut != whole:
        pytest.fail("a name that fits was changed")


def test_terminal_escapes_and_bidirectional_overrides_are_taken_out() -> None:
    hostile = "gemm\x1b]0;owned\x07\u202egpj.exe\u200b\ud800\x9b31m"
    assert words.clean(hostile).count("\N{REPLACEMENT CHARACTER}") == 6
    assert words.clean("a\r\n\tb") == "a b"


@given(text=st.text(max_size=300), limit=st.integers(8, 80))
def test_a_shortened_kernel_name_always_fits(text: str, limit: int) -> None:
    for name in (text, f"void {text}(char*, int)", f"Cijk_Ailk_Bljk_HHS_{text}_MT8x8x8{text}"):
        assert len(words.kernel(name, limit)) <= limit


def test_a_long_c_plus_plus_name_loses_its_arguments_and_not_its_template() -> None:
    name = (
        "void flash_fwd_splitkv_kernel<Traits<128, 64>, false>(Params, int*, std::array<char*, 2>)"
    )
    assert words.kernel(name, 60) == "flash_fwd_splitkv_kernel<Traits<128, 64>, false>"


@pytest.mark.parametrize("module", [words, svg, story_text])
def test_the_examples_in_the_documentation_hold(module: ModuleType) -> None:
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0
