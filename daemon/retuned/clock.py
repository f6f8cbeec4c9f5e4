"""Time: the machine's clock, and one that tests move."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta


class SystemClock:
    """The machine's clock, in UTC."""

    def now(self) -> datetime:
        """Return wall time."""
        return datetime.now(UTC)

    def monotonic_s(self) -> float:
        """Return seconds that never go back."""
        return time.monotonic()


class FakeClock:
    """A clock that stands still until it is moved.

    Parameters
    ----------
    now
        First wall time, with a zone; noon of a Monday unless given.
    """

    def __init__(self, now: datetime = datetime(2026, 1, 5, 12, tzinfo=UTC)) -> None:
        if now.tzinfo is None:
            raise ValueError("a clock needs a zone")
        self._now = now.astimezone(UTC)
        self._monotonic_s = 1_000.0

    def now(self) -> datetime:
        """Return wall time."""
        return self._now

    def monotonic_s(self) -> float:
        """Return seconds since an arbitrary moment."""
        return self._monotonic_s

    def advance(self, seconds: float) -> None:
        """Let time pass.

        Raises
        ------
        ValueError
            If `seconds` is negative: use `set_wall` for a clock that is put back.
        """
        if seconds < 0.0:
            raise ValueError("time does not run backwards; set_wall puts the wall clock back")
        self._now += timedelta(seconds=seconds)
        self._monotonic_s += seconds

    def set_wall(self, now: datetime) -> None:
        """Put the wall clock, forwards or back, as an administrator does."""
        self._now = now.astimezone(UTC)
