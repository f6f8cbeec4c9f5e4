"""Copies of the cluster that are never older than what this process has written itself.

A watch brings one's own writes a moment later. In between a second look would decide on what was
there before: two proposals could begin at once. So each answer of a write is kept until the watch
has brought it, or something newer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from retuned_operator.controllers import reading
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
from retuned_operator.runtime.resources import (
    DECISIONS,
    EXPERIMENTS,
    JOBS,
    PODS,
    PROPOSALS,
    TARGETS,
    Obj,
    Resource,
)
from retuned_operator.runtime.store import Index, Store, key_of, made_of

INDICES: Mapping[Resource, Mapping[str, Index]] = {
    TARGETS: {BY_SELECTOR: reading.selector_words},
    PROPOSALS: {BY_TARGET: reading.target_word, BY_PHASE: reading.phase_word},
    EXPERIMENTS: {BY_TARGET: reading.target_word, BY_BUDGET: reading.budget_words},
    DECISIONS: {BY_PROPOSAL: reading.proposal_word},
    JOBS: {BY_EXPERIMENT: reading.experiment_words},
    PODS: {BY_LABEL: reading.label_words, BY_SIDECAR: reading.sidecar_words},
}
"""How objects are found besides by their key."""
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

    def __init__(self, stores: Mapping[Resource, Store], *, current: Callable[[str], bool]) -> None:
        self._stores = stores
        self._current = current
        self._lock = threading.Lock()
        self._written: dict[tuple[str, str], Obj] = {}

    def wrote(self, resource: Resource, body: Obj) -> None:
        """Remember what was just written, until the store has it."""
        if resource in self._stores:
            with self._lock:
                self._written[resource.plural, key_of(body)] = body
                if len(self._written) > _MOST:
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
        found = {key_of(body): body for body in self._stores[resource].by(index, word)}
        with self._lock:
            keys = [key for plural, key in self._written if plural == resource.plural]
        for key in keys:
            body = found.get(key) or self._stores[resource].get(key)
            if body is not None:
                found[key] = self._newest(resource, body)
        words = INDICES[resource][index]
        return [body for _, body in sorted(found.items()) if word in words(body)]

    def dated(self, resource: Resource, index: str, word: str) -> Mapping[str, str] | None:
        """Return by key when what an index finds was made; None while that is not known.

        Nothing is copied but what was just written: thousands of objects can be put in order.
        """
        if not self.knows(resource):
            return None
        store, words = self._stores[resource], INDICES[resource][index]
        found = store.dated(index, word)
        with self._lock:
            keys = [key for plural, key in self._written if plural == resource.plural]
        for key in keys:
            found.pop(key, None)
            body = store.get(key)
            newest = None if body is None else self._newest(resource, body)
            if newest is not None and word in words(newest):
                found[key] = made_of(newest)
        return found

    def _prune(self) -> None:
        """Forget objects that no store has: they were deleted before a watch brought them."""
        stores = {kind.plural: store for kind, store in self._stores.items()}
        self._written = {
            (plural, key): body
            for (plural, key), body in self._written.items()
            if stores[plural].get(key) is not None
        }

    def _newest(self, resource: Resource, body: Obj) -> Obj:
        """Return the newer of what is there and what was written; forget what has arrived."""
        place = (resource.plural, key_of(body))
        with self._lock:
            mine = self._written.get(place)
            if mine is None:
                return body
            if _uid(mine) == _uid(body) and _version(mine) > _version(body):
                return mine
            del self._written[place]
            return body


def _uid(body: Obj) -> str:
    return str(body.get("metadata", {}).get("uid", ""))


def _version(body: Obj) -> int:
    """Return the version as a number, which API servers promise to be growing ones."""
    text = str(body.get("metadata", {}).get("resourceVersion", ""))
    return int(text) if text.isdecimal() and len(text) < 20 else 0
