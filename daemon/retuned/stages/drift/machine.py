"""What accelerators did beside a drift: context for people, never a decision.

Work that did not change and takes longer is an alarm about the machine; low clocks, throttling and
whoever else is on a device may be why.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from retuned.contract import Record

SLOW_RATIO = 0.9
"""A busy device below this part of its highest clock is worth a word."""
_BUSY_RATIO = 0.5


class Throttle(StrEnum):
    """Why a device is slower than it could be."""

    POWER = "power"
    THERMAL = "thermal"
    HARDWARE = "hardware"
    SOFTWARE = "software"
    OTHER = "other"


_Finite = Annotated[float, Field(ge=0.0, le=1e12, allow_inf_nan=False)]


class GpuSeen(Record):
    """One accelerator at one moment; None is what nobody says."""

    gpu: Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+){0,3}$", max_length=32)]
    """Vendor and number, such as ``nvidia-0``."""
    core_hz: _Finite | None = None
    """Clock of what computes."""
    core_max_hz: _Finite | None = None
    """The highest that it can have."""
    power_w: _Finite | None = None
    """Draw, watts."""
    power_limit_w: _Finite | None = None
    """Most that it may draw, watts."""
    temperature_c: _Finite | None = None
    """Degrees Celsius."""
    throttled: tuple[Throttle, ...] | None = Field(default=None, max_length=len(Throttle))
    """Why it is slower than it could be; None where nobody says."""
    busy_ratio: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    """Share of time in which it did something."""
    others: Annotated[int, Field(ge=0, le=1 << 20)] | None = None
    """Processes on it that belong neither to the server nor to experiments; None where nobody
    knows."""

    @property
    def clock_ratio(self) -> float | None:
        """The core clock over the highest one; None where either is not known."""
        if self.core_hz is None or not self.core_max_hz:
            return None
        return self.core_hz / self.core_max_hz


def gpu_words(seen: Iterable[GpuSeen]) -> str:
    """Say what could make the same work slower; empty where nothing is to be said.

    Examples
    --------
    >>> gpu_words([GpuSeen(gpu="nvidia-0", throttled=(Throttle.POWER,), others=2)])
    'nvidia-0 is throttled (power); nvidia-0 is shared with 2 other process(es)'
    """
    return "; ".join(word for each in seen for word in _words(each))


def _words(seen: GpuSeen) -> list[str]:
    found = []
    if seen.throttled:
        found.append(f"{seen.gpu} is throttled ({', '.join(sorted(set(seen.throttled)))})")
    ratio = seen.clock_ratio
    busy = seen.busy_ratio is None or seen.busy_ratio >= _BUSY_RATIO
    if ratio is not None and ratio < SLOW_RATIO and busy:  # idle devices clock down
        found.append(f"{seen.gpu} runs at {100 * ratio:.0f} % of its highest clock")
    if seen.others:
        found.append(f"{seen.gpu} is shared with {seen.others} other process(es)")
    return found
