"""What is said of a proposal, before any channel gives it a form."""

from __future__ import annotations

from enum import StrEnum

from pydantic import AwareDatetime, Field

from retuned.contract import Record


class Event(StrEnum):
    """What happened. Stable: webhooks carry it."""

    AWAITING = "awaiting-approval"
    """People are asked."""
    EXPIRING = "expiring"
    """They are still asked, and most of their time is over."""
    SETTLED = "settled"
    """They are asked no more, whatever they said."""
    SWAPPED = "swapped"
    """A server runs it."""
    ROLLED_BACK = "rolled-back"
    """A server ran it, and runs what it ran before."""
    ROLLBACK_FAILED = "rollback-failed"
    """A server refuses the way back."""
    ROLLBACK_DONE = "rollback-done"
    """It refuses no more."""


class Standing(StrEnum):
    """What a notice does to an alert or incident."""

    OPEN = "open"
    CLOSE = "close"
    TELL = "tell"
    """Neither opens nor closes one; what wakes people leaves it out."""


class Severity(StrEnum):
    """How much it presses."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


class Notice(Record):
    """One thing to say, the same on every channel."""

    key: str = Field(min_length=1, max_length=400)
    """What makes it one: it is said once under this key."""
    subject: str = Field(min_length=1, max_length=300)
    """What it opens or closes; the key by which pagers know their incidents."""
    event: Event
    """What happened."""
    standing: Standing
    """What that does."""
    severity: Severity
    """How much it presses."""
    proposal: str = Field(min_length=1, max_length=256)
    """Id of the proposal."""
    artifact: str
    """Digest of what would run: a word on another counts for nothing."""
    kernel: str
    """Kernel, made harmless."""
    target: str
    """Server, made harmless."""
    risk: str
    """Class."""
    summary: str = Field(max_length=1000)
    """One sentence: what, how much, how sure, until when."""
    facts: tuple[tuple[str, str], ...] = ()
    """What a person needs to decide, by name, made harmless."""
    review_url: str = ""
    """Page that shows all; opening it decides nothing. Empty where there is none."""
    approve_command: str = ""
    """Command that approves exactly this; empty where nothing is asked."""
    reject_command: str = ""
    """Command that rejects it."""
    at: AwareDatetime
    """When it happened."""
    until: AwareDatetime
    """After this saying it is of no use any more."""


class Call(Record):
    """One request to a channel; what is secret is added when it is made."""

    method: str = "POST"
    """HTTP method."""
    path: str = ""
    """Added to the channel's address."""
    body: bytes
    """JSON."""
    headers: tuple[tuple[str, str], ...] = ()
    """Besides content type and credentials."""
