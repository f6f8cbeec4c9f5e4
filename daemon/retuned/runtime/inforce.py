"""An order in force: the launches it changes, their checks, and the breaker that takes it back.

What may go wrong in a variant is caught here, launch by launch: it is not the server's problem. A
variant that raises is replaced by the incumbent for that launch; after a few such launches, or one
check that is badly wrong, the order trips: the slot returns to the original by itself and says so
in its samples, and the daemon orders the rollback that makes it official.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Protocol

from retuned.runtime.orders import Order
from retuned.runtime.shadow import (
    RATIO_CAP,
    TRIP_RATIO,
    Compare,
    Comparison,
    Sampler,
    Stats,
    Stratum,
    as_outputs,
)
from retuned.runtime.slots import Run, Slot
from retuned.runtime.spec import Key, Tensor, parse_bounds

log = logging.getLogger(__name__)

MAX_ERRORS = 3
"""Launches that may raise before the order trips."""


class Ineligible:
    """A variant's answer to a launch it cannot take; the incumbent runs."""

    __slots__ = ("reason",)

    def __init__(self, reason: str) -> None:
        self.reason = reason


Launch = Callable[[tuple[Tensor, ...]], Any]
"""Inputs -> output, tuple of outputs, or `Ineligible`."""


class Variant(Protocol):
    """A loaded artifact."""

    def launcher(self, key: Key) -> Launch:
        """Return what launches at these lengths."""
        ...

    def checked_launcher(self, key: Key) -> Launch:
        """Return the same with outputs poisoned beforehand, so that what is not written shows."""
        ...

    def fingerprint(self, inputs: tuple[Tensor, ...]) -> object:
        """Return something equal for equal contents of the inputs."""
        ...

    def capturing(self) -> Callable[[], bool] | None:
        """Return what says whether launches are recorded into a graph; None where never."""
        ...


class Swapped:
    """Carries out one order on one slot.

    Parameters
    ----------
    slot
        Where it is in force.
    order
        What was ordered.
    variant
        What runs; None where the order's artifact is the original.
    compare
        Judges a shadow check; another one for other devices.
    sampler
        Chooses the launches to check.

    Raises
    ------
    Refused
        ``guard-invalid`` if the guard names other axes than the slot has.
    """

    def __init__(
        self,
        slot: Slot,
        order: Order,
        *,
        variant: Variant | None,
        compare: Compare,
        sampler: Sampler | None = None,
    ) -> None:
        self.order_id = order.id
        self.artifact = order.artifact
        self.epoch = order.epoch
        self.bounds = parse_bounds(order.guard, slot.spec.variable_axes)
        self.stats = Stats()
        self.distortion: Callable[[Any], Any] | None = None
        self.launches_before = slot.total()
        self._slot = slot
        self._variant = variant
        self._tolerance = order.shadow_tolerance
        self._compare = compare
        self._sampler = sampler or Sampler(order.shadow_every)

    @property
    def swapped_launches(self) -> int:
        """Launches that ran the variant."""
        return self._sampler.ran()

    @property
    def variant(self) -> Variant | None:
        """What runs; None for the original."""
        return self._variant

    def route(self, key: Key) -> Run:
        """Return what a launch of these lengths calls."""
        if self._variant is None:
            return self._slot.original
        variant = self._variant
        launch = self._distorted(variant.launcher(key))
        stratum, stats, original = self._sampler.stratum(key), self.stats, self._slot.original

        def run(*inputs: Tensor) -> Any:  # noqa: ANN401 - whatever the original returns
            if stratum.ran >= stratum.check_at:  # rare: its launcher is made when it is needed
                checked = self._distorted(variant.checked_launcher(key))
                return self._shadowed(checked, stratum, inputs)
            try:
                output = launch(inputs)
            except Exception as error:  # the variant is a stranger: whatever it raises, serve
                return self._failed(error, inputs)
            if output.__class__ is Ineligible:
                stats.skip(output.reason)
                return original(*inputs)
            stratum.ran += 1
            return output

        capturing = variant.capturing()
        if capturing is None:
            return run

        def unless_captured(*inputs: Tensor) -> Any:  # noqa: ANN401 - as run
            return original(*inputs) if capturing() else run(*inputs)

        return unless_captured

    def trip(self, reason: str, detail: str) -> None:
        """Take the order back at once; the first reason stays."""
        if self._slot.replace(self, state=f"tripped:{reason}"):
            log.error(
                "%s: epoch %d taken back: %s (%s)",
                self._slot.spec.name,
                self.epoch,
                reason,
                detail,
            )

    def _distorted(self, launch: Launch) -> Launch:
        change = self.distortion
        if change is None:
            return launch

        def wrong(inputs: tuple[Tensor, ...]) -> Any:  # noqa: ANN401 - as the launch
            output = launch(inputs)
            return output if output.__class__ is Ineligible else change(output)

        return wrong

    def _shadowed(self, launch: Launch, stratum: Stratum, inputs: tuple[Tensor, ...]) -> Any:  # noqa: ANN401
        """Serve the variant's output if the incumbent, run afterwards, agrees."""
        variant = self._variant
        assert variant is not None, "only routes of a variant are checked"
        try:
            before = variant.fingerprint(inputs)
            output = launch(inputs)
            untouched = variant.fingerprint(inputs) == before
        except Exception as error:  # as in run
            return self._failed(error, inputs)
        if output.__class__ is Ineligible:
            self.stats.skip(output.reason)
            return self._slot.original(*inputs)
        stratum.ran += 1
        self._sampler.advance(stratum)
        expected = self._slot.original(*inputs)
        try:
            comparison = self._compare(as_outputs(output), as_outputs(expected), self._tolerance)
        except Exception as error:  # outputs that cannot be compared are wrong outputs
            return self._judge_failure(error, expected)
        if not untouched:
            comparison = Comparison(nonfinite=comparison.nonfinite, ratio=RATIO_CAP)
        self.stats.check(comparison)
        reason = _trip_reason(comparison, untouched=untouched)
        if reason is None:
            return output
        self.trip(reason, f"ratio {comparison.ratio:.3g} at {stratum.ran} launches")
        return expected

    def _failed(self, error: Exception, inputs: tuple[Tensor, ...]) -> Any:  # noqa: ANN401
        """Serve a launch whose variant raised."""
        self._count_error(error)
        return self._slot.original(*inputs)

    def _judge_failure(self, error: Exception, expected: Any) -> Any:  # noqa: ANN401
        self._count_error(error)
        return expected

    def _count_error(self, error: Exception) -> None:
        errors = self.stats.error()
        log.warning("%s: launch failed, incumbent served: %r", self._slot.spec.name, error)
        if errors >= MAX_ERRORS:
            self.trip("launch-errors", f"{errors} launches raised, last {error!r}")


def _trip_reason(comparison: Comparison, *, untouched: bool) -> str | None:
    if not untouched:
        return "input-modified"
    if comparison.nonfinite:
        return "shadow-nonfinite"
    if comparison.ratio > TRIP_RATIO:
        return "shadow-mismatch"
    return None
