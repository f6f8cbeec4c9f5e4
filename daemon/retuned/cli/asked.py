"""What people asked the daemon for, told in a terminal: rollbacks and aborts, once each."""

from __future__ import annotations

from pathlib import Path

from retuned.cli.output import emit_json, safe, stdout
from retuned.cli.state import StateSession
from retuned.local.lock import daemon_runs
from retuned.local.people import PendingRequest
from retuned.ports import Stored
from retuned.terminal.moments import short_id


def next_look(folder: Path) -> str:
    """Say when the daemon of a state folder acts on what people said."""
    if daemon_runs(folder):
        return "the daemon does it at its next look"
    return "no daemon runs on this state: it happens when one is started"


def tell(at: StateSession, stored: Stored, asked: PendingRequest, *, new: bool, json: bool) -> None:
    """Say what was asked for, or who had asked for it already, and when it happens."""
    if json:
        emit_json(
            {
                "request": asked.request,
                "what": asked.what,
                "proposal": stored.id,
                "already_asked": not new,
                "asked_by": asked.who,
                "asked_at": asked.at,
                "daemon_runs": daemon_runs(at.folder),
            }
        )
        return
    name = f"{asked.what.capitalize()} of {short_id(stored.id)}"
    said = "asked for" if new else f"already asked by {asked.who} at {asked.at}"
    stdout().print(safe(f"{name} {said}; {next_look(at.folder)}.", limit=1000), soft_wrap=True)
