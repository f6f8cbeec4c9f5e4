"""Lines of tables: nothing that names a thing is cut or broken, on any terminal or none."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from retuned import text as layout
from retuned.cli.output import stdout
from retuned.text import field_lines, table_lines

DIGEST = "sha256:" + "cd" * 32
HEADER = ("id", "kernel", "detail")
words = st.text(alphabet="ab_-:.0", min_size=1, max_size=30)
sentences = st.lists(words, max_size=8).map(" ".join)


@given(st.lists(st.tuples(words, words, sentences), max_size=6), st.none() | st.integers(10, 200))
def test_every_word_of_a_table_stands_whole_whatever_the_width(
    rows: list[tuple[str, str, str]], width: int | None
) -> None:
    found = " ".join(table_lines(HEADER, rows, width=width)).split()
    for row in rows:
        for value in row:
            assert set(value.split()) <= set(found)


@given(st.lists(st.tuples(words, words, sentences), max_size=6))
def test_without_a_terminal_a_row_is_one_line(rows: list[tuple[str, str, str]]) -> None:
    lines = list(table_lines(HEADER, rows, width=None))
    assert len(lines) == 1 + len(rows)
    for row, line in zip(rows, lines[1:], strict=True):
        assert line.startswith(row[0])
        assert line.endswith(row[-1] or row[1])


@given(st.lists(st.tuples(words, sentences), max_size=6), st.integers(45, 200))
def test_no_field_is_wider_than_the_terminal(rows: list[tuple[str, str]], width: int) -> None:
    lines = list(field_lines(rows, width=width))
    assert all(len(line) <= width for line in lines)
    assert set(" ".join(lines).split()) >= {word for _, text in rows for word in text.split()}


def test_a_digest_that_does_not_fit_beside_its_name_stands_below_it() -> None:
    assert list(field_lines([("replaced by", DIGEST)], width=80)) == [
        "replaced by",
        f"  {DIGEST}",
    ]
    assert list(field_lines([("replaced by", DIGEST)], width=84)) == [f"replaced by  {DIGEST}"]


def test_wide_characters_keep_the_columns_straight() -> None:
    lines = list(table_lines(("a", "b"), [("核核", "x"), ("k", "x")], width=None))
    assert lines == ["a     b", "核核  x", "k     x"]


@pytest.mark.parametrize("columns", [40, 80, 300])
def test_a_terminal_of_any_width_shows_names_whole(
    monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    screen = io.StringIO()
    terminal = Console(file=screen, force_terminal=True, color_system=None, width=columns)
    monkeypatch.setattr(layout, "stdout", lambda: terminal)
    kernel = "linear_w8_n2816_k512_and_a_long_name"
    layout.print_table(HEADER, [("ab12ab12ab12", kernel, f"digest={DIGEST}, why=\x1b[2J")])
    text = screen.getvalue()
    assert kernel in text
    assert f"  digest={DIGEST}" in text
    assert columns < 80 or all(len(line) <= columns for line in text.splitlines())
    assert "\x1b" not in text
    assert len(text.splitlines()) == {40: 6, 80: 4, 300: 2}[columns]


def test_a_pipe_has_no_width(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    stdout().print("word " * 100)
    assert len(capsys.readouterr().out.splitlines()) == 1
