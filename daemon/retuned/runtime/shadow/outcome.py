"""Outcome of a check while the server runs: continue, or trip the order immediately.

Three kinds of results trip an order in the process, before the daemon learns of them. First, a
clearly wrong output: `NaN` or `Inf` where the incumbent has none, a difference four times over what
is allowed, or an rms four times over what the incumbent's own noise allows. Second, an rms ratio
that grows slowly. Third, a variant that is slower than the incumbent. The last two are sequences,
followed per shape bucket, because buckets differ and traffic moves between them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from retuned.runtime.core.orders import CheckRates
from retuned.runtime.schema import Key
from retuned.runtime.shadow.rates import Cost, Rates
from retuned.runtime.shadow.sampler import RATIO_CAP, TRIP_RATIO, Comparison, Stats, Stratum, bucket

LEAST_RATIO = 0.05
"""Lower limit of rms ratios, as a share of what is allowed.

Noise far below what is allowed is not a decay.
"""
SLOWER = 1.5
"""A timed launch counts as slower from this ratio to the incumbent's time.

It is far from what the lab measured, so that a busy machine does not count as a slow kernel.
"""
LEAST_SLOWER_NS = 5_000
"""Minimum difference of a slower launch: the call itself may cost less than that."""
PACE_EVERY = 4
"""One of this many checks is timed, because it launches the variant once more."""


class Judge:
    """Judges the checks of one order.

    Parameters
    ----------
    order
        Tolerance, the incumbent's noise, rates and share of time.
    """

    def __init__(self, order: CheckRates, *, clock: Callable[[], float]) -> None:
        self.stats = Stats()
        self.cost = Cost(order.shadow_share, clock=clock)
        self.rates = Rates(order.shadow_every, order.shadow_later)
        self.slowdown = 0.0
        """Time of the variant over the incumbent's in the last timed check; 0 before the first."""
        self._tolerance = order.shadow_tolerance
        self._noise: Mapping[Key, float] = order.noise

    def may_check(self, stratum: Stratum) -> bool:
        """Whether a due check may run; the first of a bucket always may."""
        return stratum.checks == 0 or self.cost.allows()

    def check(
        self, key: Key, stratum: Stratum, comparison: Comparison, *, untouched: bool
    ) -> str | None:
        """Add one check; return the reason code for a trip, or None."""
        if not untouched:
            comparison = Comparison(nonfinite=comparison.nonfinite, ratio=RATIO_CAP)
        self.stats.check(comparison)
        with self.stats.lock:
            stratum.checks += 1
            stratum.step_checks += 1
            if not untouched:
                return "input-modified"
            if comparison.nonfinite:
                return "shadow-nonfinite"
            if comparison.ratio > TRIP_RATIO or self._noisy(key, comparison):
                return "shadow-mismatch"
            course = math.log(max(LEAST_RATIO, comparison.rms_ratio))
            return "slow-decay" if stratum.decay.add(course) else None

    def is_timed(self, stratum: Stratum) -> bool:
        """Whether the next check of a bucket is timed; never its first."""
        return stratum.checks % PACE_EVERY == PACE_EVERY - 1

    def pace(self, stratum: Stratum, variant_ns: int, incumbent_ns: int) -> str | None:
        """Add the times of one launch of each; return the reason code for a trip, or None."""
        with self.stats.lock:
            self.slowdown = variant_ns / max(1, incumbent_ns)
            slower = variant_ns > max(SLOWER * incumbent_ns, incumbent_ns + LEAST_SLOWER_NS)
            return "slow" if stratum.pace.add(1.0 if slower else -1.0) else None

    def _noisy(self, key: Key, comparison: Comparison) -> bool:
        """Whether the rms is over four times what both kernels' noise allows."""
        noise = self._noise.get(bucket(key))
        if noise is None:
            return False
        return comparison.rms_ratio * self._tolerance > TRIP_RATIO * noise
