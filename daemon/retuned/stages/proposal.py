"""Stage 7, proposal: is the validated win worth a swap, at which risk, for which shapes? Pure."""

from __future__ import annotations

from enum import StrEnum

from pydantic import AwareDatetime, Field

from retuned.contract import Digest, Guard, Name, Record, TrustClass
from retuned.stages.verdict import Interval


class Risk(StrEnum):
    """How careful a reviewer must be."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


class Proposal(Record):
    """A swap that a policy and people decide on; immutable, bound to digests."""

    id: str
    """Digest of target, artifact and baseline."""
    target: str
    """Server or deployment."""
    definition: Name
    """Kernel."""
    artifact: Digest
    """Solution to swap in."""
    baseline: Digest
    """Solution it replaces; no longer live means superseded."""
    guard: Guard
    """Shapes it is for."""
    speedup: Interval
    """Production-weighted."""
    share: float = Field(ge=0.0, le=1.0)
    """Share of GPU time these shapes take."""
    expected_saving: float = Field(ge=0.0, le=1.0)
    """Share of GPU time saved, from the lower bound."""
    risk: Risk
    """Class."""
    risk_reasons: tuple[str, ...]
    """Why that class."""
    trust: TrustClass
    """Class of the artifact's author."""
    evidence: Digest | None
    """Raw numbers."""
    experiment: str
    """Id of the plan."""
    requested_by: str
    """Who asked: ``retuned`` or a person."""
    created_at: AwareDatetime
    """When."""
    expires_at: AwareDatetime
    """After this it is expired, never approved."""
