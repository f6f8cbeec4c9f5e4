"""Handlers stay short: what they decide and write has a name of its own."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from retuned_operator import controllers

FOLDER = Path(str(controllers.__file__)).parent
MODULES = [each for each in sorted(FOLDER.glob("*.py")) if "def reconcile(" in each.read_text()]
MOST = 14
"""Lines of statements of a handler, its docstring aside."""


def lines_of(handler: ast.FunctionDef) -> int:
    """Count the lines that statements stand on, without the docstring."""
    body = handler.body[1:] if ast.get_docstring(handler) else handler.body
    spans = ((each.lineno, each.end_lineno or each.lineno) for each in body)
    return sum(end - begin + 1 for begin, end in spans)


def test_there_are_handlers_to_look_at() -> None:
    assert len(MODULES) >= 6


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.stem))
def test_a_handler_has_fewer_than_fifteen_lines_of_statements(module: Path) -> None:
    handlers = [
        each
        for each in ast.walk(ast.parse(module.read_text()))
        if isinstance(each, ast.FunctionDef) and each.name == "reconcile"
    ]
    assert handlers
    assert {each.lineno: lines_of(each) for each in handlers if lines_of(each) > MOST} == {}
