"""Shadow checks of a table: some launches run the server's own choice as well.

Both sides of a launch read the same inputs, and each writes to separate outputs. The first launch
of a size class is compared before anything is served: the server gets its own choice's output. For
later ones, which the sampler chooses, both sides are queued on the server's stream, in random
order, and are compared on the checks' stream; no thread waits. Inputs are not copied: a server
reads its cache of keys and values in place, and that cache is larger than any budget. Therefore the
other side cannot run later.

A wrong output, or a table that is clearly slower, ends the table in this process; the daemon then
rolls back. Launches in captured graphs are not checked.
"""

from __future__ import annotations

import logging
import random
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from retuned.runtime.core.orders import CheckRates
from retuned.runtime.schema import Tensor
from retuned.runtime.shadow.async_check import (
    CAPTURING,
    INCUMBENT_FAILED,
    CheckInputs,
    CheckQueue,
    CheckSite,
)
from retuned.runtime.shadow.comparison import compare_tensors
from retuned.runtime.shadow.device import (
    MAX_OUTPUTS,
    DeviceOf,
    ShadowDevice,
    captures_under_way,
    shadow_device,
)
from retuned.runtime.shadow.input_copies import KEEPER, InputCopier, InputCopies, bytes_of
from retuned.runtime.shadow.outcome import Judge
from retuned.runtime.shadow.pending_checks import (
    CHECKS,
    NO_ROOM,
    TOO_LARGE,
    Checks,
    PendingCheck,
)
from retuned.runtime.shadow.sampler import Sampler, Stratum, bucket
from retuned.runtime.tunables.records import Axes, Config

log = logging.getLogger(__name__)

TOLERANCE = 0.25
"""Allowed difference of an element beyond its rounding, over the rms of the incumbent's output."""
NORM = 1e-2
"""Allowed norm of the difference, over that of the incumbent's output: as in the experiment.

Configurations add in another order. In half precision two correct ones differ by 0.004 by norm
(measured on an H200). A table ends at four times what is allowed."""
ALIASED = "outputs-aliased"
"""Reason code: an output shares memory with another tensor of the launch."""
STRIDED = "outputs-strided"
"""Reason code: an output has gaps, and a copy of it none; the launch has its strides as numbers."""
UNKNOWN = "outputs-unknown"
"""Reason code: which tensors a launch of this family writes is not known."""
_LEAST_TIMED_NS = 100_000
"""Shorter launches are not compared by time: the host's own work is a part of it."""
_NO_ROOM_TRIES = 3
"""Launches of a size class that run the server's choice because a check has no memory."""


@dataclass(frozen=True, slots=True)
class Sides:
    """Both sides of one launch.

    Parameters
    ----------
    outputs
        Tensors that the launch writes, by argument.
    others
        Its other tensors.
    run
        Launches with a configuration, None is the server's choice, and with the given tensors in
        place of its outputs and workspaces.
    unfit
        Reason code of a launch that cannot be checked; empty if it can.
    scratch
        Workspaces, by argument: a launch writes them before it reads them, and nothing reads them
        afterwards. They may share memory with the outputs.
    """

    outputs: Mapping[str, Tensor]
    others: tuple[Tensor, ...]
    run: Callable[[Config | None, Mapping[str, Tensor]], Any]
    unfit: str = ""
    scratch: Mapping[str, Tensor] = field(default_factory=dict)


def is_plain(value: object) -> bool:
    """Whether a value is a tensor of PyTorch itself, which a copy replaces."""
    torch = sys.modules.get("torch")
    return torch is not None and type(value) in (torch.Tensor, torch.nn.Parameter)


class TableChecks(CheckQueue):
    """Checks of one tunable's table.

    Parameters
    ----------
    name
        The tunable's id.
    rates
        How often a launch is checked, and how much time checks may take.
    on_trip
        Ends the table: gets a reason code and a detail.
    stands
        Whether the table is still in force.
    plain
        Whether a value is a tensor that can be copied and compared.
    """

    def __init__(
        self,
        name: str,
        *,
        rates: CheckRates,
        on_trip: Callable[[str, str], None],
        stands: Callable[[], bool],
        keeper: InputCopier = KEEPER,
        checks: Checks = CHECKS,
        device_of: DeviceOf = shadow_device,
        clock: Callable[[], float] = time.monotonic,
        chance: random.Random | None = None,
        plain: Callable[[object], bool] = is_plain,
    ) -> None:
        self._noise: dict[tuple[int, ...], float] = {}
        allowed = CheckRates(
            shadow_every=rates.shadow_every,
            shadow_later=rates.shadow_later,
            shadow_share=rates.shadow_share,
            shadow_tolerance=TOLERANCE,
            noise=self._noise,
        )
        self._judge = Judge(allowed, clock=clock)
        self._sampler = Sampler(self._judge.rates, chance, clock=clock)
        self._chance = chance or random.SystemRandom()
        self._on_trip, self._stands = on_trip, stands
        self._keeper, self._device_of, self._plain = keeper, device_of, plain
        self._unserved: dict[tuple[int, ...], int] = {}
        super().__init__(name, order=self, judge=self._judge, tolerance=TOLERANCE, checks=checks)

    # --- the order, as its checks see it ----------------------------------------------------------

    def trip(self, reason: str, detail: str) -> None:
        """End the table in this process."""
        log.error("%s: the table ends: %s %s", self._name, reason, detail)
        self._on_trip(reason, detail)

    def count_error(self, error: Exception) -> None:
        """Count a launch of which no outputs can be compared."""
        self._judge.stats.error()
        log.warning("%s: a check failed: %r", self._name, error)

    def stands(self) -> bool:
        return self._stands()

    def report(self) -> dict[str, Any]:
        """Return the counts, and why due checks were not made."""
        stats = self._judge.stats
        return {
            "checks": stats.checks,
            "mismatches": stats.mismatches,
            "nonfinite": stats.nonfinite,
            "worst_ratio": stats.worst_ratio,
            "mean_ratio": stats.mean_ratio,
            "errors": stats.errors,
            "slowdown": self._judge.slowdown,
            "seconds": self._judge.cost.spent_s,
            "throttled": self._judge.cost.throttled,
            "dropped": dict(stats.dropped),
        }

    # --- on the launching thread ------------------------------------------------------------------

    def due(self, axes: Axes) -> CheckSite | None:
        """Count a launch under the table; return where it is to be checked, if it is."""
        key = tuple(axes.values())
        stratum = self._sampler.stratum(key)
        if stratum.ran < stratum.check_at or not self._judge.may_check(stratum):
            stratum.ran += 1
            return None
        self._noise.setdefault(bucket(key), NORM)
        return CheckSite(key=key, stratum=stratum, sampler=self._sampler)

    def pass_over(self, axes: Axes, reason: str) -> None:
        """Count a launch of which one side only can run; if a check was due, with the reason."""
        at = self.due(axes)
        if at is not None:
            self.skip(reason)
            self._ran(at.stratum)

    def skip(self, reason: str) -> None:
        """Count a due check that is not made."""
        self._judge.stats.drop(reason)

    def launch(self, at: CheckSite, config: Config, sides: Sides) -> Any:  # noqa: ANN401
        """Launch and check; return what the server gets.

        What the table's side raises is raised, before anything was served.
        """
        reason = self._unfit(sides)
        if reason:
            return self._unchecked(at, config, sides, reason=reason)
        if not at.stratum.checks:
            return self._compared(at, config, sides)
        device = self._device_of(tuple(sides.outputs.values()), dense=False)
        if device is None:
            return self._compared(at, config, sides)
        return self._queued(device, at, config, sides)

    def _unfit(self, sides: Sides) -> str:
        """Return why a launch cannot be checked; empty if it can."""
        outputs = tuple(sides.outputs.values())
        written = (*outputs, *sides.scratch.values())
        if sides.unfit:
            return sides.unfit
        # another kind of tensor may share memory with one that is not an argument, or have no copy
        if not outputs or not all(map(self._plain, (*written, *sides.others))):
            return UNKNOWN
        if len(outputs) > MAX_OUTPUTS:
            return UNKNOWN
        if not all(map(_is_dense, written)):
            return STRIDED
        among = any(_overlap(one, other) for one, other in combinations(outputs, 2))
        beside = any(_overlap(one, other) for one in written for other in sides.others)
        return ALIASED if among or beside else ""

    def _unchecked(self, at: CheckSite, config: Config, sides: Sides, *, reason: str) -> Any:  # noqa: ANN401
        self._judge.stats.drop(reason)
        self._ran(at.stratum)
        return sides.run(config, {})

    def _ran(self, stratum: Stratum) -> None:
        stratum.ran += 1
        self._sampler.advance(stratum)

    def _compared(self, at: CheckSite, config: Config, sides: Sides) -> Any:  # noqa: ANN401
        """Serve the server's own choice; compare the table's, and wait for the result."""
        if captures_under_way():  # waiting for a device now would end the capture
            self._judge.stats.drop(CAPTURING)
            return sides.run(None, {})
        kept = self._keeper.keep(tuple(sides.outputs.values()), constant=())
        if kept is None:
            return self._without_room(at, config, sides)
        begin_s = time.perf_counter()
        try:
            private = dict(zip(sides.outputs, kept.inputs, strict=True))
            sides.run(config, private)
            found = sides.run(None, {})
            self._judged(at, sides, kept)
        finally:
            self._keeper.release(kept)
        self._ran(at.stratum)
        self._judge.cost.spend(time.perf_counter() - begin_s)
        return found

    def _without_room(self, at: CheckSite, config: Config, sides: Sides) -> Any:  # noqa: ANN401
        """Serve the server's choice until there is memory; not forever."""
        size = bytes_of(tuple(sides.outputs.values()))
        place = bucket(at.key)
        tries = self._unserved[place] = self._unserved.get(place, 0) + 1
        if size > self._keeper.budget_bytes or tries > _NO_ROOM_TRIES:
            reason = TOO_LARGE if size > self._keeper.budget_bytes else NO_ROOM
            return self._unchecked(at, config, sides, reason=reason)
        self._judge.stats.drop(NO_ROOM)
        return sides.run(None, {})

    def _judged(self, at: CheckSite, sides: Sides, kept: InputCopies) -> None:
        served = tuple(sides.outputs.values())
        try:
            comparison = compare_tensors(kept.inputs, served, self._tolerance)
        except (RuntimeError, TypeError) as error:  # a type that PyTorch cannot compare
            self.count_error(error)
            return
        reason = self._judge.check(at.key, at.stratum, comparison, untouched=True)
        if reason is not None:
            ratio = f"ratio {comparison.ratio:.3g}, rms {comparison.rms_ratio:.3g}"
            self.trip(reason, f"{ratio} at {at.stratum.ran} launches of {at.key}")

    def _queued(self, device: ShadowDevice, at: CheckSite, config: Config, sides: Sides) -> Any:  # noqa: ANN401
        """Serve the table; queue the server's choice beside it, and the comparison."""
        outputs = tuple(sides.outputs.values())
        begin_s = time.perf_counter()
        first = self._chance.random() < 0.5
        # after the table's side, no workspace may be written that holds a part of its output
        spare = {} if first else _within(sides.scratch, outputs)
        size = 2 * bytes_of(outputs) + bytes_of(tuple(spare.values()))
        check = self._take(device, CheckInputs(at, [], timed=True), size)
        self._ran(at.stratum)
        if check is None:
            return sides.run(config, {})
        try:
            theirs = tuple(device.copy(each) for each in outputs)
            copies = tuple(device.copy(each) for each in spare.values())
        except (RuntimeError, MemoryError):  # the device is out of memory
            self._checks.drop(check)
            self._judge.stats.drop(NO_ROOM)
            return sides.run(config, {})
        check.held += [theirs, copies, outputs]
        private = dict(zip((*sides.outputs, *spare), (*theirs, *copies), strict=True))
        if first:
            self._incumbent(check, sides, private)
        found = self._table(check, sides, config)
        if not first:
            self._incumbent(check, sides, private)
        self._compare_aside(check, outputs, theirs)
        self._judge.cost.spend(time.perf_counter() - begin_s)
        return found

    def _table(self, check: PendingCheck, sides: Sides, config: Config) -> Any:  # noqa: ANN401
        begin = check.device.mark(timed=True)
        try:
            found = sides.run(config, {})
        except Exception as error:
            self._abandon(check, INCUMBENT_FAILED, error)
            raise
        check.spans.append((begin, check.device.mark(timed=True)))
        return found

    def _incumbent(self, check: PendingCheck, sides: Sides, private: Mapping[str, Tensor]) -> None:
        if check.end is not None:
            return
        begin = check.device.mark(timed=True)
        try:
            sides.run(None, private)
        except Exception as error:  # a check must not reach the server
            self._abandon(check, INCUMBENT_FAILED, error)
            return
        check.spans.insert(0, (begin, check.device.mark(timed=True)))

    def _compare_aside(
        self, check: PendingCheck, outputs: tuple[Tensor, ...], theirs: tuple[Tensor, ...]
    ) -> None:
        if check.end is not None:  # abandoned
            return
        device = check.device
        try:
            ours = tuple(device.copy(each) for each in outputs)  # the server goes on to write there
            check.held.append(ours)
            with device.aside(device.mark()):
                self._send(check, ours, theirs, device.changed((), ()))
        except Exception as error:  # a check must not reach the server
            self._abandon(check, NO_ROOM, error)

    def arrived(self, check: PendingCheck) -> None:
        """Add the numbers of a check; see `CheckQueue.arrived`."""
        about: CheckInputs = check.about
        about.timed = len(check.spans_ns) == 2 and min(check.spans_ns) >= _LEAST_TIMED_NS
        super().arrived(check)


def tensors_of(values: Iterable[Any]) -> tuple[Tensor, ...]:
    """Return the tensors among arguments of a launch."""
    return tuple(each for each in values if hasattr(each, "data_ptr"))


def _within(scratch: Mapping[str, Tensor], outputs: tuple[Tensor, ...]) -> dict[str, Tensor]:
    """Return the workspaces that share memory with an output."""
    return {
        name: tensor
        for name, tensor in scratch.items()
        if any(_overlap(tensor, output) for output in outputs)
    }


def _is_dense(tensor: Tensor) -> bool:
    """Whether elements fill the tensor's memory without gaps and overlaps: a copy is alike then."""
    step = 1
    dims = zip(tensor.stride(), tensor.shape, strict=True)
    for stride, length in sorted(each for each in dims if each[1] > 1):
        if stride != step:
            return False
        step *= length
    return True


def _overlap(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors may share memory."""
    (a, b), (c, d) = _extent(one), _extent(other)
    return one.device == other.device and a < d and c < b


def _extent(tensor: Tensor) -> tuple[int, int]:
    begin = tensor.data_ptr()
    if not tensor.numel():
        return begin, begin
    reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return begin, begin + (1 + reach) * tensor.element_size()
