"""What is wrong with a YAML file that can be read: the place, its line, and what to write.

YAML as data and nothing else, with the line of every value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from retuned.errors import Problem, UnreadableInput
from retuned.files import NotPlain, read_plain

MAX_BYTES = 256 * 1024
"""Largest file that is read."""

_MAX_DEPTH = 32
_MAX_NODES = 20_000
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]{0,18})")
_FLOAT = re.compile(r"[-+]?([0-9]{1,30}(\.[0-9]{0,30})?|\.[0-9]{1,30})([eE][-+]?[0-9]{1,3})?")
_WORDS = {"": None, "~": None, "null": None, "Null": None, "NULL": None}
_BOOLS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_TRUTHS = re.compile("[yYnN]|yes|Yes|YES|no|No|NO|on|On|ON|off|Off|OFF")

Place = tuple[str | int, ...]


class NotPlainYaml(UnreadableInput):
    """A file that is not read, and where.

    Parameters
    ----------
    line
        From 1; None where the whole file is meant.
    """

    def __init__(self, code: str, *, path: Path, line: int | None, message: str) -> None:
        where = f"{path}:{line}" if line else str(path)
        super().__init__(code, where=where, message=message)
        self.line = line


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """A file's content."""

    data: Any
    """Dicts, lists, text, numbers, booleans and None."""
    lines: Mapping[Place, int]
    """Line of each value, from 1, by its place."""
    truths: tuple[tuple[Place, str], ...] = ()
    """Bare words, keys too, that are text here and truth values to YAML 1.1, such as ``on``."""


def read_text(path: Path, *, max_bytes: int = MAX_BYTES) -> str:
    """Read a small UTF-8 file.

    Raises
    ------
    NotPlainYaml
        If it is absent, no file, larger than `max_bytes` or not UTF-8.
    """
    try:
        data = read_plain(path, max_bytes=max_bytes)
    except NotPlain as error:
        text = f"expected a file ({error.strerror})"
        raise NotPlainYaml("not-a-file", path=path, line=None, message=text) from error
    except (OSError, ValueError) as error:
        text = f"cannot be read ({error.strerror if isinstance(error, OSError) else error})"
        raise NotPlainYaml("cannot-open", path=path, line=None, message=text) from error
    if data is None:
        text = f"is larger than {max_bytes // 1024} KiB, which no file of this kind needs"
        raise NotPlainYaml("too-large", path=path, line=None, message=text)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        text = f"byte {error.start} is not UTF-8; save the file as UTF-8"
        raise NotPlainYaml("not-utf8", path=path, line=line, message=text) from error


def parse(text: str, *, path: Path) -> Tree:
    """Read one YAML document.

    Parameters
    ----------
    path
        For messages.

    Raises
    ------
    NotPlainYaml
        With the line and what to write instead.
    """
    builder = _Builder(path)
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            builder.take(event)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = _advised(f"{error.context or ''} {error.problem or ''}".strip())
        line = mark.line + 1 if mark else None
        raise NotPlainYaml("yaml-syntax", path=path, line=line, message=what) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        what = f"character {error.character!r} is not allowed in YAML"
        raise NotPlainYaml("yaml-syntax", path=path, line=line, message=what) from error
    return Tree(data=builder.root, lines=builder.lines, truths=tuple(builder.truths))


def _advised(what: str) -> str:
    """Return what a parser says, with what to look at, which it does not say."""
    if "'\\t'" in what:
        return f"{what}; indent with spaces, never with tabs"
    if "block" in what or "mapping values" in what:
        return f"{what}; do keys of one level begin in the same column, is text with ': ' quoted?"
    return what


@dataclass(slots=True)
class _Open:
    """A mapping or list that is being read."""

    value: dict[str, Any] | list[Any]
    place: Place
    key: str | None = None


@dataclass(slots=True)
class _Builder:
    """Builds data from parser events, without recursion."""

    path: Path
    root: Any = None
    lines: dict[Place, int] = field(default_factory=dict)
    truths: list[tuple[Place, str]] = field(default_factory=list)
    _stack: list[_Open] = field(default_factory=list)
    _documents: int = 0
    _nodes: int = 0

    def take(self, event: yaml.Event) -> None:
        """Take one event of the parser."""
        if isinstance(event, yaml.DocumentStartEvent):
            self._documents += 1
            if self._documents > 1:
                self._refuse("yaml-documents", event, "a second document; write one per file")
        elif isinstance(event, yaml.AliasEvent):
            self._refuse("yaml-alias", event, "aliases are not allowed; write the value out")
        elif isinstance(event, yaml.NodeEvent):
            self._node(event)
        elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            self._stack.pop()

    def _node(self, event: yaml.NodeEvent) -> None:
        self._nodes += 1
        if self._nodes > _MAX_NODES:
            self._refuse("yaml-too-large", event, f"more than {_MAX_NODES} values")
        if getattr(event, "tag", None) is not None:
            self._refuse("yaml-tag", event, "tags are not allowed; write the plain value")
        top = self._stack[-1] if self._stack else None
        if top is not None and isinstance(top.value, dict) and top.key is None:
            self._key(event, top, top.value)
            return
        if isinstance(event, yaml.ScalarEvent):
            self._truth(event, self._put(event, self._scalar(event), top))
            return
        value: dict[str, Any] | list[Any] = {} if isinstance(event, yaml.MappingStartEvent) else []
        place = self._put(event, value, top)
        self._stack.append(_Open(value=value, place=place))
        if len(self._stack) > _MAX_DEPTH:
            self._refuse("yaml-too-deep", event, f"nested deeper than {_MAX_DEPTH}")

    def _key(self, event: yaml.NodeEvent, top: _Open, mapping: dict[str, Any]) -> None:
        if not isinstance(event, yaml.ScalarEvent):
            self._refuse("yaml-key", event, "a key is text")
        if event.value == "<<":
            self._refuse("yaml-merge", event, "merge keys are not allowed; write the values out")
        if event.value in mapping:
            first = self.lines[(*top.place, event.value)]
            text = f"key {event.value!r:.60} is written twice, first on line {first}"
            self._refuse("yaml-duplicate-key", event, text)
        top.key = event.value
        self.lines[(*top.place, event.value)] = _line(event)
        self._truth(event, (*top.place, event.value))

    def _put(self, event: yaml.NodeEvent, value: object, top: _Open | None) -> Place:
        if top is None:
            self.root = value
            self.lines[()] = _line(event)
            return ()
        if isinstance(top.value, list):
            place = (*top.place, len(top.value))
            top.value.append(value)
            self.lines[place] = _line(event)
            return place
        assert top.key is not None, "a value follows its key"
        place = (*top.place, top.key)
        top.value[top.key] = value
        top.key = None
        return place

    def _truth(self, event: yaml.ScalarEvent, place: Place) -> None:
        if event.style is None and _TRUTHS.fullmatch(event.value):
            self.truths.append((place, event.value))

    def _scalar(self, event: yaml.ScalarEvent) -> Any:  # noqa: ANN401 - any scalar
        text = event.value
        if event.style is not None:
            return text
        if text in _WORDS:
            return None
        if text in _BOOLS:
            return _BOOLS[text]
        if _INTEGER.fullmatch(text):
            return int(text)
        if re.fullmatch(r"[-+]?0[0-9]+", text):
            self._refuse(
                "yaml-octal", event, "a leading zero means octal to some; quote or drop it"
            )
        if _FLOAT.fullmatch(text):
            return float(text)
        return text

    def _refuse(self, code: str, event: yaml.Event, message: str) -> NoReturn:
        raise NotPlainYaml(code, path=self.path, line=_line(event), message=message)


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 1


_MOST_NAMED = 24
"""Most known keys that a message lists."""
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
