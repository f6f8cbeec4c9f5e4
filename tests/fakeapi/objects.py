"""What the fake API server does with objects: the rules of writes, without HTTP."""

from __future__ import annotations

import copy
import random
import string
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tests.fakeapi import patches
from tests.fakeapi.copying import copied
from tests.fakeapi.refusals import Refusal, bad, changed, exists, invalid, not_found
from tests.fakeapi.schemas import Schemas
from tests.fakeapi.storage import Key, Storage

from retuned.api.values import GROUP
from retuned_operator.kube.resources import DEFINITIONS, JOBS, NAMESPACES, PODS, Resource

Obj = dict[str, Any]
_SERVERS = ("uid", "creationTimestamp", "generation", "resourceVersion", "deletionTimestamp")
"""Metadata that only the server writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What a request is about."""

    resource: Resource
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def key(self) -> Key:
        return (self.resource, self.namespace, self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """How somebody writes."""

    manager: str = "unknown"
    force: bool = False
    strict: bool = False


class Objects:
    """Creates, changes and removes objects as an API server does."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._schemas = Schemas()
        self._owned: dict[str, patches.Ownership] = {}

    def get(self, place: Place) -> Obj:
        found = self.storage.get(place.key)
        if found is None:
            raise not_found(place.resource.plural, place.name)
        return found

    def create(self, place: Place, body: Obj, writer: Writer) -> Obj:
        metadata = body.setdefault("metadata", {})
        if not metadata.get("name") and metadata.get("generateName"):
            letters = random.choices(string.ascii_lowercase, k=5)
            metadata["name"] = metadata["generateName"] + "".join(letters)
        name = metadata.get("name")
        if not name:
            raise invalid(place.resource.kind, "", message="metadata.name: Required value")
        if metadata.get("resourceVersion"):
            raise bad("resourceVersion should not be set on objects to be created")
        place = self._checked(place, body, name)
        if self.storage.get(place.key) is not None:
            raise exists(place.resource.plural, name)
        if _has_status(place.resource):
            body.pop("status", None)
        body = self._schemas.admitted(body, old=None, strict=writer.strict)
        body["metadata"] |= {"uid": str(uuid.uuid4()), "creationTimestamp": _now()}
        if _has_status(place.resource):
            body["metadata"]["generation"] = 1
        owned = self._owned[body["metadata"]["uid"]] = patches.Ownership()
        owned.updated(writer.manager, old={}, new=body)
        stored = self.storage.put(place.key, self._with_managers(body))
        self._collect_orphan(place.key, stored)
        return stored

    def replace(self, place: Place, body: Obj, writer: Writer) -> Obj:
        old = self.get(place)
        if not body.get("metadata", {}).get("resourceVersion") and place.resource.group == GROUP:
            text = "metadata.resourceVersion: Invalid value: 0: must be specified for an update"
            raise invalid(place.resource.kind, place.name, message=text)
        return self._update(place, old, body, writer)

    def patch(self, place: Place, change: Any, kind: str, writer: Writer) -> Obj:
        """Change an object; `kind` is the content type."""
        if kind == "application/apply-patch+yaml":
            return self._apply(place, change, writer)
        old = self.get(place)
        if kind == "application/json-patch+json":
            body = patches.json_patched(old, change)
        elif kind == "application/merge-patch+json" or (
            kind == "application/strategic-merge-patch+json" and place.resource.group != GROUP
        ):
            body = patches.merged(old, change)
        else:
            raise Refusal(415, "UnsupportedMediaType", message=f"{kind} is not supported here")
        return self._update(place, old, body, writer)

    def delete(self, place: Place, options: Obj) -> Obj:
        old = self.get(place)
        metadata = old["metadata"]
        wanted = options.get("preconditions") or {}
        for name in ("uid", "resourceVersion"):
            if wanted.get(name, metadata[name]) != metadata[name]:
                raise changed(place.resource.plural, place.name)
        if metadata.get("finalizers"):
            if "deletionTimestamp" not in metadata:
                metadata["deletionTimestamp"] = _now()
                self.storage.put(place.key, old)
            return old
        self._remove(place.key, orphan=options.get("propagationPolicy") == "Orphan")
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}

    # --- within -----------------------------------------------------------------------------------

    def _apply(self, place: Place, given: Obj, writer: Writer) -> Obj:
        old = self.storage.get(place.key)
        if old is None:
            if place.subresource:
                raise not_found(place.resource.plural, place.name)
            made = self.create(place, copied(given), writer)
            owned = self._owned[made["metadata"]["uid"]] = patches.Ownership()
            owned.apply(writer.manager, old=made, given=given, force=True)
            return made
        owned = copy.deepcopy(self._owned[old["metadata"]["uid"]])
        body = owned.apply(writer.manager, old=old, given=given, force=writer.force)
        version = given["metadata"].get("resourceVersion")
        if version:
            body["metadata"]["resourceVersion"] = version
        return self._update(place, old, body, writer, owned=owned)

    def _update(
        self,
        place: Place,
        old: Obj,
        body: Obj,
        writer: Writer,
        *,
        owned: patches.Ownership | None = None,
    ) -> Obj:
        metadata = body.get("metadata") or {}
        version = metadata.get("resourceVersion")
        if version and version != old["metadata"]["resourceVersion"]:
            raise changed(place.resource.plural, place.name)
        if metadata.get("uid") not in (None, old["metadata"]["uid"]):
            raise changed(place.resource.plural, place.name)
        place = self._checked(place, body, place.name)
        if place.subresource == "status":
            body = {**old, **({"status": body["status"]} if "status" in body else {})}
        elif _has_status(place.resource):
            kept = {"status": old["status"]} if "status" in old else {}
            body = {**{key: each for key, each in body.items() if key != "status"}, **kept}
        body["metadata"] = {
            **body["metadata"],
            **{key: old["metadata"][key] for key in _SERVERS if key in old["metadata"]},
        }
        body = self._schemas.admitted(body, old=old, strict=writer.strict)
        if _content(body) == _content(old):
            return old
        if "generation" in old["metadata"] and _spec(body) != _spec(old):
            body["metadata"]["generation"] += 1
        uid = old["metadata"]["uid"]
        if owned is None:
            self._owned[uid].updated(writer.manager, old=old, new=body)
        else:
            self._owned[uid] = owned
        stored = self.storage.put(place.key, self._with_managers(body))
        if "deletionTimestamp" in stored["metadata"] and not stored["metadata"].get("finalizers"):
            self._remove(place.key, orphan=False)
        return stored

    def _checked(self, place: Place, body: Obj, name: str) -> Place:
        resource = place.resource
        if (body.get("apiVersion"), body.get("kind")) != (resource.api_version, resource.kind):
            raise bad(f"the object is no {resource.kind} of {resource.api_version}")
        if resource.namespaced:
            if body["metadata"].setdefault("namespace", place.namespace) != place.namespace:
                raise bad("the namespace of the object does not match the request")
            if self.storage.get((NAMESPACES, "", place.namespace)) is None:
                raise not_found("namespaces", place.namespace)
        if body["metadata"].get("name") != name:
            raise bad("the name of the object does not match the request")
        return Place(
            resource=resource, namespace=place.namespace, name=name, subresource=place.subresource
        )

    def _with_managers(self, body: Obj) -> Obj:
        owned = self._owned[body["metadata"]["uid"]]
        body["metadata"]["managedFields"] = owned.managed_fields(body["apiVersion"])
        return body

    # --- what is owned goes with its owner --------------------------------------------------------

    def _remove(self, key: Key, *, orphan: bool) -> None:
        gone = self.storage.drop(key)
        uid = gone["metadata"]["uid"]
        del self._owned[uid]
        for child, body in self.storage.all():
            owners = body["metadata"].get("ownerReferences") or []
            if uid not in {each["uid"] for each in owners} or self.storage.get(child) is None:
                continue
            if orphan:
                left = [each for each in owners if each["uid"] != uid]
                metadata = {**body["metadata"], "ownerReferences": left}
                self.storage.put(child, {**copied(body), "metadata": metadata})
            else:
                self._collect_orphan(child, body)

    def _collect_orphan(self, key: Key, body: Obj) -> None:
        """Remove an object whose owners are all gone."""
        owners = body["metadata"].get("ownerReferences") or []
        if owners and not any(self.storage.by_uid(each["uid"]) for each in owners):
            resource, namespace, name = key
            self.delete(Place(resource=resource, namespace=namespace, name=name), {})


def _has_status(resource: Resource) -> bool:
    return resource.group == GROUP or resource in (JOBS, PODS, DEFINITIONS)


def _spec(body: Obj) -> Obj:
    return {key: each for key, each in body.items() if key not in ("metadata", "status")}


def _content(body: Obj) -> Obj:
    kept = {key: e for key, e in body["metadata"].items() if key not in ("managedFields",)}
    return {**body, "metadata": kept}


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
