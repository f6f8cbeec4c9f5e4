"""An order on a tuned-config file as a server's process reads it, and what its answer means."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from retuned.adapters.runtime_link import RETRY_S
from retuned.adapters.tuned_reports import Process
from retuned.configured.records import FileChange
from retuned.errors import CandidateError, TemporaryError
from retuned.stages.swap import RankState, SwapKind, SwapOrder

log = logging.getLogger(__name__)


def body_of(order: SwapOrder, change: FileChange, *, artifact: str) -> dict[str, Any]:
    """Return an order as the server reads it; one proposal is one change, whatever its epoch."""
    return {
        "id": order.proposal,
        "kind": str(order.kind),
        "definition": order.definition,
        "target": order.target,
        "who": "retuned",
        "when": "",
        "epoch": order.epoch,
        "change": change.text,
        "artifact": artifact,
    }


def standing_of(order: SwapOrder, process: Process) -> RankState:
    """Return where a process is with an order."""
    entry = process.entries.get(order.definition)
    if entry is not None and entry.order == order.proposal and entry.artifact == order.artifact:
        return RankState.COMMITTED
    return RankState.PREPARED if order.proposal in process.prepared else RankState.UNPREPARED


def check_engaged(said: Mapping[str, Any], order: SwapOrder) -> None:
    """Make sure that a process picks what it should after an order; say what that reaches.

    Raises
    ------
    CandidateError
        ``not-engaged``.
    TemporaryError
        If it still picks what is to be taken back.
    """
    outcome, reason = str(said.get("outcome")), str(said.get("reason") or "")
    reach = str(said.get("reach"))
    if outcome == "not-engaged":
        detail = f"{reason}: {said.get('mismatches')}"[:1000]
        if order.kind is SwapKind.ROLLBACK:
            raise TemporaryError(f"the server still picks the row: {detail}", delay_s=RETRY_S)
        raise CandidateError("not-engaged", detail=detail)
    level = logging.INFO if (outcome, reach) == ("engaged", "all") else logging.WARNING
    log.log(level, "%s of %s: %s, reaches %s", order.kind, order.definition, outcome, reach)
