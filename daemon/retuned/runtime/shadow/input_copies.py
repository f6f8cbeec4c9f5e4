"""Input copies of a launch, for the kernel that runs as the check.

A kernel that writes to its inputs must not change the inputs of the other one or, in the shadow,
the server's tensors. Weights are not copied: they are the same on every launch, and the checksum
detects a variant that writes to them. Copies keep strides and share one budget of the process; a
launch that does not fit is not copied.
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
"""Maximum bytes of all copies of this process at a time; the environment can change it."""
_MOST_BYTES = 1 << 40


@dataclass(frozen=True, slots=True)
class InputCopies:
    inputs: tuple[Tensor, ...]
    copied: tuple[int, ...]
    size: int

    def restore(self, inputs: tuple[Tensor, ...]) -> None:
        """Write the copies back to the server's own inputs, which a kernel has changed."""
        torch = sys.modules["torch"]
        with torch.no_grad():
            for position in self.copied:
                inputs[position].copy_(self.inputs[position])


class InputCopier:
    """Makes copies within a budget."""

    def __init__(self, budget_bytes: int = COPY_BYTES) -> None:
        self._budget_bytes = budget_bytes
        self._held_bytes = 0
        self._lock = threading.Lock()

    @property
    def budget_bytes(self) -> int:
        return self._budget_bytes

    @property
    def held_bytes(self) -> int:
        return self._held_bytes

    def take(self, size: int) -> bool:
        """Reserve bytes of the budget; False if it is exhausted."""
        with self._lock:
            if self._held_bytes + size > self._budget_bytes:
                return False
            self._held_bytes += size
            return True

    def give(self, size: int) -> None:
        with self._lock:
            self._held_bytes -= size

    def restart(self) -> None:
        """Start over in a forked child: its parent's copies do not belong to it."""
        self._lock = threading.Lock()
        self._held_bytes = 0

    def keep(self, inputs: tuple[Tensor, ...], *, constant: Collection[int]) -> InputCopies | None:
        """Copy inputs that are not constant; None if the budget is exhausted.

        Parameters
        ----------
        inputs
            Of one launch. Objects other than plain tensors are passed on unchanged.
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
        except (RuntimeError, MemoryError):  # the device is out of memory; the server continues
            self.give(size)
            return None
        except BaseException:
            self.give(size)
            raise
        return InputCopies(tuple(made), copied, size)

    def release(self, kept: InputCopies | None) -> None:
        if kept is not None:
            self.give(kept.size)


def bytes_of(tensors: Collection[Tensor]) -> int:
    return sum(int(tensor.numel()) * int(tensor.element_size()) for tensor in tensors)


def budget_of(environment: Mapping[str, str]) -> int:
    """Return the bytes that ``RETUNED_SHADOW_BYTES`` allows; an invalid value is ignored.

    Examples
    --------
    >>> budget_of({}), budget_of({"RETUNED_SHADOW_BYTES": "1048576"})
    (268435456, 1048576)
    """
    value = environment.get("RETUNED_SHADOW_BYTES", "").strip()
    if value.isascii() and value.isdecimal() and len(value) < 20 and int(value) <= _MOST_BYTES:
        return int(value)
    if value:
        log.warning("RETUNED_SHADOW_BYTES is not a number of bytes up to 2^40: %.40r", value)
    return COPY_BYTES


KEEPER = InputCopier(budget_of(os.environ))

os.register_at_fork(after_in_child=KEEPER.restart)
