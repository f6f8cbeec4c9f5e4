"""Where the time of a step went in a live proof of a pod: part of the status of a SwapProposal.

The parts of a step follow from the pairs that the pod reports. Times of the kernel in place are the
pod's word: people read them, and no decision does.
"""

from __future__ import annotations

from pydantic import Field

from retuned.api.values import ApiModel
from retuned.stages.watch.proof import KernelTime, StepAccount
from retuned.stages.watch.proof.records import (
    MOST_AXES,
    MOST_LENGTHS,
    LaunchesPerStep,
    LaunchTime,
    Length,
)


class KernelInPlace(ApiModel):
    """The kernel within the server's steps, at one length: medians of both arms."""

    lengths: tuple[Length, ...] = Field(default=(), max_length=MOST_AXES)
    """Lengths of the variable axes."""
    launches: LaunchesPerStep
    """Launches per step."""
    off_seconds: LaunchTime | None = None
    """Median time without the swap. Unset with too few times."""
    on_seconds: LaunchTime | None = None
    """Median time with the swap. Unset with too few times."""


class StepAccountStatus(ApiModel):
    """Changes per step with the swap; negative is less time."""

    kernel_seconds: float | None = None
    """Time of the kernel itself. Unset if the pod has not timed enough of its launches."""
    busy_seconds: float | None = None
    """GPU time. Unset if it was not measured."""
    gap_seconds: float | None = None
    """Time without GPU work. Unset if GPU time was not measured."""
    host_seconds: float | None = None
    """Host time until the last launch. Unset if it was not measured."""
    step_seconds: float | None = None
    """Time of the step."""
    kernels: tuple[KernelInPlace, ...] = Field(default=(), max_length=MOST_LENGTHS)
    """The kernel in place at each length, as the pod reports it, those with the most time first."""

    def account(self) -> StepAccount:
        """Return it as the record of a proof, for the texts and pictures of one."""
        return StepAccount(
            kernel_s=self.kernel_seconds,
            busy_s=self.busy_seconds,
            gap_s=self.gap_seconds,
            host_s=self.host_seconds,
            period_s=self.step_seconds,
            kernels=tuple(
                KernelTime(
                    lengths=each.lengths,
                    launches=each.launches,
                    off_s=each.off_seconds,
                    on_s=each.on_seconds,
                )
                for each in self.kernels
            ),
        )


def account_status(account: StepAccount) -> StepAccountStatus | None:
    """Return an account as a status has it; None of a proof without pairs that count.

    Examples
    --------
    >>> account_status(StepAccount()) is None
    True
    >>> account_status(StepAccount(period_s=-2e-4)).account().period_s
    -0.0002
    """
    if account.period_s is None:
        return None
    return StepAccountStatus(
        kernel_seconds=account.kernel_s,
        busy_seconds=account.busy_s,
        gap_seconds=account.gap_s,
        host_seconds=account.host_s,
        step_seconds=account.period_s,
        kernels=tuple(
            KernelInPlace(
                lengths=each.lengths,
                launches=each.launches,
                off_seconds=each.off_s,
                on_seconds=each.on_s,
            )
            for each in account.kernels
        ),
    )
