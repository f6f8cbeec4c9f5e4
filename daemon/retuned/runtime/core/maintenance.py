"""Maintenance on the idle control thread, in independent pieces.

A piece that fails is counted by its cause, logged once for each cause, and tried again in the next
turn; later pieces still run. So a faulty device or file that breaks one piece does not keep a lease
from ending, a breaker from acting or another slot's weights from being packed.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

log = logging.getLogger(__name__)

MAX_CAUSES = 64
"""Causes counted separately per piece; further ones are counted together."""
OTHER = "other"
"""Name under which further causes are counted."""


class Maintenance:
    def __init__(self) -> None:
        self._failed: dict[str, Counter[str]] = {}

    def do(self, name: str, piece: Callable[[], object]) -> bool:
        """Run a piece; return False if it failed. Never raises."""
        try:
            piece()
        except Exception as error:  # loop of the control thread: later pieces must run
            self._count(name, error)
            return False
        return True

    def failures(self) -> dict[str, dict[str, int]]:
        """Return how often each piece failed, by cause; pieces that never failed are left out."""
        return {name: dict(causes.copy()) for name, causes in list(self._failed.items())}

    def _count(self, name: str, error: Exception) -> None:
        causes = self._failed.setdefault(name, Counter())
        cause = type(error).__name__
        reason = getattr(error, "reason", None)
        if isinstance(reason, str):
            cause = f"{cause}: {reason[:80]}"
        if cause not in causes and len(causes) >= MAX_CAUSES:
            cause = OTHER
        causes[cause] += 1
        if causes[cause] == 1:
            log.error(
                "housekeeping: %s failed, it will be tried again: %s", name, cause, exc_info=error
            )
