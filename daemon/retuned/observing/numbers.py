"""From what a person sets to how windows are made and judged."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal, Protocol

from retuned.stages.drift import DEMO_SETTINGS, DriftSettings
from retuned.stages.profile import ProfileSettings

_DEMO_PROFILE = ProfileSettings(ladder=(1, 2, 4, 8, 16, 32, 64, 128, 256))
"""Windows of seconds hold few launches: with wider buckets each is seen often enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSettings:
    """How windows are made and judged; see `ObservingSettings`."""

    window: timedelta
    """Length of a window."""
    settle: timedelta
    """How long after a window's end its files may still land."""
    baseline_windows: int
    """Windows that make the baseline."""
    profile: ProfileSettings = field(default_factory=ProfileSettings)
    """How launches are folded."""
    drift: DriftSettings = field(default_factory=DriftSettings)
    """The detector."""


class WindowFields(Protocol):
    """The settings of a program that say how it makes windows."""

    @property
    def window_s(self) -> float:
        """Length of a window."""
        ...

    @property
    def settle_s(self) -> float:
        """How long after a window's end its files may still arrive."""
        ...

    @property
    def observe_poll_s(self) -> float:
        """Time between two polls of the trace folders."""
        ...

    @property
    def baseline_windows(self) -> int:
        """Windows that make the baseline."""
        ...

    @property
    def detector_preset(self) -> Literal["production", "demo"]:
        """Thresholds of the detector: for production traffic, or for a demo of minutes."""
        ...


def numbers_of(settings: WindowFields, *, stands_still_s: float) -> WindowSettings:
    """Return the numbers that settings mean.

    Parameters
    ----------
    settings
        What a person set.
    stands_still_s
        How long a file must have stood still before it is read: its window must not close before
        that, and the two looks that it takes.
    """
    demo = settings.detector_preset == "demo"
    taken_after_s = stands_still_s + 2.0 * settings.observe_poll_s
    return WindowSettings(
        window=timedelta(seconds=settings.window_s),
        settle=timedelta(seconds=max(settings.settle_s, taken_after_s)),
        baseline_windows=settings.baseline_windows,
        profile=_DEMO_PROFILE if demo else ProfileSettings(),
        drift=DEMO_SETTINGS if demo else DriftSettings(),
    )
