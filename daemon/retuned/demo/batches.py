"""What an engine, its model and its listeners say to each other.

Which tokens run in the next step: pure, so that batching can be reasoned about and tested.
"""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What one running sequence has left to compute, oldest sequence first in every list."""

    id: int
    """Of the sequence."""
    pending: int
    """Tokens that are known but not yet in the cache: 1 while decoding, more in prefill."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Tokens that one sequence runs in the next step."""

    id: int
    """Of the sequence."""
    tokens: int
    """At least 1."""
    completes: bool
    """Whether nothing is pending afterwards, so that the next token is sampled."""


def plan_step(needs: Sequence[Need], *, token_budget: int) -> tuple[Share, ...]:
    """Share the budget: decoding sequences first, one token each, then prefill in order of age.

    Decoding first keeps the pace of answers that people already read; a long prompt is cut into
    chunks over several steps instead of stopping all other requests.

    Raises
    ------
    ValueError
        If the budget is below 1: nothing could ever run.

    Examples
    --------
    >>> plan_step([Need(id=1, pending=300), Need(id=2, pending=1)], token_budget=256)
    (Share(id=2, tokens=1, completes=True), Share(id=1, tokens=255, completes=False))
    """
    if token_budget < 1:
        raise ValueError(f"token_budget must be at least 1, got {token_budget}")
    left = token_budget
    shares: list[Share] = []
    decoding = [need for need in needs if need.pending == 1]
    prefilling = [need for need in needs if need.pending > 1]
    for need in (*decoding, *prefilling):
        tokens = min(need.pending, left)
        if tokens == 0:
            break
        shares.append(Share(id=need.id, tokens=tokens, completes=tokens == need.pending))
        left -= tokens
    return tuple(shares)
