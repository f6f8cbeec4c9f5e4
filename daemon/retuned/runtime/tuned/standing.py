"""How a kernel that a file configures stands: which order is in force, and whether it still holds.

No launch passes a slot here, so nothing is counted. What proves an order is asked anew each time:
the file has the bytes that the order left, and the server's own lookup picks what they say.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from retuned.runtime.spec import Refused
from retuned.runtime.tuned import servers
from retuned.runtime.tuned.changes import Change
from retuned.runtime.tuned.files import read_file
from retuned.runtime.tuned.picking import wrong_picks
from retuned.runtime.tuned.strict import digest_of

ENGAGED, NEEDS_RESTART, LOST = STATES = ("engaged", "needs-restart", "lost")
"""The server picks it; it will once it was started anew; it does not, or the file is another."""
_SHOWN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOrderStatus:
    """What the last order for a kernel left behind in this process."""

    definition: str
    """The kernel, as the daemon calls it."""
    order: str
    """Id of the order."""
    artifact: str
    """What the daemon calls what is in force; empty is the original."""
    epoch: int
    """Of the order."""
    change: Change
    """What finds the server's file and lookup again."""
    digest: str | None
    """Of the file that was read after the order; None is no file."""
    outcome: str
    """``engaged``, ``needs-restart`` or ``left-alone``."""
    picks: Mapping[Hashable, Any] = field(default_factory=dict)
    """What has to be picked, at the sizes worth asking about."""
    reach: str = "all"
    """What emptied caches do not reach; see the service."""


def report_of(standing: FileOrderStatus) -> dict[str, Any]:
    """Return how an order stands now; whatever goes wrong with asking is an answer, too."""
    state, reason, detail = _now(standing)
    return {
        "definition": standing.definition,
        "order": standing.order,
        "artifact": standing.artifact or None,
        "epoch": standing.epoch,
        "state": state,
        "reason": reason,
        "detail": detail[:500],
        "reach": standing.reach,
    }


def _now(standing: FileOrderStatus) -> tuple[str, str, str]:
    if not standing.artifact:  # the original holds by itself, whatever others make of the file
        return NEEDS_RESTART if standing.outcome == NEEDS_RESTART else ENGAGED, "", ""
    try:
        server = servers.find(standing.change)
        source = server.source
        same = source == server.target or source is None
        data = None if source is None else read_file(source if same else source.resolve())
        if digest_of(data) != standing.digest:
            detail = f"{server.target} is {digest_of(data)} now, the order left {standing.digest}"
            return LOST, "changed-by-others", detail
        mismatches: Sequence[str] = ()
        if standing.outcome == ENGAGED:
            mismatches = wrong_picks(server, standing.picks)
    except Refused as error:
        return LOST, error.reason, error.detail
    if mismatches:
        return LOST, "picks-differ", f"the server picks {list(mismatches[:_SHOWN])}"
    return standing.outcome, "", ""
