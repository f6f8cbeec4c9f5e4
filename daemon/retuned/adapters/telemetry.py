"""Numbers out: Prometheus, and a fake that remembers.

Label values may come from strangers (kernel names): they are cut to printable text, and past a cap
of distinct sets a metric counts the rest under ``(other)``, so that no trace can eat the memory.
"""

from __future__ import annotations

import errno
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
    start_http_server,
)

from retuned.errors import TemporaryError, UsageError

MAX_LABEL_SETS = 200
"""Distinct label sets per metric."""

_OTHER = "(other)"
_BUSY_S = 10.0
"""Wait before a busy port is tried again."""
_NAME = re.compile(r"retuned_[a-z0-9_]+")
_UNPRINTABLE = re.compile(r"[^\x20-\x7e\u00a0-\ud7ff\ue000-\ufffd]")
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)

HELP: Mapping[str, str] = {
    "retuned_step_errors_total": "Steps of the loop that failed, expected ones apart.",
    "retuned_candidates_total": "Candidates judged, by reason of their verdict.",
}
"""Help of known metrics; others carry their name in words."""


class _Rules:
    """What both telemetries demand of names and do to labels."""

    def __init__(self, max_label_sets: int = MAX_LABEL_SETS) -> None:
        self._max_sets = max_label_sets
        self._shape: dict[str, tuple[str, tuple[str, ...]]] = {}
        self._seen: dict[str, set[tuple[str, ...]]] = {}

    def admit(self, kind: str, name: str, labels: Mapping[str, str]) -> dict[str, str]:
        """Return the labels to use; the same names on every call, values cleaned and capped.

        Raises
        ------
        ValueError
            If the name or the set of labels is a fault of the caller.
        """
        if not _NAME.fullmatch(name) or (kind == "counter") != name.endswith("_total"):
            raise ValueError(
                f"{name!r}: retuned_ and words; counters, and only they, end in _total"
            )
        shape = self._shape.setdefault(name, (kind, tuple(sorted(labels))))
        if shape != (kind, tuple(sorted(labels))):
            raise ValueError(f"{name} is a {shape[0]} with labels {shape[1]}")
        clean = {key: _UNPRINTABLE.sub("?", str(value))[:128] for key, value in labels.items()}
        seen = self._seen.setdefault(name, set())
        values = tuple(clean[key] for key in sorted(clean))
        if values not in seen:
            if len(seen) >= self._max_sets:
                return dict.fromkeys(clean, _OTHER)
            seen.add(values)
        return clean


class PrometheusTelemetry:
    """Metrics in a registry of their own, served on request.

    Parameters
    ----------
    registry
        Where they are kept; a fresh one unless given.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self._rules = _Rules()
        self._metrics: dict[str, Any] = {}
        self._lock = threading.Lock()

    def count(self, name: str, amount: float = 1.0, **labels: str) -> None:
        """Add to a counter."""
        if amount < 0.0:
            raise ValueError(f"{name}: a counter never falls")
        self._of(
            "counter", name, labels, lambda n, w, ls: Counter(n, w, ls, registry=self.registry)
        ).inc(amount)

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""
        self._of(
            "gauge", name, labels, lambda n, w, ls: Gauge(n, w, ls, registry=self.registry)
        ).set(value)

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Add to a histogram."""
        self._of(
            "histogram",
            name,
            labels,
            lambda n, w, ls: Histogram(n, w, ls, registry=self.registry, buckets=_BUCKETS),
        ).observe(value)

    def text(self) -> str:
        """Return everything in Prometheus' text format."""
        return generate_latest(self.registry).decode()

    def serve(self, address: str, *, port: int) -> Callable[[], None]:
        """Serve ``/metrics`` on a thread and return how to stop it.

        Raises
        ------
        TemporaryError
            If something else listens on the port.
        UsageError
            If the address cannot be used.
        """
        try:
            server, thread = start_http_server(port, addr=address, registry=self.registry)
        except OSError as error:
            text = (
                f"cannot serve metrics on {address}:{port} ({error.strerror}); set metrics_port "
                "to a free port, or to 0 for none"
            )
            if error.errno == errno.EADDRINUSE:
                busy = TemporaryError(text, delay_s=_BUSY_S)
                busy.code, busy.where = "port-busy", f"{address}:{port}"
                raise busy from error
            raise UsageError(text) from error

        def stop() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        return stop

    def _of(self, kind: str, name: str, labels: Mapping[str, str], make: Callable[..., Any]) -> Any:  # noqa: ANN401 - one of three metric classes
        with self._lock:
            values = self._rules.admit(kind, name, labels)
            metric = self._metrics.get(name)
            if metric is None:
                words = HELP.get(name, name.removeprefix("retuned_").replace("_", " ") + ".")
                metric = self._metrics[name] = make(name, words, sorted(labels))
        return metric.labels(**values) if values else metric


@dataclass(slots=True)
class FakeTelemetry:
    """Remembers what it was told; one entry per name and labels."""

    counters: dict[tuple[str, frozenset[tuple[str, str]]], float] = field(default_factory=dict)
    """Sums."""
    gauges: dict[tuple[str, frozenset[tuple[str, str]]], float] = field(default_factory=dict)
    """Last values."""
    observed: dict[tuple[str, frozenset[tuple[str, str]]], list[float]] = field(
        default_factory=dict
    )
    """All values."""
    _rules: _Rules = field(default_factory=_Rules)

    def count(self, name: str, amount: float = 1.0, **labels: str) -> None:
        """Add to a counter."""
        if amount < 0.0:
            raise ValueError(f"{name}: a counter never falls")
        key = self._key("counter", name, labels)
        self.counters[key] = self.counters.get(key, 0.0) + amount

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""
        self.gauges[self._key("gauge", name, labels)] = value

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Add to a histogram."""
        self.observed.setdefault(self._key("histogram", name, labels), []).append(value)

    def total(self, name: str, **labels: str) -> float:
        """Sum of a counter over every label set that has these labels."""
        wanted = set(labels.items())
        return sum(v for (n, have), v in self.counters.items() if n == name and wanted <= have)

    def _key(
        self, kind: str, name: str, labels: Mapping[str, str]
    ) -> tuple[str, frozenset[tuple[str, str]]]:
        return name, frozenset(self._rules.admit(kind, name, labels).items())
