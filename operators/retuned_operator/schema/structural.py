"""From pydantic models to structural schemas, as Kubernetes wants them in a CRD.

Structural means: every value has one type, nothing is referenced, alternatives say nothing about
types. So references are written out, ``X or null`` becomes ``nullable``, exclusive bounds take the
OpenAPI 3.0 form, and what JSON Schema has and Kubernetes lacks is left out (it is checked by the
models when an object is read). Texts, lists and maps without a bound get one: the API server's
estimate of what a rule may cost is over the largest object that the schema lets through.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, TypeAdapter

from retuned.contract import Digest, Name
from retuned.stages.gate.values import DNS, Bytes, Duration, Percent

MAX_TEXT = 1024
"""Characters of a text whose model has no bound."""
MAX_ITEMS = 64
"""Entries of a list or map whose model has no bound."""
SAFE_INTEGER = 2**53 - 1
"""Largest integer of a field whose model has no bound: beyond it tools lose digits."""

Schema = dict[str, Any]


def _pattern(of: Any) -> str:  # noqa: ANN401 - any annotation
    return str(TypeAdapter(of).json_schema()["pattern"])


_QUANTITY_PATTERN = _pattern(Bytes)
_LONGEST = {
    _pattern(Digest): 71,
    _pattern(Name): 128,
    _pattern(Percent): 4,
    _pattern(Duration): 32,
    DNS: 253,
}
"""Longest text that a known pattern allows, or that is useful."""
_KEPT_NUMBER = ("minimum", "maximum", "multipleOf")
_KEPT_TEXT = ("pattern", "minLength", "maxLength", "format", "enum")


class NotStructural(TypeError):
    """A model has a type that a CRD cannot express; change the model."""


def structural(model: type[BaseModel]) -> Schema:
    """Return the structural schema of a model.

    Raises
    ------
    NotStructural
        If a CRD cannot express the model, such as a union of types, or a recursive model.

    Examples
    --------
    >>> from retuned.api.values import LocalRef
    >>> structural(LocalRef)["required"]
    ['name']
    """
    # In the mode of serialization defaults look as they are written: `30m`, not an ISO duration.
    whole = model.model_json_schema(by_alias=True, mode="serialization")
    return _Writer(whole.get("$defs", {})).node(whole, path=model.__name__, inside=())


class _Writer:
    """Writes out one schema; `defs` are its named parts."""

    def __init__(self, defs: Mapping[str, Any]) -> None:
        self._defs = defs

    def node(self, raw: Mapping[str, Any], *, path: str, inside: tuple[str, ...]) -> Schema:
        """Return one value's schema with description, default and null."""
        node, inside = self._resolved(raw, path=path, inside=inside)
        options = [o for o in node.get("anyOf", ()) if o.get("type") != "null"]
        nullable = len(options) < len(node.get("anyOf", ()))
        if "anyOf" in node and len(options) == 1:
            about = {key: value for key, value in node.items() if key != "anyOf"}
            node, inside = self._resolved({**options[0], **about}, path=path, inside=inside)
        found = self._typed(node, path=path, inside=inside)
        if nullable:
            found["nullable"] = True
        if node.get("default") is not None:
            found["default"] = _without_null(node["default"])
        described = str(node.get("description", ""))
        if described:
            found = {"description": " ".join(described.split()), **found}
        return found

    def _resolved(
        self, raw: Mapping[str, Any], *, path: str, inside: tuple[str, ...]
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Replace a reference by its definition; keys beside the reference override it."""
        node = dict(raw)
        while "$ref" in node:
            name = str(node.pop("$ref")).rsplit("/", 1)[-1]
            if name in inside:
                raise NotStructural(f"{path}: {name} contains itself")
            inside = (*inside, name)
            node = {**self._defs[name], **node}
        return node, inside

    def _typed(self, node: Mapping[str, Any], *, path: str, inside: tuple[str, ...]) -> Schema:
        options = {str(option.get("type")) for option in node.get("anyOf", ())}
        if options == {"integer", "string"} or node.get("pattern") == _QUANTITY_PATTERN:
            return _int_or_string(node)
        kind = node.get("type")
        if "const" in node:
            return {"type": _type_of(node["const"], path), "enum": [node["const"]]}
        if kind == "object":
            return self._object(node, path=path, inside=inside)
        if kind == "array":
            return self._array(node, path=path, inside=inside)
        if kind == "string":
            found = {"type": "string"} | {k: node[k] for k in _KEPT_TEXT if k in node}
            if found.keys().isdisjoint({"enum", "format"}):
                found.setdefault("maxLength", _LONGEST.get(str(node.get("pattern")), MAX_TEXT))
            return found
        if kind in ("integer", "number"):
            return _number(node, str(kind))
        if kind == "boolean":
            return {"type": "boolean"}
        raise NotStructural(f"{path}: {sorted(node)} has no single type")

    def _object(self, node: Mapping[str, Any], *, path: str, inside: tuple[str, ...]) -> Schema:
        if "properties" in node:
            found: Schema = {
                "type": "object",
                "properties": {
                    name: self.node(value, path=f"{path}.{name}", inside=inside)
                    for name, value in node["properties"].items()
                },
            }
            if node.get("required"):
                found["required"] = sorted(node["required"])
            return found
        values = node.get("additionalProperties")
        if not isinstance(values, Mapping):
            patterns = list(node.get("patternProperties", {}).values())
            if len(patterns) != 1:
                raise NotStructural(f"{path}: an object without properties and without values")
            values = patterns[0]
        return {
            "type": "object",
            "additionalProperties": self.node(values, path=f"{path}.*", inside=inside),
            "maxProperties": node.get("maxProperties", MAX_ITEMS),
        }

    def _array(self, node: Mapping[str, Any], *, path: str, inside: tuple[str, ...]) -> Schema:
        items = node.get("items")
        if "prefixItems" in node:
            items, *others = node["prefixItems"]
            if any(other != items for other in others):
                raise NotStructural(f"{path}: entries of different kinds")
        if not isinstance(items, Mapping):
            raise NotStructural(f"{path}: a list of anything")
        found: Schema = {
            "type": "array",
            "items": self.node(items, path=f"{path}[]", inside=inside),
            "maxItems": node.get("maxItems", MAX_ITEMS),
        }
        if "minItems" in node:
            found["minItems"] = node["minItems"]
        if "x-map-key" in node:
            found["x-kubernetes-list-type"] = "map"
            found["x-kubernetes-list-map-keys"] = [node["x-map-key"]]
        else:
            found["x-kubernetes-list-type"] = "atomic"
        return found


def _number(node: Mapping[str, Any], kind: str) -> Schema:
    found: Schema = {"type": kind} | {key: node[key] for key in _KEPT_NUMBER if key in node}
    for side, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if side in node:
            found |= {bound: node[side], side: True}
    if kind == "integer":
        found["format"] = "int64"
        found.setdefault("maximum", SAFE_INTEGER)
    return found


def _int_or_string(node: Mapping[str, Any]) -> Schema:
    found: Schema = {
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "x-kubernetes-int-or-string": True,
    }
    if "pattern" in node:
        found["pattern"] = node["pattern"]
    return found


def _type_of(value: object, path: str) -> str:
    for kind, name in ((bool, "boolean"), (str, "string"), (int, "integer")):
        if isinstance(value, kind):
            return name
    raise NotStructural(f"{path}: a constant that is not a string, integer or boolean")


def _without_null(value: Any) -> Any:  # noqa: ANN401 - any JSON
    """Return a default in full, as rules see it: the server checks it before it fills it up."""
    if isinstance(value, dict):
        return {name: _without_null(each) for name, each in value.items() if each is not None}
    return [_without_null(each) for each in value] if isinstance(value, list) else value


def filled(value: Any, schema: Mapping[str, Any]) -> Any:  # noqa: ANN401 - any JSON
    """Return a value as the API server stores it: with the defaults of its schema."""
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        out = dict(value)
        for name, below in properties.items():
            if out.get(name) is None and "default" in below:
                out[name] = below["default"]
            elif name in out and out[name] is None and not below.get("nullable"):
                del out[name]
        values = schema.get("additionalProperties", {})
        return {name: filled(each, properties.get(name, values)) for name, each in out.items()}
    if isinstance(value, list):
        return [filled(each, schema.get("items", {})) for each in value]
    return value
