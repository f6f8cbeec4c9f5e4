"""Pending checks on a device: a bounded number; their memory is kept until they are done.

The launching thread queues a check and the control thread reads it. Its tensors are kept until the
device has reached its end: otherwise memory that the server frees could be reused by the next
launch. A check that does not complete keeps its place and its memory, because the device may still
use it. It is reported, and once all places are taken no more checks are made.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

from retuned.runtime.schema import Refused
from retuned.runtime.shadow.device import PLACES, Mark, ShadowDevice
from retuned.runtime.shadow.input_copies import KEEPER, InputCopier

log = logging.getLogger(__name__)

STUCK_S = 30.0
IN_FLIGHT = "in-flight"
"""Reason code: the check was skipped because the maximum number is pending."""
TOO_LARGE = "too-large"
"""Reason code: the check was skipped because such inputs exceed the whole budget."""
NO_ROOM = "shadow-memory"
"""Reason code: the check was skipped because the budget for copies is exhausted now."""
UNREADABLE = "result-unreadable"
"""Reason code: the check has no result because the received numbers are invalid."""
LOST = "device-failed"
"""Reason code: the check has no result because the device raised."""

Quiet = Callable[[], AbstractContextManager[Any]]


class CheckOwner(Protocol):
    def arrived(self, check: PendingCheck) -> None: ...

    def lost(self, check: PendingCheck, reason: str) -> None: ...

    def stuck(self, check: PendingCheck, seconds: float) -> None:
        """Handle, once, a check that has not completed for a long time."""
        ...


@dataclass(slots=True)
class PendingCheck:
    device: ShadowDevice
    place: int
    fold: CheckOwner
    about: Any
    size: int = 0
    """Bytes reserved in the budget."""
    held: list[Any] = field(default_factory=list)
    """Everything that the device may still use."""
    end: Mark = None
    """Reached when the device is done with it; None until it is queued."""
    count: int = 0
    """Numbers of its result; 0 if it was dropped."""
    spans: list[tuple[Mark, Mark]] = field(default_factory=list)
    """Start and end of each timed interval."""
    compared: tuple[Mark, Mark] | None = None
    """Start and end of the comparison; it takes the device's time as well."""
    numbers: list[float] = field(default_factory=list)
    spans_ns: list[int] = field(default_factory=list)
    compared_ns: int = 0
    since_s: float = 0.0
    """Start, monotonic seconds."""
    told: bool = False


class Checks:
    """Pending checks of a process.

    Parameters
    ----------
    places
        Pending checks at a time, per device.
    keeper
        Has the budget of bytes.
    """

    def __init__(
        self,
        places: int = PLACES,
        *,
        keeper: InputCopier = KEEPER,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._places = places
        self._keeper = keeper
        self._clock = clock
        self._lock = threading.Lock()
        self._settling = threading.Lock()
        self._taken: list[PendingCheck] = []
        self._left: list[list[PendingCheck]] = []

    @property
    def count(self) -> int:
        return len(self._taken)

    def begin(
        self,
        device: ShadowDevice,
        fold: CheckOwner,
        about: Any,  # noqa: ANN401
        *,
        size: int,
    ) -> PendingCheck | str:
        """Reserve a place and memory for a check's copies; or return why there is none."""
        with self._lock:
            used = {each.place for each in self._taken if each.device is device}
            free = next((n for n in range(self._places) if n not in used), None)
            if free is None:
                return IN_FLIGHT
            if not self._keeper.take(size):
                return TOO_LARGE if size > self._keeper.budget_bytes else NO_ROOM
            check = PendingCheck(device, free, fold, about, size=size, since_s=self._clock())
            self._taken.append(check)
            return check

    def grow(self, check: PendingCheck, size: int) -> str | None:
        """Reserve memory for more copies; or return why there is none."""
        if not self._keeper.take(size):
            return TOO_LARGE if check.size + size > self._keeper.budget_bytes else NO_ROOM
        check.size += size
        return None

    def drop(self, check: PendingCheck) -> None:
        """Drop a check of which nothing is queued on the checks' stream."""
        with self._lock:
            self._remove(check)

    def settle(self, quiet: Quiet = nullcontext) -> int:
        """Pass completed checks to their receivers; return how many. Called by control threads.

        Parameters
        ----------
        quiet
            Context in which no graph is captured, because querying a device would end the capture;
            raises `Refused` if one is.
        """
        if not self._taken or not self._settling.acquire(blocking=False):
            return 0  # nothing pending, or another runtime of this process does it
        try:
            with quiet():
                back = [check for check in list(self._taken) if self._is_back(check)]
            for check in back:
                self._hand_over(check)
            return len(back)
        except Refused:
            return 0  # the checks wait
        finally:
            self._settling.release()

    def state(self) -> Mapping[str, int]:
        taken = list(self._taken)
        return {
            "in_flight": len(taken),
            "stuck": sum(each.told for each in taken),
            "held_bytes": sum(each.size for each in taken),
        }

    def abandon(self) -> None:
        """Start over in a forked child: memory that the parent's device uses is kept."""
        self._lock, self._settling = threading.Lock(), threading.Lock()
        self._left.append(self._taken)
        self._taken = []

    def _is_back(self, check: PendingCheck) -> bool:
        if check.end is None:
            return False  # its thread has not queued it yet
        try:
            if not check.device.arrived(check.end):
                self._look_at(check)
                return False
            check.numbers = check.device.received(check.count, place=check.place)
            check.spans_ns = [check.device.elapsed_ns(*span) for span in check.spans]
            if check.compared is not None:
                check.compared_ns = check.device.elapsed_ns(*check.compared)
        except RuntimeError as error:  # the device is lost: no check completes
            self._lose(check, error)
            return False
        return True

    def _hand_over(self, check: PendingCheck) -> None:
        try:
            if check.count:
                check.fold.arrived(check)
        except Exception:  # one invalid result must not block the others
            log.exception("a shadow check could not be judged")
            check.fold.lost(check, UNREADABLE)
        finally:
            self.drop(check)

    def _lose(self, check: PendingCheck, error: RuntimeError) -> None:
        if not check.told:
            check.told = True
            log.error("a shadow check is lost, its memory is kept: %r", error)
            check.fold.lost(check, LOST)

    def _look_at(self, check: PendingCheck) -> None:
        seconds = self._clock() - check.since_s
        if seconds > STUCK_S and not check.told:
            check.told = True
            log.error("a shadow check is pending for %.0f s; its memory is kept", seconds)
            check.fold.stuck(check, seconds)

    def _remove(self, check: PendingCheck) -> None:
        if check in self._taken:
            self._taken.remove(check)
            self._keeper.give(check.size)
            check.held.clear()


CHECKS = Checks()

os.register_at_fork(after_in_child=CHECKS.abandon)
