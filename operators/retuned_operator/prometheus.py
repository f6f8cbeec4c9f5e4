"""One Prometheus, asked little: instant queries, bounded in number, time and size of the answer.

A missing answer means "not known", also for a query that cannot be sent now.

Signals of the service from Prometheus. A missing answer never means that all is well.
"""

from __future__ import annotations

import logging
import math
import re
import threading
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import httpx
from pydantic_core import from_json

from retuned.control.analysis import Compared
from retuned.ports import Clock
from retuned.stages.gate.limits import Metric
from retuned_operator.controllers.ports import EventSubject
from retuned_operator.schema import TuningTarget

log = logging.getLogger(__name__)

MAX_QUERIES = 120
"""Most queries a minute, all targets together."""
MAX_ANSWER_BYTES = 1 << 20
"""Longest answer that is read."""
TIMEOUT_S = 5.0
"""Longest time of one query, seconds."""
PAUSE_S = 15.0
"""Who did not answer is left alone for so long, seconds: every query costs a controller's time."""
_MINUTE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryResult:
    """What a query returned."""

    values: tuple[float, ...]
    """Value of each series, or the one scalar; none where nothing matches."""
    samples: int | None
    """Stored samples that they rest on; None where the server does not count them."""

    @property
    def value(self) -> float | None:
        """The one value; None without a value, or with several, which are ambiguous."""
        return self.values[0] if len(self.values) == 1 else None


class Prometheus:
    """The query API of one server.

    Parameters
    ----------
    client
        With its address as the base URL.
    clock
        Time.
    max_queries
        Most queries a minute.
    """

    def __init__(
        self, client: httpx.Client, *, clock: Clock, max_queries: int = MAX_QUERIES
    ) -> None:
        self._client = client
        self._clock = clock
        self._max_queries = max_queries
        self._lock = threading.Lock()
        self._asked_s: deque[float] = deque()
        self._silent_until_s = -math.inf

    def ask(self, query: str, *, at: datetime | None = None) -> QueryResult | None:
        """Return the result of a query; None without an answer.

        Parameters
        ----------
        query
            PromQL.
        at
            Moment to evaluate the query at; None is now.
        """
        if not self._may_ask():
            return None
        form = {"query": query, "stats": "all", "timeout": f"{TIMEOUT_S:g}s"}
        form |= {"time": f"{at.timestamp():.3f}"} if at is not None else {}
        try:
            return _answer(self._body(form))
        except (httpx.HTTPError, ValueError, KeyError, TypeError, RecursionError) as error:
            log.warning("%.200s has no answer: %.500s", query, error)
            if isinstance(error, httpx.TransportError):
                with self._lock:
                    self._silent_until_s = self._clock.monotonic_s() + PAUSE_S
            return None

    def _may_ask(self) -> bool:
        """Count a query; False if it exceeds the limit, or during the pause after a failure."""
        with self._lock:
            now_s = self._clock.monotonic_s()
            while self._asked_s and self._asked_s[0] <= now_s - _MINUTE_S:
                self._asked_s.popleft()
            if now_s < self._silent_until_s:
                return False
            if len(self._asked_s) >= self._max_queries:
                log.warning("not asked: %d queries a minute are enough", self._max_queries)
                return False
            self._asked_s.append(now_s)
            return True

    def _body(self, form: Mapping[str, str]) -> dict[str, Any]:
        """Return the answer's JSON; an answer that is too long or too slow is an error."""
        found, until_s = bytearray(), self._clock.monotonic_s() + 2 * TIMEOUT_S
        with self._client.stream(
            "POST", "/api/v1/query", data=dict(form), timeout=TIMEOUT_S
        ) as response:
            response.raise_for_status()
            for chunk in response.iter_bytes(64 << 10):
                found += chunk
                if len(found) > MAX_ANSWER_BYTES:
                    raise ValueError(f"the answer has more than {MAX_ANSWER_BYTES} bytes")
                if self._clock.monotonic_s() > until_s:
                    raise httpx.ReadTimeout("the answer comes too slowly")
        body = from_json(bytes(found))
        if not isinstance(body, dict):
            raise TypeError("the answer is not a JSON object")
        return body


def _answer(body: Mapping[str, Any]) -> QueryResult:
    """Read an answer.

    Raises
    ------
    ValueError, KeyError, TypeError
        If it is not a valid answer.
    """
    if body["status"] != "success":
        raise ValueError(f"{body.get('errorType')}: {body.get('error')}")
    data = body["data"]
    kind, result = data["resultType"], data["result"]
    if kind == "vector":
        values = tuple(float(each["value"][1]) for each in result)
    elif kind == "scalar":
        values = (float(result[1]),)
    else:
        raise ValueError(f"a query must return a vector or a scalar, not a {kind}")
    counted = ((data.get("stats") or {}).get("samples") or {}).get("totalQueryableSamples")
    known = isinstance(counted, int) and not isinstance(counted, bool) and counted >= 0
    return QueryResult(values=values, samples=counted if known else None)


_FRESH_S = 15.0
"""One answer serves all targets for so long, seconds."""
_BASELINES = 1024
"""Values from before a swap that are remembered."""
_MAX_PODS = 200
"""Most pods that a query names."""
_PLACE = re.compile(r"\$(namespace|target|pods)\b")


class PrometheusSignals:
    """The `Signals` of one Prometheus.

    Parameters
    ----------
    prometheus
        Where queries go; None sends no query.
    slo_alerts
        PromQL that returns something while the service level is in danger; empty sends no query,
        and the service level then counts as safe.
    clock
        Time.
    """

    def __init__(self, prometheus: Prometheus | None, *, slo_alerts: str, clock: Clock) -> None:
        self._prometheus = prometheus
        self._slo_alerts = slo_alerts
        self._clock = clock
        self._lock = threading.Lock()
        self._asked_s = -float("inf")
        self._firing: bool | None = None
        self._before: OrderedDict[tuple[str, datetime], float] = OrderedDict()

    def slo_firing(self, target: TuningTarget) -> bool | None:
        """Whether an alert on the service level fires; None while Prometheus does not answer."""
        del target  # the query is one for the cluster
        if self._prometheus is None or not self._slo_alerts:
            return False
        with self._lock:
            if self._clock.monotonic_s() - self._asked_s >= _FRESH_S:
                found = self._prometheus.ask(self._slo_alerts)
                self._firing = None if found is None else bool(found.values)
                self._asked_s = self._clock.monotonic_s()
            return self._firing

    def compare(
        self, metrics: Sequence[Metric], *, about: EventSubject, since: datetime
    ) -> Mapping[str, Compared]:
        """Return each metric now and at the first pod's order; see `Signals.compare`."""
        prometheus = self._prometheus
        if prometheus is None:
            return {}
        found = {}
        for metric in metrics:
            query = filled(metric.query, about)
            # query the same pods at the time before the swap, when they ran the original
            before = self._baseline(prometheus, query, since)
            now = prometheus.ask(query) if before is not None else None
            found[metric.name] = Compared(
                before=before,
                now=now.value if now is not None else None,
                samples=now.samples if now is not None else None,
            )
        return found

    def _baseline(self, prometheus: Prometheus, query: str, since: datetime) -> float | None:
        """Return the result at that time; the past does not change, so one query is enough."""
        key = (query, since)
        with self._lock:
            if key in self._before:
                return self._before[key]
        found = prometheus.ask(query, at=since)
        if found is None or found.value is None:
            return None
        with self._lock:
            self._before[key] = found.value
            while len(self._before) > _BASELINES:
                self._before.popitem(last=False)
        return found.value


def filled(query: str, about: EventSubject) -> str:
    """Return a query with the servers that it is about.

    Names are those of Kubernetes objects, so that nothing in them ends a string; dots match only
    themselves.

    Examples
    --------
    >>> about = EventSubject(namespace="serving", target="chat", pods=("chat-0", "chat.1"))
    >>> filled('up{namespace="$namespace",pod=~"$pods"} unless $podsets', about)
    'up{namespace="serving",pod=~"chat-0|chat[.]1"} unless $podsets'
    """
    values = {
        "namespace": about.namespace,
        "target": about.target,
        "pods": "|".join(name.replace(".", "[.]") for name in about.pods[:_MAX_PODS]),
    }
    return _PLACE.sub(lambda found: values[found.group(1)], query)
