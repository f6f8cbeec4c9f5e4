"""What the runtime measures of itself."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from retuned.telemetry import MetricType, metric


class RuntimeMetrics:
    """Counters and times of one operator.

    Parameters
    ----------
    registry
        Where they are shown.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.reconciles: Histogram = _of("retuned_operator_reconcile_duration_seconds", registry)
        self.waits: Histogram = _of("retuned_operator_queue_wait_seconds", registry)
        self.depth: Gauge = _of("retuned_operator_queue_depth", registry)
        self.restarts: Counter = _of("retuned_operator_watch_restarts_total", registry)
        self.silence: Gauge = _of("retuned_operator_watch_silence_seconds", registry)
        self.leading: Gauge = _of("retuned_operator_leading", registry)


def _of(name: str, registry: CollectorRegistry) -> Any:  # noqa: ANN401 - one of three classes
    """Return a metric as the catalogue has it."""
    known = metric(name)
    about = (known.name, known.meaning, known.label_names)
    if known.kind is MetricType.HISTOGRAM:
        return Histogram(*about, buckets=known.buckets, registry=registry)
    return (Counter if known.kind is MetricType.COUNTER else Gauge)(*about, registry=registry)
