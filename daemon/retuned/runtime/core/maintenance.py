"""What the control thread does when nobody asks for anything: each piece stands alone.

One that fails is counted by its cause, said once for each cause, and tried again with the next
turn; those after it have theirs. So what a stranger's device or file does to one of them is never
why a lease does not end, a breaker does not act or another slot's weights are not packed.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

log = logging.getLogger(__name__)

MAX_CAUSES = 64
"""Causes counted one by one per piece; later ones are counted together."""
OTHER = "other"
"""Cause of all beyond those."""


class Maintenance:
    """The pieces of housekeeping, and what became of them."""

    def __init__(self) -> None:
        self._failed: dict[str, Counter[str]] = {}

    def do(self, name: str, piece: Callable[[], object]) -> bool:
        """Do a piece; False if it failed. Never raises.

        Parameters
        ----------
        name
            Of the piece.
        piece
            Does it.
        """
        try:
            piece()
        except Exception as error:  # the loop of the control thread: what follows has its turn
            self._count(name, error)
            return False
        return True

    def failures(self) -> dict[str, dict[str, int]]:
        """Return how often each piece failed, by cause; pieces that never did are left out."""
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
                "housekeeping: %s failed, and is tried again: %s", name, cause, exc_info=error
            )
