"""A claim against what live traffic showed: experiment, prediction and proof of one swap. Pure.

All effects are log ratios of step time; negative is faster.
"""

from __future__ import annotations

import math

from pydantic import AwareDatetime, Field

from retuned.contract import Digest, Name, Record
from retuned.stages.verdict import Interval
from retuned.stages.watch.proof.account import Forecast
from retuned.stages.watch.proof.records import ProofReason, ProofReport, Verdict


class EffectInterval(Record):
    """An effect with its interval."""

    effect: float
    low: float | None = None
    """Lower end; None if it is open."""
    high: float | None = None
    """Upper end; None if it is open."""

    def is_apart_from(self, other: EffectInterval) -> bool:
        """Whether the two intervals have no effect in common; an open end reaches everywhere.

        Examples
        --------
        >>> claim = EffectInterval(effect=-0.10, low=-0.12, high=-0.08)
        >>> claim.is_apart_from(EffectInterval(effect=-0.02, low=-0.03, high=-0.01))
        True
        >>> claim.is_apart_from(EffectInterval(effect=-0.02))
        False
        """
        return _is_below(self, other) or _is_below(other, self)


def _is_below(one: EffectInterval, other: EffectInterval) -> bool:
    return one.high is not None and other.low is not None and one.high < other.low


class Calibration(Record):
    """One proven swap: what was claimed, predicted and measured, with the inputs of each."""

    proposal: str
    definition: Name
    artifact: Digest
    at: AwareDatetime
    share: float = Field(ge=0.0, le=1.0)
    """Share of GPU time of the swapped shapes."""
    speedup: Interval
    """Of the experiment."""
    forecast: Forecast | None = None
    """Prediction before the proof; None without one."""
    verdict: Verdict
    reason: ProofReason
    live: EffectInterval
    pairs: int = Field(ge=0)

    @property
    def claim(self) -> EffectInterval:
        """Gain that the experiment claims for a step whose pace the GPU sets."""
        speedup = self.speedup
        point, least, most = (
            _effect(self.share, each) for each in (speedup.point, speedup.lower, speedup.upper)
        )
        return EffectInterval(effect=point, low=most, high=least)

    @property
    def predicted(self) -> float | None:
        """Predicted effect; None without a prediction."""
        found = self.forecast.prediction if self.forecast is not None else None
        return None if found is None else found.effect

    @property
    def ratio(self) -> float | None:
        """Change of step time that was measured over the one that was claimed; None if none was."""
        claimed = math.expm1(self.claim.effect)
        return math.expm1(self.live.effect) / claimed if claimed else None

    @property
    def differs(self) -> bool:
        """Whether claim and live effect differ by more than both intervals."""
        return self.claim.is_apart_from(self.live)


def calibrate(
    report: ProofReport,
    *,
    proposal: str,
    definition: str,
    artifact: Digest,
    at: AwareDatetime,
    share: float,
    speedup: Interval,
    forecast: Forecast | None,
) -> Calibration | None:
    """Return a proof beside its claim; None if the proof has no effect.

    Parameters
    ----------
    share, speedup
        Of the proposal.
    forecast
        As it was kept before the proof.
    """
    if report.effect is None:
        return None
    return Calibration(
        proposal=proposal,
        definition=definition,
        artifact=artifact,
        at=at,
        share=share,
        speedup=speedup,
        forecast=forecast,
        verdict=report.verdict,
        reason=report.reason,
        live=EffectInterval(effect=report.effect, low=report.low, high=report.high),
        pairs=report.pairs,
    )


def _effect(share: float, speedup: float) -> float:
    return math.log1p(-share * (1.0 - 1.0 / speedup))
