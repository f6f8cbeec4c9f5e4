"""The drift report: its reasons, action and numbers."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from retuned.contract import Record


class DriftCode(StrEnum):
    """Stable reason codes, for dashboards and tests."""

    NEW_SIGNATURE = "new-signature"
    SHARE_CHANGED = "share-changed"
    FREQUENCY_CHANGED = "frequency-changed"
    NOVEL_MIX = "novel-mix"
    LATENCY_SHIFTED = "latency-shifted"
    ENVIRONMENT_CHANGED = "environment-changed"


class DriftAction(StrEnum):
    """What follows from a report."""

    NONE = "none"
    ADOPT = "adopt"
    """New but already covered: remember the profile, do not retune."""
    RETUNE = "retune"
    """New and worth an experiment."""
    ALARM = "alarm"
    """The same work takes another time: clocks, driver, co-tenant. Never a reason for a retune."""


class DriftReason(Record):
    code: DriftCode
    kernel: str
    """Normalised kernel name; empty if the reason concerns the whole workload."""
    shape: str = ""
    """The signature's dims or geometry as text."""
    share_before: float = Field(ge=0.0, le=1.0)
    """Share of kernel time in the nearest tuned profile."""
    share_after: float = Field(ge=0.0, le=1.0)
    """Share of kernel time now."""
    detail: str = ""


class DriftReport(Record):
    """The result for one window."""

    detected: bool
    """Whether stage one (novelty) fired."""
    action: DriftAction
    """Result of stage two (worth)."""
    reasons: tuple[DriftReason, ...]
    """By falling change of share."""
    distance: float = Field(ge=0.0, le=1.0)
    """Jensen-Shannon distance squared, base 2, to the nearest tuned or adopted profile, of the
    window or of the roll-up that it completes."""
    cusum: float = Field(default=0.0, ge=0.0)
    """Accumulated excess of the distance's robust z-score."""
    uncovered_share: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of kernel time in signatures that no tuned profile covers."""
    window_start_ns: int
    """Window that was judged."""
    new_share: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of kernel time in signatures never seen before."""
    expected_saving: float = Field(default=0.0, ge=0.0, le=1.0)
    """Expected share of kernel time that a retune saves."""
    skipped: str = ""
    """Why the window was not judged, such as ``too-few-launches``; empty where it was."""
    sentence: str
    """The whole report in one sentence."""
