"""Copies of what a launch is given, for the kernel that runs beside it.

A kernel that writes to its inputs must not spoil what the other one reads, nor, where it runs in
the shadow, what the server goes on with. Weights are not copied: they are the same on every launch,
and a variant that writes to them is found by the checksum. Copies keep strides and share one budget
of the process; a launch that does not fit is not copied.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from retuned.runtime.schema import Tensor

log = logging.getLogger(__name__)

COPY_BYTES = 256 << 20
"""Most bytes of all copies of this process at a time, where the environment says nothing else."""
_MOST_BYTES = 1 << 40


@dataclass(frozen=True, slots=True)
class InputCopies:
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


class InputCopier:
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
    def budget_bytes(self) -> int:
        """Most bytes of copies at a time."""
        return self._budget_bytes

    @property
    def held_bytes(self) -> int:
        """Bytes of the copies that there are."""
        return self._held_bytes

    def take(self, size: int) -> bool:
        """Take so many bytes of the budget; False where it does not allow it."""
        with self._lock:
            if self._held_bytes + size > self._budget_bytes:
                return False
            self._held_bytes += size
            return True

    def give(self, size: int) -> None:
        """Give so many bytes back."""
        with self._lock:
            self._held_bytes -= size

    def restart(self) -> None:
        """Start over in a forked child: its parent's copies are not its own."""
        self._lock = threading.Lock()
        self._held_bytes = 0

    def keep(self, inputs: tuple[Tensor, ...], *, constant: Collection[int]) -> InputCopies | None:
        """Copy what is not a constant; None where the budget does not allow it.

        Parameters
        ----------
        inputs
            Of one launch. What is not a plain tensor is passed on as it is.
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
        size = bytes_of([inputs[i] for i in copied])
        if not self.take(size):
            return None
        made = list(inputs)
        try:
            for position in copied:
                made[position] = inputs[position].detach().clone()
        except (RuntimeError, MemoryError):  # the device's own room is used up: not the server's
            self.give(size)
            return None
        except BaseException:
            self.give(size)
            raise
        return InputCopies(tuple(made), copied, size)

    def release(self, kept: InputCopies | None) -> None:
        """Give the copies' place back."""
        if kept is not None:
            self.give(kept.size)


def bytes_of(tensors: Collection[Tensor]) -> int:
    """Return the bytes of dense copies of tensors."""
    return sum(int(tensor.numel()) * int(tensor.element_size()) for tensor in tensors)


def budget_of(environment: Mapping[str, str]) -> int:
    """Return what ``RETUNED_SHADOW_BYTES`` allows; what is no whole number of bytes is not taken.

    Examples
    --------
    >>> budget_of({}), budget_of({"RETUNED_SHADOW_BYTES": "1048576"})
    (268435456, 1048576)
    """
    said = environment.get("RETUNED_SHADOW_BYTES", "").strip()
    if said.isascii() and said.isdecimal() and len(said) < 20 and int(said) <= _MOST_BYTES:
        return int(said)
    if said:
        log.warning("RETUNED_SHADOW_BYTES is not a number of bytes up to 2^40: %.40r", said)
    return COPY_BYTES


KEEPER = InputCopier(budget_of(os.environ))
"""The one of this process."""

os.register_at_fork(after_in_child=KEEPER.restart)
