"""Keeps a store like the API server's: list once, watch from there, and list again where it must.

A watch can stop without an error: the server behind a proxy went away, and nothing arrives. So
each watch asks the server to end it after a minute (`Timeouts.watch_s`), and the client ends it
after a longer silence (`Timeouts.stall_s`). In both cases a new watch continues from the last
version. The delay grows with each failure.

Copies of what was listed and watched, with look-ups.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from retuned_operator.kube.backoff import Backoff
from retuned_operator.kube.client import Api
from retuned_operator.kube.errors import ApiError, Gone, Unavailable
from retuned_operator.kube.resources import Obj, Resource
from retuned_operator.kube.watch import EventType, Watch, WatchEvent

log = logging.getLogger(__name__)

Index = Callable[[Obj], Iterable[str]]
"""Under which words an object is found."""


def key_of(body: Mapping[str, Any]) -> str:
    """Return the key of an object: ``namespace/name``, or ``name`` without a namespace.

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
            If the store does not have this index.
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
            If the store does not have this index.
        """
        found = self._index(index)
        with self._lock:
            return {key: self._made[key] for key in found.get(word, ())}

    def words(self, index: str) -> tuple[str, ...]:
        """Return the words under which an index finds anything, sorted.

        Raises
        ------
        KeyError
            If the store does not have this index.
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
            except Exception:  # an unexpected object must not end the watch; `list` still has it
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


_SHORT_S = 1.0
"""A watch that ends sooner without an error counts as a failure; otherwise it would be started
again without a delay, forever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """An object is not what it was."""

    key: str
    """Its key in the store."""
    body: Obj
    """What it is now; of an object that is gone what it was."""
    gone: bool = False
    """Whether it is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which objects are watched."""

    resource: Resource
    """Their kind."""
    namespace: str = ""
    """Empty means all namespaces."""
    labels: str = ""
    """Label selector, as kubectl takes it."""
    fields: str = ""
    """Field selector, as kubectl takes it."""


class Reflector:
    """Keeps what is selected in a store.

    Parameters
    ----------
    api
        The API server.
    selection
        Which objects.
    store
        Where to; several reflectors can share one if their namespaces differ.
    on_change
        Called by the reflector's thread for every change, after the store has it.
    on_restart
        Called with a stable code whenever the watch or the list has to be begun again.
    backoff
        Of failures.
    clock
        Monotonic seconds.
    """

    def __init__(
        self,
        api: Api,
        selection: Selection,
        *,
        store: ObjectCache,
        on_change: Callable[[Change], None],
        on_restart: Callable[[str], None] = lambda _: None,
        backoff: Backoff | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.synced = threading.Event()
        """Set once the store has had everything."""
        self._api = api
        self._selection = selection
        self._store = store
        self._on_change = on_change
        self._on_restart = on_restart
        self._backoff = backoff or Backoff()
        self._clock = clock
        self._version = ""
        """To watch from; empty means to list first."""
        self._in_pages = True
        self._failures = 0
        self._heard_at = -float("inf")
        self._watch_lock = threading.Lock()
        self._watch: Watch | None = None

    def silent_s(self) -> float:
        """Return for how many seconds the store has learnt nothing; infinite before the first list.

        What must not be decided on old data (freezes, decisions) asks this.
        """
        return self._clock() - self._heard_at

    def run(self, stop: threading.Event) -> None:
        """List and watch until `stop` is set."""
        while not stop.is_set():
            code = self._once(stop)
            if stop.is_set():
                return
            self._on_restart(code)
            if self._failures:
                stop.wait(self._backoff.delay_s(self._failures))

    def interrupt(self) -> None:
        """End the active watch from another thread; `run` then checks `stop`."""
        with self._watch_lock:
            if self._watch is not None:
                self._watch.interrupt()

    def _once(self, stop: threading.Event) -> str:
        """List if necessary and watch until it ends; return the code of the reason."""
        plural = self._selection.resource.plural
        try:
            if not self._version:
                self._relist()
            began = self._clock()
            self._follow(stop)
        except Gone as error:
            log.info("%s: the version to watch from is gone, so all are listed again", plural)
            self._in_pages = bool(self._version)  # else the list itself took too long in pages
            self._version = ""
            self._failures += 1
            return error.code
        except ApiError as error:
            self._failures += 1
            if not stop.is_set():
                log.warning("%s: %s (failure %d in a row)", plural, error, self._failures)
            return error.code
        except Exception:  # what cannot be taken in must not end the work for good
            self._failures += 1
            self._version = ""
            log.exception("%s: an unexpected answer; list all again", plural)
            return "bug"
        if self._clock() - began < _SHORT_S:
            self._failures += 1
            return "watch-too-short"
        self._failures = 0
        return "watch-ended"

    def _relist(self) -> None:
        chosen = self._selection
        there: set[str] = set()
        version = ""
        for page in self._api.pages(
            chosen.resource,
            namespace=chosen.namespace,
            labels=chosen.labels,
            fields=chosen.fields,
            **({} if self._in_pages else {"limit": 0}),
        ):
            there.update(map(self._take, page.items))
            version = page.version
        for key in self._store.keys(namespace=chosen.namespace):
            if key not in there:
                self._drop(key)
        if not version:
            raise Unavailable(f"list {chosen.resource.plural}: the answer has no version")
        self._version, self._in_pages = version, True
        self._heard_at = self._clock()
        self.synced.set()

    def _follow(self, stop: threading.Event) -> None:
        chosen = self._selection
        with self._api.watch(
            chosen.resource,
            version=self._version,
            namespace=chosen.namespace,
            labels=chosen.labels,
            fields=chosen.fields,
        ) as watch:
            with self._watch_lock:
                self._watch = watch
            try:
                if stop.is_set():  # it was set before there was a watch to interrupt
                    return
                self._heard_at = self._clock()
                for event in watch:
                    if stop.is_set():
                        return
                    self._hear(event)
            finally:
                with self._watch_lock:
                    self._watch = None

    def _hear(self, event: WatchEvent) -> None:
        if event.type is EventType.DELETED:
            self._drop(key_of(event.body))
        elif event.type is not EventType.BOOKMARK:
            self._take(event.body)
        if event.version:
            self._version = event.version
        self._failures = 0
        self._heard_at = self._clock()

    def _take(self, body: Obj) -> str:
        key = key_of(body)
        if self._store.put(body):
            self._on_change(Change(key=key, body=body))
        return key

    def _drop(self, key: str) -> None:
        body = self._store.drop(key)
        if body is not None:
            self._on_change(Change(key=key, body=body, gone=True))
