"""Checker of one order: both kernels on the same inputs, one of them serving.

If all tensors of a launch are on one GPU, a check runs asynchronously (`async_check`). This module
makes the other checks, and the first check of a shape bucket that a variant serves.

After a swap the variant serves and the incumbent runs as the check. Before one, in the shadow, the
original serves and the server never gets the variant's output. The kernel that runs second gets
copies of the varying inputs (`input_copies`), so that neither can change the inputs of the other.
Some checks are timed: the incumbent, then the variant once more, both on inputs that have just been
read.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from typing import Any

from retuned.runtime.core.slots import Slot
from retuned.runtime.native.interface import Detached, Ineligible, Launch, Variant
from retuned.runtime.schema import Tensor
from retuned.runtime.shadow.async_check import CAPTURING, AsyncChecker, CheckedOrder, CheckSite
from retuned.runtime.shadow.device import (
    MAX_OUTPUTS,
    DeviceOf,
    ShadowDevice,
    captures_under_way,
    shadow_device,
)
from retuned.runtime.shadow.input_copies import KEEPER, InputCopier, InputCopies
from retuned.runtime.shadow.outcome import Judge
from retuned.runtime.shadow.pending_checks import CHECKS, NO_ROOM, Checks
from retuned.runtime.shadow.sampler import Compare, as_outputs, compare_tensors

__all__ = ["NO_ROOM", "CheckSite", "CheckedOrder", "Checker"]

log = logging.getLogger(__name__)


class Checker:
    """Makes the checks of one order.

    Parameters
    ----------
    variant
        What runs, or is shadowed.
    compare
        Compares outputs. Any function but `compare_tensors` compares synchronously; so does every
        function if there are more outputs than an asynchronous check supports.
    keeper
        Makes copies; that of the process by default.
    checks
        Pending checks; those of the process by default.
    """

    def __init__(
        self,
        slot: Slot,
        variant: Variant,
        *,
        order: CheckedOrder,
        judge: Judge,
        compare: Compare,
        tolerance: float,
        keeper: InputCopier = KEEPER,
        checks: Checks = CHECKS,
        device_of: DeviceOf = shadow_device,
    ) -> None:
        self._slot = slot
        self._variant = variant
        self._order = order
        self._judge = judge
        self._compare = compare
        self._tolerance = tolerance
        self._keeper = keeper
        aside = compare is compare_tensors and len(slot.spec.outputs) <= MAX_OUTPUTS
        self._device_of = device_of if aside else _nowhere
        self._aside = AsyncChecker(
            slot, order=order, judge=judge, tolerance=tolerance, checks=checks
        )

    def served(
        self, launch: Launch, plain: Launch, at: CheckSite, inputs: tuple[Tensor, ...]
    ) -> Any:  # noqa: ANN401
        """Serve the variant's output if the incumbent, run afterwards, agrees."""
        refused = self._refused(at, inputs)
        if refused is not None:
            self._judge.stats.skip(refused.reason)
            return self._slot.original(*inputs)
        device = self._device_of(inputs)  # created with the first check, which waits anyway
        if at.stratum.checks:
            if device is not None:
                return self._aside.served(device, launch, plain, at=at, inputs=inputs)
            apart = self._apart(at, inputs)
            if apart is not None:
                return self._aside.detached(*apart, at=at, inputs=inputs, plain=plain)
        if captures_under_way():  # waiting for a device now would end the capture
            self._judge.stats.drop(CAPTURING)
            return self._slot.original(*inputs)
        kept = self._keeper.keep(inputs, constant=self._slot.spec.constant_inputs)
        try:
            return self._served(launch, plain, at, inputs, kept)
        finally:
            self._keeper.release(kept)

    def _refused(self, at: CheckSite, inputs: tuple[Any, ...]) -> Ineligible | None:
        """Return why the variant cannot take a launch, before the cost of its check.

        If the variant cannot take most launches of a bucket, a due check would wait for a suitable
        one at each of them. Copying and summing their inputs would cost more than all checks.
        """
        refuses = getattr(self._variant, "refuses", None)
        try:
            refused: Ineligible | None = None if refuses is None else refuses(at.key, inputs)
            return refused
        except Exception as error:  # untrusted arguments: the launch shows what is wrong
            log.debug("%s: not checked in advance: %r", self._slot.spec.name, error)
            return None

    def _apart(
        self, at: CheckSite, inputs: tuple[Any, ...]
    ) -> tuple[ShadowDevice, Detached] | None:
        """Return both sides of a launch that writes to the server's memory; None for synchronous.

        A launch that does not fit into the budget twice is checked synchronously, on copies of its
        outputs only.
        """
        detach = getattr(self._variant, "detached", None)
        try:
            parts: Detached | None = None if detach is None else detach(at.key, inputs)
        except Exception as error:  # untrusted arguments: the synchronous check handles them
            log.debug("%s: not checked asynchronously: %r", self._slot.spec.name, error)
            return None
        if parts is None or 2 * parts.size > self._keeper.budget_bytes:
            return None
        device = self._device_of(parts.tensors, dense=False)
        return None if device is None else (device, parts)

    def _served(
        self,
        launch: Launch,
        plain: Launch,
        at: CheckSite,
        inputs: tuple[Tensor, ...],
        kept: InputCopies | None,
    ) -> Any:  # noqa: ANN401 - what the kernel returned
        variant, original = self._variant, self._slot.original
        try:
            before = variant.fingerprint(inputs)
            output = launch(inputs)
            untouched = variant.fingerprint(inputs) == before
        except Exception as error:  # untrusted kernel: the original serves, whatever is raised
            self._order.count_error(error)
            return original(*inputs)
        if output.__class__ is Ineligible:
            self._judge.stats.skip(output.reason)
            return original(*inputs)
        at.stratum.ran += 1
        at.sampler.advance(at.stratum)
        if not untouched and kept is not None:
            kept.restore(inputs)
        begin = time.perf_counter()
        others = inputs if kept is None else kept.inputs
        expected, incumbent_ns = _timed(lambda: original(*others), others)
        reason = self._verdict(at, output, expected, untouched=untouched)
        if reason is None and untouched and self._judge.is_timed(at.stratum):
            reason = self._paced(plain, at, others, incumbent_ns)
        self._judge.cost.spend(time.perf_counter() - begin)
        if reason is None:
            return output
        return expected if reason != "slow" else output

    def dark(self, launch: Launch, at: CheckSite, inputs: tuple[Tensor, ...]) -> Any:  # noqa: ANN401
        """Serve the original; then run the variant on copies, and compare."""
        device = self._device_of(inputs)
        if device is not None:
            return self._aside.dark(device, launch, at, inputs)
        apart = self._apart(at, inputs)
        if apart is not None:
            return self._aside.detached(*apart, at=at, inputs=inputs, plain=None)
        if captures_under_way():
            self._judge.stats.drop(CAPTURING)
            return self._slot.original(*inputs)
        at.stratum.ran += 1
        at.sampler.advance(at.stratum)
        kept = self._keeper.keep(inputs, constant=self._slot.spec.constant_inputs)
        try:
            served = self._slot.original(*inputs)
            if kept is None:
                self._judge.stats.skip(NO_ROOM)
                return served
            begin = time.perf_counter()
            self._shadow(launch, at, served, kept)
            self._judge.cost.spend(time.perf_counter() - begin)
            return served
        finally:
            self._keeper.release(kept)

    def _shadow(self, launch: Launch, at: CheckSite, served: Any, kept: InputCopies) -> None:  # noqa: ANN401
        try:
            before = self._variant.fingerprint(kept.inputs)
            output = launch(kept.inputs)
            untouched = self._variant.fingerprint(kept.inputs) == before
        except Exception as error:  # as above
            self._order.count_error(error)
            return
        if output.__class__ is Ineligible:
            self._judge.stats.skip(output.reason)
        else:
            self._verdict(at, output, served, untouched=untouched)

    def _verdict(self, at: CheckSite, output: Any, expected: Any, *, untouched: bool) -> str | None:  # noqa: ANN401
        """Compare, add to the statistics, and trip if needed; return the reason for the trip."""
        outputs = as_outputs(output), as_outputs(expected)
        try:
            comparison = self._compare(*outputs, self._tolerance)
        except Exception as error:  # outputs that cannot be compared are wrong outputs
            self._order.count_error(error)
            return "launch-errors"
        reason = self._judge.check(at.key, at.stratum, comparison, untouched=untouched)
        if reason is not None:
            ratio = f"ratio {comparison.ratio:.3g}, rms {comparison.rms_ratio:.3g}"
            self._order.trip(reason, f"{ratio} at {at.stratum.ran} launches of {at.key}")
        return reason

    def _paced(
        self, plain: Launch, at: CheckSite, inputs: tuple[Tensor, ...], incumbent_ns: int
    ) -> str | None:
        """Time the variant, as it runs without a check, on inputs that the incumbent has read."""
        try:
            output, variant_ns = _timed(lambda: plain(inputs), inputs)
        except Exception as error:  # as above
            self._order.count_error(error)
            return None
        if output.__class__ is Ineligible:
            return None
        reason = self._judge.pace(at.stratum, variant_ns, incumbent_ns)
        if reason is not None:
            times = f"{variant_ns / 1e3:.1f} us, the incumbent {incumbent_ns / 1e3:.1f} us"
            self._order.trip(reason, f"{times} at {at.key}")
        return reason


def _nowhere(inputs: tuple[Any, ...], *, dense: bool = True) -> None:
    """Return no device: no check runs asynchronously."""


def _timed(run: Callable[[], Any], inputs: tuple[Tensor, ...]) -> tuple[Any, int]:
    """Return the result of a launch and its time, ns; on a device from that device's own clock."""
    torch = sys.modules.get("torch")
    on_gpu = torch is not None and any(getattr(value, "is_cuda", False) for value in inputs)
    if torch is None or not on_gpu:
        begin = time.perf_counter_ns()
        output = run()
        return output, time.perf_counter_ns() - begin
    begin_event, end_event = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin_event.record()
    output = run()
    end_event.record()
    end_event.synchronize()
    return output, int(begin_event.elapsed_time(end_event) * 1e6)
