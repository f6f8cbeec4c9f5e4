"""What the page needs of the operator's store, and of the API server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from retuned.contract import Digest, Solution
from retuned.review.records import DriftLine, Roofs, Window
from retuned.stages.verdict import Doubt, EvidenceDocument
from retuned.stages.watch import Account
from retuned_operator.kube.resources import Resource
from retuned_operator.kubectl.cluster_session import Cluster
from retuned_operator.schema import TuningTarget


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewEvidence:
    """Evidence, as far as it can be read and verified."""

    document: EvidenceDocument | None
    """Its document; None if it cannot be read."""
    doubt: Doubt | None
    """Why it is not valid; None if it is."""


class ReviewStore(Protocol):
    """The operator's store, for who looks."""

    def evidence(self, digest: Digest) -> ReviewEvidence:
        """Return evidence, verified."""
        ...

    def proof(self, digest: Digest) -> bytes | None:
        """Return the pairs of a live proof; None if they are deleted or not verified.

        Raises
        ------
        TemporaryError
            If they cannot be read now.
        """
        ...

    def solution(self, digest: Digest) -> Solution | None:
        """Return a variant; None where its source is not kept."""
        ...

    def incumbent(self, kernel: str, target: TuningTarget) -> Solution | None:
        """Return the original of servers of a target; None if it is unknown."""
        ...

    def roofs(self, kernel: str, shapes: Sequence[Mapping[str, int]], arch: str) -> Roofs | None:
        """Return the hardware limits of some shapes; None if they are unknown."""
        ...

    def drifts(self, *, before: str, limit: int) -> Sequence[DriftLine]:
        """Return drift reports of all targets, newest first."""
        ...

    def window(self, key: str) -> Window | None:
        """Return a drift report with its window and the one before; None if it does not exist."""
        ...

    def busy_ratio(self, target: str) -> float | None:
        """Return the share of time in which kernels ran; None without a profile."""
        ...

    def accounts(self) -> Sequence[Account]:
        """Return what was spent and saved, newest month first."""
        ...


class AccessReviewer(Protocol):
    """Where rights are asked for."""

    def create(self, resource: Resource, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Ask, and return the answer."""
        ...


class ImpersonatedWriter(Protocol):
    """The API server, for requests in a person's name."""

    def acting_as(self, user: str, groups: Sequence[str]) -> Cluster:
        """Return it as that person sees it."""
        ...
