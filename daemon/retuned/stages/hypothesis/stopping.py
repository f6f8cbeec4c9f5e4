"""When trying again no longer pays: expected saving against expected cost, in seconds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from retuned.stages.hypothesis.records import Hypothesis, HypothesisSettings


class StopReason(StrEnum):
    """Why a belief is not tested again; stable codes."""

    ATTEMPTS_SPENT = "attempts-spent"
    """It was tried as often as the settings allow."""
    SAVING_TOO_SMALL = "saving-too-small"
    """What is still believed is below the least share that a person wants to hear of."""
    COSTS_MORE = "costs-more-than-it-saves"
    """Another try costs more device time than it can be expected to save."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What another try is expected to cost and to save."""

    chance: float
    """That the try succeeds."""
    saved_s: float
    """Device seconds that are saved within the horizon, if it succeeds."""
    cost_s: float
    """Device seconds that the try costs, weighed against seconds of serving."""

    @property
    def pays(self) -> bool:
        """Whether the expected saving is above the cost."""
        return self.chance * self.saved_s > self.cost_s

    @property
    def sentence(self) -> str:
        """The numbers, for a person."""
        return (
            f"another try costs {self.cost_s:.0f} s of device time and, at a chance of "
            f"{self.chance:.0%}, is expected to save {self.chance * self.saved_s:.0f} s"
        )


def outlook(
    saving: float,
    *,
    failures: int,
    busy_ratio: float,
    cost_s: float,
    settings: HypothesisSettings,
) -> Outlook:
    """Weigh another try.

    Formula: ``saved = saving * busy * devices * horizon``. The chance is Laplace's rule of
    succession for a belief that failed ``k`` times, ``1 / (k + 2)``.

    Parameters
    ----------
    saving
        Share of kernel time that success would save.
    failures
        Attempts that failed.
    busy_ratio
        Share of the time that a device computes at all.
    cost_s
        What a try costs, seconds of one device; 0 takes the settings' guess.
    settings
        Horizon, devices and weights.

    Examples
    --------
    >>> settings = HypothesisSettings(horizon_s=3600.0)
    >>> outlook(0.1, failures=1, busy_ratio=1.0, cost_s=60.0, settings=settings).pays
    True
    >>> outlook(0.01, failures=1, busy_ratio=1.0, cost_s=60.0, settings=settings).pays
    False
    """
    return Outlook(
        chance=1.0 / (failures + 2),
        saved_s=saving * busy_ratio * settings.devices * settings.horizon_s,
        cost_s=settings.experiment_weight * (cost_s or settings.experiment_s),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Refinement:
    """The answer to a failed attempt: another belief, or the reason why there is none."""

    hypothesis: Hypothesis | None
    """What is believed now; None where trying again does not pay."""
    stop: StopReason | None
    """Why it ends; None where it goes on."""
    outlook: Outlook | None
    """The weighing; None where it did not come so far."""
    sentence: str
    """Why, with the numbers, for a person."""
