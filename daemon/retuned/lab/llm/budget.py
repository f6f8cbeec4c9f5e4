"""What a conversation with a model may cost, and what it has cost: tokens and money.

Before each try the most it can cost is set aside; a try that would pass the budget is not made. A
token is at least one byte in every tokenizer there is, so the bytes of a question bound its tokens.
Afterwards the reported usage counts; where none is reported, or one that cannot be, the bound does.

What all conversations of a state cost within a day: one file, one lock, whoever asks.
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


log = logging.getLogger(__name__)

LEDGER = "spending.ledger"
"""Name of the file, beside the transcripts."""
DAY_S = 86_400.0
"""What is older does not count."""
_FOLD_BYTES = 256 * 2**10
_MAX_BYTES = 16 * 2**20
_LOCK = ".lock"


class DayLedger:
    """The day's money.

    Parameters
    ----------
    path
        The file; made on first use, readable by its owner only.
    clock
        For the entries.
    before
        Says what was spent since a time where there is no ledger yet.
    """

    def __init__(
        self, path: Path, *, clock: Clock, before: Callable[[datetime], float] = lambda _: 0.0
    ) -> None:
        self._path = path
        self._clock = clock
        self._before = before

    def reserve(self, usd: float, *, most_usd: float) -> tuple[str, float]:
        """Set money aside if the day's bound allows it.

        Returns
        -------
        str
            Name of the entry, for `settle`; empty where the money does not suffice.
        float
            What is left of the day's money, dollars, before this.

        Raises
        ------
        HarnessError
            If the ledger cannot be read or written: nothing is spent then.
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
        """Replace what was set aside by what it came to.

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
        """Hold the lock, which lies beside the file: the file itself is replaced at times."""
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
            raise HarnessError(f"the ledger of the model's money: {error.strerror}") from error

    def _begin(self, now: datetime) -> None:
        """Make the file; conversations of before it was kept count as one entry."""
        spent = self._before(now - timedelta(seconds=DAY_S))
        self._fold({"before": (now.timestamp(), spent)} if spent > 0.0 else {})

    def _entries(self) -> dict[str, tuple[float, float]]:
        """Return when and how much, by entry; a torn line is left aside, what it replaces stays.

        Raises
        ------
        HarnessError
            If the file is no ledger's size.
        """
        if self._path.stat().st_size > _MAX_BYTES:
            raise HarnessError(f"the ledger of the model's money has more than {_MAX_BYTES} bytes")
        entries: dict[str, tuple[float, float]] = {}
        for row in self._path.read_bytes().splitlines():
            try:
                name, at, usd = json.loads(row)
                entry = float(at), float(usd)
            except (ValueError, TypeError, OverflowError, RecursionError):
                log.warning("a line of the ledger %s is torn", self._path.name)
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
        """Write the file anew, with one line an entry; a kill leaves the old one."""
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
