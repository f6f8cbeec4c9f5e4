"""What Prometheus says of the service. No answer is "not known", never "all is well"."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from datetime import datetime

from retuned.ports import Clock
from retuned.stages.gate.limits import Metric
from retuned_operator.controllers.ports import EventSubject
from retuned_operator.crds import TuningTarget
from retuned_operator.machine.measuring import Compared
from retuned_operator.program.prometheus import Prometheus

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
        Who is asked; None asks nobody.
    slo_alerts
        PromQL that returns something while the service level is in danger; empty asks nobody, and
        then nothing is in danger for all that anybody can know.
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
        """Whether an alert on the service level fires; None while nobody knows."""
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
        """Return each metric now and when the first pod was told; see `Signals.compare`."""
        prometheus = self._prometheus
        if prometheus is None:
            return {}
        found = {}
        for metric in metrics:
            query = filled(metric.query, about)
            # how it was before the swap is asked of the same pods, which ran the original then
            before = self._baseline(prometheus, query, since)
            now = prometheus.ask(query) if before is not None else None
            found[metric.name] = Compared(
                before=before,
                now=now.value if now is not None else None,
                samples=now.samples if now is not None else None,
            )
        return found

    def _baseline(self, prometheus: Prometheus, query: str, since: datetime) -> float | None:
        """Return what a query said then; what is past does not change, so it is asked once."""
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
    >>> about = About(namespace="serving", target="chat", pods=("chat-0", "chat.1"))
    >>> filled('up{namespace="$namespace",pod=~"$pods"} unless $podsets', about)
    'up{namespace="serving",pod=~"chat-0|chat[.]1"} unless $podsets'
    """
    values = {
        "namespace": about.namespace,
        "target": about.target,
        "pods": "|".join(name.replace(".", "[.]") for name in about.pods[:_MAX_PODS]),
    }
    return _PLACE.sub(lambda found: values[found.group(1)], query)
