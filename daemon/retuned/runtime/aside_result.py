"""What becomes of a check when its numbers are there: folded in, ignored, or the way back."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from retuned.runtime.comparing import ElementFormat
from retuned.runtime.judging import Judge
from retuned.runtime.shadow import Sampler, Stratum
from retuned.runtime.shadow_numbers import judged
from retuned.runtime.slots import Slot
from retuned.runtime.spec import Key, Tensor
from retuned.runtime.underway import CHECKS, Checks, PendingCheck

log = logging.getLogger(__name__)

STUCK = "stuck"
"""Why a check has no result: it has not come back for long."""
LATE = "order-gone"
"""Why a result is not counted: another order is in force, or this one has been taken back."""
WEIGHTS_CHANGED = "weights-changed"
"""Why a result is not counted: the server wrote to its weights meanwhile."""


class CheckedOrder(Protocol):
    """The order in force that a check is made for."""

    def trip(self, reason: str, detail: str) -> None:
        """Take the order back at once."""
        ...

    def count_error(self, error: Exception) -> None:
        """Count a launch that raised."""
        ...

    def stands(self) -> bool:
        """Whether it is still in force and was not taken back."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckSite:
    """Where a check is made."""

    key: Key
    """Lengths of the launch."""
    stratum: Stratum
    """Its shape bucket."""
    sampler: Sampler
    """Chooses the next."""


@dataclass(slots=True)
class CheckInputs:
    """What is needed to judge a check when its numbers are there."""

    at: CheckSite
    versions: list[tuple[Tensor, int | None]]
    """Weights, and how often they had been written to."""
    before: list[Tensor] = field(default_factory=list)
    """Glimpses of the inputs before the launch."""
    forms: Sequence[tuple[ElementFormat, int]] = ()
    """Element type and elements of each output."""
    timed: bool = False
    """Whether the spans are the incumbent's and the variant's."""


class Results:
    """Takes the results of one order's checks.

    Parameters
    ----------
    slot
        Has the original.
    order
        Is taken back where a check says so.
    judge
        Says so.
    tolerance
        Allowed difference.
    checks
        Those under way; those of the process by default.
    """

    def __init__(
        self,
        slot: Slot,
        *,
        order: CheckedOrder,
        judge: Judge,
        tolerance: float,
        checks: Checks = CHECKS,
    ) -> None:
        self._slot = slot
        self._order = order
        self._judge = judge
        self._tolerance = tolerance
        self._checks = checks

    def arrived(self, check: PendingCheck) -> None:
        """Fold the numbers of a check in, unless they are about an order that is gone.

        Raises
        ------
        ValueError
            If they are no numbers of a check.
        """
        about: CheckInputs = check.about
        self._judge.cost.spend(sum(check.spans_ns) / 1e9)
        if not self._order.stands():
            self._judge.stats.drop(LATE)
            return
        if any(check.device.version(tensor) != count for tensor, count in about.versions):
            self._judge.stats.drop(WEIGHTS_CHANGED)
            return
        changed, *numbers = check.numbers
        seen = judged(about.forms, numbers, self._tolerance)
        at, comparison = about.at, seen.comparison
        with self._judge.stats.lock:
            self._judge.stats.mismatched += seen.mismatched
        untouched = changed == 0
        reason = self._judge.check(at.key, at.stratum, comparison, untouched=untouched)
        detail = f"ratio {comparison.ratio:.3g}, rms {comparison.rms_ratio:.3g}"
        if reason is None and untouched and about.timed:
            incumbent_ns, variant_ns = check.spans_ns
            reason = self._judge.pace(at.stratum, variant_ns, incumbent_ns)
            detail = f"{variant_ns / 1e3:.1f} us, the incumbent {incumbent_ns / 1e3:.1f} us"
        if reason is not None:
            self._order.trip(reason, f"{detail} at {at.stratum.ran} launches of {at.key}")

    def lost(self, check: PendingCheck, reason: str) -> None:
        """Count a check that has no result."""
        self._judge.stats.drop(reason)

    def stuck(self, check: PendingCheck, seconds: float) -> None:
        """Count and report a check that does not come back."""
        self._judge.stats.drop(STUCK)
        log.error("%s: a check of %s does not come back", self._slot.spec.name, check.about.at.key)
