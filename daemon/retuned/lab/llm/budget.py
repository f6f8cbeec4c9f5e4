"""Budget of a conversation with a model: tokens and money, reserved and spent.

Before each try its maximum cost is reserved; a try that could exceed the budget is not made. In
every tokenizer a token has at least one byte, so the bytes of a question bound its tokens.
Afterwards the reported usage counts. Without a plausible report, the bound counts.

A ledger, one file with one lock, counts the day's cost of all conversations of a state directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import math
import os
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Protocol

from retuned.errors import HarnessError, Refused
from retuned.files import make_private
from retuned.ports import ChatRequest, Clock

_MESSAGE_TOKENS = 16
_LEAST_BYTES_PER_TOKEN = 20.0
"""A report of fewer tokens than one per so many bytes is implausible."""


class BudgetSpent(Refused):
    """The next question could exceed the budget; it was not sent."""

    code = "budget-spent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def tokens(self) -> int:
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
    completion_usd_per_mtok: float

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
    max_usd: float
    """Of this conversation, dollars."""
    max_usd_per_day: float = float("inf")
    """Of all conversations within 24 hours, dollars."""


class Ledger(Protocol):
    """Cost of all conversations within 24 hours."""

    def reserve(self, usd: float, *, most_usd: float) -> tuple[str, float]:
        """Check and reserve money atomically; return the entry, empty if refused, and the rest."""
        ...

    def settle(self, name: str, usd: float) -> None: ...


class RemainingBudget:
    """The rest of a budget.

    `spent` and `spent_usd` are tokens and money of this conversation so far, from its transcript.
    `ledger` is None if no other conversation spends from this budget.
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
        """Allow a try that costs at most `bound`, and reserve its money in the ledger.

        Raises
        ------
        BudgetSpent
            If it might exceed a bound; the message names it and the rest.
        HarnessError
            If the day's ledger cannot be written.
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
    read = sum(len(m.content.encode()) + _MESSAGE_TOKENS for m in request.messages)
    return Usage(prompt_tokens=read + _MESSAGE_TOKENS, completion_tokens=request.max_tokens)


def settled(reported: Usage | None, *, bound: Usage, answer_bytes: int) -> tuple[Usage, bool]:
    """Return the cost to charge for a try, and whether it is an estimate.

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


log = logging.getLogger(__name__)

LEDGER = "spending.ledger"
DAY_S = 86_400.0
_FOLD_BYTES = 256 * 2**10
_MAX_BYTES = 16 * 2**20
_LOCK = ".lock"


class DayLedger:
    """The day's cost, in a file that its first use creates, readable by its owner only.

    `before` returns the cost since a time; it is used while the file does not exist.
    """

    def __init__(
        self, path: Path, *, clock: Clock, before: Callable[[datetime], float] = lambda _: 0.0
    ) -> None:
        self._path = path
        self._clock = clock
        self._before = before

    def reserve(self, usd: float, *, most_usd: float) -> tuple[str, float]:
        """Reserve money if the day's bound allows it.

        Return the entry's name for `settle`, empty if the money does not suffice, and the money
        left before this reservation, in dollars.

        Raises
        ------
        HarnessError
            If the ledger cannot be read or written; the try is then not made.
        """
        now = self._clock.now()
        with self._locked(now):
            entries = self._entries()
            since = now.timestamp() - DAY_S
            spent = math.fsum(usd for at, usd in entries.values() if at >= since)
            left = most_usd - spent
            if usd > left:
                return "", max(left, 0.0)
            if self._path.stat().st_size > _FOLD_BYTES:
                self._fold({name: entry for name, entry in entries.items() if entry[0] >= since})
            name = secrets.token_hex(8)
            self._append(name, now.timestamp(), usd)
            return name, left

    def settle(self, name: str, usd: float) -> None:
        """Replace the reservation by the actual cost.

        Raises
        ------
        HarnessError
            If the ledger cannot be written; the entry stays as it was.
        """
        now = self._clock.now()
        with self._locked(now):
            entry = self._entries().get(name)
            self._append(name, entry[0] if entry is not None else now.timestamp(), usd)

    @contextlib.contextmanager
    def _locked(self, now: datetime) -> Iterator[None]:
        """Hold the lock, a separate file, because the ledger's file is replaced at times."""
        try:
            make_private(self._path.parent)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            lock = os.open(self._path.with_name(self._path.name + _LOCK), flags, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not self._path.exists():
                    self._begin(now)
                yield
            finally:
                os.close(lock)
        except OSError as error:
            raise HarnessError(
                f"the model's budget in {self._path.name}: {error.strerror}"
            ) from error

    def _begin(self, now: datetime) -> None:
        spent = self._before(now - timedelta(seconds=DAY_S))
        self._fold({"before": (now.timestamp(), spent)} if spent > 0.0 else {})

    def _entries(self) -> dict[str, tuple[float, float]]:
        """Return time and amount by entry; a torn line is skipped, and the one it replaces counts.

        Raises
        ------
        HarnessError
            If the file is too large for a ledger.
        """
        if self._path.stat().st_size > _MAX_BYTES:
            raise HarnessError(f"the ledger of the model's money has more than {_MAX_BYTES} bytes")
        entries: dict[str, tuple[float, float]] = {}
        for row in self._path.read_bytes().splitlines():
            try:
                name, at, usd = json.loads(row)
                entry = float(at), float(usd)
            except (ValueError, TypeError, OverflowError, RecursionError):
                log.warning("torn line skipped: ledger=%s", self._path.name)
                continue
            if isinstance(name, str) and all(map(math.isfinite, entry)) and entry[1] >= 0.0:
                entries[name] = entry
        return entries

    def _append(self, name: str, at: float, usd: float) -> None:
        file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            size = os.fstat(file).st_size
            torn = size > 0 and os.pread(file, 1, size - 1) != b"\n"
            data = (b"\n" if torn else b"") + _line(name, at, usd)
            while data:
                data = data[os.write(file, data) :]
            os.fsync(file)
        finally:
            os.close(file)

    def _fold(self, entries: dict[str, tuple[float, float]]) -> None:
        partial = self._path.with_name(f".{self._path.name}.partial")
        with contextlib.suppress(FileNotFoundError):
            partial.unlink()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with open(os.open(partial, flags, 0o600), "wb") as stream:
            for name, (at, usd) in entries.items():
                stream.write(_line(name, at, usd))
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(self._path)


def _line(name: str, at: float, usd: float) -> bytes:
    return json.dumps([name, at, usd], allow_nan=False).encode() + b"\n"
