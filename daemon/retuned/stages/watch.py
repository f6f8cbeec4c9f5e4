"""Stage 10, watch: keep, wait or roll back. Pure."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from retuned.contract import Digest, Name, Record


class WatchAction(StrEnum):
    """What to do now."""

    WAIT = "wait"
    """Not enough evidence yet; keep the swap and keep watching."""
    KEEP = "keep"
    """Enough clean evidence."""
    ROLLBACK = "rollback"
    """Go back at once; never gated."""


class WatchSample(Record):
    """What the runtime counted for one slot since the swap; totals, not deltas."""

    definition: Name
    """Slot."""
    artifact: Digest | None
    """What is active; None is the original."""
    epoch: int
    """Order that made it so."""
    swapped_launches: int = Field(ge=0)
    """Launches that ran the artifact: proof of engagement."""
    fallback_launches: int = Field(ge=0)
    """Launches outside the guard."""
    shadow_checks: int = Field(ge=0)
    """Launches compared with the incumbent."""
    shadow_mismatches: int = Field(ge=0)
    """Checks over the threshold."""
    shadow_nonfinite: int = Field(ge=0)
    """Checks where NaN or Inf did not agree."""
    worst_ratio: float = Field(ge=0.0)
    """Largest difference from the incumbent, in units of the allowed difference."""
    last_mean_ratio: float = Field(default=0.0, ge=0.0)
    """Mean of the same over the last checks, for slow decay."""
    errors: int = Field(ge=0)
    """Launches that raised and fell back to the incumbent."""


class WatchReport(Record):
    """The answer."""

    action: WatchAction
    """What to do."""
    reason: str
    """Stable code, such as ``shadow-mismatch`` or ``not-engaged``."""
    detail: str = ""
    """One sentence with the numbers."""
