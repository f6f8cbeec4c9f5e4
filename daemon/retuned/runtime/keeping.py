"""Copies of what a launch is given, for the kernel that runs beside it.

A kernel that writes to its inputs must not spoil what the other one reads, nor, where it runs in
the shadow, what the server goes on with. Weights are not copied: they are the same on every launch,
and a variant that writes to them is found by the checksum. Copies keep strides and share one budget
of the process; a launch that does not fit is not copied.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Collection
from dataclasses import dataclass

from retuned.runtime.spec import Tensor

COPY_BYTES = 256 << 20
"""Most bytes of all copies of this process at a time."""


@dataclass(frozen=True, slots=True)
class Kept:
    """The inputs of one launch, those that vary copied."""

    inputs: tuple[Tensor, ...]
    """What the other kernel is given."""
    copied: tuple[int, ...]
    """Positions of the copies."""
    size: int
    """Bytes of the copies."""

    def restore(self, inputs: tuple[Tensor, ...]) -> None:
        """Write the copies back to the server's own inputs, which a kernel has changed."""
        torch = sys.modules["torch"]
        with torch.no_grad():
            for position in self.copied:
                inputs[position].copy_(self.inputs[position])


class Keeper:
    """Makes copies within a budget.

    Parameters
    ----------
    budget_bytes
        Most bytes of copies at a time.
    """

    def __init__(self, budget_bytes: int = COPY_BYTES) -> None:
        self._budget_bytes = budget_bytes
        self._held_bytes = 0
        self._lock = threading.Lock()

    @property
    def held_bytes(self) -> int:
        """Bytes of the copies that there are."""
        return self._held_bytes

    def keep(self, inputs: tuple[Tensor, ...], *, constant: Collection[int]) -> Kept | None:
        """Copy what is no constant; None where the budget does not allow it.

        Parameters
        ----------
        inputs
            Of one launch. What is no plain tensor is passed on as it is.
        constant
            Positions of the weights.
        """
        torch = sys.modules.get("torch")
        plain = () if torch is None else (torch.Tensor, torch.nn.Parameter)
        copied = tuple(
            position
            for position, value in enumerate(inputs)
            if position not in constant and type(value) in plain
        )
        size = sum(inputs[i].numel() * inputs[i].element_size() for i in copied)
        with self._lock:
            if self._held_bytes + size > self._budget_bytes:
                return None
            self._held_bytes += size
        made = list(inputs)
        try:
            for position in copied:
                made[position] = inputs[position].detach().clone()
        except BaseException:
            self._give_back(size)
            raise
        return Kept(tuple(made), copied, size)

    def release(self, kept: Kept | None) -> None:
        """Give the copies' place back."""
        if kept is not None:
            self._give_back(kept.size)

    def _give_back(self, size: int) -> None:
        with self._lock:
            self._held_bytes -= size


KEEPER = Keeper()
"""The one of this process."""
