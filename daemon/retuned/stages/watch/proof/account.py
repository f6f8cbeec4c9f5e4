"""Where the time of a step goes: a prediction before a proof, and the account after it. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum

from pydantic import Field

from retuned.contract import Record
from retuned.stages.watch.proof.kernels import change_per_step_s
from retuned.stages.watch.proof.records import (
    ArmSums,
    KernelTime,
    PairResult,
    StepAccount,
    StepColumns,
)

GPU_BOUND_GAP = 0.05
"""A step with less of its period outside of GPU work is set by the GPU."""
LAUNCHING_RATIO = 0.9
"""A step whose launching takes this much of its GPU time is not ahead of the GPU. Prefill steps of
2,048 tokens on a slow host: 23.60 of 23.74 ms (`benchmarks/results/vllm_live_proof_h200.json`)."""
LEAST_STEPS = 100
"""Fewer steps predict nothing."""
_TAKEN_UP = 0.5


class Prediction(Record):
    """What a swap can give a step before it is proven."""

    effect: float
    """Predicted log ratio of step time; negative is faster."""
    gpu_bound: float = Field(ge=0.0, le=1.0)
    """Share of steps whose pace the GPU sets."""
    host_bound: bool
    """Whether the host keeps the server from a gain that counts."""
    worth_a_proof: bool
    """Whether the predicted gain is at least the smallest effect that counts."""


class Pace(Record):
    """How many steps the GPU paces."""

    steps: int = Field(default=0, ge=0)
    """Steps with known GPU time."""
    gpu_bound: int = Field(default=0, ge=0)
    """Of those, steps with a gap of less than 5 % of their period, less the unclear ones."""
    unclear: int = Field(default=0, ge=0)
    """Of those, steps with as small a gap that were launched as long as the GPU worked: the GPU
    waited between launches, or the host waited for the GPU within the step."""
    in_graphs: int = Field(default=0, ge=0)
    """Of those, steps that ran in a captured graph."""
    busy_s: float = Field(default=0.0, ge=0.0)
    """GPU time of those, seconds."""
    period_s: float = Field(default=0.0, ge=0.0)
    """Time of those, seconds."""
    seen: int = Field(default=0, ge=0)
    """All steps, those without known GPU time included."""

    @property
    def clear(self) -> int:
        """Steps with known GPU time whose pace is not unclear."""
        return self.steps - self.unclear

    @property
    def share(self) -> float | None:
        """Share of clear steps that the GPU paces; None without such steps."""
        return self.gpu_bound / self.clear if self.clear else None

    @property
    def busy_ratio(self) -> float | None:
        """Share of a step in which the GPU works; None if GPU time was not measured."""
        return min(self.busy_s / self.period_s, 1.0) if self.period_s else None

    def after(self, steps: StepColumns) -> Pace:
        """Return the counts with these steps."""
        measured = (steps.busy_s == steps.busy_s) & (steps.period_s == steps.period_s)
        gap = steps.period_s - steps.busy_s
        bound = measured & (gap < GPU_BOUND_GAP * steps.period_s)
        launching = (steps.graph == 0) & (steps.host_s >= LAUNCHING_RATIO * steps.busy_s)
        return self.joined(
            Pace(
                steps=int(measured.sum()),
                gpu_bound=int((bound & ~launching).sum()),
                unclear=int((bound & launching).sum()),
                in_graphs=int((measured & (steps.graph > 0)).sum()),
                busy_s=float(steps.busy_s[measured].sum()),
                period_s=float(steps.period_s[measured].sum()),
                seen=len(steps),
            )
        )

    def joined(self, other: Pace) -> Pace:
        """Return the counts of both."""
        return Pace(
            steps=self.steps + other.steps,
            gpu_bound=self.gpu_bound + other.gpu_bound,
            unclear=self.unclear + other.unclear,
            in_graphs=self.in_graphs + other.in_graphs,
            busy_s=self.busy_s + other.busy_s,
            period_s=self.period_s + other.period_s,
            seen=self.seen + other.seen,
        )


class ForecastReason(StrEnum):
    """Why nothing is predicted."""

    STEPS_UNKNOWN = "steps-unknown"
    GPU_TIME_UNKNOWN = "gpu-time-unknown"
    FEW_STEPS = "few-steps"
    PACE_UNCLEAR = "pace-unclear"
    SHARE_UNKNOWN = "share-unknown"


class Forecast(Record):
    """The prediction for a swap with what it was computed from, or why there is none."""

    kernel_share: float = Field(ge=0.0, le=1.0)
    """Share of GPU time of the swapped shapes."""
    speedup: float = Field(gt=0.0)
    pace: Pace = Pace()
    prediction: Prediction | None = None
    reason: ForecastReason | None = None
    """Why there is none; None if there is one."""

    @property
    def host_bound(self) -> bool:
        """Whether the server cannot gain; an unknown prediction says nothing."""
        return self.prediction is not None and self.prediction.host_bound


def forecast(
    kernel_share: float, speedup: float, *, pace: Pace | None, min_effect: float
) -> Forecast:
    """Predict what a swap gives a step, or name why that is unknown.

    Parameters
    ----------
    kernel_share, speedup, min_effect
        See `predict`; a share of 0 is unknown.
    pace
        Steps of the server now; None if they cannot be recorded.
    """
    reason = None
    if not kernel_share:
        reason = ForecastReason.SHARE_UNKNOWN
    elif pace is None:
        reason = ForecastReason.STEPS_UNKNOWN
    elif pace.steps < LEAST_STEPS:
        few = pace.steps or not pace.seen
        reason = ForecastReason.FEW_STEPS if few else ForecastReason.GPU_TIME_UNKNOWN
    elif 2 * pace.unclear > pace.steps:
        reason = ForecastReason.PACE_UNCLEAR
    elif pace.clear < LEAST_STEPS:
        reason = ForecastReason.FEW_STEPS
    pace = pace or Pace()
    known = None
    if reason is None and pace.share is not None:
        known = predict(kernel_share, speedup, gpu_bound=pace.share, min_effect=min_effect)
    return Forecast(
        kernel_share=kernel_share, speedup=speedup, pace=pace, prediction=known, reason=reason
    )


def predict(
    kernel_share: float, speedup: float, *, gpu_bound: float, min_effect: float
) -> Prediction:
    """Predict the gain of a step: share of kernel x (1 - 1 / speedup) x steps set by the GPU.

    Parameters
    ----------
    kernel_share
        Share of the GPU time of a step that the kernel takes, 0 to 1.
    speedup
        Time of the incumbent over the time of the variant.
    gpu_bound
        Share of steps whose pace the GPU sets, such as `Pace.share`.
    min_effect
        Smallest effect that counts, log ratio.

    Examples
    --------
    >>> predict(0.5, 2.0, gpu_bound=0.0, min_effect=0.005).host_bound
    True

    Raises
    ------
    ValueError
        If the share is not within 0 and 1 or the speedup not positive.
    """
    if not 0.0 <= kernel_share <= 1.0 or speedup <= 0.0:
        raise ValueError(
            f"the share must be within 0 and 1 and the speedup positive, got "
            f"{kernel_share} and {speedup}"
        )
    if_paced = kernel_share * (1.0 - 1.0 / speedup)
    effect = math.log1p(-if_paced * gpu_bound)
    worth = -effect >= min_effect
    return Prediction(
        effect=effect,
        gpu_bound=gpu_bound,
        host_bound=not worth and -math.log1p(-if_paced) >= min_effect,
        worth_a_proof=worth,
    )


def settle_account(
    pairs: Sequence[PairResult],
    *,
    kernels: Sequence[KernelTime] = (),
    least_s: float = 0.0,
    in_graphs: bool = False,
) -> StepAccount:
    """Return the account of a step over these pairs.

    Parameters
    ----------
    pairs
        Pairs of the proof; void and sham pairs are left out.
    kernels
        The kernel in place.
    least_s
        Smaller changes of GPU time do not count, seconds.
    in_graphs
        Whether steps ran in captured graphs, whose launches `kernels` does not have.
    """
    valid = [pair for pair in pairs if pair.void is None and not pair.sham]
    period = _median([_change(p.on.seconds, p.off.seconds, p) for p in valid])
    busy = _median([_change(p.on.busy_s, p.off.busy_s, p) for p in valid])
    host = _median([_change(p.on.host_s, p.off.host_s, p) for p in valid])
    gap = _median([_change(_gap(p.on), _gap(p.off), p) for p in valid])
    saved = -busy if busy is not None else 0.0
    kernel_s = change_per_step_s(kernels)
    launches = math.fsum(each.launches for each in kernels) if kernels else None
    return StepAccount(
        kernel_s=kernel_s,
        busy_s=busy,
        gap_s=gap,
        host_s=host,
        period_s=period,
        launches=launches,
        host_per_launch_s=host / launches if host is not None and launches else None,
        host_bound=saved > least_s and gap is not None and gap >= _TAKEN_UP * saved,
        elsewhere=not in_graphs
        and kernel_s is not None
        and kernel_s < -least_s
        and busy is not None
        and busy > least_s,
        kernels=tuple(kernels),
    )


def _gap(sums: ArmSums) -> float | None:
    return None if sums.busy_s is None else sums.seconds - sums.busy_s


def _change(on: float | None, off: float | None, pair: PairResult) -> float | None:
    """Return the change per step of equal composition, seconds."""
    if on is None or off is None:
        return None
    expected = pair.on.expected_s + pair.off.expected_s
    step = expected / (pair.on.steps + pair.off.steps)
    return (on / pair.on.expected_s - off / pair.off.expected_s) * step


def _median(values: Sequence[float | None]) -> float | None:
    known = sorted(value for value in values if value is not None)
    if not known:
        return None
    half = len(known) // 2
    return known[half] if len(known) % 2 else 0.5 * (known[half - 1] + known[half])
