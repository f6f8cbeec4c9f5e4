"""Checks under way on a device: a bounded number, what they use kept alive until they are done.

A check is queued by the thread that launches and looked at by the control thread. Its tensors are
held here until the device has reached its end: memory that the server gives back meanwhile would be
given to the next launch. A check that does not come back keeps its place and its memory, because
the device may still use it; it is reported, and once all places are kept no more checks are made.
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
"""From here a check that has not come back is reported."""
IN_FLIGHT = "in-flight"
"""Why a check was left out: as many as may be are under way."""
TOO_LARGE = "too-large"
"""Why a check was left out: copies of such inputs are never made."""
NO_ROOM = "shadow-memory"
"""Why a check was left out: no room for its copies just now."""
UNREADABLE = "result-unreadable"
"""Why a check has no result: what arrived is none."""
LOST = "device-failed"
"""Why a check has no result: asking the device for it failed."""

Quiet = Callable[[], AbstractContextManager[Any]]


class CheckOwner(Protocol):
    """Whose check it is."""

    def arrived(self, check: PendingCheck) -> None:
        """Take the numbers of a check that has come back."""
        ...

    def lost(self, check: PendingCheck, reason: str) -> None:
        """Take note of one that will not."""
        ...

    def stuck(self, check: PendingCheck, seconds: float) -> None:
        """Take note, once, of one that has not come back for long."""
        ...


@dataclass(slots=True)
class PendingCheck:
    """One check."""

    device: ShadowDevice
    """Where."""
    place: int
    """Row that its numbers come in."""
    fold: CheckOwner
    """Whose."""
    about: Any
    """What that one needs to judge it."""
    size: int = 0
    """Bytes held against the budget."""
    held: list[Any] = field(default_factory=list)
    """Everything that the device may still use."""
    end: Mark = None
    """Reached when the device is done with it; None until it is queued."""
    count: int = 0
    """Numbers that it brings; 0 if it was given up."""
    spans: list[tuple[Mark, Mark]] = field(default_factory=list)
    """Begin and end of what is timed."""
    numbers: list[float] = field(default_factory=list)
    """What has arrived."""
    spans_ns: list[int] = field(default_factory=list)
    """How long each span took on the device."""
    since_s: float = 0.0
    """When it began, monotonic seconds."""
    told: bool = False
    """Whether it was reported as stuck."""


class Checks:
    """Those of a process.

    Parameters
    ----------
    places
        Checks under way at a time, per device.
    keeper
        Has the budget of bytes.
    clock
        Monotonic seconds.
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
        """Take a place and room for a check's copies; or return why there is none."""
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
        """Take room for more copies; or return why there is none."""
        if not self._keeper.take(size):
            return TOO_LARGE if check.size + size > self._keeper.budget_bytes else NO_ROOM
        check.size += size
        return None

    def drop(self, check: PendingCheck) -> None:
        """Give up a check of which nothing is queued aside."""
        with self._lock:
            self._remove(check)

    def settle(self, quiet: Quiet = nullcontext) -> int:
        """Hand over what has come back; return how many. Called by control threads.

        Parameters
        ----------
        quiet
            While it is entered no graph is captured, which asking a device would spoil; raises
            `Refused` if one is.
        """
        if not self._taken or not self._settling.acquire(blocking=False):
            return 0  # or another runtime of this process does it
        try:
            with quiet():
                back = [check for check in list(self._taken) if self._is_back(check)]
            for check in back:
                self._hand_over(check)
            return len(back)
        except Refused:
            return 0  # they wait
        finally:
            self._settling.release()

    def state(self) -> Mapping[str, int]:
        """Return how many are under way and do not come back, and the bytes they hold."""
        taken = list(self._taken)
        return {
            "in_flight": len(taken),
            "stuck": sum(each.told for each in taken),
            "held_bytes": sum(each.size for each in taken),
        }

    def abandon(self) -> None:
        """Start over in a forked child: what the parent's device uses is left alone, and kept."""
        self._lock, self._settling = threading.Lock(), threading.Lock()
        self._left.append(self._taken)
        self._taken = []

    def _is_back(self, check: PendingCheck) -> bool:
        """Ask the device, and read what it has brought."""
        if check.end is None:
            return False  # its thread is about to queue it
        try:
            if not check.device.arrived(check.end):
                self._look_at(check)
                return False
            check.numbers = check.device.received(check.count, place=check.place)
            check.spans_ns = [check.device.elapsed_ns(*span) for span in check.spans]
        except RuntimeError as error:  # the device is lost: nothing of it comes back
            self._lose(check, error)
            return False
        return True

    def _hand_over(self, check: PendingCheck) -> None:
        try:
            if check.count:
                check.fold.arrived(check)
        except Exception:  # one check's result must not keep the others from theirs
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
            log.error("a shadow check has not come back for %.0f s; its memory is kept", seconds)
            check.fold.stuck(check, seconds)

    def _remove(self, check: PendingCheck) -> None:
        if check in self._taken:
            self._taken.remove(check)
            self._keeper.give(check.size)
            check.held.clear()


CHECKS = Checks()
"""Those of this process."""

os.register_at_fork(after_in_child=CHECKS.abandon)
