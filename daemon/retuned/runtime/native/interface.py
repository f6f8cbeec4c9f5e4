"""Interface of loaded variants for the rest of the runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from retuned.runtime.schema import Key, Tensor


class Ineligible:
    """Result of a variant for a launch that it cannot take; the incumbent runs."""

    __slots__ = ("reason",)

    def __init__(self, reason: str) -> None:
        self.reason = reason


Launch = Callable[[tuple[Tensor, ...]], Any]
"""Inputs -> output, tuple of outputs, or `Ineligible`."""


class Detached(Protocol):
    """Both sides of a check of one launch, each in separate memory."""

    size: int
    tensors: tuple[Tensor, ...]

    def copy(self) -> None:
        """Copy the memory of both sides, on the current stream, as it is before the launch."""
        ...

    def variant(self) -> tuple[Tensor, ...] | Ineligible:
        """Run the variant in its memory; return the tensors that are stored to."""
        ...

    def incumbent(self) -> tuple[Tensor, ...]:
        """Run the server's own code in its memory; return the tensors that are stored to."""
        ...

    def kept(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Return the tensors that no side may store to: the incumbent's, then the variant's."""
        ...


class Variant(Protocol):
    def launcher(self, key: Key) -> Launch: ...

    def checked_launcher(self, key: Key) -> Launch:
        """Return the same with outputs poisoned before, to detect unwritten elements."""
        ...

    def fingerprint(self, inputs: tuple[Tensor, ...]) -> object:
        """Return a value that is equal for equal contents of the inputs."""
        ...

    def capturing(self) -> Callable[[], bool] | None:
        """Return a function that checks whether launches are captured into a graph.

        None if never.
        """
        ...
