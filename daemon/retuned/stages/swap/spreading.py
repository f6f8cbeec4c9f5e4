"""How a swap spreads over the launches of a server, and what its checks may cost: records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from retuned.contract import Record
from retuned.stages.gate import PolicyLimits
from retuned.stages.gate.limits import Orphan
from retuned.stages.verdict import Evidence, IncumbentNoise


class CanaryStep(Record):
    """One step of a canary: a fraction, and what it takes to leave it."""

    fraction: float = Field(ge=0.0, le=1.0)
    """Share of launches that run the artifact; 0 serves the incumbent and shadows the artifact."""
    min_checks: int = Field(default=300, ge=1)
    """Clean checks at this step, of each shape bucket."""
    min_s: float = Field(default=60.0, ge=0.0)
    """Shortest time at this step, seconds."""
    patience_s: float = Field(default=3600.0, ge=0.0)
    """From here on buckets without enough checks are left out of the guard, seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How a swap spreads over the launches of a server; fields as those of `SwapOrder`."""

    canary: tuple[CanaryStep, ...] = ()
    """Steps."""
    shadow_later: tuple[tuple[float, int], ...] = ()
    """Rates of checks by age."""
    shadow_share: float = 1.0
    """Most time of checks."""
    noise: tuple[IncumbentNoise, ...] = ()
    """How far it may be from the incumbent, by shape bucket."""
    lease_s: float = 0.0
    """Time without a daemon, seconds."""
    orphan: Literal["hold", "rollback"] = "hold"
    """What an orphan does."""


def spread_by(
    limits: PolicyLimits,
    *,
    shadow_later: tuple[tuple[float, int], ...] = (),
    evidence: Evidence | None = None,
) -> Spread:
    """Return how a policy lets a swap spread.

    Parameters
    ----------
    limits
        Of the policy that decides about the kernel.
    shadow_later
        Rates of checks by age.
    evidence
        What the judge read of the artifact; has the incumbent's noise.
    """
    canary = limits.canary
    steps = [
        CanaryStep(
            fraction=step.fraction,
            min_checks=step.min_checks,
            min_s=step.min_seconds,
            patience_s=step.patience.total_seconds(),
        )
        for step in canary.steps
    ]
    if canary.shadow_first:
        first = steps[0] if steps else CanaryStep(fraction=1.0)
        steps.insert(0, first.model_copy(update={"fraction": 0.0}))
    return Spread(
        canary=tuple(steps),
        shadow_later=shadow_later,
        shadow_share=limits.shadow_share,
        noise=_noise(evidence) if evidence is not None else (),
        lease_s=canary.lease.total_seconds() if steps else 0.0,
        orphan="rollback" if canary.orphan is Orphan.ROLLBACK else "hold",
    )


def _noise(evidence: Evidence) -> tuple[IncumbentNoise, ...]:
    """Return the largest of each bucket, over all checks."""
    found: dict[tuple[int, ...], IncumbentNoise] = {}
    for each in (noise for check in evidence.checks for noise in check.incumbent_noise):
        known = found.get(each.bucket)
        if known is None or known.rms < each.rms:
            found[each.bucket] = each
    return tuple(found.values())
