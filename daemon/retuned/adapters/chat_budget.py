"""What a conversation with a model may cost, and what it has cost: tokens and money.

Before each try the most it can cost is set aside; a try that would pass the budget is not made. A
token is at least one byte in every tokenizer there is, so the bytes of a question bound its tokens.
Afterwards the reported usage counts; where none is reported, or one that cannot be, the bound does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from retuned.errors import Refused
from retuned.ports import ChatRequest

_MESSAGE_TOKENS = 16
"""What a message costs beside its text: marks of who speaks."""
_LEAST_BYTES_PER_TOKEN = 20.0
"""A report of fewer tokens than one per so many bytes is not believed."""


class BudgetSpent(Refused):
    """The next question might pass the budget; it was not asked."""

    code = "budget-spent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens."""

    prompt_tokens: int = 0
    """Read by the model."""
    completion_tokens: int = 0
    """Written by the model."""

    @property
    def tokens(self) -> int:
        """Return both together."""
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Dollars per million tokens."""

    prompt_usd_per_mtok: float
    """Of what is read."""
    completion_usd_per_mtok: float
    """Of what is written."""

    def usd(self, usage: Usage) -> float:
        """Return what tokens cost.

        Examples
        --------
        >>> prices = Prices(prompt_usd_per_mtok=2.0, completion_usd_per_mtok=10.0)
        >>> prices.usd(Usage(prompt_tokens=500_000, completion_tokens=100_000))
        2.0
        """
        return (
            usage.prompt_tokens * self.prompt_usd_per_mtok
            + usage.completion_tokens * self.completion_usd_per_mtok
        ) / 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatBudget:
    """Bounds of one conversation."""

    max_tokens: int
    """Read and written."""
    max_usd: float
    """Of this conversation, dollars."""
    max_usd_per_day: float = float("inf")
    """Of all conversations within 24 hours, dollars."""


class Ledger(Protocol):
    """What all conversations cost within 24 hours."""

    def reserve(self, usd: float, *, most_usd: float) -> tuple[str, float]:
        """Set money aside in one step with the check; return the entry, or none, and the rest."""
        ...

    def settle(self, name: str, usd: float) -> None:
        """Replace what was set aside by what it came to."""
        ...


class RemainingBudget:
    """What is left.

    Parameters
    ----------
    budget
        Bounds.
    prices
        Of the model.
    spent
        Tokens of this conversation so far, from its transcript.
    spent_usd
        Money of this conversation so far.
    ledger
        Of all conversations; None where nobody else spends from this budget.
    """

    def __init__(
        self,
        budget: ChatBudget,
        prices: Prices,
        *,
        spent: Usage | None = None,
        spent_usd: float = 0.0,
        ledger: Ledger | None = None,
    ) -> None:
        self._budget = budget
        self.prices = prices
        self.spent = spent or Usage()
        self.spent_usd = spent_usd
        self._ledger = ledger
        self._entry = ""

    def admit(self, bound: Usage) -> None:
        """Allow a try that costs at most `bound`, and set the day's money aside for it.

        Raises
        ------
        BudgetSpent
            If it might pass a bound; says which, and what is left of it.
        HarnessError
            If the day's ledger cannot be kept.
        """
        budget, usd = self._budget, self.prices.usd(bound)
        left = budget.max_tokens - self.spent.tokens
        if bound.tokens > left:
            raise BudgetSpent(
                f"the next question may take {bound.tokens} tokens, {max(left, 0)} are left of "
                f"{budget.max_tokens} for this experiment"
            )
        if usd > 0.0 and self.spent_usd + usd > budget.max_usd:
            raise _spent(usd, budget.max_usd - self.spent_usd, budget.max_usd, "this experiment")
        if usd > 0.0 and self._ledger is not None:
            self._entry, left_usd = self._ledger.reserve(usd, most_usd=budget.max_usd_per_day)
            if not self._entry:
                raise _spent(usd, left_usd, budget.max_usd_per_day, "24 hours")

    def pay(self, usage: Usage) -> float:
        """Count what a try cost, and return its price, dollars."""
        usd = self.prices.usd(usage)
        self.spent = self.spent + usage
        self.spent_usd += usd
        entry, self._entry = self._entry, ""
        if entry and self._ledger is not None:
            self._ledger.settle(entry, usd)
        return usd


def _spent(usd: float, left: float, most: float, what: str) -> BudgetSpent:
    return BudgetSpent(
        f"the next question may cost ${usd:.4f}, ${max(left, 0.0):.4f} are left of ${most:.2f} "
        f"for {what}"
    )


def bound_of(request: ChatRequest) -> Usage:
    """Return the most tokens that a question and its answer can take."""
    read = sum(len(m.content.encode()) + _MESSAGE_TOKENS for m in request.messages)
    return Usage(prompt_tokens=read + _MESSAGE_TOKENS, completion_tokens=request.max_tokens)


def settled(reported: Usage | None, *, bound: Usage, answer_bytes: int) -> tuple[Usage, bool]:
    """Return what a try is taken to have cost, and whether that is a guess.

    Examples
    --------
    >>> bound = Usage(prompt_tokens=100, completion_tokens=50)
    >>> settled(Usage(prompt_tokens=40, completion_tokens=7), bound=bound, answer_bytes=30)
    (Usage(prompt_tokens=40, completion_tokens=7), False)
    >>> settled(None, bound=bound, answer_bytes=30) == (bound, True)
    True
    """
    if reported is None:
        return bound, True
    least_read = (bound.prompt_tokens - 3 * _MESSAGE_TOKENS) / _LEAST_BYTES_PER_TOKEN
    least_written = answer_bytes / _LEAST_BYTES_PER_TOKEN
    if reported.prompt_tokens < least_read or reported.completion_tokens < least_written:
        return bound, True
    return reported, False
