"""Stage 9, swap: what to load where, in which order, and the way back. Pure; the loading is the runtime's."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from retuned.contract import Digest, Guard, Name, Record


class SwapKind(StrEnum):
    """A rollback is a swap whose target is what ran before."""

    SWAP = "swap"
    ROLLBACK = "rollback"


class SwapOrder(Record):
    """One epoch of one slot; carrying it out twice is the same as once."""

    id: str
    """Digest of proposal, kind and epoch."""
    kind: SwapKind
    """Forward or back."""
    proposal: str
    """Proposal it carries out."""
    target: str
    """Server."""
    definition: Name
    """Slot."""
    artifact: Digest | None
    """What to activate; None means the original code that the server came with."""
    previous: Digest | None
    """What was active before: the way back; None means the original."""
    guard: Guard
    """Shapes the artifact is for; all else stays with the original."""
    epoch: int = Field(ge=1)
    """Grows with every order to a target; the runtime refuses an older one."""
    shadow_every: int = Field(default=50, ge=1)
    """One launch in so many is checked against the incumbent."""
