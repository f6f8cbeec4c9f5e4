"""Wrappers of Retuned in a server, as an arm that a live proof switches; see `OverheadArm`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from retuned.errors import CandidateError, TemporaryError
from retuned.ports import SlotState
from retuned.runtime_client.connection import RETRY_S, told
from retuned.runtime_client.live_steps import ON
from retuned.runtime_client.processes import RuntimeProcesses
from retuned.runtime_client.step_records import StepTap

_ARM = SlotState(definition="retuned-wrappers", active="sha256:" + "0" * 64, epoch=1, launches={})
"""The wrappers as a slot: what a live proof switches has one."""
RANKS = "several-ranks"
"""Reason code: other processes take the same step, and their wrappers would stay."""
_TIMEOUT_S = 5.0


class ServerOverhead:
    """The wrappers of the one process of a server that takes steps.

    Parameters
    ----------
    sockets
        A socket, or a folder of them.
    """

    def __init__(self, sockets: Path) -> None:
        self._tap = StepTap(sockets)
        self._processes = RuntimeProcesses(sockets, timeout_s=_TIMEOUT_S)
        self._off = False

    def slots(self) -> Sequence[SlotState]:
        """Return the arm as a slot, with how it was switched last."""
        return [replace(_ARM, bypassed=self._off)]

    def bypass(self, definition: str, *, on: bool, arm: str | None = None) -> None:
        """Take the wrappers out (`on`), or put them back; see `Swapper.bypass`."""
        label = {} if arm is None else {"arm": arm}
        self._ask({"op": "overhead-arm", "on": not on, **label})
        self._off = on

    def take_turns(self, turns: Sequence[tuple[str, bool]], *, steps: int) -> None:
        """See `TurnTaker.take_turns`."""
        self._ask({"op": "overhead-arm", "on": False, "turns": list(turns), "steps": steps})

    def set_share(self, share: float) -> None:
        """Let every process count launches in a share of the time."""
        request = {"op": "overhead-share", "share": share}
        _, errors = self._processes.each(lambda path: told(path, request, timeout_s=_TIMEOUT_S))
        for error in errors:
            if not (isinstance(error, CandidateError) and error.reason == "unknown-op"):
                raise error  # an older runtime counts always

    def _ask(self, request: Mapping[str, Any]) -> None:
        stepping = [each.name for each in self._tap.read(limit=0) if each.hook == ON]
        if not stepping:
            raise TemporaryError("no process of the server takes steps", delay_s=RETRY_S)
        if len(stepping) > 1:
            raise CandidateError(RANKS, detail=", ".join(stepping)[:200])
        answers, errors = self._processes.each(
            lambda path: (
                told(path, request, timeout_s=_TIMEOUT_S) if path.name == stepping[0] else None
            )
        )
        if errors:
            raise errors[0]
        if not answers:
            raise TemporaryError("the server's process has ended", delay_s=RETRY_S)
