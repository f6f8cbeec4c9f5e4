"""Moments, spans and ids as people write and read them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from retuned.errors import UsageError
from retuned.stages.gate.values import parse_duration

_UNITS = (("d", timedelta(days=1)), ("h", timedelta(hours=1)), ("min", timedelta(minutes=1)))


def short_id(digest: str, *, length: int = 12) -> str:
    """Return the beginning of an id, enough to name it by hand.

    Examples
    --------
    >>> short("sha256:" + "ab12" * 16)
    'ab12ab12ab12'
    """
    return digest.removeprefix("sha256:")[:length]


def until(text: str, *, now: datetime) -> datetime:
    """Read a moment: ``2h`` from now, or a date and time (local where it names no zone).

    Raises
    ------
    UsageError
        If it is neither, or in the past.
    """
    try:
        moment = now + parse_duration(text)
    except ValueError:
        try:
            moment = datetime.fromisoformat(text).astimezone(UTC)
        except ValueError:
            raise UsageError(
                f"--until {text!r:.60}: write a span like 2h, or a time like 2026-12-24T18:00+01:00"
            ) from None
    if moment <= now:
        raise UsageError(f"--until {text!r:.60} is already past")
    return moment


def ago(moment: datetime, *, now: datetime) -> str:
    """Say how far away a moment is, in one unit.

    Examples
    --------
    >>> noon = datetime(2026, 3, 2, 12, tzinfo=UTC)
    >>> ago(noon - timedelta(hours=3), now=noon), ago(noon + timedelta(minutes=5), now=noon)
    ('3h ago', 'in 5min')
    >>> ago(noon - timedelta(seconds=40), now=noon)
    '40s ago'
    """
    span = moment - now
    size = abs(span)
    for unit, length in _UNITS:
        if size >= 2 * length:
            text = f"{size // length}{unit}"
            break
    else:
        text = f"{int(size.total_seconds())}s"
    return f"in {text}" if span > timedelta(0) else f"{text} ago"
