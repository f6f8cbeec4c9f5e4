"""Swapped kernels that do not keep what was proven: one turns wrong, one costs the server more.

Only variants are touched; the incumbent and every other slot stay as they are.

The wrong one is wrong by little, in one column of a third of the launches: no crash, no NaN,
nothing that a client would notice, and too little for the server's own breaker, which takes back at
once what is badly wrong. So it is the daemon that has to find it and go back.

The dear one returns what it should. Each launch takes a multiple of its time on the host: a kernel
that an experiment has proven faster, in a server that it makes slower. Only the server's own steps
show that.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping

from retuned.demo.operators import Tensor
from retuned.errors import UsageError
from retuned.runtime.core.active_order import Ineligible, Launch, Swapped
from retuned.runtime.core.slots import Slot


class OneColumnWrong:
    """Changes one column of every third output of a launch.

    Parameters
    ----------
    every
        One launch in so many is wrong.
    error_ratio
        Error over the output's root mean square. A shadow check allows 0.001; the server's breaker
        trips at four times that.
    """

    def __init__(self, *, every: int = 3, error_ratio: float = 0.002) -> None:
        self._launches = itertools.count()
        self._every = every
        self._error_ratio = error_ratio

    def __call__(self, launch: Launch) -> Launch:
        """Return the launch, wrong at times; the launch made its output, which is changed."""

        def wrong(inputs: tuple[Tensor, ...]) -> Tensor:
            output = launch(inputs)
            if output.__class__ is not Ineligible and next(self._launches) % self._every == 0:
                output[..., 0] += self._error_ratio * output.square().mean().sqrt()
            return output

        return wrong


class Dearer:
    """Makes each launch take a multiple of its time on the host.

    Parameters
    ----------
    times
        Multiple, above 1.
    clock
        Seconds; read in a loop until the time is over, so that the host stays busy.
    """

    def __init__(self, times: float, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._times = times
        self._clock = clock

    def __call__(self, launch: Launch) -> Launch:
        """Return the launch with its cost."""
        clock, times = self._clock, self._times

        def dear(inputs: tuple[Tensor, ...]) -> Tensor:
            began_s = clock()
            output = launch(inputs)
            until_s = began_s + times * (clock() - began_s)
            while clock() < until_s:
                pass
            return output

        return dear


class FaultInjector:
    """Breaks slots by name.

    Parameters
    ----------
    slots
        By definition name.
    """

    def __init__(self, slots: Mapping[str, Slot]) -> None:
        self._slots = slots

    def inject(self, name: str) -> None:
        """Let the active variant of a slot turn wrong, for as long as its order is in force.

        Raises
        ------
        UsageError
            If the server has no slot of this name, or the slot runs its original.
        """
        slot = self._slots.get(name)
        if slot is None:
            known = ", ".join(sorted(self._slots))
            raise UsageError(f"no slot '{name[:128]}'; there are {known}")
        table = slot.table
        order = table.in_force
        if not isinstance(order, Swapped) or order.artifact is None or table.state != "swapped":
            raise UsageError(f"slot '{name}' runs its original, which is never broken")
        order.distortion = OneColumnWrong()
        # The same order again: its routes are built again, now with the distortion in them.
        if not slot.replace(order, state="swapped"):
            raise UsageError(f"slot '{name}' was swapped at this moment; try again")

    def make_dearer(self, times: float) -> None:
        """Let each variant of a later order cost the server a multiple of its time."""
        for slot in self._slots.values():
            _watch(slot, Dearer(times))


def _watch(slot: Slot, dearer: Dearer) -> None:
    """Distort each order of a slot when it becomes active."""
    before = slot.on_change

    def changed() -> None:
        table = slot.table
        order = table.in_force
        if isinstance(order, Swapped) and order.artifact is not None and order.distortion is None:
            order.distortion = dearer
            slot.replace(order, state=table.state)  # which calls this again
        elif before is not None:
            before()

    slot.on_change = changed
