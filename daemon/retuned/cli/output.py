"""What local commands print and write; how it is made harmless is `retuned.text`'s."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from retuned.errors import UsageError
from retuned.text import cell, emit_json, error_body, lines, safe, say, say_error, stdout

__all__ = [
    "JSON_FLAG",
    "JsonFlag",
    "cell",
    "check_writable",
    "emit_json",
    "error_body",
    "lines",
    "safe",
    "say",
    "say_error",
    "stdout",
    "write_page",
]

JSON_FLAG = "--json"
JsonFlag = Annotated[bool, typer.Option(JSON_FLAG, help="Print one JSON object on stdout.")]


def check_writable(path: Path) -> None:
    """Find out before the work whether its result can be written.

    Raises
    ------
    UsageError
        With what is in the way.
    """
    there = path.exists()
    if there and not path.is_file() and not path.is_dir():
        return  # a pipe or device: opening it would already be its use
    try:
        with path.open("ab"):  # what permissions promise, a read-only file system may refuse
            pass
        if not there:
            path.unlink()
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from error


def write_page(path: Path, page: str) -> None:
    """Write a report.

    Raises
    ------
    UsageError
        If it cannot be written.
    """
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from error
