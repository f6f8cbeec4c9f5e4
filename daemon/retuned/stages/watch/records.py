"""Watch records: counters of an active swap, the report on them, and thresholds."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from retuned.contract import Digest, Name, Record


class WatchAction(StrEnum):
    """What to do now."""

    WAIT = "wait"
    """Not enough evidence yet; keep the swap and keep watching."""
    KEEP = "keep"
    """Enough clean evidence."""
    ROLLBACK = "rollback"
    """Roll back immediately; never gated."""


class WatchReason(StrEnum):
    """Stable codes for policies and metrics."""

    TRIPPED = "tripped"
    """The runtime's circuit breaker stopped the order; record the rollback."""
    ORPHANED = "orphaned"
    """The runtime stopped an unfinished canary, because no daemon contacted it; the artifact is not
    at fault."""
    NONFINITE = "shadow-nonfinite"
    """NaN or Inf where the incumbent has none, or the reverse."""
    MISMATCH = "shadow-mismatch"
    """A check over the allowed difference."""
    ERRORS = "launch-errors"
    """Launches raised."""
    DECAY = "slow-decay"
    """The difference from the incumbent grows."""
    NOT_ENGAGED = "not-engaged"
    """No launch ran the artifact in time, or graph replays are not followed; never a win."""
    NO_SAMPLE = "no-sample"
    """No report of this order yet."""
    TOO_FEW_CHECKS = "too-few-checks"
    """Clean so far."""
    TOO_EARLY = "too-early"
    """Enough checks, not enough time."""
    CANARY = "canary"
    """Clean, but not all launches run it yet."""
    SUPERSEDED = "superseded"
    """A later order is active; this one is no longer watched."""
    CLEAN = "clean"
    """Enough clean checks over enough time."""
    NEEDS_RESTART = "needs-restart"
    """The file is written; the server reads it at its next start."""
    CONFIGURED = "configured"
    """The server's own lookup has picked the row for long enough; its launches are not counted."""


class BucketSample(Record):
    """Counters of one shape bucket under an order."""

    bucket: tuple[Annotated[int, Field(ge=0, le=64)], ...]
    """Bit length of each variable axis: lengths within a factor of two share one."""
    launches: int = Field(ge=0)
    """Launches within the guard, including those that a canary left to the original."""
    checks: int = Field(ge=0)
    """Of those, compared with the incumbent."""
    step_checks: int = Field(ge=0)
    """Of those, since the live fraction was last changed."""


class WatchSample(Record):
    """Counters of one slot since the swap; totals, not deltas."""

    definition: Name
    artifact: Digest | None
    """Active artifact; None is the original."""
    epoch: int
    """Order that activated it."""
    swapped_launches: int = Field(ge=0)
    """Launches that ran the artifact: proof of engagement."""
    fallback_launches: int = Field(ge=0)
    """Launches the original served: outside the guard, not eligible, or bypassed."""
    ineligible_launches: dict[str, int] = Field(default_factory=dict)
    """Of those, launches inside the guard that the artifact could not take, by reason."""
    shadow_checks: int = Field(ge=0)
    """Launches compared with the incumbent."""
    shadow_mismatches: int = Field(ge=0)
    """Checks over the threshold."""
    shadow_nonfinite: int = Field(ge=0)
    """Checks where NaN or Inf did not agree."""
    worst_ratio: float = Field(ge=0.0)
    """Largest difference from the incumbent, in units of the allowed difference."""
    last_mean_ratio: float = Field(default=0.0, ge=0.0)
    """Mean of the same over the last checks, for slow decay."""
    errors: int = Field(ge=0)
    """Launches that raised and fell back to the incumbent."""
    tripped: str = ""
    """Why the runtime's circuit breaker stopped the order; empty if it did not."""
    processes: int = Field(default=1, ge=1)
    """Processes of the server in these totals."""
    idle_processes: int = Field(default=0, ge=0)
    """Processes of them in which no launch ran the artifact."""
    quiet_processes: int = Field(default=0, ge=0)
    """Idle processes whose slot was not called since the order: no traffic, not a fault."""
    fraction: float = Field(default=1.0, ge=0.0, le=1.0)
    """Share of launches that run the artifact; the smallest of all processes."""
    fraction_s: float = Field(default=0.0, ge=0.0)
    """How long it has been so, seconds; the shortest of all processes."""
    buckets: tuple[BucketSample, ...] = ()
    """By shape bucket, most launches first."""
    excluded: tuple[tuple[int, ...], ...] = ()
    """Shape buckets that the original serves although they are within the guard."""
    orphaned: bool = False
    """Whether a canary had no daemon for longer than its lease."""
    shadow_s: float = Field(default=0.0, ge=0.0)
    """Time that checks took, seconds."""
    throttled_checks: int = Field(default=0, ge=0)
    """Checks skipped because they would have cost more than allowed."""
    slowdown: float = Field(default=0.0, ge=0.0)
    """Time of the artifact over the incumbent's in the last timed check; 0 before the first."""
    members: tuple[str, ...] = ()
    """Names of the processes, if known; another set needs new evidence."""
    idle_members: tuple[str, ...] = ()
    """Names of the processes in which no launch ran the artifact, if known."""
    unfollowed_graphs: int = Field(default=0, ge=0)
    """Captured graphs whose launches are unknown, over all processes.

    Swaps do not reach them, and no counter includes their replays."""
    configured: Literal["engaged", "needs-restart"] | None = None
    """For a kernel that a file configures: whether the server's lookup now picks the row.

    None if launches are counted."""

    @model_serializer(mode="wrap")
    def _without_what_is_absent(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out absent fields, so that samples of counted launches stay as before."""
        body: dict[str, Any] = handler(self)
        if self.configured is None:
            body.pop("configured", None)
        return body


class WatchReport(Record):
    """The result of `assess`."""

    action: WatchAction
    reason: str
    """Stable code, such as ``shadow-mismatch`` or ``not-engaged``; see `WatchReason`."""
    detail: str = ""
    """One sentence with the numbers."""


class WatchSettings(Record):
    engage_within_s: float = Field(default=60.0, gt=0.0)
    """Longest time until every process must have run the artifact, seconds."""
    min_checks: int = Field(default=300, ge=1)
    """Clean checks before a swap is kept: 300 bound a failure rate of 1 % with 95 % confidence."""
    min_s: float = Field(default=60.0, ge=0.0)
    """Shortest time before a swap is kept, seconds."""
    max_errors: int = Field(default=0, ge=0)
    """Launches that may raise."""
    max_mismatches: int = Field(default=0, ge=0)
    """Checks that may be over the allowed difference."""
    decay_warmup: int = Field(default=5, ge=1)
    """Reports with new checks whose mean log ratio is the reference for later ones."""
    decay_slack: float = Field(default=0.25, gt=0.0)
    """Rise of the log ratio over the warm-up that is not counted; 0.25 is 28 %."""
    decay_threshold: float = Field(default=4.0, gt=0.0)
    """Sum of counted rises that rolls back; 4 is a doubling that lasts nine reports."""
    decay_floor: float = Field(default=0.25, gt=0.0)
    """Lower ratios are raised to this: five reports do not show how much a ratio varies. The
    runtime follows smaller ones, per size, with a reference of a hundred checks."""
