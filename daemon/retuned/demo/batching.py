"""What an engine, its model and its listeners say to each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, Protocol, TypeVar


class Recyclable(Protocol):
    """A cache that can be emptied and used again."""

    def clear(self) -> None:
        """Forget the sequence."""
        ...


C = TypeVar("C", bound=Recyclable)


@dataclass(frozen=True, slots=True)
class Chunk(Generic[C]):
    """Tokens of one sequence that run in one step."""

    tokens: Sequence[int]
    """At least one."""
    cache: C
    """What the sequence has computed so far."""
    sample: bool
    """Whether the token after the last one is wanted."""


class Model(Protocol[C]):
    """What an engine drives."""

    def new_cache(self) -> C:
        """Return an empty cache for one sequence."""
        ...

    def forward(self, chunks: Sequence[Chunk[C]]) -> list[int]:
        """Advance every chunk's sequence; return one token per chunk with `sample`, in order."""
        ...


class Finish(StrEnum):
    """Why a sequence ended."""

    LENGTH = "length"
    """All tokens that were asked for."""
    ERROR = "error"
    """The step it was in raised, or the engine stopped."""


@dataclass(frozen=True, slots=True)
class Progress:
    """News of one sequence."""

    id: int
    """As `submit` returned it."""
    token: int | None
    """The next token; None if it ended without one."""
    finish: Finish | None
    """Set on the last news of a sequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """Bounds of the batch."""

    token_budget: int = 256
    """Most tokens in one step."""
    max_running: int = 16
    """Most sequences in the batch; each owns a cache."""
    max_waiting: int = 1024
    """Most sequences that queue behind it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """One step, as metrics and the profiler's hook see it."""

    duration_s: float
    """Wall time of the model and the delivery."""
    prefill_tokens: int
    """Prompt tokens computed."""
    output_tokens: int
    """Tokens generated."""
    running: int
    """Sequences in the batch."""
    waiting: int
    """Sequences behind it."""
    failed: int = 0
    """Sequences that this step failed."""


class StepHook(Protocol):
    """Is called in the engine's thread around every step."""

    def before_step(self) -> None:
        """Run just before the model does."""
        ...

    def after_step(self, report: StepReport) -> None:
        """Run when the step's tokens are delivered."""
        ...

    def stopped(self) -> None:
        """Run when there will be no more steps."""
        ...
