"""Stage 4, hypothesis: which kernels at which shapes are worth an experiment, and why. Pure."""

from __future__ import annotations

from pydantic import Field

from retuned.contract import Name, Record, Workload


class Attempt(Record):
    """What an earlier experiment on the same hypothesis taught."""

    experiment: str
    """Its id."""
    reason: str
    """Reason code of its verdict."""
    detail: str = ""
    """One sentence, for example the best candidate and what it lost on."""


class Hypothesis(Record):
    """A kernel that may be made faster for the present workload."""

    id: str
    """Digest of what was believed; the same belief is never paid twice."""
    definition: Name
    """Definition of the kernel."""
    workloads: tuple[Workload, ...] = Field(min_length=1)
    """Shapes to tune for, weighted by the present profile."""
    share: float = Field(ge=0.0, le=1.0)
    """Share of GPU time these shapes take now."""
    expected_gain_ratio: float = Field(gt=0.0)
    """Believed time of the incumbent over time of the best variant; from roofline, priors or a guess."""
    expected_saving: float = Field(ge=0.0, le=1.0)
    """Share of total GPU time that would be saved: share * (1 - 1 / gain)."""
    because: str
    """Why, one sentence for a person."""
    structures: tuple[Name, ...] = ()
    """Source structures to try first; empty means all."""
    attempts: tuple[Attempt, ...] = ()
    """Earlier tries, oldest first; a refined hypothesis carries them."""
