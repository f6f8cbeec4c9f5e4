"""What a loaded variant is to the rest of the runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from retuned.runtime.schema import Key, Tensor


class Ineligible:
    """A variant's answer to a launch it cannot take; the incumbent runs."""

    __slots__ = ("reason",)

    def __init__(self, reason: str) -> None:
        self.reason = reason


Launch = Callable[[tuple[Tensor, ...]], Any]
"""Inputs -> output, tuple of outputs, or `Ineligible`."""


class Detached(Protocol):
    """Both sides of a check of one launch, each in separate memory."""

    size: int
    """Bytes that one side needs."""
    tensors: tuple[Tensor, ...]
    """What the launch was given."""

    def copy(self) -> None:
        """Make the memory of both, on the current stream, as it was before the launch."""
        ...

    def variant(self) -> tuple[Tensor, ...] | Ineligible:
        """Run the variant in its own; return what was stored to."""
        ...

    def incumbent(self) -> tuple[Tensor, ...]:
        """Run the server's own code in its own; return what was stored to."""
        ...

    def kept(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Return what neither may store to, of the incumbent's side and of the variant's."""
        ...


class Variant(Protocol):
    """A loaded artifact."""

    def launcher(self, key: Key) -> Launch:
        """Return what launches at these lengths."""
        ...

    def checked_launcher(self, key: Key) -> Launch:
        """Return the same with outputs poisoned beforehand, so that what is not written shows."""
        ...

    def fingerprint(self, inputs: tuple[Tensor, ...]) -> object:
        """Return something equal for equal contents of the inputs."""
        ...

    def capturing(self) -> Callable[[], bool] | None:
        """Return what says whether launches are recorded into a graph; None where never."""
        ...
