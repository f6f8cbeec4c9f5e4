"""A checked launch in memory that is not the server's: all of it, what is only read as well.

Run later, on another stream, neither kernel may look at what the server goes on with. So every
storage that a pointer leads into is copied, once for either side.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from retuned.runtime.intercept.arguments import is_pointer
from retuned.runtime.intercept.call import LaunchCall
from retuned.runtime.intercept.checking import Copies
from retuned.runtime.launching import Ineligible
from retuned.runtime.spec import Tensor

Run = Callable[[Sequence[Any]], Any]
"""Launches the variant on arguments; returns `Ineligible` where it cannot."""


class DetachedLaunch:
    """Both sides of a check of one launch; `launching.Detached`.

    Parameters
    ----------
    call
        The launch.
    stores
        Place of each pointer that is stored to, with ``write`` or ``update``.
    run
        Launches the variant.
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
        """Make the memory of both sides, on the current stream, as it was before the launch."""
        self._sides = [self._copies.make(), self._copies.make()]

    def variant(self) -> tuple[Tensor, ...] | Ineligible:
        """Run the variant in its own; return what was stored to."""
        values, made = self._sides[1]
        problem = self._run(values)
        return problem if isinstance(problem, Ineligible) else made[: self._stored]

    def incumbent(self) -> tuple[Tensor, ...]:
        """Run the server's own code in its own; return what was stored to."""
        values, made = self._sides[0]
        self._call.run_on(values)
        return made[: self._stored]

    def kept(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Return what neither may store to, of the incumbent's side and of the variant's."""
        (_, theirs), (_, ours) = self._sides
        return theirs[self._stored :], ours[self._stored :]


def detached_launch(
    call: LaunchCall, stores: Mapping[int, str], *, run: Run
) -> DetachedLaunch | None:
    """Return both sides of a launch; None where not all its pointers are tensors."""
    torch = sys.modules.get("torch")
    pointers = [value for value in call.values() if is_pointer(value)]
    if torch is None or not all(isinstance(value, torch.Tensor) for value in pointers):
        return None
    return DetachedLaunch(call, stores, run=run)
