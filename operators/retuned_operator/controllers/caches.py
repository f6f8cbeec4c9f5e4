"""Copies of the cluster that are never older than this process' own writes.

A watch delivers one's own writes a moment later. In between a second pass would decide on the old
state: two proposals could start together. So each answer of a write is kept until the watch has
delivered it, or a newer version.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from retuned_operator.controllers import objects
from retuned_operator.controllers.ports import (
    BY_BUDGET,
    BY_EXPERIMENT,
    BY_LABEL,
    BY_PHASE,
    BY_PROPOSAL,
    BY_SELECTOR,
    BY_SIDECAR,
    BY_TARGET,
)
from retuned_operator.kube.informer import Index, ObjectCache, key_of, made_of
from retuned_operator.kube.resources import (
    DECISIONS,
    EXPERIMENTS,
    JOBS,
    PODS,
    PROPOSALS,
    TARGETS,
    Obj,
    Resource,
)

INDICES: Mapping[Resource, Mapping[str, Index]] = {
    TARGETS: {BY_SELECTOR: objects.selector_words},
    PROPOSALS: {BY_TARGET: objects.target_word, BY_PHASE: objects.phase_word},
    EXPERIMENTS: {BY_TARGET: objects.target_word, BY_BUDGET: objects.budget_words},
    DECISIONS: {BY_PROPOSAL: objects.proposal_word},
    JOBS: {BY_EXPERIMENT: objects.experiment_words},
    PODS: {BY_LABEL: objects.label_words, BY_SIDECAR: objects.sidecar_words},
}
"""How objects are found besides by their key."""
_Words = frozenset[tuple[str, str]]
_MOST = 4096
"""Written objects that are kept before those that went meanwhile are looked for."""


class StoreCaches:
    """The `Caches` over stores that reflectors keep.

    Parameters
    ----------
    stores
        By kind.
    current
        Whether the store of this plural is whole and not too old.
    """

    def __init__(
        self, stores: Mapping[Resource, ObjectCache], *, current: Callable[[str], bool]
    ) -> None:
        self._stores = stores
        self._current = current
        self._lock = threading.Lock()
        self._written: dict[tuple[Resource, str], tuple[Obj, _Words]] = {}
        self._keys: dict[tuple[Resource, str, str], set[str]] = {}
        """By kind, index and word: keys of what was written and is found so now."""
        self._most = _MOST

    def wrote(self, resource: Resource, body: Obj) -> None:
        """Remember what was just written, until the store has it."""
        if resource in self._stores:
            with self._lock:
                place = (resource, key_of(body))
                self._forget(place)
                words = _words(resource, body)
                self._written[place] = (body, words)
                for word in words:
                    self._keys.setdefault((resource, *word), set()).add(place[1])
                if len(self._written) > self._most:
                    self._prune()

    def knows(self, resource: Resource) -> bool:
        """Whether the copies of a kind are whole and not too old."""
        return self._current(resource.plural)

    def get(self, resource: Resource, key: str) -> Obj | None:
        """Return one object; None if it is not there."""
        body = self._stores[resource].get(key)
        return None if body is None else self._newest(resource, body)

    def list(self, resource: Resource, *, namespace: str = "") -> Sequence[Obj] | None:
        """Return all of a kind; None while that is not known."""
        if not self.knows(resource):
            return None
        found = self._stores[resource].list(namespace=namespace)
        return [self._newest(resource, body) for body in found]

    def by(self, resource: Resource, index: str, word: str) -> Sequence[Obj] | None:
        """Return what an index finds, also among what was just written; None while not known."""
        if not self.knows(resource):
            return None
        store, words = self._stores[resource], INDICES[resource][index]
        written = self._written_as(resource, index, word)  # first: what arrives now is in the store
        found = {key_of(body): self._newest(resource, body) for body in store.by(index, word)}
        for key in written - set(found):
            body = store.get(key)
            if body is not None:
                found[key] = self._newest(resource, body)
        return [body for _, body in sorted(found.items()) if word in words(body)]

    def dated(self, resource: Resource, index: str, word: str) -> Mapping[str, str] | None:
        """Return by key when what an index finds was made; None while that is not known.

        Nothing is copied but what was just written: thousands of objects can be put in order.
        """
        if not self.knows(resource):
            return None
        store, words = self._stores[resource], INDICES[resource][index]
        written = self._written_as(resource, index, word)
        found = store.dated(index, word)
        with self._lock:
            written |= {key for key in found if (resource, key) in self._written}
        for key in written:
            found.pop(key, None)
            body = store.get(key)
            newest = None if body is None else self._newest(resource, body)
            if newest is not None and word in words(newest):
                found[key] = made_of(newest)
        return found

    def _written_as(self, resource: Resource, index: str, word: str) -> set[str]:
        """Return the keys of what was just written so that an index finds it under a word."""
        with self._lock:
            return set(self._keys.get((resource, index, word), ()))

    def _forget(self, place: tuple[Resource, str]) -> None:
        _, words = self._written.pop(place, (None, ()))
        for word in words:
            keys = self._keys[place[0], *word]
            keys.discard(place[1])
            if not keys:
                del self._keys[place[0], *word]

    def _prune(self) -> None:
        """Forget what no store has, deleted before a watch brought it, and what has arrived.

        Writes that have not arrived yet are not checked again with each write.
        """
        for (resource, key), (mine, _) in tuple(self._written.items()):
            body = self._stores[resource].get(key)
            if body is None or not _is_newer(mine, body):
                self._forget((resource, key))
        self._most = max(_MOST, 2 * len(self._written))

    def _newest(self, resource: Resource, body: Obj) -> Obj:
        """Return the newer of the watched and the written object; forget writes that arrived."""
        place = (resource, key_of(body))
        with self._lock:
            mine, _ = self._written.get(place, (None, ()))
            if mine is None:
                return body
            if _is_newer(mine, body):
                return mine
            self._forget(place)
            return body


def _words(resource: Resource, body: Obj) -> _Words:
    """Return every index and word under which an object is found."""
    indices = INDICES.get(resource, {})
    return frozenset((name, word) for name, index in indices.items() for word in index(body))


def _is_newer(mine: Obj, body: Obj) -> bool:
    return _uid(mine) == _uid(body) and _version(mine) > _version(body)


def _uid(body: Obj) -> str:
    return str(body.get("metadata", {}).get("uid", ""))


def _version(body: Obj) -> int:
    """Return the version as a number, which API servers promise to be growing ones."""
    text = str(body.get("metadata", {}).get("resourceVersion", ""))
    return int(text) if text.isdecimal() and len(text) < 20 else 0
