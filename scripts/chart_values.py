"""Read the comments of a chart's values, and make the page that lists them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import yaml

_KEY = re.compile(r"^(?P<indent> *)(?P<key>[A-Za-z][\w.-]*):(?:\s|$)")
_COMMENT = re.compile(r"^ *#(?: (?P<text>.*))?$")

HEAD = """# Values of the chart

<!-- Made by scripts/chart_sync.py from charts/retuned/values.yaml; do not edit. -->

`charts/retuned/values.schema.json` refuses unknown keys, so that a typing error is an error.
Complete examples are in `charts/retuned/ci/`.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """One key of the values."""

    path: str
    """Dotted path."""
    text: str
    """What its comment says; empty if it has none."""
    default: Any
    """Default, as YAML reads it."""
    leaf: bool = True
    """Whether it is a value and not a group of them."""


def read(text: str) -> tuple[Value, ...]:
    """Return every key with the comment right above it, in the order of the file."""
    defaults = yaml.safe_load(text)
    stack: list[tuple[int, str]] = []
    comment: list[str] = []
    found: list[Value] = []
    for line in text.splitlines():
        said, key = _COMMENT.match(line), _KEY.match(line)
        if said:
            comment.append(said["text"] or "")
        elif key:
            indent = len(key["indent"])
            stack = [each for each in stack if each[0] < indent]
            stack.append((indent, key["key"]))
            names = [name for _, name in stack]
            said_of = " ".join(comment).strip()
            found.append(Value(path=".".join(names), text=said_of, default=_at(defaults, names)))
            comment = []
        else:
            comment = []
    groups = {value.path.rpartition(".")[0] for value in found}
    return tuple(replace(value, leaf=value.path not in groups) for value in found)


def page(text: str) -> str:
    """Return the page about these values."""
    values = read(text)
    plain = [value for value in values if value.leaf and "." not in value.path]
    parts = [HEAD, "\n", *_table(plain)]
    for group in (value for value in values if not value.leaf and "." not in value.path):
        inside = [v for v in values if v.leaf and v.path.startswith(f"{group.path}.")]
        parts += [f"\n## {group.path}\n\n{group.text}\n\n", *_table(inside)]
    return "".join(parts)


def _table(values: Sequence[Value]) -> list[str]:
    rows = ["| value | default | what it does |\n|---|---|---|\n"]
    for value in values:
        shown = json.dumps(value.default, ensure_ascii=False)
        rows.append(f"| `{value.path}` | `{_cell(shown)}` | {_cell(value.text)} |\n")
    return rows


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _at(values: object, names: Sequence[str]) -> object:
    for name in names:
        assert isinstance(values, Mapping)
        values = values[name]
    return values
