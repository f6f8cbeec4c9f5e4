"""A kernel that turns wrong after it was swapped in: what the demo's rollback is shown on.

Only the active variant of one slot is touched; the incumbent and every other slot stay right. The
error is a small one, in one column of a third of the launches: no crash, no NaN, nothing that a
client would notice, and too little for the server's own breaker, which takes back at once what is
badly wrong. So it is the daemon that has to find it and go back.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from retuned.demo.operators import Tensor
from retuned.errors import UsageError
from retuned.runtime.core.active_order import Swapped
from retuned.runtime.core.slots import Slot


class OneColumnWrong:
    """Changes one column of every third output.

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

    def __call__(self, output: Tensor) -> Tensor:
        """Return the output, wrong or not; the launch made it, so it is changed in place."""
        if next(self._launches) % self._every == 0:
            output[..., 0] += self._error_ratio * output.square().mean().sqrt()
        return output


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
            If there is no such slot, or it runs its original.
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
        # The same order again: its routes are built anew, now with the distortion in them.
        if not slot.replace(order, state="swapped"):
            raise UsageError(f"slot '{name}' was swapped at this moment; try again")
