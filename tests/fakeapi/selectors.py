"""Label and field selectors, as far as clients of the tests use them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tests.fakeapi.refusals import bad

Matches = Callable[[dict[str, Any]], bool]
_SET = re.compile(r"^(?P<key>\S+)\s+(?P<how>in|notin)\s+\((?P<values>[^)]*)\)$")
_FIELDS = ("metadata.name", "metadata.namespace", "status.phase", "spec.nodeName")


def selector(labels: str, fields: str) -> Matches:
    """Return whether an object is selected.

    Raises
    ------
    Refusal
        If a selector cannot be read.
    """
    tests = [_label(each) for each in _split(labels)] + [_field(each) for each in _split(fields)]
    return lambda body: all(test(body) for test in tests)


def _split(text: str) -> list[str]:
    return [each.strip() for each in re.split(r",(?![^(]*\))", text) if each.strip()]


def _label(text: str) -> Matches:
    if found := _SET.match(text):
        values = {each.strip() for each in found["values"].split(",")}
        wanted = found["how"] == "in"
        return lambda body: (_labels(body).get(found["key"]) in values) is wanted
    if not re.fullmatch(r"!?[A-Za-z0-9./_-]+(\s*(==|=|!=)\s*[A-Za-z0-9._-]*)?", text):
        raise bad(f"unable to parse requirement: {text}")
    key, how, value = [*re.split(r"\s*(==|=|!=)\s*", text, maxsplit=1), "", ""][:3]
    if not how:
        return lambda body: (key.lstrip("!") in _labels(body)) is not key.startswith("!")
    return lambda body: (_labels(body).get(key) == value) is (how != "!=")


def _field(text: str) -> Matches:
    key, how, value = [*re.split(r"(==|=|!=)", text, maxsplit=1), "", ""][:3]
    if key not in _FIELDS or not how:
        raise bad(f"field label not supported: {key}")
    return lambda body: (_at(body, key) == value) is (how != "!=")


def _labels(body: dict[str, Any]) -> dict[str, str]:
    return body["metadata"].get("labels") or {}


def _at(body: dict[str, Any], path: str) -> str:
    node: Any = body
    for part in path.split("."):
        node = node.get(part, {}) if isinstance(node, dict) else {}
    return node if isinstance(node, str) else ""
