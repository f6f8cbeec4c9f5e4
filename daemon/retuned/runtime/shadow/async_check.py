"""Checks made aside: the other kernel runs on a stream of its own, and the server does not wait.

What both kernels read and what the server was given is copied on the server's stream, at the
launch, because the server goes on and writes there. Everything after that is queued behind a mark
on the checks' stream: the other kernel, the comparison, the handful of numbers to the host. The
control thread folds them in when they have arrived, if the order they are about still stands.

So a variant may serve a few more launches before a check takes it back. The first launch of every
shape bucket is therefore checked in line, where a wrong answer is not served.

What becomes of a check when its numbers are there: folded in, ignored, or the way back.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol

from retuned.runtime.core.slots import Slot
from retuned.runtime.native.interface import Detached, Ineligible, Launch
from retuned.runtime.schema import Key, Tensor
from retuned.runtime.shadow.comparison import ElementFormat
from retuned.runtime.shadow.device import MAX_OUTPUTS, ShadowDevice
from retuned.runtime.shadow.input_copies import bytes_of
from retuned.runtime.shadow.outcome import Judge
from retuned.runtime.shadow.pending_checks import CHECKS, NO_ROOM, Checks, PendingCheck
from retuned.runtime.shadow.reduction import NUMBERS, check_alike, judged
from retuned.runtime.shadow.sampler import Sampler, Stratum, as_outputs

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
            If they are not the numbers of a check.
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


CAPTURING = "capturing"
"""Why a check was left out: a graph is being captured."""
FAILED = "check-failed"
"""Why there is no result: queueing the check failed."""
INCUMBENT_FAILED = "incumbent-raised"
"""Why there is no result: the incumbent does not take copies."""


class AsyncChecker(Results):
    """Makes the checks of one order on a device."""

    # --- on the request path ----------------------------------------------------------------------

    def served(
        self,
        device: ShadowDevice,
        launch: Launch,
        plain: Launch,
        *,
        at: CheckSite,
        inputs: tuple[Tensor, ...],
    ) -> Any:  # noqa: ANN401 - what the kernel returned
        """Serve the variant's output, and queue the incumbent and the comparison aside."""
        begun = time.perf_counter()
        check, others = self._begin(device, at, inputs, look=True)
        output, ran = self._serve(plain if check is None else launch, at, inputs, check=check)
        if check is not None and ran:
            self._queue_incumbent(check, plain, output, inputs, others)
            self._judge.cost.spend(time.perf_counter() - begun)
        return output

    def dark(
        self, device: ShadowDevice, launch: Launch, at: CheckSite, inputs: tuple[Tensor, ...]
    ) -> Any:  # noqa: ANN401 - what the kernel returned
        """Serve the original, and queue the variant and the comparison aside."""
        begun = time.perf_counter()
        at.stratum.ran += 1
        at.sampler.advance(at.stratum)
        check, others = self._begin(device, at, inputs, look=False)
        try:
            served = self._slot.original(*inputs)
        except BaseException:  # the server's own
            self._give_up(check)
            raise
        if check is not None:
            self._queue_variant(check, launch, served, others)
            self._judge.cost.spend(time.perf_counter() - begun)
        return served

    def detached(
        self,
        device: ShadowDevice,
        parts: Detached,
        *,
        at: CheckSite,
        inputs: tuple[Any, ...],
        plain: Launch | None,
    ) -> Any:  # noqa: ANN401 - what the kernel returned
        """Serve the server's own code, and queue both kernels aside, each on separate copies.

        Parameters
        ----------
        device, parts, at, inputs
            The launch, and both sides of its check.
        plain
            Serves where the check is left out; None where the original does anyway.
        """
        begun = time.perf_counter()
        check = self._take(device, CheckInputs(at, []), 2 * parts.size)
        if check is None and plain is not None:
            return self._serve(plain, at, inputs, check=None)[0]
        at.stratum.ran += 1
        at.sampler.advance(at.stratum)
        if check is not None:
            try:
                parts.copy()
                check.held.append(parts)
            except Exception as error:  # the device's own room is used up, as a rule
                no_room = isinstance(error, (RuntimeError, MemoryError))
                self._give_up(check)
                self._judge.stats.drop(NO_ROOM if no_room else FAILED)
                check = None
        try:
            served = self._slot.original(*inputs)
        except BaseException:  # the server's own
            self._give_up(check)
            raise
        if check is not None:
            self._queue_both(check, parts)
            self._judge.cost.spend(time.perf_counter() - begun)
        return served

    def _serve(
        self, launch: Launch, at: CheckSite, inputs: tuple[Any, ...], *, check: PendingCheck | None
    ) -> tuple[Any, bool]:
        """Run the variant; with False the original ran in its place, and the check is given up."""
        try:
            output = launch(inputs)
        except Exception as error:  # a stranger's kernel: whatever it raises, serve
            self._give_up(check)
            self._order.count_error(error)
            return self._slot.original(*inputs), False
        if output.__class__ is Ineligible:
            self._give_up(check)
            self._judge.stats.skip(output.reason)
            return self._slot.original(*inputs), False
        at.stratum.ran += 1
        at.sampler.advance(at.stratum)
        return output, True

    def _begin(
        self, device: ShadowDevice, at: CheckSite, inputs: tuple[Tensor, ...], *, look: bool
    ) -> tuple[PendingCheck | None, tuple[Tensor, ...]]:
        """Take a place and copy what varies; None where the check is left out, which is counted."""
        constant = set(self._slot.spec.constant_inputs)
        varying = [position for position in range(len(inputs)) if position not in constant]
        size = bytes_of([inputs[position] for position in varying])
        versions = [(inputs[n], device.version(inputs[n])) for n in sorted(constant)]
        check = self._take(device, CheckInputs(at, versions), size)
        if check is None:
            return None, inputs
        others = list(inputs)
        try:
            for position in varying:
                others[position] = device.copy(inputs[position])
            if look:
                check.about.before = [device.glimpse(value) for value in others]
        except (RuntimeError, MemoryError):  # the device's own room is used up
            self._checks.drop(check)
            self._judge.stats.drop(NO_ROOM)
            return None, inputs
        check.held.append(others)
        return check, tuple(others)

    def _take(self, device: ShadowDevice, about: CheckInputs, size: int) -> PendingCheck | None:
        """Take a place and room for copies; None where there is none, which is counted."""
        reason = CAPTURING if device.capturing() else None
        check = reason or self._checks.begin(device, self, about, size=size)
        if isinstance(check, str):
            self._judge.stats.drop(check)
            return None
        return check

    def _give_up(self, check: PendingCheck | None) -> None:
        """Let go of a check of which nothing is queued aside."""
        if check is not None:
            self._checks.drop(check)

    def _copies(self, check: PendingCheck, output: Any) -> tuple[Tensor, ...] | None:  # noqa: ANN401
        """Copy what the server was given; None where the check is left out."""
        outputs = as_outputs(output)
        reason = FAILED if len(outputs) > MAX_OUTPUTS else None
        try:  # twice: what the other kernel makes is held as well
            reason = reason or self._checks.grow(check, 2 * bytes_of(outputs))
            if reason is None:
                copies = tuple(check.device.copy(value) for value in outputs)
                check.held.append(copies)
                return copies
        except (AttributeError, MemoryError, RuntimeError, TypeError) as error:
            log.info("%s: a check is left out: %r", self._slot.spec.name, error)
            reason = FAILED
        self._judge.stats.drop(reason)
        self._checks.drop(check)
        return None

    def _queue_incumbent(
        self,
        check: PendingCheck,
        plain: Launch,
        output: Any,  # noqa: ANN401 - what the variant returned
        inputs: tuple[Tensor, ...],
        others: tuple[Tensor, ...],
    ) -> None:
        """Queue everything after the variant's launch."""
        ours = self._copies(check, output)
        if ours is None:
            return
        device, about = check.device, check.about
        try:
            before, after = about.before, [device.glimpse(value) for value in inputs]
            check.held += [before, after]
            with device.aside(device.mark()):
                spans = [device.mark()]
                theirs = as_outputs(self._slot.original(*others))
                spans.append(device.mark())
                check.held.append(theirs)
                about.timed = self._judge.is_timed(about.at.stratum)
                if about.timed:
                    again = plain(others)
                    spans.append(device.mark())
                    check.held.append(again)
                    about.timed = again.__class__ is not Ineligible
                check.spans = list(pairwise(spans))
                self._send(check, ours, theirs, device.changed(before, after))
        except Exception as error:  # the server has its answer; nothing of this is its problem
            self._abandon(check, INCUMBENT_FAILED, error)

    def _queue_variant(
        self,
        check: PendingCheck,
        launch: Launch,
        served: Any,  # noqa: ANN401 - what the original returned
        others: tuple[Tensor, ...],
    ) -> None:
        """Queue everything after the original's launch."""
        theirs = self._copies(check, served)
        if theirs is None:
            return
        device = check.device
        try:
            with device.aside(device.mark()):
                begin = device.mark()
                before = [device.glimpse(value) for value in others]
                check.held.append(before)
                try:
                    output = launch(others)
                except Exception as error:  # a stranger's kernel
                    self._order.count_error(error)
                    raise
                if output.__class__ is Ineligible:
                    self._judge.stats.skip(output.reason)
                    self._end(check)
                    return
                ours = as_outputs(output)
                after = [device.glimpse(value) for value in others]
                check.held += [ours, after]
                check.spans = [(begin, device.mark())]
                self._send(check, ours, theirs, device.changed(before, after))
        except Exception as error:  # as above
            self._abandon(check, FAILED, error)

    def _queue_both(self, check: PendingCheck, parts: Detached) -> None:
        """Queue everything after the server's own launch."""
        device, about, reason = check.device, check.about, INCUMBENT_FAILED
        try:
            with device.aside(device.mark()):
                spans = [device.mark()]
                theirs = parts.incumbent()
                spans.append(device.mark())
                reason = FAILED
                try:
                    ours = parts.variant()
                except Exception as error:  # a stranger's kernel
                    self._order.count_error(error)
                    raise
                if isinstance(ours, Ineligible):
                    self._judge.stats.skip(ours.reason)
                    self._end(check)
                    return
                spans.append(device.mark())
                about.timed = self._judge.is_timed(about.at.stratum)
                check.spans = list(pairwise(spans))
                glimpses = [[device.glimpse(each) for each in side] for side in parts.kept()]
                check.held += [ours, theirs, glimpses]
                self._send(check, ours, theirs, device.changed(*glimpses))
        except Exception as error:  # the server has its answer; nothing of this is its problem
            self._abandon(check, reason, error)

    def _send(
        self, check: PendingCheck, ours: Sequence[Tensor], theirs: Sequence[Tensor], changed: Tensor
    ) -> None:
        """Queue the comparison and its way to the host."""
        device, about = check.device, check.about
        try:
            check_alike(ours, theirs)
        except ValueError as error:  # outputs that cannot be compared are wrong outputs
            self._order.count_error(error)
            self._end(check)
            return
        about.forms = [device.form(value) for value in theirs]
        numbers = [device.measure(a, b, self._tolerance) for a, b in zip(ours, theirs, strict=True)]
        check.held += [changed, numbers]
        device.send([changed, *numbers], place=check.place)
        check.count = 1 + NUMBERS * len(numbers)
        self._end(check)

    def _end(self, check: PendingCheck) -> None:
        check.end = check.device.mark()

    def _abandon(self, check: PendingCheck, reason: str, error: Exception) -> None:
        """Leave a check to its end: what was queued of it may still run on what it holds."""
        log.info("%s: a check has no result: %r", self._slot.spec.name, error)
        self._judge.stats.drop(reason)
        check.count = 0
        check.spans = []
        try:
            with check.device.aside(check.device.mark()):
                self._end(check)
        except RuntimeError as lost:  # no mark, no end: what it holds is kept
            log.error(
                "%s: a shadow check is lost, its memory is kept: %r", self._slot.spec.name, lost
            )
