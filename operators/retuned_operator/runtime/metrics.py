"""What the runtime measures of itself."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class RuntimeMetrics:
    """Counters and times of one operator.

    Parameters
    ----------
    registry
        Where they are shown.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.reconciles = Histogram(
            "retuned_operator_reconcile_duration_seconds",
            "Time that one look at an object took, by what came of it.",
            ("controller", "result"),
            buckets=_SECONDS,
            registry=registry,
        )
        self.waits = Histogram(
            "retuned_operator_queue_wait_seconds",
            "Time that an object waited to be looked at.",
            ("controller",),
            buckets=_SECONDS,
            registry=registry,
        )
        self.depth = Gauge(
            "retuned_operator_queue_depth",
            "Objects that wait to be looked at.",
            ("controller",),
            registry=registry,
        )
        self.restarts = Counter(
            "retuned_operator_watch_restarts",
            "Watches that were begun again, by why.",
            ("resource", "reason"),
            registry=registry,
        )
        self.silence = Gauge(
            "retuned_operator_watch_silence_seconds",
            "Time since the API server last said anything about a kind.",
            ("resource",),
            registry=registry,
        )
        self.leading = Gauge(
            "retuned_operator_leading",
            "1 while this operator leads.",
            registry=registry,
        )
