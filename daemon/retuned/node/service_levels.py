"""Service levels of the server from its own Prometheus metrics, while a swap is proven.

The names are those of vLLM and SGLang (vLLM 0.32.0, SGLang 0.5.23); older ones of vLLM are known.
"""

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable

import httpx
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from retuned.errors import TemporaryError
from retuned.ports import ServiceCounts
from retuned.stages.gate import LiveProof, ServiceLevels
from retuned.stages.watch.proof.service_level import WINDOW_S, Histogram, Served, breach, continues
from retuned.urls import check_url

log = logging.getLogger(__name__)

_FIRST_TOKEN = ("vllm:time_to_first_token_seconds", "sglang:time_to_first_token_seconds")
_BETWEEN_TOKENS = (
    "vllm:inter_token_latency_seconds",
    "vllm:time_per_output_token_seconds",
    "sglang:inter_token_latency_seconds",
)
_WAITING = ("vllm:num_requests_waiting", "sglang:num_queue_reqs")
_LIMIT_S = 2.0
_MAX_BYTES = 8 * 2**20


class HttpServiceCounts:
    """Reads the metrics page of a server.

    Parameters
    ----------
    url
        Address of the page, such as `http://127.0.0.1:8000/metrics`.
    now
        A monotonic clock, seconds.

    Raises
    ------
    UsageError
        If it is not a plain http or https address.
    """

    def __init__(self, url: str, *, now: Callable[[], float] = time.monotonic) -> None:
        check_url(url, what="server_metrics_url", secret=False, query=True)
        self._url, self._now = url, now
        self._http = httpx.Client(timeout=_LIMIT_S, trust_env=False)

    def read(self) -> Served:
        """See `ServiceCounts.read`."""
        try:
            with self._http.stream("GET", self._url) as answer:
                answer.raise_for_status()
                page = bytearray()
                for part in answer.iter_bytes():
                    page += part
                    if len(page) > _MAX_BYTES:
                        raise TemporaryError(
                            f"{self._url}: more than {_MAX_BYTES} bytes", delay_s=1.0
                        )
            return served(page.decode(), at_s=self._now())
        except (httpx.HTTPError, ValueError) as error:
            raise TemporaryError(f"{self._url}: {error!r}", delay_s=1.0) from error


def served(page: str, *, at_s: float) -> Served:
    """Return the counts of a metrics page; those of several engines are added.

    Raises
    ------
    ValueError
        If the page is not in the Prometheus text format.
    """
    names = {*_FIRST_TOKEN, *_BETWEEN_TOKENS, *_WAITING}
    found = {
        family.name: family.samples
        for family in text_string_to_metric_families(page)
        if family.name in names
    }
    waiting = next((found[name] for name in _WAITING if name in found), None)
    return Served(
        at_s=at_s,
        first_token=_histogram(next((found[n] for n in _FIRST_TOKEN if n in found), ())),
        between_tokens=_histogram(next((found[n] for n in _BETWEEN_TOKENS if n in found), ())),
        waiting=sum(sample.value for sample in waiting) if waiting else None,
    )


def _histogram(samples: Iterable[Sample]) -> Histogram | None:
    counts: dict[float, float] = defaultdict(float)
    for sample in samples:
        if sample.name.endswith("_bucket"):
            counts[float(sample.labels["le"])] += sample.value
    if math.inf not in counts:
        return None
    ends = sorted(counts)
    return Histogram(ends_s=tuple(ends), counts=tuple(counts[end] for end in ends))


class LevelWatch:
    """Tells whether the server met the service levels of a policy in the last seconds.

    Parameters
    ----------
    counts
        Source of the server's counts.
    bounds
        Service levels of the policy.
    """

    def __init__(self, counts: ServiceCounts, bounds: ServiceLevels) -> None:
        self._counts, self._bounds = counts, bounds
        self._past: deque[Served] = deque()

    def met(self) -> bool:
        """Read the counts; False also where they cannot be read."""
        try:
            now = self._counts.read()
        except TemporaryError as error:
            log.warning("service levels cannot be read, the swap is off: %s", error)
            self._past.clear()
            return False
        if self._past and not continues(self._past[-1], now):
            log.warning("the server's counters restarted, the swap is off")
            self._past.clear()
            return False
        self._past.append(now)
        while len(self._past) > 1 and now.at_s - self._past[1].at_s >= WINDOW_S:
            self._past.popleft()
        found = breach(self._past[0], now, self._bounds)
        if found:
            log.info("a service level is not met: %s", found)
        return not found


def counts_at(url: str) -> ServiceCounts | None:
    """Return the source of a server's counts; None without an address.

    Raises
    ------
    UsageError
        As `HttpServiceCounts`.
    """
    return HttpServiceCounts(url) if url else None


def lacks_levels(counts: ServiceCounts | None, rule: LiveProof) -> bool:
    """Whether a rule has service levels and no source of their counts is known."""
    return rule.slo.asked and counts is None


def levels_of(counts: ServiceCounts | None, rule: LiveProof) -> LevelWatch | None:
    """Return a watch over the service levels of a rule; None if it has none, or without counts.

    Where `lacks_levels` holds, no proof may begin.
    """
    return None if counts is None or not rule.slo.asked else LevelWatch(counts, rule.slo)
