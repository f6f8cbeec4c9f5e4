"""Maintenance windows: allow and deny windows as in Argo CD, on cron and time zones.

Without windows swaps may start always. With allow windows they may start only inside one. A deny
window overrides every allow window. Starts are local times (cron as on Debian). Durations are
elapsed time, so that a window of eight hours lasts eight hours also on the day the clocks change.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError
from pydantic import Field, field_validator

from retuned.stages.gate.values import PolicyModel, PositiveDuration

# One field of cron: *, a number, a name or a range, each with an optional step; lists of these.
_NUMERIC = re.compile(r"(\*|[0-9]{1,2}(-[0-9]{1,2})?)(/[0-9]{1,2})?")
_DAY_OF_MONTH = re.compile(r"L|LW|" + _NUMERIC.pattern)
_NAMES = "JAN|FEB|MAR|APR|MAY|JUN|JUL|AUG|SEP|OCT|NOV|DEC"
_MONTH = re.compile(rf"({_NAMES})(-({_NAMES}))?|" + _NUMERIC.pattern)
_DAYS = "SUN|MON|TUE|WED|THU|FRI|SAT"
_WEEKDAY = re.compile(rf"\*|({_DAYS})(-({_DAYS})|#[1-5])?")
_FIELDS = (
    ("minute", _NUMERIC),
    ("hour", _NUMERIC),
    ("day of month", _DAY_OF_MONTH),
    ("month", _MONTH),
    ("weekday", _WEEKDAY),
)

_FOLD = timedelta(hours=3)
"""Largest change of clocks. Near a change cron is evaluated this much around the moment.

The result is filtered by UTC: cron cannot distinguish the two 02:30 of an autumn night."""
_MOST_STEPS = 200
"""Boundaries examined for the next change; beyond that none is predicted."""
_HORIZON = timedelta(days=800)


class WindowKind(StrEnum):
    """What a window does while it is open."""

    ALLOW = "allow"
    DENY = "deny"


class Overrun(StrEnum):
    """What happens to a swap in progress when its window closes."""

    FINISH = "Finish"
    """It may finish."""
    STOP = "Stop"
    """It is rolled back."""


def check_schedule(schedule: str) -> str:
    """Return the schedule if it is five fields of cron with weekdays by name, and ever fires.

    Weekday numbers are refused: schedulers disagree on which day is 0, and a Friday freeze would
    then be on Saturday.

    Raises
    ------
    ValueError
        Names the wrong field and what is accepted.

    Examples
    --------
    >>> check_schedule("0 9 * * MON-THU")
    '0 9 * * MON-THU'
    """
    parts = schedule.upper().split()
    if len(parts) != len(_FIELDS):
        raise ValueError("a schedule has five fields: minute hour day-of-month month weekday")
    for part, (name, pattern) in zip(parts, _FIELDS, strict=True):
        if name == "weekday" and re.search(r"(?<!#)[0-9]", part):
            raise ValueError("weekdays are written by name (MON-FRI, SAT,SUN), never by number")
        if len(part) > 200 or not all(pattern.fullmatch(term) for term in part.split(",")):
            raise ValueError(f"cannot read the {name} field {part[:40]!r}")
    try:
        next(CronSim(schedule, datetime(2026, 1, 1, tzinfo=UTC)))
    except CronSimError as error:
        advice = (
            "; a range across the week's end is a list: SAT,SUN" if "week" in f"{error}" else ""
        )
        raise ValueError(f"{error}{advice}") from None
    except StopIteration:
        raise ValueError("this schedule never fires") from None
    return schedule


class ProofWindow(PolicyModel):
    """A span of time that repeats."""

    kind: WindowKind
    """``allow`` or ``deny``."""
    schedule: str = Field(max_length=200)
    """Start, as five fields of cron; weekdays by name."""
    duration: PositiveDuration
    """How long it stays open, elapsed time."""
    time_zone: str = Field(default="UTC", max_length=64)
    """IANA name, such as ``Europe/Berlin``."""
    description: str = Field(default="", max_length=500)
    """Free text."""

    @field_validator("schedule")
    @classmethod
    def _readable(cls, value: str) -> str:
        return check_schedule(value)

    @field_validator("duration")
    @classmethod
    def _minutes(cls, value: timedelta) -> timedelta:
        if value < timedelta(minutes=1):
            raise ValueError("a window is open for at least 1m")
        return value

    @field_validator("time_zone")
    @classmethod
    def _known_zone(cls, value: str) -> str:
        try:
            ZoneInfo(value)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ValueError(
                f"unknown time zone {value!r}; use an IANA name such as Europe/Berlin"
            ) from None
        return value

    def starts(self, now: datetime, *, back: bool) -> Iterator[datetime]:
        """Yield starts in UTC: from `now` into the past with `back`, else strictly after it."""
        zone = ZoneInfo(self.time_zone)
        whole = now.astimezone(UTC).replace(microsecond=0)
        changes = (whole - _FOLD).astimezone(zone).utcoffset() != (
            (whole + _FOLD).astimezone(zone).utcoffset()
        )
        beside = _FOLD if changes else timedelta(seconds=1)
        shifted = whole + beside if back else whole - beside
        for start in CronSim(self.schedule, shifted.astimezone(zone), reverse=back):
            moment = start.astimezone(UTC)
            if (moment <= now) == back:
                yield moment

    def open_until(self, now: datetime) -> datetime | None:
        """Return when the opening that covers `now` ends, or None while closed."""
        last = next(self.starts(now, back=True), None)
        if last is None or last + self.duration <= now:
            return None
        return last + self.duration

    def next_start(self, now: datetime) -> datetime | None:
        """Return the first start after `now`; None if there is none in decades."""
        return next(self.starts(now, back=False), None)


class Window(ProofWindow):
    """A span of time for swaps."""

    overrun: Overrun = Overrun.STOP
    """What happens to a swap in progress at the end of an allow or the start of a deny window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowState:
    """State of the windows at one moment."""

    allowed: bool
    """Whether a swap may start."""
    denied: bool
    """Whether an open deny window is the reason that it may not."""
    why: str
    """The windows that decide; empty if the policy has none."""
    next_change_at: datetime | None
    """When `allowed` changes next; None if no change is predicted."""


def judge_windows(windows: Sequence[ProofWindow], *, now: datetime) -> WindowState:
    """Decide whether a swap may start now, and when that changes."""
    denies = [w for w in windows if w.kind is WindowKind.DENY and w.open_until(now)]
    allows = [w for w in windows if w.kind is WindowKind.ALLOW]
    named = denies or allows
    return WindowState(
        allowed=_allowed(windows, now),
        denied=bool(denies),
        why="; ".join(_name(window) for window in named),
        next_change_at=_next_change(windows, now),
    )


def both(swaps: WindowState, proofs: WindowState) -> WindowState:
    """Combine the windows of swaps with those of live proofs: a swap may start in both.

    A deny window of proofs does not end a swap in progress, so `denied` is that of swaps.
    """
    shut = [each for each in (swaps, proofs) if not each.allowed]
    changes = [each.next_change_at for each in shut or (swaps, proofs)]
    known = [change for change in changes if change is not None]
    if shut:
        change = max(known) if len(known) == len(changes) else None
    else:
        change = min(known, default=None)
    named = [swaps.why] if swaps.why and (swaps in shut or not shut) else []
    if proofs.why and (proofs in shut or not shut):
        named.append(f"for live proofs: {proofs.why}")
    return WindowState(
        allowed=not shut, denied=swaps.denied, why="; ".join(named), next_change_at=change
    )


def may_finish(windows: Sequence[Window], *, started: datetime, now: datetime) -> bool:
    """Whether a swap begun at `started` may continue.

    Every deny window open now, and every allow window that was open at the start and is closed now,
    must have ``overrun: Finish``.
    """
    if _allowed(windows, now):
        return True
    blocking = [
        window
        for window in windows
        if (window.kind is WindowKind.DENY and window.open_until(now))
        or (
            window.kind is WindowKind.ALLOW
            and window.open_until(started)
            and not window.open_until(now)
        )
    ]
    return bool(blocking) and all(window.overrun is Overrun.FINISH for window in blocking)


def _allowed(windows: Sequence[ProofWindow], now: datetime) -> bool:
    if any(w.kind is WindowKind.DENY and w.open_until(now) for w in windows):
        return False
    allows = [w for w in windows if w.kind is WindowKind.ALLOW]
    return not allows or any(w.open_until(now) for w in allows)


def _next_change(windows: Sequence[ProofWindow], now: datetime) -> datetime | None:
    denies = [w for w in windows if w.kind is WindowKind.DENY]
    allows = [w for w in windows if w.kind is WindowKind.ALLOW]
    today, moment = _allowed(windows, now), now
    for _ in range(_MOST_STEPS):
        after = _unchanged_until(denies, allows, moment)
        if after is None or after > now + _HORIZON:
            return None
        moment = after
        if _allowed(windows, moment) != today:
            return moment
    return None


def _unchanged_until(
    denies: Sequence[ProofWindow], allows: Sequence[ProofWindow], now: datetime
) -> datetime | None:
    """Return the first moment at which the state may differ from the one at `now`."""
    shut = [end for w in denies if (end := w.open_until(now))]
    if shut:
        return max(shut)
    opened = [end for w in allows if (end := w.open_until(now))]
    if allows and not opened:
        return min((s for w in allows if (s := w.next_start(now))), default=None)
    next_denies = [s for w in denies if (s := w.next_start(now))]
    return min([*next_denies, *([max(opened)] if opened else [])], default=None)


def _name(window: ProofWindow) -> str:
    about = window.description or f"{window.schedule} {window.time_zone}"
    return f"{window.kind} window ({about})"
