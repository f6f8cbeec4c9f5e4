"""Ports for facts and for identities; one machine and the operator each have their own."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from retuned.contract import Digest
from retuned.review.records import (
    Act,
    DriftLine,
    Line,
    Overview,
    Person,
    ProposalDetails,
    ResultPage,
    ReviewPhase,
    Row,
    Slice,
    Window,
)
from retuned.stages.watch import Account


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestInfo:
    """One request, as far as it identifies its sender."""

    headers: Mapping[str, str]
    """By name in lower case; of several of one name none is here."""
    client: tuple[str, int]
    """Address and port of the other end."""
    server: tuple[str, int]
    """Address and port of this end."""


class Authenticator(Protocol):
    """Identifies the sender of a request."""

    def who(self, visit: RequestInfo) -> Person:
        """Return who it is.

        Raises
        ------
        Refused
            With the code ``not-known`` and what to do, where nothing proves who it is.
        """
        ...


class ReviewSource(Protocol):
    """Facts, as far as the viewer may see them.

    Every method may raise `TemporaryError` where it cannot answer now.
    """

    def overview(self, viewer: Person) -> Overview:
        """Return what stands on every page."""
        ...

    def proposals(
        self, viewer: Person, part: Slice, *, standing: Collection[ReviewPhase]
    ) -> ResultPage[Row]:
        """Return the proposals that stand so, newest first."""
        ...

    def case(self, viewer: Person, key: str) -> ProposalDetails | None:
        """Return all of one proposal; None if it does not exist, or the viewer may not see it.

        Raises
        ------
        UnreadableInput
            If it is there and cannot be understood.
        """
        ...

    def swaps(self, viewer: Person, part: Slice) -> ResultPage[Line]:
        """Return swaps and rollbacks, newest first."""
        ...

    def drifts(self, viewer: Person, part: Slice) -> ResultPage[DriftLine]:
        """Return drift reports, newest first."""
        ...

    def window(self, viewer: Person, key: str) -> Window | None:
        """Return the window of a drift report; None if it does not exist."""
        ...

    def accounts(self, viewer: Person) -> tuple[Account, ...]:
        """Return what was spent and saved, newest month first."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewedProposal:
    """What a person had before their eyes: a word on anything else counts for nothing."""

    artifact: Digest
    """Artifact of the proposal."""
    policy: Digest | None
    """Policy in force; None where none was."""


class Deciding(Protocol):
    """Takes a person's word. It checks everything again: the page may be old."""

    def decide(
        self, who: Person, key: str, act: Act, *, seen: ReviewedProposal, comment: str
    ) -> None:
        """Keep the word; saying the very same again changes nothing.

        Raises
        ------
        Refused
            If it can have no effect: another phase, artifact or policy, or no right to it.
        UsageError
            If something is missing, such as a reason.
        TemporaryError
            If it cannot be kept now.
        """
        ...
