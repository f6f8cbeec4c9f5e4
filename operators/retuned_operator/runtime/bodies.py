"""What requests say about objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retuned_operator.runtime.resources import Obj, Resource


def selection(labels: str, fields: str) -> dict[str, str]:
    """Return the selectors of a request; empty ones are left out."""
    query = {"labelSelector": labels, "fieldSelector": fields}
    return {name: value for name, value in query.items() if value}


def namespace_of(resource: Resource, body: Mapping[str, Any]) -> str:
    """Return the namespace that an object names; empty for kinds that have none."""
    return str(body.get("metadata", {}).get("namespace", "")) if resource.namespaced else ""


def typed(resource: Resource, body: Mapping[str, Any]) -> Obj:
    """Return an object that says what it is."""
    return {"apiVersion": resource.api_version, "kind": resource.kind, **body}


def owners_of(body: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the uids of the owners of an object, sorted."""
    owners = body.get("metadata", {}).get("ownerReferences") or ()
    return tuple(sorted(str(each.get("uid", "")) for each in owners))
