"""Status of a proof by canary replicas: pairs of pods that boot together, and the verdict.

It is part of the status of a SwapProposal. The boots themselves are in the operator's store
because they would make the object too large; the status names their digest.
"""

from __future__ import annotations

from pydantic import AwareDatetime, Field

from retuned.api.values import ApiModel, Code, Note, ObjectName
from retuned.contract import Digest
from retuned.stages.gate import LiveProof
from retuned.stages.watch.proof import Arm


class ReplicaPairStatus(ApiModel):
    """One pair of replicas that boot together, stored before its pods are made.

    The first pod ends in `-a`, the second in `-b`.
    """

    number: int = Field(ge=0)
    """Number of the pair in the proof."""
    name: ObjectName
    """Name of its pods without the ending; no two pairs of a proposal share it."""
    sham: bool
    """Whether it is an A/A pair: both pods run the original."""
    first: Arm
    """Label of the first pod by the coin: `on` has the swap, except in an A/A pair."""
    since: AwareDatetime
    """When it was planned."""
    uids: tuple[str, ...] = Field(default=("", ""), min_length=2, max_length=2)
    """Uids of the two pods; empty before the operator has seen them."""
    seen: AwareDatetime | None = None
    """When the operator had seen both; its order for their boots follows. Unset before."""

    @property
    def pods(self) -> tuple[str, str]:
        """Names of the two pods."""
        return f"{self.name}-a", f"{self.name}-b"

    @property
    def runs(self) -> tuple[Arm, Arm]:
        """What the two pods must hold."""
        return (Arm.OFF, Arm.OFF) if self.sham else (self.first, self.first.other)


class ReplicaProofStatus(ApiModel):
    """Live proof by boots of canary replicas, before any serving pod has the swap."""

    environment: Digest
    """What all its replicas run on."""
    template: Digest
    """Digest of the pod template that its replicas are made from."""
    since: AwareDatetime
    """When it began."""
    rule: LiveProof
    """Rule of the policy at that time."""
    state: Digest | None = None
    """Digest of the signed state, with all boots, in the operator's store. Unset before the first.
    """
    open: tuple[ReplicaPairStatus, ...] = Field(default=(), max_length=16)
    """Pairs whose pods run."""
    made: int = Field(default=0, ge=0)
    """Pairs planned so far, including those before a restart of the proof."""
    anew: int = Field(default=0, ge=0)
    """How often the proof restarted because the pod template changed."""
    failures: int = Field(default=0, ge=0)
    """Pairs in a row that did not count because of their pods."""
    why: Code = ""
    """Why the last of them did not count, a stable code; empty if it did."""
    sham_pairs: int = Field(default=0, ge=0)
    """A/A pairs that count."""
    pairs: int = Field(default=0, ge=0)
    """Later pairs that count."""
    sentence: Note = ""
    """What runs, or the verdict, in one sentence."""
    verdict: Code = ""
    """Computed from the boots; empty before."""
    reason: Code = ""
    """Reason for the verdict, a stable code."""
    kept: bool = False
    """Whether the rule lets the swap go on after this verdict."""
    at: AwareDatetime | None = None
    """Time of the verdict. Unset before."""
    effect: float | None = None
    """Logarithm of step time with the swap over that without. Unset without pairs."""
    low: float | None = None
    """Lower end of its interval. Unset if it is open."""
    high: float | None = None
    """Upper end. Unset if it is open."""
    boot_spread: float | None = None
    """Upper end of how far boots of one configuration differ, a log ratio. Unset before the A/A
    pairs are complete."""
