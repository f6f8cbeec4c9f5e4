"""What the agent API needs of the cluster and of the operator, as small Protocols."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from retuned.api.agent import (
    AlarmOrder,
    BootOrder,
    DefinitionPost,
    DriftPost,
    Hello,
    OrderDone,
    OverheadOrder,
    ProfileReport,
    ProofOrder,
    ProofPost,
    TunablePost,
    WatchPost,
)
from retuned.contract import Digest
from retuned.stages.swap import SwapOrder

Said = (
    Hello
    | ProfileReport
    | DriftPost
    | DefinitionPost
    | TunablePost
    | ProofPost
    | WatchPost
    | OrderDone
)
"""All messages of a sidecar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRecord:
    """A pod, as the cluster knows it."""

    namespace: str
    """Its namespace."""
    name: str
    """Its name."""
    uid: str
    """Its uid."""
    target: str
    """TuningTarget whose selector it matches, as ``namespace/name``; empty where none does."""
    gpus: int = 1
    """Accelerators that it requests; 1 where it requests none that are known."""
    replica: bool = False
    """Whether it is a canary replica, which does not represent the servers of its target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The sender of a message, and when it arrived."""

    pod: PodRecord
    """Authenticated by the token, not by the message."""
    at: datetime
    """By the operator's clock."""
    traceparent: str = ""
    """Span of the pod that found the content; empty without one."""


class Tokens(Protocol):
    """The API server's word on tokens."""

    def review(self, token: str, *, audience: str) -> Mapping[str, Any]:
        """Return the answer of a TokenReview. Called on a worker thread.

        Raises
        ------
        TemporaryError
            If the API server does not answer.
        RetunedError
            If it refuses to answer.
        """
        ...


class PodDirectory(Protocol):
    """Pods, what they are to have, and artifacts. Safe for threads."""

    def pod(self, namespace: str, name: str) -> PodRecord | None:
        """Return a pod that exists now; from memory, because every request asks.

        Raises
        ------
        TemporaryError
            If it is unknown whether a target selects the pod; without a target a pod rolls back.
        """
        ...

    def orders(self, pod: PodRecord) -> Sequence[SwapOrder]:
        """Return the newest order of each slot; from memory.

        Raises
        ------
        TemporaryError
            If they are unknown now: the pod then gets an error, not an empty answer.
        """
        ...

    def proofs(self, pod: PodRecord) -> Sequence[ProofOrder]:
        """Return the swaps that a pod is to prove; as `orders`."""
        ...

    def alarms(self, pod: PodRecord) -> Sequence[AlarmOrder]:
        """Return the swaps that a pod may try off at an alarm; as `orders`."""
        ...

    def overhead(self, pod: PodRecord) -> OverheadOrder | None:
        """Return what a pod is to do about Retuned's own cost, None for nothing; as `orders`."""
        ...

    def boot(self, pod: PodRecord) -> BootOrder | None:
        """Return what a canary replica is to measure, None for other pods; as `orders`."""
        ...

    def artifact(self, digest: Digest) -> Mapping[str, bytes] | None:
        """Return the files of an artifact by name; None where there is none. On a worker thread.

        Raises
        ------
        TemporaryError
            If the store does not answer.
        UnreadableInput
            If it is damaged.
        """
        ...

    def key(self) -> str:
        """Return the public key that artifacts are signed with, hex; empty where there is none."""
        ...


class Inbox(Protocol):
    """Accepts messages of sidecars; repetitions have no effect. Called on worker threads."""

    def take(self, receipt: Receipt, said: Said) -> None:
        """Keep a message.

        Raises
        ------
        TemporaryError
            If it cannot be kept now, such as on a full disk: the sidecar sends it again.
        Refused
            If it has no meaning here.
        """
        ...
