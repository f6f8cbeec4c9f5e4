"""Keeps a store like the API server's: list once, watch from there, and list again where it must.

A watch can die without a word: the server went away behind a proxy, and nothing ever arrives. So
the server is asked to end each watch after a minute (`Timeouts.watch_s`), and silence for longer
(`Timeouts.stall_s`) ends it here; either way it goes on from where it was. Tries after a failure
wait longer each time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from retuned_operator.runtime.backoff import Backoff
from retuned_operator.runtime.client import Api
from retuned_operator.runtime.errors import ApiError, Gone, Unavailable
from retuned_operator.runtime.resources import Obj, Resource
from retuned_operator.runtime.store import ObjectCache, key_of
from retuned_operator.runtime.watching import EventType, Watch, WatchEvent

log = logging.getLogger(__name__)

_SHORT_S = 1.0
"""A watch that ends sooner without a word is a failure, or it would be begun again at once, for
ever."""


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
        Seconds that never go back.
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
        """End the watch that is under way, from another thread; `run` looks at `stop` then."""
        with self._watch_lock:
            if self._watch is not None:
                self._watch.interrupt()

    def _once(self, stop: threading.Event) -> str:
        """List if need be and watch until it ends; return a code that says why it did."""
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
            log.exception("%s: an answer that nobody expected; all are listed again", plural)
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
