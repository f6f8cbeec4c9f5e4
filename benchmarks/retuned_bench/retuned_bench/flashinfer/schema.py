"""Reading JSON that strangers wrote, and telling what it is."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError

from retuned.errors import Refused, UnreadableInput
from retuned.strict_yaml import read_text

MAX_BYTES = 32 * 2**20
"""Largest file."""
MAX_DOCUMENTS = 100_000
"""Most lines of a JSONL file."""
_MAX_DEPTH = 24
_M = TypeVar("_M", bound=BaseModel)
NAMESPACE = "retuned"
"""Marks what their schema has no field for."""


class Kind(StrEnum):
    """What a document is."""

    DEFINITION = "definition"
    SOLUTION = "solution"
    TRACE = "trace"


class NotExportable(Refused):
    """A record that their schema cannot say, and that nobody could use if it did."""

    code = "not-exportable"


def read_documents(path: Path) -> tuple[tuple[str, Mapping[str, Any]], ...]:
    """Read a ``.json`` file with one document, or a ``.jsonl`` file with one a line.

    Returns pairs of (place for messages, document).

    Raises
    ------
    UnreadableInput
        If it is absent, too large, no JSON, too deep, says a key twice or holds no object.
    """
    text = read_text(path, max_bytes=MAX_BYTES)
    if path.suffix != ".jsonl":
        return ((str(path), parse_object(text, where=str(path))),)
    lines = [(f"{path}:{n}", line) for n, line in enumerate(text.splitlines(), 1) if line.strip()]
    if len(lines) > MAX_DOCUMENTS:
        raise UnreadableInput(
            "too-large", where=str(path), message=f"has more than {MAX_DOCUMENTS} lines; split it"
        )
    return tuple((where, parse_object(line, where=where)) for where, line in lines)


def parse_object(text: str, *, where: str) -> dict[str, Any]:
    """Read one JSON object.

    Raises
    ------
    UnreadableInput
        As `read_documents`.
    """

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) != len(pairs):
            seen: set[str] = set()
            twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            raise _unreadable("twice", where, f"says {twice[:60]!r} twice")
        return made

    def no_constant(word: str) -> NoReturn:
        raise _unreadable("no-json", where, f"holds {word}, which JSON has not")

    try:
        found = json.loads(text, object_pairs_hook=once, parse_constant=no_constant)
    except (ValueError, RecursionError) as error:
        raise _unreadable("no-json", where, f"is no JSON: {str(error)[:200]}") from error
    if not isinstance(found, dict):
        raise _unreadable("no-object", where, "holds no JSON object")
    _check_depth(found, where)
    return found


def kind_of(body: Mapping[str, Any], *, where: str) -> Kind:
    """Tell what a document is by the fields that only one kind has.

    Raises
    ------
    UnreadableInput
        If it is none of them.
    """
    for key, kind in (
        ("reference", Kind.DEFINITION),
        ("spec", Kind.SOLUTION),
        ("workload", Kind.TRACE),
    ):
        if key in body:
            return kind
    raise _unreadable(
        "unknown-document",
        where,
        "is no definition (`reference`), solution (`spec`) or trace (`workload`)",
    )


def validated(model: type[_M], body: Mapping[str, Any], *, where: str, code: str) -> _M:
    """Check a document against a model.

    Raises
    ------
    UnreadableInput
        With the place of the first problem.
    """
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise unreadable(error, where=where, code=code) from None


def unreadable(error: ValidationError, *, where: str, code: str) -> UnreadableInput:
    """Turn pydantic's first complaint into an error."""
    first = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"]) or "the document"
    return _unreadable(code, where, f"{place}: {first['msg']}")


def _check_depth(found: object, where: str) -> None:
    level: Sequence[object] = [found]
    for _ in range(_MAX_DEPTH):
        level = [
            part
            for each in level
            if isinstance(each, (dict, list))
            for part in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return
    raise _unreadable("too-deep", where, f"is nested deeper than {_MAX_DEPTH}")


def _unreadable(code: str, where: str, message: str) -> UnreadableInput:
    return UnreadableInput(code, where=where, message=message)
