"""Metrics out: Prometheus, and a fake that remembers.

The catalogue in `retuned.telemetry` lists all metrics. For anything else the fake raises an error.
The Prometheus adapter drops it and counts that, because metrics never stop the loop. Label values
may be untrusted (kernel names): above a bound they count as ``(other)``, so that no trace can
exhaust the memory.
"""

from __future__ import annotations

import errno
import importlib.metadata
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
    start_http_server,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from retuned.errors import TemporaryError, UsageError
from retuned.telemetry import (
    CATALOGUE,
    OTHER,
    Exporter,
    Fault,
    Keeper,
    Metric,
    MetricType,
    Refusal,
    Row,
    admitted,
    exported_by,
)

log = logging.getLogger(__name__)

MAX_LABEL_SETS = 256
"""Distinct label sets per metric."""

_BUSY_S = 10.0
"""Wait before a busy port is tried again."""
_REFUSED = "retuned_metrics_refused_total"
_MAKE: Mapping[MetricType, Callable[..., Any]] = {
    MetricType.COUNTER: Counter,
    MetricType.GAUGE: Gauge,
}

disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series beside each counter, which nothing here reads


class _Bounds:
    """Bounds untrusted label values: it accepts those that come first."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, str], set[str]] = {}
        self._sets: dict[str, set[tuple[str, ...]]] = {}

    def bounded(self, metric: Metric, labels: dict[str, str]) -> dict[str, str]:
        """Return the labels to count under."""
        kept = dict(labels)
        for label in metric.labels:
            if label.values is not None:
                continue
            known = self._values.setdefault((metric.name, label.name), set())
            if kept[label.name] not in known and len(known) >= label.most:
                kept[label.name] = OTHER
            known.add(kept[label.name])
        sets = self._sets.setdefault(metric.name, set())
        row = tuple(kept.values())
        if row not in sets and len(sets) >= MAX_LABEL_SETS:
            return dict.fromkeys(kept, OTHER)
        sets.add(row)
        return kept


class PrometheusTelemetry:
    """Metrics in a registry, served on request. Nothing here raises for what is counted.

    Parameters
    ----------
    exporter
        Which program this is: only its metrics are taken.
    registry
        Where they are kept; a fresh one unless given.
    """

    def __init__(self, exporter: Exporter, *, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self._exporter = exporter
        self._bounds = _Bounds()
        self._metrics: dict[str, Any] = {}
        self._tables: dict[str, dict[tuple[str, ...], float]] = {}
        self._said: set[str] = set()
        self._lock = threading.Lock()
        for metric in exported_by(exporter):
            self._begin(metric)
        self.registry.register(_Tables(self._rows))
        ProcessCollector(namespace="retuned", registry=self.registry)
        self.gauge("retuned_build_info", 1.0, program=str(exporter), version=_version())

    def count(self, name: str, amount: float = 1.0, **labels: str) -> None:
        """Add to a counter."""
        with self._lock:
            found = self._of(MetricType.COUNTER, name, labels)
        if found is not None and amount >= 0.0:
            found.inc(amount)

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""
        with self._lock:
            found = self._of(MetricType.GAUGE, name, labels)
        if found is not None:
            found.set(value)

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Add to a histogram."""
        with self._lock:
            found = self._of(MetricType.HISTOGRAM, name, labels)
        if found is not None:
            found.observe(value)

    def table(self, name: str, rows: Iterable[Row]) -> None:
        """Replace all series of a metric: series without a row are removed."""
        metric = CATALOGUE.get(name)
        kind = metric.kind if metric is not None else MetricType.GAUGE
        kept: dict[tuple[str, ...], float] = {}
        with self._lock:
            for labels, value in rows:
                clean = admitted(name, labels, kind=kind, table=True, exporter=self._exporter)
                if isinstance(clean, Refusal):
                    self._refuse(clean)
                elif metric is not None and len(kept) < metric.most_rows:
                    kept[tuple(clean.values())] = value
                elif metric is not None:
                    text = f"{name}: only {metric.most_rows} rows are shown"
                    self._refuse(Refusal(fault=Fault.TOO_MANY, detail=text))
            if metric is not None:
                self._tables[name] = kept

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

    def _begin(self, metric: Metric) -> None:
        """Show every series of a counter from the start: a first event must be a rise."""
        if metric.keeper is not Keeper.TELEMETRY or not metric.is_closed:
            return
        if metric.kind is MetricType.COUNTER:
            for labels in metric.series():
                self._child(metric, labels)

    def _of(self, kind: MetricType, name: str, labels: Mapping[str, str]) -> Any | None:  # noqa: ANN401 - one of three metric classes
        clean = admitted(name, labels, kind=kind, exporter=self._exporter)
        if isinstance(clean, Refusal):
            self._refuse(clean)
            return None
        metric = CATALOGUE[name]
        return self._child(metric, self._bounds.bounded(metric, clean))

    def _child(self, metric: Metric, labels: Mapping[str, str]) -> Any:  # noqa: ANN401 - as above
        made = self._metrics.get(metric.name)
        if made is None:
            about = (metric.name, metric.meaning, metric.label_names)
            if metric.kind is MetricType.HISTOGRAM:
                made = Histogram(*about, buckets=metric.buckets, registry=self.registry)
            else:
                made = _MAKE[metric.kind](*about, registry=self.registry)
            self._metrics[metric.name] = made
        return made.labels(**labels) if labels else made

    def _refuse(self, refusal: Refusal) -> None:
        if refusal.detail not in self._said and len(self._said) < MAX_LABEL_SETS:
            self._said.add(refusal.detail)
            log.error("a number is thrown away: %s", refusal.detail)
        self._child(CATALOGUE[_REFUSED], {"reason": str(refusal.fault)}).inc()

    def _rows(self) -> dict[str, dict[tuple[str, ...], float]]:
        with self._lock:
            return dict(self._tables)


def _version() -> str:
    try:
        return importlib.metadata.version("retuned")
    except importlib.metadata.PackageNotFoundError:
        return ""


class _Tables(Collector):
    """Serves the current rows of tables at each scrape."""

    def __init__(self, rows: Callable[[], Mapping[str, Mapping[tuple[str, ...], float]]]) -> None:
        self._rows = rows

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """Return each table with its rows."""
        for name, rows in self._rows().items():
            metric = CATALOGUE[name]
            family = GaugeMetricFamily if metric.kind is MetricType.GAUGE else CounterMetricFamily
            shown = family(name, metric.meaning, labels=metric.label_names)
            for values, value in rows.items():
                shown.add_metric(values, value)
            yield shown

    def describe(self) -> Iterable[Any]:
        """Say nothing beforehand: tables come with their first rows."""
        return ()


@dataclass(slots=True)
class FakeTelemetry:
    """Remembers all values, one entry per name and labels; raises on any fault.

    Raises
    ------
    ValueError
        From every method, if the catalogue does not have what is counted.
    """

    counters: dict[tuple[str, frozenset[tuple[str, str]]], float] = field(default_factory=dict)
    """Sums."""
    gauges: dict[tuple[str, frozenset[tuple[str, str]]], float] = field(default_factory=dict)
    """Last values."""
    observed: dict[tuple[str, frozenset[tuple[str, str]]], list[float]] = field(
        default_factory=dict
    )
    """All values."""
    tables: dict[str, dict[frozenset[tuple[str, str]], float]] = field(default_factory=dict)
    """Current rows, by name."""
    exporter: Exporter | None = None
    """Program whose metrics it accepts; None accepts those of all."""
    _bounds: _Bounds = field(default_factory=_Bounds)

    def count(self, name: str, amount: float = 1.0, **labels: str) -> None:
        """Add to a counter."""
        if amount < 0.0:
            raise ValueError(f"{name}: a counter never falls")
        key = self._key(MetricType.COUNTER, name, labels)
        self.counters[key] = self.counters.get(key, 0.0) + amount

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""
        self.gauges[self._key(MetricType.GAUGE, name, labels)] = value

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Add to a histogram."""
        self.observed.setdefault(self._key(MetricType.HISTOGRAM, name, labels), []).append(value)

    def table(self, name: str, rows: Iterable[Row]) -> None:
        """Replace all series of a metric."""
        kind = CATALOGUE[name].kind if name in CATALOGUE else MetricType.GAUGE
        kept: dict[frozenset[tuple[str, str]], float] = {}
        for labels, value in rows:
            clean = admitted(name, labels, kind=kind, table=True, exporter=self.exporter)
            if isinstance(clean, Refusal):
                raise ValueError(clean.detail)
            kept[frozenset(clean.items())] = value
        if kind is not MetricType.HISTOGRAM and name not in CATALOGUE:
            raise ValueError(f"{name} is not in the catalogue")
        if len(kept) > CATALOGUE[name].most_rows:
            raise ValueError(f"{name} has {len(kept)} rows")
        self.tables[name] = kept

    def total(self, name: str, **labels: str) -> float:
        """Sum of a counter over every label set that has these labels."""
        wanted = set(labels.items())
        return sum(v for (n, have), v in self.counters.items() if n == name and wanted <= have)

    def row(self, name: str, **labels: str) -> float | None:
        """Return the row of a table that has these labels; None without one."""
        wanted = set(labels.items())
        return next((v for have, v in self.tables.get(name, {}).items() if wanted <= have), None)

    def _key(
        self, kind: MetricType, name: str, labels: Mapping[str, str]
    ) -> tuple[str, frozenset[tuple[str, str]]]:
        clean = admitted(name, labels, kind=kind, exporter=self.exporter)
        if isinstance(clean, Refusal):
            raise ValueError(clean.detail)
        return name, frozenset(self._bounds.bounded(CATALOGUE[name], clean).items())
