"""Asynchronous checks: the other kernel runs on a separate stream, and the server does not wait.

Inputs of both kernels and the server's output are copied on the server's stream, at the launch,
because the server continues and writes there. Everything else is queued behind a mark on the
checks' stream: the other kernel, the comparison, the copy of a few numbers to the host. When they
have arrived, the control thread adds them to the statistics, if their order is still active.

So a variant may serve a few more launches before a check trips it. Therefore the first launch of
every shape bucket is checked synchronously, where a wrong output is not served.

`CheckQueue` queues the comparison and handles its numbers: they are added, ignored, or trip the
order.
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
"""Reason code: the check has not completed for a long time."""
LATE = "order-gone"
"""Reason code: the result is ignored because another order is active, or this one has tripped."""
WEIGHTS_CHANGED = "weights-changed"
"""Reason code: the result is ignored because the server wrote to its weights."""


class CheckedOrder(Protocol):
    def trip(self, reason: str, detail: str) -> None: ...

    def count_error(self, error: Exception) -> None: ...

    def stands(self) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckSite:
    key: Key
    stratum: Stratum
    sampler: Sampler


@dataclass(slots=True)
class CheckInputs:
    """Data that is needed to judge a check when its numbers arrive."""

    at: CheckSite
    versions: list[tuple[Tensor, int | None]]
    """Weights, and how often they had been written to."""
    before: list[Tensor] = field(default_factory=list)
    """Byte samples of the inputs before the launch."""
    forms: Sequence[tuple[ElementFormat, int]] = ()
    timed: bool = False
    """Whether the spans are the incumbent's and the variant's."""


CAPTURING = "capturing"
"""Reason code: the check was skipped because a graph is being captured."""
FAILED = "check-failed"
"""Reason code: no result, because queueing the check failed."""
INCUMBENT_FAILED = "incumbent-raised"
"""Reason code: no result, because the incumbent raised on copies."""


class CheckQueue:
    """Queues comparisons of one order's checks, and handles their results.

    Parameters
    ----------
    name
        Of the kernel, for logs.
    checks
        Pending checks; those of the process by default.
    """

    def __init__(
        self,
        name: str,
        *,
        order: CheckedOrder,
        judge: Judge,
        tolerance: float,
        checks: Checks = CHECKS,
    ) -> None:
        self._name = name
        self._order = order
        self._judge = judge
        self._tolerance = tolerance
        self._checks = checks

    # --- results ----------------------------------------------------------------------------------

    def arrived(self, check: PendingCheck) -> None:
        """Add the numbers of a check to the statistics, unless another order is active.

        Raises
        ------
        ValueError
            If they are not the numbers of a check.
        """
        about: CheckInputs = check.about
        self._judge.cost.spend((sum(check.spans_ns) + check.compared_ns) / 1e9)
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
        self._judge.stats.drop(reason)

    def stuck(self, check: PendingCheck, seconds: float) -> None:
        self._judge.stats.drop(STUCK)
        log.error("%s: a check of %s does not complete", self._name, check.about.at.key)

    # --- the queue --------------------------------------------------------------------------------

    def _take(self, device: ShadowDevice, about: CheckInputs, size: int) -> PendingCheck | None:
        """Reserve a place and memory for copies; None if there is none, which is counted."""
        reason = CAPTURING if device.capturing() else None
        check = reason or self._checks.begin(device, self, about, size=size)
        if isinstance(check, str):
            self._judge.stats.drop(check)
            return None
        return check

    def _give_up(self, check: PendingCheck | None) -> None:
        """Drop a check of which nothing is queued on the checks' stream."""
        if check is not None:
            self._checks.drop(check)

    def _send(
        self, check: PendingCheck, ours: Sequence[Tensor], theirs: Sequence[Tensor], changed: Tensor
    ) -> None:
        device, about = check.device, check.about
        try:
            check_alike(ours, theirs)
        except ValueError as error:  # outputs that cannot be compared are wrong outputs
            self._order.count_error(error)
            self._end(check)
            return
        about.forms = [device.form(value) for value in theirs]
        begin = device.mark()
        numbers = [device.measure(a, b, self._tolerance) for a, b in zip(ours, theirs, strict=True)]
        check.held += [changed, numbers]
        device.send([changed, *numbers], place=check.place)
        check.count = 1 + NUMBERS * len(numbers)
        end = device.mark()
        check.compared = begin, end
        check.end = end

    def _end(self, check: PendingCheck) -> None:
        check.end = check.device.mark()

    def _abandon(self, check: PendingCheck, reason: str, error: Exception) -> None:
        """Let a check run to its end: queued work may still use its memory."""
        log.info("%s: a check has no result: %r", self._name, error)
        self._judge.stats.drop(reason)
        check.count = 0
        check.spans = []
        try:
            with check.device.aside(check.device.mark()):
                self._end(check)
        except RuntimeError as lost:  # without a mark its end is unknown: the memory is kept
            log.error("%s: a shadow check is lost, its memory is kept: %r", self._name, lost)


class AsyncChecker(CheckQueue):
    """Checks of launches of a slot.

    Parameters
    ----------
    checks
        Pending checks; those of the process by default.
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
        super().__init__(
            slot.spec.name, order=order, judge=judge, tolerance=tolerance, checks=checks
        )
        self._slot = slot

    # --- on the request path ----------------------------------------------------------------------

    def served(
        self,
        device: ShadowDevice,
        launch: Launch,
        plain: Launch,
        *,
        at: CheckSite,
        inputs: tuple[Tensor, ...],
    ) -> Any:  # noqa: ANN401 - result of the kernel
        """Serve the variant's output.

        Queue the incumbent and the comparison on the checks' stream.
        """
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
        """Serve the original; queue the variant and the comparison on the checks' stream."""
        begun = time.perf_counter()
        at.stratum.ran += 1
        at.sampler.advance(at.stratum)
        check, others = self._begin(device, at, inputs, look=False)
        try:
            served = self._slot.original(*inputs)
        except BaseException:  # of the server's own code
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
        """Serve the server's own code.

        Queue both kernels on the checks' stream, each on separate copies.

        Parameters
        ----------
        device, parts, at, inputs
            The launch, and both sides of its check.
        plain
            Serves if the check is skipped; None if the original serves anyway.
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
            except Exception as error:  # usually the device is out of memory
                no_room = isinstance(error, (RuntimeError, MemoryError))
                self._give_up(check)
                self._judge.stats.drop(NO_ROOM if no_room else FAILED)
                check = None
        try:
            served = self._slot.original(*inputs)
        except BaseException:  # of the server's own code
            self._give_up(check)
            raise
        if check is not None:
            self._queue_both(check, parts)
            self._judge.cost.spend(time.perf_counter() - begun)
        return served

    def _serve(
        self, launch: Launch, at: CheckSite, inputs: tuple[Any, ...], *, check: PendingCheck | None
    ) -> tuple[Any, bool]:
        """Run the variant; with False the original ran in its place, and the check is dropped."""
        try:
            output = launch(inputs)
        except Exception as error:  # untrusted kernel: the original serves, whatever is raised
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
        """Reserve a place and copy the varying inputs.

        None if the check is skipped, which is counted.
        """
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
        except (RuntimeError, MemoryError):  # the device is out of memory
            self._checks.drop(check)
            self._judge.stats.drop(NO_ROOM)
            return None, inputs
        check.held.append(others)
        return check, tuple(others)

    def _copies(self, check: PendingCheck, output: Any) -> tuple[Tensor, ...] | None:  # noqa: ANN401
        """Copy the output that the server got; None if the check is skipped."""
        outputs = as_outputs(output)
        reason = FAILED if len(outputs) > MAX_OUTPUTS else None
        try:  # twice: the outputs of the other kernel are stored as well
            reason = reason or self._checks.grow(check, 2 * bytes_of(outputs))
            if reason is None:
                copies = tuple(check.device.copy(value) for value in outputs)
                check.held.append(copies)
                return copies
        except (AttributeError, MemoryError, RuntimeError, TypeError) as error:
            log.info("%s: a check is skipped: %r", self._name, error)
            reason = FAILED
        self._judge.stats.drop(reason)
        self._checks.drop(check)
        return None

    def _queue_incumbent(
        self,
        check: PendingCheck,
        plain: Launch,
        output: Any,  # noqa: ANN401 - result of the variant
        inputs: tuple[Tensor, ...],
        others: tuple[Tensor, ...],
    ) -> None:
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
        except Exception as error:  # the server has its result; a failure must not reach it
            self._abandon(check, INCUMBENT_FAILED, error)

    def _queue_variant(
        self,
        check: PendingCheck,
        launch: Launch,
        served: Any,  # noqa: ANN401 - result of the original
        others: tuple[Tensor, ...],
    ) -> None:
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
                except Exception as error:  # untrusted kernel
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
        device, about, reason = check.device, check.about, INCUMBENT_FAILED
        try:
            with device.aside(device.mark()):
                spans = [device.mark()]
                theirs = parts.incumbent()
                spans.append(device.mark())
                reason = FAILED
                try:
                    ours = parts.variant()
                except Exception as error:  # untrusted kernel
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
        except Exception as error:  # the server has its result; a failure must not reach it
            self._abandon(check, reason, error)
