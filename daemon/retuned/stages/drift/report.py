"""The report of a window, and what accelerators did during a drift.

Work that did not change and takes longer is an alarm about the machine. Low clocks, throttling and
other processes on a device may be the cause. These observations are context, never a decision.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from retuned.contract import Record
from retuned.stages.drift.latency import LatencyShift
from retuned.stages.drift.records import DriftAction, DriftCode, DriftReason, DriftReport
from retuned.stages.drift.state import DetectorState, Reading
from retuned.stages.drift.text import REASONS_MAX, percent, rate, sentence, share_reasons, short
from retuned.stages.profile import WorkloadProfile

SLOW_RATIO = 0.9
"""A busy device below this part of its highest clock is reported."""
_BUSY_RATIO = 0.5


class Throttle(StrEnum):
    """Why a device is slower than it could be."""

    POWER = "power"
    THERMAL = "thermal"
    HARDWARE = "hardware"
    SOFTWARE = "software"
    OTHER = "other"


_Finite = Annotated[float, Field(ge=0.0, le=1e12, allow_inf_nan=False)]


class GpuObservation(Record):
    """One accelerator at one moment; None means unknown."""

    gpu: Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+){0,3}$", max_length=32)]
    """Vendor and number, such as ``nvidia-0``."""
    core_hz: _Finite | None = None
    """Clock of the compute units."""
    core_max_hz: _Finite | None = None
    """Its highest possible value."""
    power_w: _Finite | None = None
    """Draw, watts."""
    power_limit_w: _Finite | None = None
    """Power limit, watts."""
    temperature_c: _Finite | None = None
    throttled: tuple[Throttle, ...] | None = Field(default=None, max_length=len(Throttle))
    """Why it is slower than it could be."""
    busy_ratio: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    """Share of time in which it was busy."""
    others: Annotated[int, Field(ge=0, le=1 << 20)] | None = None
    """Processes on it that belong neither to the server nor to experiments."""

    @property
    def clock_ratio(self) -> float | None:
        if self.core_hz is None or not self.core_max_hz:
            return None
        return self.core_hz / self.core_max_hz


def gpu_words(seen: Iterable[GpuObservation]) -> str:
    """Describe what could make the same work slower; empty if there is nothing to report.

    Examples
    --------
    >>> gpu_words([GpuObservation(gpu="nvidia-0", throttled=(Throttle.POWER,), others=2)])
    'nvidia-0 is throttled (power); nvidia-0 is shared with 2 other process(es)'
    """
    return "; ".join(word for each in seen for word in _words(each))


def _words(seen: GpuObservation) -> list[str]:
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


_UNJUDGED = {
    "no-gpu-time": "it has no kernel time",
    "too-few-launches": "{launches} launches are too few to judge",
    "not-counted": "its launches were only sampled, those of the baseline were counted",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All statistics of one window, before the decision."""

    reading: Reading
    """The roll-up if one was completed, else the window."""
    rolled: bool
    """Whether a roll-up was completed."""
    new_share: float
    """Share of kernel time in new signatures, this window."""
    new_fired: bool
    """Whether that lasted for enough windows to count."""
    mix_fired: bool
    """Whether the CUSUM of the distance is beyond its threshold."""
    environment_fired: bool
    """Whether the environment is one not reported before."""
    shifts: tuple[LatencyShift, ...]
    """Latency CUSUMs beyond their threshold."""
    cusum: float
    """Of the distance, after this window."""
    uncovered: float
    """Mean over the last roll-ups."""
    saving: float
    """Expected share of kernel time that a retune saves."""
    end_ns: int

    @property
    def novel(self) -> bool:
        """Result of stage one."""
        return self.new_fired or self.mix_fired or self.environment_fired


def report_of(
    evidence: Evidence, action: DriftAction, state: DetectorState, start_ns: int
) -> DriftReport:
    """Make the report of a judged window; `state` is the one it was judged by."""
    detected = evidence.novel or action is not DriftAction.NONE
    reasons = _reasons(evidence, action, state) if detected else ()
    return DriftReport(
        detected=detected,
        action=action,
        reasons=reasons,
        distance=evidence.reading.distance,
        cusum=evidence.cusum,
        uncovered_share=evidence.uncovered,
        new_share=evidence.new_share,
        expected_saving=evidence.saving,
        window_start_ns=start_ns,
        sentence=sentence(
            detected=detected,
            action=action,
            reasons=reasons,
            uncovered=evidence.uncovered,
            leaning=evidence.cusum > 0 or evidence.new_share > state.new_share,
        ),
    )


def attributed(alarm: DriftReport, finding: str) -> DriftReport:
    """Return an alarm whose sentence ends with what was found of its cause."""
    said = sentence(
        detected=True,
        action=alarm.action,
        reasons=alarm.reasons,
        uncovered=alarm.uncovered_share,
        finding=finding,
    )
    return alarm.model_copy(update={"sentence": said})


def _reasons(
    evidence: Evidence, action: DriftAction, state: DetectorState
) -> tuple[DriftReason, ...]:
    reading, profile = evidence.reading, evidence.reading.profile
    first: list[DriftReason] = []
    if evidence.environment_fired:
        detail = "the environment is not the one that the kernels were tuned in"
        first.append(_plain(DriftCode.ENVIRONMENT_CHANGED, "", detail))
    if action is not DriftAction.RETUNE:  # another speed at the same work never justifies a retune
        first.extend(shift.reason(reading) for shift in evidence.shifts)
    moved = share_reasons(reading, state.library) if evidence.novel or not first else []
    now = profile.launches / (profile.observed_ns / 1e9) if profile.observed_ns > 0 else 0.0
    if moved and now and not state.rate_low / 1.5 <= now <= state.rate_high * 1.5:
        detail = (
            f"{rate(now)} launches a second; the baseline had {rate(state.rate_low)} to "
            f"{rate(state.rate_high)}"
        )
        moved.insert(min(2, len(moved)), _plain(DriftCode.FREQUENCY_CHANGED, "", detail))
    if evidence.mix_fired and moved:
        detail = (
            f"the mix is {reading.distance:.3f} bits from the nearest known one, led by "
            f"{short(moved[0].kernel)}; {percent(evidence.uncovered)} is uncovered"
        )
        moved.append(_plain(DriftCode.NOVEL_MIX, moved[0].kernel, detail))
        moved = [*moved[: REASONS_MAX - 1], moved[-1]]
    return tuple([*first, *moved][:REASONS_MAX])


def _plain(code: DriftCode, kernel: str, detail: str) -> DriftReason:
    return DriftReason(code=code, kernel=kernel, share_before=0.0, share_after=0.0, detail=detail)


def unjudged(profile: WorkloadProfile, why: str, evidence: Evidence | None = None) -> DriftReport:
    """Make the report of a window that was not judged."""
    return DriftReport(
        detected=False,
        action=DriftAction.NONE,
        reasons=(),
        distance=evidence.reading.distance if evidence else 0.0,
        cusum=evidence.cusum if evidence else 0.0,
        window_start_ns=profile.window_start_ns,
        skipped=why,
        sentence=f"Not judged: {_UNJUDGED[why].format(launches=profile.launches)}.",
    )
