"""The glossary has one meaning for each word, and names in the code keep to it."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = (
    ROOT / "daemon" / "retuned",
    ROOT / "operators" / "retuned_operator",
    ROOT / "benchmarks" / "retuned_bench" / "retuned_bench",
)
PAGE = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")

ALLOWED_CLASSES = {
    "retuned/notify/messages.py Standing",
}
"""Classes whose folders are renamed next; the list only shrinks."""


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def rows(title: str) -> list[list[str]]:
    lines = [line for line in section(title).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def avoided() -> set[str]:
    """Return the words that no name may contain."""
    listed = section("Names to avoid").split("\n\n")[1]
    return {word.strip(" .\n") for word in listed.split(",")}


def field_nouns() -> set[str]:
    named = section("Names to avoid").partition("nouns of the field:")[2]
    return {word.strip(" .\n") for word in named.split(",")}


@cache
def modules() -> tuple[tuple[str, Path], ...]:
    return tuple(
        (path.relative_to(root.parent).as_posix(), path)
        for root in SOURCES
        for path in sorted(root.rglob("*.py"))
    )


def classes() -> Iterator[tuple[str, str]]:
    for name, path in modules():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                yield name, node.name


@pytest.mark.parametrize(("title", "least"), [("Nouns", 50), ("Verbs", 25)])
def test_every_word_has_one_meaning(title: str, least: int) -> None:
    found = rows(title)
    words = [word.strip("* ") for row in found for word in row[0].split(",")]
    assert len(found) >= least
    assert [word for word, count in Counter(words).items() if count > 1] == []
    assert [row[0] for row in found if not row[1]] == []
    first = [row[0].strip("* ").lower() for row in found]
    assert first == sorted(first)


def test_every_word_to_avoid_has_a_replacement() -> None:
    assert all(all(row) for row in rows("Words to avoid"))


def test_no_class_is_named_by_a_word_that_says_nothing() -> None:
    words = avoided()
    assert "door" in words
    found = {
        f"{module} {name}"
        for module, name in classes()
        if words & {part.lower() for part in re.findall(r"[A-Z][a-z]*", name)}
    }
    assert found == ALLOWED_CLASSES


def test_no_module_is_a_gerund_or_named_by_a_word_that_says_nothing() -> None:
    words, nouns = avoided(), field_nouns()
    assert "timing" in nouns
    found = {
        name
        for name, path in modules()
        if words & set(path.stem.split("_"))
        or (path.stem.endswith("ing") and path.stem.rpartition("_")[2] not in nouns)
    }
    assert found == set()
