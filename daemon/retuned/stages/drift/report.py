"""What a window said, and the report made of it."""

from __future__ import annotations

from dataclasses import dataclass

from retuned.stages.drift.latency import LatencyShift
from retuned.stages.drift.records import DriftAction, DriftCode, DriftReason, DriftReport
from retuned.stages.drift.state import DetectorState, Reading
from retuned.stages.drift.words import REASONS_MAX, percent, rate, sentence, share_reasons, short
from retuned.stages.profile import WorkloadProfile

_UNJUDGED = {
    "no-gpu-time": "it holds no kernel time",
    "too-few-launches": "{launches} launches are too few to tell",
    "not-counted": "its launches were only sampled, those of the baseline were counted",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that one window says, before anything is decided."""

    reading: Reading
    """The roll-up where one was completed, else the window."""
    rolled: bool
    """Whether a roll-up was completed."""
    new_share: float
    """Share of kernel time in new signatures, this window."""
    new_fired: bool
    """Whether that lasted long enough to be news."""
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
    """Share of kernel time a retune is believed to save."""
    end_ns: int
    """End of the window."""

    @property
    def novel(self) -> bool:
        """Stage one's answer."""
        return self.new_fired or self.mix_fired or self.environment_fired


def report_of(
    evidence: Evidence, action: DriftAction, state: DetectorState, start_ns: int
) -> DriftReport:
    """Write the report of a window that was judged; `state` is the one it was judged by."""
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


def _reasons(
    evidence: Evidence, action: DriftAction, state: DetectorState
) -> tuple[DriftReason, ...]:
    reading, profile = evidence.reading, evidence.reading.profile
    first: list[DriftReason] = []
    if evidence.environment_fired:
        detail = "the environment is not the one that the kernels were tuned in"
        first.append(_plain(DriftCode.ENVIRONMENT_CHANGED, "", detail))
    if action is not DriftAction.RETUNE:  # another speed at the same work never asks for one
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
            f"the mix lies {reading.distance:.3f} bits from the nearest known one, led by "
            f"{short(moved[0].kernel)}; {percent(evidence.uncovered)} is uncovered"
        )
        moved.append(_plain(DriftCode.NOVEL_MIX, moved[0].kernel, detail))
        moved = [*moved[: REASONS_MAX - 1], moved[-1]]
    return tuple([*first, *moved][:REASONS_MAX])


def _plain(code: DriftCode, kernel: str, detail: str) -> DriftReason:
    return DriftReason(code=code, kernel=kernel, share_before=0.0, share_after=0.0, detail=detail)


def unjudged(profile: WorkloadProfile, why: str, evidence: Evidence | None = None) -> DriftReport:
    """Write the report of a window that says too little."""
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
