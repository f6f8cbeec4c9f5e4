"""Where the time of a step goes: a prediction before a proof, and the account after it. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pydantic import Field

from retuned.contract import Record
from retuned.stages.watch.proof.records import ArmSums, PairResult, StepAccount, StepColumns

GPU_BOUND_GAP = 0.05
"""A step with less of its period outside of GPU work is set by the GPU."""
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
    """How many steps the GPU paces, from steps with the original."""

    steps: int = Field(default=0, ge=0)
    """Steps with known GPU time."""
    gpu_bound: int = Field(default=0, ge=0)
    """Of those, steps with a gap of less than 5 % of their period."""

    @property
    def share(self) -> float | None:
        """Share of steps that the GPU paces; None if GPU time was not measured."""
        return self.gpu_bound / self.steps if self.steps else None

    def after(self, steps: StepColumns) -> Pace:
        """Return the counts with these steps."""
        measured = (steps.busy_s == steps.busy_s) & (steps.period_s == steps.period_s)
        gap = steps.period_s - steps.busy_s
        bound = measured & (gap < GPU_BOUND_GAP * steps.period_s)
        return Pace(
            steps=self.steps + int(measured.sum()), gpu_bound=self.gpu_bound + int(bound.sum())
        )


def predict(
    kernel_share: float, speedup: float, *, gpu_bound: float, min_effect: float
) -> Prediction:
    """Predict the gain of a step: share of kernel x (1 - 1 / speedup) x steps set by the GPU.

    Parameters
    ----------
    kernel_share
        Share of the step's time that the kernel takes, 0 to 1.
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
        If the share is not below 1 or the speedup not positive.
    """
    if not 0.0 <= kernel_share < 1.0 or speedup <= 0.0:
        raise ValueError(
            f"the share must be at least 0 and below 1 and the speedup positive, got "
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
    kernel_s: float | None = None,
    launches: float | None = None,
    least_s: float = 0.0,
) -> StepAccount:
    """Return the account of a step over these pairs.

    Parameters
    ----------
    pairs
        Pairs of the proof; void and sham pairs are left out.
    kernel_s
        Change of the kernels' time per step, measured in place, seconds.
    launches
        Launches through the slot per step.
    least_s
        Smaller changes of GPU time are none, seconds.
    """
    valid = [pair for pair in pairs if pair.void is None and not pair.sham]
    period = _median([_change(p.on.seconds, p.off.seconds, p) for p in valid])
    busy = _median([_change(p.on.busy_s, p.off.busy_s, p) for p in valid])
    host = _median([_change(p.on.host_s, p.off.host_s, p) for p in valid])
    gap = _median([_change(_gap(p.on), _gap(p.off), p) for p in valid])
    saved = -busy if busy is not None else 0.0
    return StepAccount(
        kernel_s=kernel_s,
        busy_s=busy,
        gap_s=gap,
        host_s=host,
        period_s=period,
        launches=launches,
        host_per_launch_s=host / launches if host is not None and launches else None,
        host_bound=saved > least_s and gap is not None and gap >= _TAKEN_UP * saved,
        elsewhere=kernel_s is not None
        and kernel_s < -least_s
        and busy is not None
        and busy > least_s,
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
