"""The store of the fake API server: one counter of versions, one log, watches that read it."""

from __future__ import annotations

import marshal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.fakeapi.copying import copied
from tests.fakeapi.refusals import expired
from tests.fakeapi.selectors import Matches

from retuned_operator.kube.resources import Resource

Obj = dict[str, Any]
Key = tuple[Resource, str, str]
"""Kind, namespace (or empty), name."""
_FIRST = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One write."""

    version: int
    key: Key
    old: Obj | None
    new: Obj | None


class Storage:
    """Objects by key; every write has its version. Whoever reads or writes holds `changed`."""

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.version = _FIRST
        self._floor = _FIRST
        self._objects: dict[Key, Obj] = {}
        self._packed: dict[Key, bytes] = {}
        self._uids: dict[str, Key] = {}
        self._log: list[Entry] = []
        self._rests: dict[str, tuple[int, list[Obj]]] = {}

    def get(self, key: Key) -> Obj | None:
        return self._copy(key) if key in self._objects else None

    def by_uid(self, uid: str) -> Key | None:
        return self._uids.get(uid)

    def all(self) -> list[tuple[Key, Obj]]:
        return list(self._objects.items())

    def select(self, resource: Resource, namespace: str, matches: Matches) -> list[Obj]:
        """Return copies of what is selected, in the order of names."""
        found = [
            key
            for key, body in self._objects.items()
            if key[0] == resource and namespace in ("", key[1]) and matches(body)
        ]
        return [self._copy(key) for key in sorted(found, key=lambda each: each[1:])]

    def put(self, key: Key, body: Obj) -> Obj:
        """Write an object with the next version and return it."""
        self.version += 1
        body["metadata"]["resourceVersion"] = str(self.version)
        old = self._objects.get(key)
        self._objects[key] = copied(body)
        self._packed[key] = marshal.dumps(self._objects[key])
        self._uids[body["metadata"]["uid"]] = key
        self._note(key, old, self._objects[key])
        return body

    def drop(self, key: Key) -> Obj:
        """Take an object out and return it."""
        self.version += 1
        old = self._objects.pop(key)
        del self._packed[key]
        del self._uids[old["metadata"]["uid"]]
        self._note(key, old, None)
        return old

    def expire(self) -> None:
        """Forget what was; a watch from any earlier version is refused."""
        with self.changed:
            self._floor = self.version
            self._log.clear()
            self._rests.clear()

    def keep_rest(self, version: int, items: list[Obj]) -> str:
        """Keep what a list has not given out yet; return the token for it."""
        token = f"rest-{len(self._rests)}"
        self._rests[token] = (version, items)
        return token

    def rest(self, token: str) -> tuple[int, list[Obj]]:
        """Return what a token is for.

        Raises
        ------
        Refusal
            410 if it is not kept any more.
        """
        if token not in self._rests:
            raise expired()
        return self._rests[token]

    def _copy(self, key: Key) -> Obj:
        # An object is read a hundred times for each write: to unpack it takes a fifth of `copied`.
        found: Obj = marshal.loads(self._packed[key])
        return found

    def _note(self, key: Key, old: Obj | None, new: Obj | None) -> None:
        self._log.append(Entry(version=self.version, key=key, old=old, new=new))
        self.changed.notify_all()

    def _after(self, version: int) -> list[Entry]:
        if version < self._floor:
            raise expired()
        low, high = 0, len(self._log)
        while low < high:
            middle = (low + high) // 2
            if self._log[middle].version <= version:
                low = middle + 1
            else:
                high = middle
        return self._log[low:]

    def follow(
        self,
        resource: Resource,
        namespace: str,
        *,
        matches: Matches,
        version: int | None,
        stop: threading.Event,
        bookmark_s: float,
        timeout_s: float,
    ) -> Iterator[Obj]:
        """Yield the events of a watch; ends after `timeout_s` or when `stop` is set.

        `version` None begins with all there is.

        Raises
        ------
        Refusal
            410 if the version is too old, at the first step.
        """
        end = time.monotonic() + timeout_s
        with self.changed:
            found: list[Obj] = []
            if version is None:
                version = self.version
                for body in self.select(resource, namespace, matches):
                    found.append({"type": "ADDED", "object": body})
            self._after(version)
        yield from found
        while not stop.is_set() and time.monotonic() < end:
            with self.changed:
                entries = self._after(version)
                if not entries:
                    self.changed.wait(min(bookmark_s, max(0.01, end - time.monotonic())))
                    entries = self._after(version)
                version = self.version
            events = [_event(each, matches) for each in entries
                      if each.key[0] == resource and namespace in ("", each.key[1])]  # fmt: skip
            yield from filter(None, events)
            if not entries:
                metadata = {"resourceVersion": str(version), "creationTimestamp": None}
                body = {"kind": resource.kind, "apiVersion": resource.api_version}
                yield {"type": "BOOKMARK", "object": body | {"metadata": metadata}}


def _event(entry: Entry, matches: Matches) -> Obj | None:
    was = entry.old is not None and matches(entry.old)
    now = entry.new is not None and matches(entry.new)
    if not was and not now:
        return None
    body = entry.new if now else entry.old
    assert body is not None
    body = copied(body)
    body["metadata"]["resourceVersion"] = str(entry.version)
    kind = "DELETED" if not now else "MODIFIED" if was else "ADDED"
    return {"type": kind, "object": body}
