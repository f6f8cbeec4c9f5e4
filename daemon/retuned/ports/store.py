"""Stored records, their audit trail, and time."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from retuned.contract import Digest


class Clock(Protocol):
    """Time, passed in so that tests own it."""

    def now(self) -> datetime:
        """Wall time, always with a zone."""
        ...

    def monotonic_s(self) -> float:
        """Seconds that never go back; only differences mean anything."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One record in the store."""

    kind: str
    """For example ``proposal``."""
    id: str
    """Unique within the kind."""
    phase: str
    """Where it is in its life."""
    body: Mapping[str, Any]
    """The record as JSON data."""
    created_at: datetime
    updated_at: datetime
    traceparent: str = ""
    """Span in which it was last written; empty where traces are off. A hint, never required."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line of the audit trail; never changed, never removed."""

    at: datetime
    kind: str
    """Kind of the record it is about."""
    id: str
    """Id of the record it is about."""
    what: str
    """Stable code, such as ``approved``."""
    who: str
    """``retuned`` or a person."""
    detail: Mapping[str, Any] = field(default_factory=dict)


class Store(Protocol):
    """Durable state. Every method is one transaction unless inside `transaction()`."""

    def add(self, kind: str, id: str, body: Mapping[str, Any], *, phase: str) -> bool:
        """Insert; False if the id is already there, which is left as it was."""
        ...

    def advance(
        self, kind: str, id: str, *, expect: str, to: str, body: Mapping[str, Any] | None = None
    ) -> bool:
        """Compare and set the phase (and body); False if the phase is not `expect`."""
        ...

    def get(self, kind: str, id: str) -> Stored | None: ...

    def list(
        self,
        kind: str,
        *,
        phase: str | None = None,
        prefix: str = "",
        above: str = "",
        proposal: str = "",
        limit: int | None = None,
    ) -> Sequence[Stored]:
        """Return records of a kind, oldest first (`limit` keeps the newest).

        `prefix` and `above` keep ids that begin so, and ids that sort after, `proposal` those whose
        body names that proposal: what else there is of the kind is not read. Only decisions and
        orders are found by their proposal.
        """
        ...

    def ids(
        self, kind: str, *, phase: str | None = None, prefix: str = "", above: str = ""
    ) -> Sequence[str]:
        """Return what `list` would, as ids only: cheap however large the bodies are."""
        ...

    def page(
        self, kind: str, *, phases: Sequence[str], before: str = "", limit: int
    ) -> Sequence[Stored]:
        """Return the newest records of a kind in any of some phases, newest first.

        Cheap however many there are. `before` keeps those that were added before the record of
        that id; where there is none of that id, nothing is returned.
        """
        ...

    def counts(self, kind: str) -> Mapping[str, int]:
        """Return how many records of a kind are in each phase; cheap as `ids` is."""
        ...

    def forget(self, kind: str, *, phase: str, before: datetime, keep: Collection[str] = ()) -> int:
        """Remove the records of a phase that were added before a moment, but those that are named.

        For good. They go a few at a time, so that who writes beside it does not wait for all of
        them; a kill in between leaves the rest. Returns how many went.
        """
        ...

    def record(self, event: Event) -> None:
        """Append to the audit trail."""
        ...

    def events(self, *, id: str | None = None, limit: int | None = None) -> Sequence[Event]:
        """Return the trail, oldest first (`limit` keeps the newest)."""
        ...

    def put_blob(self, data: bytes) -> Digest:
        """Store bytes under their digest."""
        ...

    def get_blob(self, digest: Digest) -> bytes:
        """Return bytes; verifies them.

        Raises
        ------
        UnreadableInput
            If they are absent or do not match their digest.
        """
        ...

    def drop_blob(self, digest: Digest) -> bool:
        """Delete bytes; False if they are absent. Outside transactions, like `put_blob`.

        Raises
        ------
        TemporaryError
            If they cannot be removed now.
        UnreadableInput
            If the argument is not a digest.
        """
        ...

    def transaction(self) -> AbstractContextManager[None]:
        """All writes inside happen together or not at all."""
        ...
