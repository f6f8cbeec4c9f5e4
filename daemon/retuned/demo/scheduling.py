"""Which tokens run in the next step: pure, so that batching can be reasoned about and tested."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


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
    chunks over several steps instead of stopping everybody else.

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
