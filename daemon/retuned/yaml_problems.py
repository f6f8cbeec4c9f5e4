"""What is wrong with a YAML file that can be read: the place, its line, and what to write."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from retuned.errors import Problem
from retuned.strict_yaml import Place, Tree

_MOST_NAMED = 24
"""Names of keys that are told at once; with a hundred nobody finds what is wrong."""
_TRUE = re.compile("[yY]|[oO][nN]|[yY][eE][sS]")


def problems_of(
    error: ValidationError, *, schema: Mapping[str, Any], tree: Tree
) -> tuple[Problem, ...]:
    """Turn pydantic's errors into problems with lines, in the order of the file.

    Parameters
    ----------
    schema
        JSON schema of the model, for names that were perhaps meant.
    """
    errors = error.errors(include_url=False)
    within = {item["loc"][:-1] for item in errors}
    found = []
    for item in errors:
        place: Place = item["loc"]
        if item["type"] == "too_short" and item["input"] and place in within:
            continue  # what is wrong are its entries, which were not counted
        line = _nearest(place, tree) if item["type"] == "missing" else tree.lines.get(place)
        message = _message(item, schema)
        found.append(Problem(path=".".join(map(str, place)), line=line, message=message))
    return tuple(sorted(found, key=lambda p: (p.line is None, p.line or 0, p.path)))


def truths_of(tree: Tree) -> tuple[Problem, ...]:
    """Return what a reader of YAML 1.1, such as Kubernetes', takes for a truth value.

    Examples
    --------
    >>> from pathlib import Path
    >>> from retuned.strict_yaml import parse
    >>> [(each.line, each.message) for each in truths_of(parse("a: {on: x}", path=Path("f")))]
    [(1, "Kubernetes reads a bare on as true; write 'on' in quotes")]
    """
    return tuple(
        Problem(
            path=".".join(map(str, place)),
            line=tree.lines.get(place),
            message=f"Kubernetes reads a bare {word} as "
            f"{'true' if _TRUE.fullmatch(word) else 'false'}; write {word!r} in quotes",
        )
        for place, word in tree.truths
    )


def _message(item: ErrorDetails, schema: Mapping[str, Any]) -> str:
    place, kind = item["loc"], item["type"]
    if kind == "extra_forbidden":
        return _unknown(str(place[-1]), _known(schema, place[:-1]))
    if kind == "missing":
        return "is required"
    if kind in {"value_error", "assertion_error"}:
        return item["msg"].removeprefix("Value error, ")
    if not place and item["input"] is None:
        return f"nothing is in this file; it needs {', '.join(schema.get('required', ()))}"
    return f"{item['msg']}, got {item['input']!r:.60}"


def _nearest(place: Place, tree: Tree) -> int | None:
    """Return the line of what a missing key is missing in."""
    lines = (tree.lines.get(place[:length]) for length in range(len(place), 0, -1))
    return next((line for line in lines if line is not None), None)


def suggest(name: str, known: list[str]) -> str:
    """Return ``; did you mean X?`` or nothing."""
    close = get_close_matches(name, known, n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""


def _unknown(name: str, known: list[str]) -> str:
    hint = suggest(name, known)
    if not hint and known:
        few = len(known) <= _MOST_NAMED
        hint = f"; known here: {', '.join(known)}" if few else f"; none of {len(known)} is like it"
    return f"unknown key {name!r:.60}{hint}"


def _known(schema: Mapping[str, Any], place: Place) -> list[str]:
    nodes = list(_resolve(schema, schema))
    for part in place:
        inner: list[Mapping[str, Any]] = []
        for node in nodes:
            if isinstance(part, int):
                child = node.get("items")
            else:
                child = node.get("properties", {}).get(part, node.get("additionalProperties"))
            if isinstance(child, dict):
                inner += _resolve(child, schema)
        nodes = inner
    return sorted({name for node in nodes for name in node.get("properties", {})})


def _resolve(node: Mapping[str, Any], schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if "$ref" in node:
        yield from _resolve(schema["$defs"][node["$ref"].rsplit("/", 1)[-1]], schema)
    else:
        yield node
        for option in node.get("anyOf", ()):
            yield from _resolve(option, schema)
