"""Runs controllers: caches of objects, queues of keys, one leader.

A controller has a kind, the kinds that concern it, and ``reconcile(key)``, which reads the whole
object and returns the latest time of the next call, in seconds. The manager calls it for every key
when the operator starts to lead, after every change that may concern the key, after failures, and
every `resync_s`. It does not get the change, so a missed event is corrected by a later call.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from retuned.errors import RetunedError, TemporaryError
from retuned_operator.kube.backoff import Backoff
from retuned_operator.kube.client import Api
from retuned_operator.kube.errors import Conflict, Unavailable
from retuned_operator.kube.informer import Change, Index, ObjectCache, Reflector, Selection, key_of
from retuned_operator.kube.lease import Leader, NotLeading
from retuned_operator.kube.metrics import RuntimeMetrics
from retuned_operator.kube.queue import WorkQueue
from retuned_operator.kube.resources import Obj, Resource
from retuned_operator.kube.threads import in_thread, join

log = logging.getLogger(__name__)

_AWAY_S = 10.0
_WATCH_BACKOFF = Backoff(most_s=_AWAY_S)
_KEY_BACKOFF = Backoff(first_s=0.1, most_s=300.0)
Keys = Callable[[Obj], Iterable[str]]
"""Which keys of a controller an object concerns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Controller:
    """Something that is kept as it should be."""

    name: str
    """For logs and metrics."""
    watches: Mapping[str, Keys]
    """By name of a store: the keys to reconcile when an object of it changes."""
    primary: str
    """Name of the store whose keys are all reconciled at the start and on every resync."""
    reconcile: Callable[[str], float | None]
    """Reconciles a key; returns the delay of the next call, seconds, or None without one."""
    workers: int = 2
    """Threads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerSettings:
    """How a manager runs."""

    resync_s: float = 600.0
    """Seconds after which all keys are reconciled again."""
    stale_s: float = 120.0
    """Seconds of silence after which a store counts as out of date."""
    watch_backoff: Backoff = _WATCH_BACKOFF
    """Of lists and watches that fail."""
    key_backoff: Backoff = _KEY_BACKOFF
    """Of keys whose reconcile fails."""
    away_s: float = _AWAY_S
    """Most seconds that a key waits whose reconcile got no answer at all: what is wrong is not the
    key's, and an API server that is back is used soon."""


class Manager:
    """Stores, controllers and who may act; one ``run`` in its life.

    Parameters
    ----------
    api
        For lists and watches; controllers write through `writer`.
    leader
        Who may act; None means that this one always may (tests, and programs that only read).
    settings
        How it runs.
    registry
        Where its metrics are shown; None means nowhere.
    """

    def __init__(
        self,
        api: Api,
        *,
        leader: Leader | None = None,
        settings: ManagerSettings | None = None,
        registry: CollectorRegistry | None = None,
    ) -> None:
        self.writer = api if leader is None else api.guarded(leader.confirm)
        """The API server for controllers: every write is guarded by the lease."""
        self.metrics = RuntimeMetrics(registry or CollectorRegistry())
        self._api = api
        self._leader = leader
        self._settings = settings or ManagerSettings()
        self._stores: dict[str, ObjectCache] = {}
        self._reflectors: dict[str, list[Reflector]] = {}
        self._controllers: list[tuple[Controller, WorkQueue]] = []
        self._acting = threading.Event()

    # --- put together -----------------------------------------------------------------------------

    def store(
        self,
        resource: Resource,
        *,
        name: str = "",
        namespaces: Sequence[str] = (),
        labels: str = "",
        fields: str = "",
        indices: Mapping[str, Index] | None = None,
    ) -> ObjectCache:
        """Return a store that is kept from `run` on.

        Parameters
        ----------
        resource
            Kind of its objects.
        name
            Its name; empty means the plural of the kind.
        namespaces
            Empty means all of the cluster.
        labels, fields
            Selectors.
        indices
            See `ObjectCache`.
        """
        name = name or resource.plural
        if name in self._stores:
            raise ValueError(f"there is a store {name!r} already")
        store = self._stores[name] = ObjectCache(indices)
        self._reflectors[name] = [
            Reflector(
                self._api,
                Selection(resource=resource, namespace=each, labels=labels, fields=fields),
                store=store,
                on_change=lambda change: self._changed(name, change),
                on_restart=lambda code: self.metrics.restarts.labels(name, code).inc(),
                backoff=self._settings.watch_backoff,
            )
            for each in (namespaces if resource.namespaced and namespaces else ("",))
        ]
        self.metrics.silence.labels(name).set_function(lambda: self._silent_s(name))
        return store

    def add(self, controller: Controller) -> WorkQueue:
        """Take in a controller; return its queue, for what concerns it from elsewhere.

        Raises
        ------
        ValueError
            If it watches a store that there is not.
        """
        unknown = {controller.primary, *controller.watches} - set(self._stores)
        if unknown:
            raise ValueError(f"{controller.name} watches {sorted(unknown)}, which have no store")
        queue = WorkQueue(
            backoff=self._settings.key_backoff,
            observe=self.metrics.waits.labels(controller.name).observe,
        )
        self.metrics.depth.labels(controller.name).set_function(lambda: len(queue))
        self._controllers.append((controller, queue))
        return queue

    # --- asked while it runs ----------------------------------------------------------------------

    def is_synced(self) -> bool:
        """Say whether every store has had everything once."""
        return all(each.synced.is_set() for every in self._reflectors.values() for each in every)

    def is_current(self, name: str) -> bool:
        """Return whether a store is as current as its watch can show.

        A decision by absence (no freeze, no rejection) must check this first.
        """
        synced = all(each.synced.is_set() for each in self._reflectors[name])
        return synced and self._silent_s(name) <= self._settings.stale_s

    def is_acting(self) -> bool:
        """Say whether controllers are at work here."""
        return self._acting.is_set()

    # --- runs -------------------------------------------------------------------------------------

    def run(self, stop: threading.Event) -> None:
        """Fill the stores, lead, reconcile; return after `stop` is set and all threads ended."""
        reflecting = [
            in_thread(f"reflect-{name}", each.run, stop)
            for name, every in self._reflectors.items()
            for each in every
        ]
        given_up, electing = threading.Event(), []
        try:
            if self._leads(stop):
                if self._leader is not None:
                    electing.append(in_thread("elect", self._leader.hold, given_up))
                self._act(stop)
        finally:
            for every in self._reflectors.values():
                for each in every:
                    each.interrupt()
            given_up.set()
            join([*electing, *reflecting])

    def _leads(self, stop: threading.Event) -> bool:
        """Wait for the stores, then for the lease."""
        while not self.is_synced():
            if stop.wait(0.05):
                return False
        return self._leader is None or self._leader.acquire(stop)

    def _act(self, stop: threading.Event) -> None:
        self._acting.set()
        self.metrics.leading.set(1)
        working = [
            in_thread(f"{controller.name}-{n}", self._work, controller, queue)
            for controller, queue in self._controllers
            for n in range(controller.workers)
        ]
        try:
            while True:
                for controller, queue in self._controllers:
                    self._add_all(controller, queue)
                if stop.wait(self._settings.resync_s):
                    return
        finally:
            for _, queue in self._controllers:
                queue.close()
            join(working)  # the lease is given away after the last write
            self._acting.clear()
            self.metrics.leading.set(0)

    def _work(self, controller: Controller, queue: WorkQueue) -> None:
        while (key := queue.get()) is not None:
            began = time.monotonic()
            try:
                result = self._look(controller, queue, key=key)
            finally:
                queue.done(key)
            took_s = time.monotonic() - began
            self.metrics.reconciles.labels(controller.name, result).observe(took_s)

    def _look(self, controller: Controller, queue: WorkQueue, *, key: str) -> str:
        """Call reconcile once and see to what comes of it; return that as a code."""
        try:
            after_s = controller.reconcile(key)
        except NotLeading as error:
            log.warning("%s %s: %s", controller.name, key, error)
            queue.retry(key)
            return error.code
        except Conflict as error:  # what it decided on is old; the watch brings what is new
            log.debug("%s %s: %s", controller.name, key, error)
            queue.retry(key)
            return error.code
        except TemporaryError as error:
            no_answer = isinstance(error, Unavailable) and not error.status
            most_s = self._settings.away_s if no_answer else float("inf")
            delay_s = queue.retry(key, at_least_s=error.delay_s, at_most_s=most_s)
            log.warning("%s %s: %s; again in %.1f s", controller.name, key, error, delay_s)
            return error.code
        except RetunedError as error:
            delay_s = queue.retry(key)
            log.error("%s %s: %s; again in %.1f s", controller.name, key, error, delay_s)
            return error.code
        except Exception:  # a mistake about one object must not end the work on the others
            delay_s = queue.retry(key)
            log.exception("%s %s failed; again in %.1f s", controller.name, key, delay_s)
            return "bug"
        queue.forget(key)
        if after_s is not None:
            queue.add_after(key, after_s)
        return "done"

    def _changed(self, name: str, change: Change) -> None:
        for controller, queue in self._controllers:
            keys_of = controller.watches.get(name)
            if keys_of is None:
                continue
            try:
                keys = tuple(keys_of(change.body))
            except Exception:  # an unexpected object must not end the watch
                log.exception("%s: no keys found for %s %s", controller.name, name, change.key)
                self._add_all(controller, queue)
            else:
                for key in keys:
                    queue.add(key)

    def _add_all(self, controller: Controller, queue: WorkQueue) -> None:
        every = self._stores[controller.primary].keys()
        for key in every:
            queue.add(key)

    def _silent_s(self, name: str) -> float:
        return max(each.silent_s() for each in self._reflectors[name])


def itself(body: Obj) -> tuple[str]:
    """Return an object's own key: it concerns itself."""
    return (key_of(body),)
