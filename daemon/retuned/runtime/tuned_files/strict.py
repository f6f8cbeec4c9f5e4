"""Strict rules for every reader of tuned-config files, and the refusals with their places."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from retuned.runtime.schema import Refused

MAX_FILE_BYTES = 8 << 20
"""Largest file; the largest existing ones have 1 MiB."""
MAX_ROWS = 50_000
MAX_CELL = 2_000
"""Longest cell or value, characters; mangled kernel names are long."""
MAX_M = 2**31 - 1
"""Largest batch size; also represents all larger ones."""


def invalid(name: str, place: str, problem: str) -> Refused:
    """Return the refusal of a file: which, where, and what to do."""
    detail = f"{name}, {place}: {problem}; repair or rewrite the file, nothing was changed"
    return Refused("tuned-invalid", detail=detail[:1000])


def text_of(name: str, data: bytes) -> str:
    """Return the text of a file.

    Raises
    ------
    Refused
        ``tuned-invalid``: too large, or not plain ASCII. A server reads it in the encoding of its
        locale; only ASCII is the same in all.
    """
    if len(data) > MAX_FILE_BYTES:
        raise invalid(name, "the whole", f"it has more than {MAX_FILE_BYTES} bytes")
    try:
        text = data.decode("ascii")
    except UnicodeDecodeError as error:
        raise invalid(name, f"byte {error.start}", "is not an ASCII character") from error
    if "\0" in text:
        raise invalid(name, f"byte {text.index(chr(0))}", "is a zero")
    return text


def digest_of(data: bytes | None) -> str | None:
    """Return the digest of a file's bytes; None if the file does not exist."""
    return None if data is None else "sha256:" + hashlib.sha256(data).hexdigest()


def json_object(text: str | bytes) -> dict[str, Any]:
    """Return an object from JSON without repeated keys, and with JSON numbers only.

    Raises
    ------
    ValueError
        With the problem.
    """

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a key occurs twice")
        return found

    def number(word: str) -> float:
        raise ValueError(f"{word} is not a JSON number")

    try:
        body = json.loads(text, object_pairs_hook=once, parse_constant=number)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(body, dict):
        raise ValueError("it is not an object")
    return body
