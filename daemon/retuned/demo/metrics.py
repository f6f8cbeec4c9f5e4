"""The server's own metrics, as any inference server has them."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from retuned.demo.batches import StepReport

_STEP_BUCKETS_S = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


class ServerMetrics:
    """Counts what the engine did; a step hook.

    Parameters
    ----------
    registry
        Where the metrics are registered.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self._tokens = Counter(
            "demo_server_tokens", "Tokens computed.", labelnames=("kind",), registry=registry
        )
        self._requests = Counter(
            "demo_server_requests", "Requests ended.", labelnames=("outcome",), registry=registry
        )
        self._steps = Histogram(
            "demo_server_step_seconds",
            "Wall time of an engine step.",
            buckets=_STEP_BUCKETS_S,
            registry=registry,
        )
        self._running = Gauge(
            "demo_server_running_sequences", "Sequences in the batch.", registry=registry
        )
        self._waiting = Gauge(
            "demo_server_waiting_sequences", "Sequences behind the batch.", registry=registry
        )

    def before_step(self) -> None:
        """Nothing is counted before a step."""

    def after_step(self, report: StepReport) -> None:
        """Count one step."""
        self._steps.observe(report.duration_s)
        self._tokens.labels(kind="prompt").inc(report.prefill_tokens)
        self._tokens.labels(kind="output").inc(report.output_tokens)
        self._running.set(report.running)
        self._waiting.set(report.waiting)

    def stopped(self) -> None:
        """Nothing runs any more."""
        self._running.set(0)
        self._waiting.set(0)

    def request_ended(self, outcome: str) -> None:
        """Count a request: ``ok``, ``failed``, ``cancelled`` or ``refused``."""
        self._requests.labels(outcome=outcome).inc()
