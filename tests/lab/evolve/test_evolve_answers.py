"""Answers of models: read strictly, and every refusal has a reason that can be given back."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retuned.lab.generators.evolve.edits import AnswerRefused, Edit, apply_edits, parse_edits
from retuned.lab.generators.evolve.prompts import parse_ideas, parse_reflection
from retuned.lab.generators.evolve.responses import Draft, parse_answer

BASE = "int a;\nint b;\nint a2;\n"
BASE_ID = "ab12cd34ef56" + "0" * 52


def fenced(word: str, text: str) -> str:
    return f"```{word}\n{text}\n```\n"


def edit(search: str, replace: str) -> str:
    return f"<<<<<<< SEARCH\n{search}\n=======\n{replace}\n>>>>>>> REPLACE"


def parse(text: str, *, finish: str = "stop", base: str | None = BASE) -> Draft:
    return parse_answer(text, finish=finish, fences=("cpp", "c++"), base=base, base_id=BASE_ID)


def refused(text: str, *, finish: str = "stop", base: str | None = BASE) -> AnswerRefused:
    with pytest.raises(AnswerRefused) as caught:
        parse(text, finish=finish, base=base)
    return caught.value


LAUNCH = fenced("json", '{"idea": "x"}')
FILE = fenced("cpp", "int z;")
BASED = fenced("json", '{"base": "ab12cd34ef56"}')


def test_a_whole_file_is_taken_as_it_is() -> None:
    draft = parse(f"Some prose.\n{LAUNCH}and\n{FILE}end")
    assert (draft.source, draft.edited, draft.launch.idea) == ("int z;\n", False, "x")


def test_an_edit_changes_the_lines_it_names() -> None:
    draft = parse(BASED + fenced("edit", edit("int b;", "int c;\nint d;")))
    assert (draft.source, draft.edited) == ("int a;\nint c;\nint d;\nint a2;\n", True)


def test_several_edits_are_applied_in_order() -> None:
    both = edit("int a;", "int q;") + "\n\n" + edit("int q;\nint b;", "int r;")
    assert parse(BASED + fenced("edit", both)).source == "int r;\nint a2;\n"


def test_a_line_that_only_begins_alike_is_another_line() -> None:
    assert parse(BASED + fenced("edit", edit("int a2;", "int n;"))).source.endswith("int n;\n")


def test_launch_data_is_read() -> None:
    body = {
        "entry": "k",
        "params": {"BLOCK": 128, "MODE": "fast"},
        "grid": ["cdiv(M, BLOCK)"],
        "layouts": {"w": "panels-16"},
        "scratch_bytes": 64,
    }
    launch = parse(fenced("json", json.dumps(body)) + FILE).launch
    assert launch.model_dump(exclude={"base", "idea"}) == {**body, "grid": ("cdiv(M, BLOCK)",)}


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("I cannot help with that.", "no-block"),
        (LAUNCH, "no-block"),
        (FILE, "no-block"),
        (LAUNCH + FILE + FILE, "too-many-blocks"),
        (LAUNCH + LAUNCH + FILE, "too-many-blocks"),
        (LAUNCH + FILE + fenced("bash", "rm -rf /"), "too-many-blocks"),
        (LAUNCH + FILE + fenced("", "x"), "too-many-blocks"),
        (LAUNCH + fenced("python", "import os"), "no-block"),
        (LAUNCH + fenced("cpp", "  "), "no-block"),
        (LAUNCH + "```cpp\nint z;", "cut-off"),
        (LAUNCH + fenced("cpp", "x" * 200_000), "too-long"),
        ("x" * 500_000, "too-long"),
        (fenced("json", "{") + FILE, "bad-launch-data"),
        (fenced("json", "[]") + FILE, "bad-launch-data"),
        (fenced("json", '{"scratch_bytes": NaN}') + FILE, "bad-launch-data"),
        (fenced("json", "[" * 7_000) + FILE, "bad-launch-data"),
        (fenced("json", '"' + "x" * 9_000 + '"') + FILE, "bad-launch-data"),
        (fenced("json", '{"scratch_bytes": -1}') + FILE, "bad-launch-data"),
        (fenced("json", '{"scratch_bytes": 1e18}') + FILE, "bad-launch-data"),
        (fenced("json", '{"entry": "a; system(0)"}') + FILE, "bad-launch-data"),
        (fenced("json", '{"params": {"A": "x y; z"}}') + FILE, "bad-launch-data"),
        (fenced("json", '{"layouts": {"w": "../../etc"}}') + FILE, "bad-launch-data"),
        (fenced("json", '{"grid": ["1", "1", "1", "1"]}') + FILE, "bad-launch-data"),
        (fenced("json", '{"path": "/etc/passwd"}') + FILE, "bad-launch-data"),
        (fenced("json", '{"trust": "P"}') + FILE, "bad-launch-data"),
        (fenced("json", '{"budget": {"max_usd": 1e9}}') + FILE, "bad-launch-data"),
        (fenced("json", '{"guard": {}, "sources": []}') + FILE, "bad-launch-data"),
        (LAUNCH + fenced("edit", edit("int b;", "x")), "wrong-base"),
        (fenced("json", '{"base": "ffffffffffff"}') + fenced("edit", "x"), "wrong-base"),
        (fenced("json", '{"base": "ab12"}') + fenced("edit", "x"), "wrong-base"),
        (BASED + fenced("edit", edit("int none;", "x")), "search-not-found"),
        (BASED + fenced("edit", edit("int b; ", "x")), "search-not-found"),
        (BASED + fenced("edit", edit("", "x")), "bad-edit"),
        (BASED + fenced("edit", "int b;"), "bad-edit"),
        (BASED + fenced("edit", "<<<<<<< SEARCH\nint b;\n"), "bad-edit"),
        (BASED + fenced("edit", "<<<<<<< SEARCH\n>>>>>>> REPLACE"), "bad-edit"),
        (BASED + fenced("edit", "\n".join([edit("int b;", "int b;")] * 40)), "bad-edit"),
        (BASED + fenced("edit", edit("int b;", "int b;")), "no-change"),
    ],
)
def test_what_is_no_candidate_has_a_stable_reason(text: str, code: str) -> None:
    error = refused(text)
    assert error.reason == code
    assert len(error.detail) < 500


def test_an_ambiguous_search_says_how_often_it_is_found() -> None:
    base = "x;\ny;\nx;\n"
    error = refused(BASED + fenced("edit", edit("x;", "z;")), base=base)
    assert error.reason == "search-ambiguous"
    assert "2 times" in error.detail


def test_an_answer_that_was_cut_off_is_not_guessed_at() -> None:
    assert refused(LAUNCH + FILE, finish="length").reason == "cut-off"


def test_without_a_base_there_is_nothing_to_edit() -> None:
    assert refused(BASED + fenced("edit", edit("a", "b")), base=None).reason == "wrong-base"


@settings(deadline=None)
@given(st.text(max_size=400))
def test_any_text_is_a_draft_or_a_refusal(text: str) -> None:
    with contextlib.suppress(AnswerRefused):  # nothing else may come out
        assert parse(text).source.strip()


@settings(deadline=None)
@given(
    st.lists(st.text("abc {};", min_size=1, max_size=8), min_size=1, max_size=12, unique=True),
    st.data(),
)
def test_an_edit_of_a_unique_line_gives_the_text_with_that_line_replaced(
    rows: list[str], data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(rows) - 1))
    base = "".join(f"{row}\n" for row in rows)
    wanted = [*rows[:place], "new", *rows[place + 1 :]]
    edits = (Edit(search=f"{rows[place]}\n", replace="new\n"),)
    if rows[place].strip():
        assert apply_edits(base, edits) == "".join(f"{row}\n" for row in wanted)
    else:
        with pytest.raises(AnswerRefused):
            apply_edits(base, edits)


@settings(deadline=None)
@given(st.lists(st.tuples(st.text("ab\n", max_size=9), st.text("ab\n", max_size=9)), min_size=1))
def test_edits_come_back_as_they_were_written(pairs: list[tuple[str, str]]) -> None:
    text = "\n".join(edit(search, replace) for search, replace in pairs)
    assert [(e.search, e.replace) for e in parse_edits(text)] == [
        (f"{search}\n", f"{replace}\n") for search, replace in pairs
    ]


def test_reviews_and_directions_are_read_or_left_aside() -> None:
    found = parse_reflection(fenced("json", '{"cause": "c", "fix": "f"}'))
    assert found is not None
    assert (found.cause, found.fix) == ("c", "f")
    assert parse_ideas(fenced("json", '{"ideas": ["a", "b"]}')) == ("a", "b")
    for text in (
        "",
        "x" * 500_000,
        "```json\n{",
        fenced("json", "{}"),
        fenced("json", "[1]"),
        fenced("json", '{"cause": "c", "fix": "f", "budget": 9}'),
        fenced("json", '{"ideas": []}'),
        fenced("json", '{"ideas": ["' + "x" * 900 + '"]}'),
        fenced("python", "{}"),
        fenced("json", "{}") * 2,
    ):
        assert parse_reflection(text) is None
        assert parse_ideas(text) == ()
