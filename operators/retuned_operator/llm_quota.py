"""How a pod asks a language model for variants, and how much money all pods of a day may spend.

A pod counts what one experiment spends and forgets it when it ends. So the most that it may spend
is set aside here before it is made, for a day, whatever it does then.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from retuned.ports import Clock, Store
from retuned_operator.manifests import JobSettings
from retuned_operator.manifests.jobs import ENDPOINT_KEY, WORK_DIR

log = logging.getLogger(__name__)

MONEY = "model-money"
"""Kind of the records of what was set aside, by try: noted."""
_DAY = timedelta(days=1)
_MOST = 4096
"""Newest records that are read."""


class LlmQuota:
    """Decides the endpoint and the budget for requests to a model.

    Parameters
    ----------
    store
        Where money that was set aside is noted.
    jobs
        The endpoint and its bounds.
    clock
        Time.
    """

    def __init__(self, store: Store, jobs: JobSettings, *, clock: Clock) -> None:
        self._store = store
        self._jobs = jobs
        self._clock = clock

    def bounds(self) -> Mapping[str, Any]:
        """Return what a plan's budget is while variants are written."""
        endpoint = self._jobs.endpoint
        if endpoint is None:
            return {}
        return {"max_candidates": endpoint.variants, "max_seconds": float(endpoint.max_s)}

    def config(self, attempt: str) -> Mapping[str, Any] | None:
        """Return the ``evolve`` of a task; None where the day's money does not reach.

        Parameters
        ----------
        attempt
            Names one try; asked again, it pays nothing more.
        """
        endpoint = self._jobs.endpoint
        if endpoint is None or not endpoint.url:
            return None
        if self._store.get(MONEY, attempt) is None:
            spent = self._spent()
            if spent + endpoint.max_usd > endpoint.max_usd_per_day:
                log.warning("%s asks no model: %.2f dollars are set aside today", attempt, spent)
                return None
            self._store.add(MONEY, attempt, {"usd": endpoint.max_usd}, phase="noted")
        return {
            "url": endpoint.url,
            "model": endpoint.model,
            "key_variable": ENDPOINT_KEY if self._jobs.endpoint_secret else "",
            "prompt_usd_per_mtok": endpoint.prompt_usd_per_mtok,
            "completion_usd_per_mtok": endpoint.completion_usd_per_mtok,
            "max_tokens": endpoint.max_tokens,
            "max_usd": endpoint.max_usd,
            "max_usd_per_day": endpoint.max_usd,
            "transcripts": f"{WORK_DIR}/transcripts",
        }

    def _spent(self) -> float:
        since = self._clock.now() - _DAY
        kept = self._store.list(MONEY, limit=_MOST)
        return sum(float(each.body["usd"]) for each in kept if each.created_at > since)
