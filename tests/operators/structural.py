"""The API server's rules for schemas of custom resources, written from its documentation."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema

_KNOWN = {
    "additionalProperties",
    "allOf",
    "anyOf",
    "default",
    "description",
    "enum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "items",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "not",
    "nullable",
    "oneOf",
    "pattern",
    "properties",
    "required",
    "type",
    "x-kubernetes-int-or-string",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-list-type",
    "x-kubernetes-map-type",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-validations",
}
_TYPES = {"array", "boolean", "integer", "number", "object", "string"}
_JUNCTORS = ("allOf", "anyOf", "oneOf", "not")
_NOT_IN_JUNCTORS = {"additionalProperties", "default", "description", "nullable", "type"}
_INT_OR_STRING = [{"type": "integer"}, {"type": "string"}]


def problems(schema: Mapping[str, Any]) -> list[str]:
    """Return what an API server would refuse; empty means structural."""
    found = list(_node(schema, "schema"))
    if schema.get("type") != "object":
        found.append("schema: the root is no object")
    metadata = schema.get("properties", {}).get("metadata", {})
    if set(metadata.get("properties", {})) - {"name", "generateName"}:
        found.append("schema.metadata: only name and generateName may be restricted")
    return found


def unbounded(schema: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield texts, lists and maps whose size has no bound: rules over them cost without bound."""
    kind = schema.get("type")
    if kind == "string" and not {"maxLength", "enum", "format"} & set(schema):
        yield f"{path}: a text without maxLength"
    if kind == "array" and "maxItems" not in schema:
        yield f"{path}: a list without maxItems"
    if "additionalProperties" in schema and "maxProperties" not in schema:
        yield f"{path}: a map without maxProperties"
    for name, below in _below(schema):
        yield from unbounded(below, f"{path}.{name}")


def invalid(value: object, schema: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with an object, as the server's validation says it."""
    errors = validator(schema).iter_errors(value)
    return [f"{list(error.path)}: {error.message}" for error in errors]


def validator(schema: Mapping[str, Any]) -> jsonschema.Draft4Validator:
    """Return what checks objects against a schema, unknown fields included."""
    return jsonschema.Draft4Validator(_as_draft4(schema))


def _node(schema: Mapping[str, Any], path: str) -> Iterator[str]:
    unknown = set(schema) - _KNOWN
    if unknown:
        yield f"{path}: {sorted(unknown)} is not known in apiextensions/v1"
    free = schema.get("x-kubernetes-int-or-string") or schema.get(
        "x-kubernetes-preserve-unknown-fields"
    )
    if not free and schema.get("type") not in _TYPES:
        yield f"{path}: has no type"
    if schema.get("x-kubernetes-int-or-string") and (
        "type" in schema or schema.get("anyOf", _INT_OR_STRING) != _INT_OR_STRING
    ):
        yield f"{path}: an int-or-string has no type, and anyOf of just these two"
    if "properties" in schema and "additionalProperties" in schema:
        yield f"{path}: properties and additionalProperties exclude each other"
    if schema.get("additionalProperties") is False:
        yield f"{path}: additionalProperties may not be false"
    for side in ("exclusiveMinimum", "exclusiveMaximum"):
        if side in schema and not isinstance(schema[side], bool):
            yield f"{path}: {side} is a truth value in OpenAPI 3.0"
    yield from _lists(schema, path)
    yield from _junctors(schema, path)
    if "default" in schema:
        yield from (f"{path}: default {text}" for text in invalid(schema["default"], schema))
    if "pattern" in schema:
        re.compile(schema["pattern"])
        if re.search(r"\(\?[=!<]|\\[1-9]", schema["pattern"]):
            yield f"{path}: RE2 has no look-around and no back references"
    for name in schema.get("required", ()):
        if name not in schema.get("properties", {}):
            yield f"{path}: requires {name}, which it does not have"
    for name, below in _below(schema):
        yield from _node(below, f"{path}.{name}")


def _lists(schema: Mapping[str, Any], path: str) -> Iterator[str]:
    if schema.get("type") == "array" and "items" not in schema:
        yield f"{path}: a list without items"
    if schema.get("uniqueItems"):
        yield f"{path}: uniqueItems may not be true"
    if schema.get("x-kubernetes-list-type") != "map":
        return
    items = schema["items"]
    for key in schema.get("x-kubernetes-list-map-keys", [""]):
        below = items.get("properties", {}).get(key)
        if below is None or below.get("type") not in ("string", "integer", "boolean"):
            yield f"{path}: {key!r} cannot be the key of a list"
        elif key not in items.get("required", ()) and "default" not in below:
            yield f"{path}: the key {key!r} may be absent"


def _junctors(schema: Mapping[str, Any], path: str) -> Iterator[str]:
    for junctor in _JUNCTORS:
        inside = schema.get(junctor, [])
        for each in inside if isinstance(inside, list) else [inside]:
            if schema.get("x-kubernetes-int-or-string") and schema[junctor] == _INT_OR_STRING:
                continue
            for name in _NOT_IN_JUNCTORS & set(each):
                yield f"{path}: {name} within {junctor}"
            for name in each.get("properties", {}):
                if name not in schema.get("properties", {}):
                    yield f"{path}: {name} is said within {junctor} only"


def _below(schema: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield from schema.get("properties", {}).items()
    if isinstance(schema.get("items"), Mapping):
        yield "[]", schema["items"]
    if isinstance(schema.get("additionalProperties"), Mapping):
        yield "*", schema["additionalProperties"]


def _as_draft4(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema that also refuses unknown fields, as strict clients do."""
    out = {
        key: value
        for key, value in schema.items()
        if not key.startswith("x-") and key not in ("nullable", "default", "description")
    }
    if "properties" in out:
        out["properties"] = {k: _as_draft4(v) for k, v in out["properties"].items()}
        out["additionalProperties"] = False
    elif isinstance(out.get("additionalProperties"), Mapping):
        out["additionalProperties"] = _as_draft4(out["additionalProperties"])
    if "items" in out:
        out["items"] = _as_draft4(out["items"])
    if schema.get("nullable"):
        out = {"anyOf": [out, {"type": "null"}]}
    return out
