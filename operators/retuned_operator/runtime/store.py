"""Copies of what was listed and watched, with look-ups.

Objects are held as JSON text: it takes less memory than dicts, and nobody can change what others
read. ``managedFields`` are left out: nobody here reads them, and they can be half of an object.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from retuned_operator.runtime.resources import Obj

log = logging.getLogger(__name__)

Index = Callable[[Obj], Iterable[str]]
"""Under which words an object is found."""


def key_of(body: Mapping[str, Any]) -> str:
    """Return the key of an object: ``namespace/name``, or ``name`` where there is no namespace.

    Examples
    --------
    >>> key_of({"metadata": {"namespace": "serving", "name": "chat"}})
    'serving/chat'
    >>> key_of({"metadata": {"name": "stop"}})
    'stop'
    """
    metadata = body.get("metadata", {})
    namespace, name = metadata.get("namespace", ""), metadata.get("name", "")
    return f"{namespace}/{name}" if namespace else str(name)


def made_of(body: Mapping[str, Any]) -> str:
    """Return when an object was made, as the API server writes it; empty where it does not say.

    Examples
    --------
    >>> made_of({"metadata": {"name": "x", "creationTimestamp": "2026-03-02T12:00:00Z"}})
    '2026-03-02T12:00:00Z'
    """
    return str(body["metadata"].get("creationTimestamp") or "")


def split(key: str) -> tuple[str, str]:
    """Return namespace and name of a key; the namespace may be empty.

    Examples
    --------
    >>> split("serving/chat")
    ('serving', 'chat')
    >>> split("stop")
    ('', 'stop')
    """
    namespace, _, name = key.rpartition("/")
    return namespace, name


class ObjectCache:
    """Objects of one kind; safe for threads.

    Parameters
    ----------
    indices
        Ways to find objects besides their key, by name.
    """

    def __init__(self, indices: Mapping[str, Index] | None = None) -> None:
        self._indices = dict(indices or {})
        self._lock = threading.Lock()
        self._texts: dict[str, bytes] = {}
        self._words: dict[str, tuple[tuple[str, str], ...]] = {}
        """By key: index and word, for every word."""
        self._found: dict[str, dict[str, set[str]]] = {name: {} for name in self._indices}
        """By index and word: keys."""
        self._made: dict[str, str] = {}
        """By key: when the object was made, as the API server writes it."""

    def get(self, key: str) -> Obj | None:
        """Return a copy of an object; None if it is not there."""
        with self._lock:
            text = self._texts.get(key)
        return None if text is None else _decoded(text)

    def keys(self, *, namespace: str = "") -> tuple[str, ...]:
        """Return the keys of all objects of a namespace, sorted; empty means of all."""
        prefix = f"{namespace}/" if namespace else ""
        with self._lock:
            return tuple(sorted(key for key in self._texts if key.startswith(prefix)))

    def list(self, *, namespace: str = "") -> tuple[Obj, ...]:
        """Return copies of all objects of a namespace, sorted by key; empty means of all."""
        prefix = f"{namespace}/" if namespace else ""
        with self._lock:
            keys = sorted(key for key in self._texts if key.startswith(prefix))
            texts = [self._texts[key] for key in keys]
        return tuple(map(_decoded, texts))

    def by(self, index: str, word: str) -> tuple[Obj, ...]:
        """Return copies of the objects that an index finds under a word, sorted by key.

        Raises
        ------
        KeyError
            If there is no such index.
        """
        found = self._index(index)
        with self._lock:
            texts = [self._texts[key] for key in sorted(found.get(word, ()))]
        return tuple(map(_decoded, texts))

    def dated(self, index: str, word: str) -> dict[str, str]:
        """Return by key when the objects under a word were made, without copying them.

        Raises
        ------
        KeyError
            If there is no such index.
        """
        found = self._index(index)
        with self._lock:
            return {key: self._made[key] for key in found.get(word, ())}

    def words(self, index: str) -> tuple[str, ...]:
        """Return the words under which an index finds anything, sorted.

        Raises
        ------
        KeyError
            If there is no such index.
        """
        found = self._index(index)
        with self._lock:
            return tuple(sorted(found))

    def _index(self, name: str) -> dict[str, set[str]]:
        if name not in self._found:
            raise KeyError(f"no index {name!r}; there are {sorted(self._found)}")
        return self._found[name]

    def __len__(self) -> int:
        return len(self._texts)

    # --- the reflector's side ---------------------------------------------------------------------

    def put(self, body: Obj) -> bool:
        """Take an object in; say whether anything changed."""
        metadata = {key: value for key, value in body["metadata"].items() if key != "managedFields"}
        body = {**body, "metadata": metadata}
        key, text = key_of(body), msgspec.json.encode(body)
        words = tuple(self._words_of(body))
        with self._lock:
            if self._texts.get(key) == text:
                return False
            self._forget(key)
            self._texts[key] = text
            self._made[key] = made_of(body)
            self._words[key] = words
            for index, word in words:
                self._found[index].setdefault(word, set()).add(key)
        return True

    def drop(self, key: str) -> Obj | None:
        """Take an object out and return it; None if it was not there."""
        with self._lock:
            text = self._texts.get(key)
            self._forget(key)
        return None if text is None else _decoded(text)

    def _words_of(self, body: Obj) -> Iterator[tuple[str, str]]:
        for name, index in self._indices.items():
            try:
                words = frozenset(index(body))
            except Exception:  # a stranger's object must not end the watch; `list` still has it
                log.exception("%s is not to be found by %s", key_of(body), name)
            else:
                yield from ((name, word) for word in words)

    def _forget(self, key: str) -> None:
        self._texts.pop(key, None)
        self._made.pop(key, None)
        for index, word in self._words.pop(key, ()):
            keys = self._found[index][word]
            keys.discard(key)
            if not keys:
                del self._found[index][word]


def _decoded(text: bytes) -> Obj:
    found: Obj = msgspec.json.decode(text)
    return found
