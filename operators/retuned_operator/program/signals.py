"""What Prometheus says of the service level. No answer is "not known", never "all is well"."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence

import httpx

from retuned.ports import Clock
from retuned.stages.gate.limits import Metric
from retuned_operator.crds import TuningTarget
from retuned_operator.crds.proposal_status import LookOutcome

log = logging.getLogger(__name__)

_FRESH_S = 15.0
"""One answer serves all targets for so long, seconds."""


class PrometheusSignals:
    """The `Signals` of one Prometheus.

    Parameters
    ----------
    client
        With its address as the base URL and a time-out; None asks nobody.
    slo_alerts
        PromQL that returns something while the service level is in danger; empty asks nobody, and
        then nothing is in danger for all that anybody can know.
    clock
        Time.
    """

    def __init__(self, client: httpx.Client | None, *, slo_alerts: str, clock: Clock) -> None:
        self._client = client
        self._slo_alerts = slo_alerts
        self._clock = clock
        self._lock = threading.Lock()
        self._asked_s = -float("inf")
        self._firing: bool | None = None

    def slo_firing(self, target: TuningTarget) -> bool | None:
        """Whether an alert on the service level fires; None while nobody knows."""
        del target  # the query is one for the cluster
        if self._client is None or not self._slo_alerts:
            return False
        with self._lock:
            if self._clock.monotonic_s() - self._asked_s >= _FRESH_S:
                self._firing = self._any(self._client)
                self._asked_s = self._clock.monotonic_s()
            return self._firing

    def looks(self, target: TuningTarget, metrics: Sequence[Metric]) -> Mapping[str, LookOutcome]:
        """Return no answer: metrics of an analysis are not asked for yet, and so never pass."""
        del target, metrics
        return {}

    def _any(self, client: httpx.Client) -> bool | None:
        try:
            response = client.get("/api/v1/query", params={"query": self._slo_alerts})
            response.raise_for_status()
            body = response.json()
            result = body["data"]["result"] if body["status"] == "success" else None
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            log.warning("nobody knows the service level: %s", error)
            return None
        return bool(result) if isinstance(result, list) else None
