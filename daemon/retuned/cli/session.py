"""The state as the review commands see it: whose it is, which proposal is meant, safe text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from retuned.errors import UnreadableInput, UsageError
from retuned.ports import Store, Stored
from retuned.settings import load_settings
from retuned.stages.proposal import Proposal
from retuned.standalone.decisions import Actor, read_proposal
from retuned.store.approvals import Approvals, Identity, local_identity
from retuned.store.keys import Ed25519Notary
from retuned.store.sqlite import DATABASE, SqliteStore
from retuned.text import short_id

ConfigOption = Annotated[Path | None, typer.Option(help="YAML or TOML file with settings.")]
StateOption = Annotated[Path | None, typer.Option(help="Overrides the setting.")]
CommentOption = Annotated[
    str, typer.Option("--comment", "--reason", "-m", help="Why, for the record.")
]
ReasonOption = Annotated[str, typer.Option("--reason", "--comment", "-m", help="Why.")]
ProposalArgument = Annotated[str, typer.Argument(help="Id of a proposal, or its beginning.")]

_SHORTEST = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSession:
    """What a command works with."""

    folder: Path
    """The state folder."""
    store: Store
    """The state, shared with the daemon."""
    approvals: Approvals
    """People's side of it."""
    notary: Ed25519Notary
    """The installation's keys."""
    identity: Identity
    """Who gives the command."""
    now: datetime
    """When."""

    def voice(self) -> Actor:
        """Return the user who gives the command, as an actor who can decide."""
        return Actor(
            store=self.store,
            approvals=self.approvals,
            who=self.identity,
            now=self.now,
            channel="cli",
        )


@contextmanager
def desk(config: Path | None, state_dir: Path | None) -> Iterator[StateSession]:
    """Open the state that the settings name.

    Raises
    ------
    UnreadableInput
        If the state does not exist: no daemon would read a record in that folder.
    """
    settings = load_settings(config, {"state_dir": state_dir})
    if not (settings.state_dir / DATABASE).is_file():
        raise UnreadableInput(
            "no-state",
            where=str(settings.state_dir),
            message="no state here; `retuned run` makes it. Name another folder with "
            "--state-dir, --config or RETUNED_STATE_DIR",
        )
    store = SqliteStore(settings.state_dir)
    try:
        yield StateSession(
            folder=settings.state_dir,
            store=store,
            approvals=Approvals(store),
            notary=Ed25519Notary(settings.keys),
            identity=local_identity(settings.group_map),
            now=datetime.now(UTC),
        )
    finally:
        store.close()


def find(store: Store, beginning: str) -> tuple[Stored, Proposal]:
    """Return the proposal whose id begins so, with or without ``sha256:``.

    Raises
    ------
    UsageError
        If none or several do.
    """
    wanted = beginning.strip().lower().removeprefix("sha256:")
    if len(wanted) < _SHORTEST:
        raise UsageError(f"give at least {_SHORTEST} characters of the id; see `retuned proposals`")
    found = [s for s in store.list("proposal") if s.id.removeprefix("sha256:").startswith(wanted)]
    if not found:
        raise UsageError(f"no proposal begins with {beginning!r:.80}; see `retuned proposals`")
    if len(found) > 1:
        names = ", ".join(short_id(s.id, length=16) for s in found[:5])
        raise UsageError(f"{beginning!r:.80} is the beginning of {len(found)} proposals: {names}")
    return found[0], read_proposal(found[0])


def newest(found: Sequence[Stored]) -> Stored | None:
    """Return the last record of a list that is oldest first."""
    return found[-1] if found else None
