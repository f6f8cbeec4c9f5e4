"""What the fake API server knows of the schemas of our kinds: defaults, unknown fields, rules."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema
from tests.fakeapi import cel
from tests.fakeapi.refusals import bad, invalid
from tests.operators.structural import validator

from retuned.api.values import GROUP
from retuned_operator.schema.crds import KINDS, schema_of
from retuned_operator.schema.structural import filled

Obj = dict[str, Any]
_ROOT = ("apiVersion", "kind", "metadata")


@functools.cache
def _schemas() -> dict[str, Any]:
    """Make the schemas once: they took a tenth of the time of an operator's story."""
    return {kind.kind: schema_of(kind) for kind in KINDS}


class Schemas:
    """The schemas of all our kinds, read once."""

    def __init__(self) -> None:
        self._schemas = _schemas()
        self._validators: dict[str, jsonschema.Draft4Validator] = {}

    def admitted(self, body: Obj, *, old: Obj | None, strict: bool) -> Obj:
        """Return an object as it is to be stored.

        Raises
        ------
        Refusal
            If the object has unknown fields and `strict`, or breaks its schema or a rule.
        """
        schema = self._schemas.get(body["kind"])
        if schema is None:
            return body
        unknown: list[str] = []
        body = _pruned(body, schema, "", unknown)
        if unknown and strict:
            raise bad(
                "strict decoding error: " + ", ".join(f'unknown field "{e}"' for e in unknown)
            )
        body = filled(body, schema)
        kind, name = f"{body['kind']}.{GROUP}", body["metadata"]["name"]
        problems = [
            f"{'.'.join(map(str, error.path))}: Invalid value: {error.message}"
            for error in self._validator(body["kind"]).iter_errors(_content(body))
        ]
        if not problems:
            problems = list(_broken(schema, body, old, ""))
        if problems:
            raise invalid(kind, name, message=", ".join(problems))
        return body

    def _validator(self, kind: str) -> jsonschema.Draft4Validator:
        if kind not in self._validators:
            self._validators[kind] = validator(self._schemas[kind])
        return self._validators[kind]


def _content(body: Obj) -> Obj:
    return {**body, "metadata": {}}


def _pruned(value: Any, schema: Mapping[str, Any], path: str, unknown: list[str]) -> Any:
    if isinstance(value, dict) and not path and "metadata" in value:
        kept = {key: value[key] for key in _ROOT if key in value}
        rest = {key: each for key, each in value.items() if key not in _ROOT}
        return kept | _pruned(rest, schema, ".", unknown)
    if isinstance(value, dict) and "properties" in schema:
        known = schema["properties"]
        unknown += [f"{path.strip('.')}.{key}".strip(".") for key in value if key not in known]
        return {
            key: _pruned(each, known[key], f"{path}.{key}", unknown)
            for key, each in value.items()
            if key in known
        }
    if isinstance(value, dict):
        below = schema.get("additionalProperties", {})
        return {key: _pruned(e, below, f"{path}.{key}", unknown) for key, e in value.items()}
    if isinstance(value, list):
        return [_pruned(each, schema.get("items", {}), f"{path}[]", unknown) for each in value]
    return value


def _broken(schema: Mapping[str, Any], value: Any, old: Any, path: str) -> Iterator[str]:
    """Yield the messages of rules that do not hold."""
    for rule in schema.get("x-kubernetes-validations", ()):
        about_change = "oldSelf" in rule["rule"]
        if value is None or (about_change and old is None):
            continue
        if not cel.holds(rule["rule"], {"self": value, "oldSelf": old}):
            yield f"{path}: Invalid value: {rule['message']}"
    if isinstance(value, dict):
        before = old if isinstance(old, dict) else {}
        for key, below in schema.get("properties", {}).items():
            if key in value:
                yield from _broken(below, value[key], before.get(key), f"{path}.{key}".strip("."))
    elif isinstance(value, list):
        for each in value:
            yield from _broken(schema.get("items", {}), each, None, f"{path}[]")
