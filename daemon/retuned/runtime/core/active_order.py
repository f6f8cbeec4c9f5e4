"""Active order of a slot: the launches it changes, their checks, and its circuit breaker.

Failures of a variant are handled here, launch by launch, so that they do not reach the server. If a
variant raises, the incumbent serves that launch. After a few such launches, or one check with a
large difference, the order trips: the slot returns to the original without an order and reports it
in its samples, and the daemon orders the official rollback. While an order is a canary, only a
fraction of the launches runs the variant, or none, and shadow checks compare it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from typing import Any

from retuned.runtime.core.canary import BLOCK, PERIOD, CanaryShare
from retuned.runtime.core.orders import Order
from retuned.runtime.core.slots import Slot
from retuned.runtime.core.tables import Run
from retuned.runtime.native.interface import Ineligible, Launch, Variant
from retuned.runtime.schema import Key, Tensor, parse_bounds
from retuned.runtime.shadow.checker import Checker, CheckSite
from retuned.runtime.shadow.outcome import Judge
from retuned.runtime.shadow.sampler import Compare, Sampler, Stratum

__all__ = ["MAX_ERRORS", "Ineligible", "Launch", "Swapped", "Variant"]

log = logging.getLogger(__name__)

MAX_ERRORS = 3
"""Launches that may raise before the order trips."""

Tripped = Callable[["Swapped", str], None]
"""Receives an order that tripped, and the reason."""


class Swapped:
    """Executes one order on one slot.

    Parameters
    ----------
    variant
        What runs; None if the order's artifact is the original.
    compare
        Judges a shadow check; other devices may need another function.

    Raises
    ------
    Refused
        ``guard-invalid`` if the guard names axes that the slot does not have.
    """

    def __init__(
        self,
        slot: Slot,
        order: Order,
        *,
        variant: Variant | None,
        compare: Compare,
        sampler: Sampler | None = None,
        on_trip: Tripped | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.mark = f"{slot.spec.name}#{order.epoch}#{order.id}"
        self.artifact = order.artifact
        self.epoch = order.epoch
        self.bounds = parse_bounds(order.guard, slot.spec.variable_axes)
        self.order = order
        self.judge = Judge(order, clock=clock)
        self.stats = self.judge.stats
        self.live = CanaryShare(order.fraction, clock=clock)
        self.orphaned = False
        self.distortion: Callable[[Launch], Launch] | None = None
        """Changes what a launch of the variant returns or takes; only a demo sets it."""
        self.launches_before = slot.total()
        self._slot = slot
        self._variant = variant
        self._on_trip = on_trip
        self._sampler = sampler or Sampler(self.judge.rates, clock=clock)
        self._dark = Sampler(self.judge.rates, clock=clock)
        self._checker = (
            None
            if variant is None
            else Checker(
                slot,
                variant,
                order=self,
                judge=self.judge,
                compare=compare,
                tolerance=order.shadow_tolerance,
            )
        )

    @property
    def swapped_launches(self) -> int:
        return self._sampler.ran()

    @property
    def variant(self) -> Variant | None:
        return self._variant

    def strata(self) -> list[tuple[Key, Stratum]]:
        return [*self._sampler.strata().items(), *self._dark.strata().items()]

    def ramp(self, fraction: float, *, excluded: Collection[Key]) -> None:
        """Change the share of launches that run the variant, and the excluded buckets.

        A change between two shares above 0 and below 1 is one store; any other change flips the
        slot.
        """
        before = self.live.share
        before_split = 0 < before < BLOCK
        narrowed = frozenset(excluded) != self.live.excluded
        with self.stats.lock:
            for _, stratum in self.strata():
                stratum.step_checks = 0
        self.live.exclude(excluded)
        self.live.set(fraction)
        still_split = before_split and 0 < self.live.share < BLOCK
        if narrowed or (before != self.live.share and not still_split):
            self._slot.replace(self, state=self._slot.table.state)

    def route(self, key: Key) -> Run:
        if self._variant is None or not self.live.serves(key):
            return self._slot.original
        shadowed = self.live.share == 0
        run = self._shadowing(key) if shadowed else self._running(key)
        if not shadowed and self.live.table is not None:
            run = self._split(key, run)
        capturing = self._variant.capturing()
        if capturing is None:
            return run
        original = self._slot.original

        def unless_captured(*inputs: Tensor) -> Any:  # noqa: ANN401 - as run
            return original(*inputs) if capturing() else run(*inputs)

        return unless_captured

    def unconditional(self, key: Key) -> Stratum | None:
        """Return the bucket of a key if all its launches run the variant until the next flip.

        The caller must still check whether a shadow check is due. Return None for a canary, or if
        the variant is distorted.
        """
        if self.live.table is not None or self.live.share != BLOCK or self.distortion is not None:
            return None
        return self._sampler.stratum(key) if self.live.serves(key) else None

    def _running(self, key: Key) -> Run:
        variant, checker = self._variant, self._checker
        assert variant is not None, "the original has no separate route"
        assert checker is not None, "made with the variant"
        launch = self._distorted(variant.launcher(key))
        stratum, stats, original = self._sampler.stratum(key), self.stats, self._slot.original
        at = CheckSite(key=key, stratum=stratum, sampler=self._sampler)

        def run(*inputs: Tensor) -> Any:  # noqa: ANN401 - whatever the original returns
            if stratum.ran >= stratum.check_at and self._may_check(at):
                # rare: the launcher is made only when it is needed
                checked = self._distorted(variant.checked_launcher(key))
                return checker.served(checked, launch, at, inputs)
            try:
                output = launch(inputs)
            except Exception as error:  # untrusted code: the original serves, whatever is raised
                self.count_error(error)
                return original(*inputs)
            if output.__class__ is Ineligible:
                stats.skip(output.reason)
                return original(*inputs)
            stratum.ran += 1
            return output

        return run

    def _split(self, key: Key, run: Run) -> Run:
        live, original, count = self.live, self._slot.original, self.live.counter(key)
        stratum = self._sampler.stratum(key)

        def split(*inputs: Tensor) -> Any:  # noqa: ANN401 - as run
            table = live.table
            if table is None or table[count() % PERIOD]:
                return run(*inputs)
            stratum.held += 1
            return original(*inputs)

        return split

    def _shadowing(self, key: Key) -> Run:
        variant, checker = self._variant, self._checker
        assert variant is not None, "the original has no separate route"
        assert checker is not None, "made with the variant"
        stratum, original = self._dark.stratum(key), self._slot.original
        at = CheckSite(key=key, stratum=stratum, sampler=self._dark)

        def shadowing(*inputs: Tensor) -> Any:  # noqa: ANN401 - whatever the original returns
            if stratum.ran >= stratum.check_at and self._may_check(at):
                checked = self._distorted(variant.checked_launcher(key))
                return checker.dark(checked, at, inputs)
            stratum.ran += 1
            return original(*inputs)

        return shadowing

    def _may_check(self, at: CheckSite) -> bool:
        if self.judge.may_check(at.stratum):
            return True
        at.sampler.advance(at.stratum)
        return False

    def trip(self, reason: str, detail: str) -> None:
        """Stop the order in this process immediately; only the first reason is recorded."""
        if not self._slot.replace(self, state=f"tripped:{reason}"):
            return
        name = self._slot.spec.name
        log.error("%s: epoch %d tripped: %s (%s)", name, self.epoch, reason, detail)
        if self._on_trip is not None:
            self._on_trip(self, reason)

    def stands(self) -> bool:
        table = self._slot.table
        return table.in_force is self and not table.state.startswith("tripped:")

    def count_error(self, error: Exception) -> None:
        """Count a launch whose variant raised; the order trips after `MAX_ERRORS`."""
        errors = self.stats.error()
        log.warning("%s: launch failed, incumbent served: %r", self._slot.spec.name, error)
        if errors >= MAX_ERRORS:
            self.trip("launch-errors", f"{errors} launches raised, last {error!r}")

    def _distorted(self, launch: Launch) -> Launch:
        return launch if self.distortion is None else self.distortion(launch)
