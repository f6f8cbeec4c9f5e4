"""Stage 5, experiment: the plan of what is tried, against what, within which budget. Pure."""

from __future__ import annotations

from pydantic import Field

from retuned.contract import Digest, Name, Record, Workload


class Budget(Record):
    """Limits of one experiment; the first one reached ends it."""

    max_candidates: int = Field(default=32, ge=1)
    """Most variants that are compiled."""
    max_seconds: float = Field(default=120.0, gt=0.0)
    """Wall time."""
    finalists: int = Field(default=3, ge=1, le=3)
    """Most variants re-measured from zero on held-out seeds."""


class ExperimentPlan(Record):
    """Everything a lab needs; runs the same in a child process and in a pod."""

    id: str
    """Digest of the plan: replaying it is the same experiment, and is paid once."""
    hypothesis: str
    """Id of the hypothesis."""
    definition: Name
    """What is tuned."""
    workloads: tuple[Workload, ...] = Field(min_length=1)
    """Weighted shapes."""
    incumbent: Digest
    """Digest of the variant in production for these shapes."""
    generators: tuple[Name, ...] = ("search",)
    """Which generators propose variants, in order."""
    structures: tuple[Name, ...] = ()
    """Restrict the search to these structures; empty means all."""
    budget: Budget = Budget()
    """Limits."""
    environment: Digest
    """Where it must run: evidence from elsewhere does not count."""
