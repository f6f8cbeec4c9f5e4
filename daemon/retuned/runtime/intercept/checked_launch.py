"""Checked launches: the variant and the server's code each write to separate memory.

A kernel writes into memory that the server allocated, so that a comparison needs copies. Both sides
get a copy of every storage that is stored to, whole, with the same offset, strides and alignment.
So an element that one side leaves unwritten, or writes elsewhere, is detected. Tensors that are
only written start as poison; those that are also read start with their content. Only the server's
own code writes the server's tensors.

A detached launch runs entirely in other memory, including the tensors that are only read.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from retuned.runtime.artifacts.loaded import poison
from retuned.runtime.intercept.arguments import is_pointer
from retuned.runtime.intercept.call import LaunchCall
from retuned.runtime.native.interface import Ineligible
from retuned.runtime.schema import Tensor
from retuned.runtime.shadow.sampler import fingerprint

MAX_CHECK_BYTES = 256 << 20
"""Maximum bytes of the storages copied for one launch.

A kernel that stores to more is not swapped.
"""
TOO_LARGE = Ineligible("output-too-large-to-check")
NO_TENSOR = Ineligible("tensor-kind")
_ROUND = 16


class Copies:
    """Copies of the storages that one launch stores to.

    Parameters
    ----------
    stores
        Position of each pointer that is stored to, with ``write`` or ``update``.
    """

    def __init__(
        self, values: Sequence[Any], stores: Mapping[int, str], *, whole: bool = False
    ) -> None:
        self._values = values
        self._stores = stores
        storages = {self._address(values[place]) for place in stores}
        self._inside = {
            place: value
            for place, value in enumerate(values)
            if is_pointer(value) and (whole or self._address(value) in storages)
        }
        """Every pointer into those storages, because one pointer may read what another writes."""
        self._read = {
            self._address(value)
            for place, value in self._inside.items()
            if stores.get(place) != "write"
        }

    @staticmethod
    def _address(tensor: Tensor) -> int:
        return int(tensor.untyped_storage().data_ptr())

    def stored_count(self) -> int:
        """Return how many of the copies belong to storages that are stored to; those come first."""
        return len({self._address(self._values[place]) for place in self._stores})

    def size_bytes(self) -> int:
        sizes = {
            self._address(tensor): int(tensor.untyped_storage().nbytes())
            for tensor in self._inside.values()
        }
        return sum(sizes.values())

    def make(self) -> tuple[list[Any], tuple[Tensor, ...]]:
        """Return arguments that point into new copies, and the copies that are stored to."""
        torch = sys.modules["torch"]
        values = list(self._values)
        made: dict[int, Tensor] = {}
        outputs: list[Tensor] = []
        with torch.no_grad():
            for place in sorted(self._inside, key=lambda place: place not in self._stores):
                tensor = self._inside[place]
                address = self._address(tensor)
                if address not in made:
                    made[address] = self._copy(torch, tensor, keep=address in self._read)
                    outputs.append(made[address].view(tensor.dtype))
                flat = made[address].view(tensor.dtype)
                values[place] = flat.as_strided(
                    tensor.size(), tensor.stride(), tensor.storage_offset()
                )
        return values, tuple(outputs)

    @staticmethod
    def _copy(torch: Any, tensor: Tensor, *, keep: bool) -> Tensor:  # noqa: ANN401 - the module
        storage = tensor.untyped_storage()
        size = int(storage.nbytes())
        rounded = -(-size // _ROUND) * _ROUND
        flat = torch.zeros(rounded, dtype=torch.uint8, device=tensor.device)
        if keep:
            source = torch.empty(0, dtype=torch.uint8, device=tensor.device)
            flat[:size].copy_(source.set_(storage, 0, (size,), (1,)))
        else:
            poison(flat.view(tensor.dtype))
        return flat


def stored_to(values: Sequence[Any], stores: Mapping[int, str]) -> Copies | Ineligible:
    """Return the copies that a check needs, or why this launch cannot be checked."""
    torch = sys.modules.get("torch")
    if torch is None or not all(isinstance(values[place], torch.Tensor) for place in stores):
        return NO_TENSOR
    copies = Copies(values, stores)
    return TOO_LARGE if copies.size_bytes() > MAX_CHECK_BYTES else copies


def inputs_sum(values: Sequence[Any], stores: Mapping[int, str]) -> int:
    torch = sys.modules.get("torch")
    if torch is None:
        return 0
    kept = [
        value
        for place, value in enumerate(values)
        if place not in stores and isinstance(value, torch.Tensor) and value.is_contiguous()
    ]
    return fingerprint(kept)


Run = Callable[[Sequence[Any]], Any]
"""Launches the variant on arguments; returns `Ineligible` if it cannot."""


class DetachedLaunch:
    """Both sides of a check of one launch; implements the interface of `shadow.async_check`.

    Parameters
    ----------
    stores
        Position of each pointer that is stored to, with ``write`` or ``update``.
    """

    def __init__(self, call: LaunchCall, stores: Mapping[int, str], *, run: Run) -> None:
        values = call.values()
        self._call = call
        self._run = run
        self._copies = Copies(values, stores, whole=True)
        self._stored = self._copies.stored_count()
        self._sides: list[tuple[list[Any], tuple[Tensor, ...]]] = []
        self.tensors: tuple[Tensor, ...] = tuple(v for v in values if is_pointer(v))
        self.size = self._copies.size_bytes()

    def copy(self) -> None:
        self._sides = [self._copies.make(), self._copies.make()]

    def variant(self) -> tuple[Tensor, ...] | Ineligible:
        values, made = self._sides[1]
        problem = self._run(values)
        return problem if isinstance(problem, Ineligible) else made[: self._stored]

    def incumbent(self) -> tuple[Tensor, ...]:
        values, made = self._sides[0]
        self._call.run_on(values)
        return made[: self._stored]

    def kept(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        (_, theirs), (_, ours) = self._sides
        return theirs[self._stored :], ours[self._stored :]


def detached_launch(
    call: LaunchCall, stores: Mapping[int, str], *, run: Run
) -> DetachedLaunch | None:
    """Return both sides of a launch; None if not all its pointers are tensors."""
    torch = sys.modules.get("torch")
    pointers = [value for value in call.values() if is_pointer(value)]
    if torch is None or not all(isinstance(value, torch.Tensor) for value in pointers):
        return None
    return DetachedLaunch(call, stores, run=run)
