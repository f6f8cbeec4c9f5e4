"""What people asked the daemon for and it has not done yet: rollbacks and aborts, once each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retuned.cli.output import emit_json, safe, stdout
from retuned.cli.state import Desk
from retuned.local.lock import daemon_runs
from retuned.ports import Store, Stored
from retuned.terminal.moments import short


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request that the daemon has not carried out."""

    request: str
    """Its id."""
    what: str
    """``rollback`` or ``abort``."""
    who: str
    """Who asked."""
    at: str
    """When, ISO 8601."""

    def sentence(self) -> str:
        """Say it in a few words."""
        return f"{self.what} asked by {self.who} at {self.at}"

    def body(self) -> dict[str, Any]:
        """Return its stable JSON."""
        return {"request": self.request, "what": self.what, "who": self.who, "at": self.at}


def asked_for(store: Store) -> Mapping[str, Sequence[Asked]]:
    """Return what was asked for and is not done, oldest first, by proposal."""
    found: dict[str, list[Asked]] = {}
    for stored in store.list("request", phase="new"):
        found.setdefault(str(stored.body.get("target")), []).append(_asked(stored))
    return found


def standing(store: Store, proposal: str, *, what: str) -> Asked | None:
    """Return the first request of this kind that waits; None where nobody asked."""
    waiting = asked_for(store).get(proposal, ())
    return next((asked for asked in waiting if asked.what == what), None)


def next_look(folder: Path) -> str:
    """Say when the daemon of a state folder acts on what people said."""
    if daemon_runs(folder):
        return "the daemon does it at its next look"
    return "no daemon runs on this state: it happens when one is started"


def tell(at: Desk, stored: Stored, asked: Asked, *, new: bool, json: bool) -> None:
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
    name = f"{asked.what.capitalize()} of {short(stored.id)}"
    said = "asked for" if new else f"already asked by {asked.who} at {asked.at}"
    stdout().print(safe(f"{name} {said}; {next_look(at.folder)}.", limit=1000), soft_wrap=True)


def ask(at: Desk, proposal: str, *, what: str, reason: str) -> Asked:
    """Record a request and return it."""
    request = at.approvals.request(
        what, target=proposal, who=at.identity.user, at=at.now, reason=reason
    )
    return Asked(request=request, what=what, who=at.identity.user, at=_seconds(at.now.isoformat()))


def _asked(stored: Stored) -> Asked:
    body = stored.body
    return Asked(
        request=stored.id,
        what=str(body.get("what", "")),
        who=str(body.get("who", "")),
        at=_seconds(str(body.get("at", ""))),
    )


def _seconds(moment: str) -> str:
    """Leave out the parts of a second of an ISO 8601 time."""
    whole, dot, rest = moment.partition(".")
    return whole + rest.lstrip("0123456789") if dot else moment
