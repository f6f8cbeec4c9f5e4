"""Whether a win that nobody decided on in time is proposed again, and when. Pure.

An expired proposal was not rejected. Its win is proposed again after it has rested, as another
attempt, while it was measured not too long ago; after a few attempts only a new experiment brings
it back. That it still beats what is in production is asked of every proposal anyway.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from retuned.stages.proposal.records import Refusal, RefusalReason

_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AgainLimits:
    """Numbers of this decision."""

    rest: timedelta = timedelta(days=3)
    """How long a win rests after it expired."""
    max_age: timedelta = timedelta(days=14)
    """What was measured longer ago is not proposed again."""
    max_proposals: int = 3
    """How often a win is proposed before a new experiment has to find it again."""


def propose_again(
    *,
    expired: int,
    expired_at: datetime,
    measured_at: datetime,
    now: datetime,
    limits: AgainLimits,
) -> datetime | Refusal:
    """Say when a win that expired is proposed again, or why it is not.

    Parameters
    ----------
    expired
        How many proposals of it have expired.
    expired_at
        When the last of them did.
    measured_at
        When it was measured.
    now
        Moment.
    limits
        Numbers.

    Examples
    --------
    >>> from datetime import UTC
    >>> at = datetime(2026, 3, 2, tzinfo=UTC)
    >>> def said(**changes):
    ...     facts = {"expired": 1, "expired_at": at, "measured_at": at, "now": at} | changes
    ...     return propose_again(**facts, limits=AgainLimits())
    >>> said() - at
    datetime.timedelta(days=3)
    >>> str(said(expired=3).reason), str(said(now=at + timedelta(days=15)).reason)
    ('expired-too-often', 'old-evidence')
    """
    age = now - measured_at
    if age > limits.max_age:
        allowed = limits.max_age.total_seconds() / _DAY_S
        days = age.total_seconds() / _DAY_S
        detail = f"measured {days:.1f} days ago, {allowed:.1f} are allowed"
        return Refusal(reason=RefusalReason.OLD_EVIDENCE, detail=detail)
    if expired >= limits.max_proposals:
        detail = f"it expired {expired} times before anybody decided"
        return Refusal(reason=RefusalReason.EXPIRED_TOO_OFTEN, detail=detail)
    return expired_at + limits.rest
