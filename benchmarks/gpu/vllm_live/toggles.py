"""Tables switched on and off over the control socket, for pairs of blocks.

The daemon is stopped before; its signed change is sent again under a later term.
"""

from __future__ import annotations

import hashlib
import json
import statistics
import time
from pathlib import Path
from typing import Any

from retuned.errors import RetunedError
from retuned.runtime_client.connection import told

_TERM = 2**51
_NEVER = 10**9


class Toggles:
    """Tables of one process of a server."""

    def __init__(self, sockets: Path) -> None:
        self._sockets = sockets
        self._count = 0
        self._swaps: dict[str, dict[str, Any]] = {}
        self.pauses_us: list[float] = []

    def ask(self, request: dict[str, Any], *, limit_s: float = 60.0) -> dict[str, Any]:
        """Send a request to the process that has tunables; raises its refusal."""
        refusal: RetunedError | None = None
        for path in sorted(self._sockets.glob("*.sock")):
            said = told(path, request, timeout_s=limit_s)
            if isinstance(said, dict):
                return said
            refusal = said or refusal
        raise refusal or RuntimeError("no process of the server listens")

    def report(self) -> dict[str, Any]:
        """Return the report on tunables."""
        return self.ask({"op": "tunables"})

    def on(self, table: str, *, signature: str = "") -> dict[str, Any]:
        """Prepare and commit a table; returns the process's answer."""
        text = json.loads(table)
        self._count += 1
        epoch = time.time_ns() // 1000
        order = {
            "id": f"benchmark-{self._count}",
            "kind": "swap",
            "definition": text["tunable"],
            "target": "chat",
            "who": "benchmark",
            "when": "",
            "epoch": epoch,
            "change": table,
            "artifact": "sha256:" + hashlib.sha256(table.encode()).hexdigest(),
            # each size class is checked once; the daemon's own order has more checks
            "shadow_every": _NEVER,
        }
        self._swaps[order["definition"]] = order
        request: dict[str, Any] = {"order": order, "term": _TERM}
        if signature:
            request["signature"] = signature
        self.ask(request | {"op": "tunable-prepare"})
        answer = self.ask(request | {"op": "tunable-commit"})
        self.pauses_us.append(float(answer.get("pause_us") or 0.0))
        return answer

    def off(self, tunable: str) -> dict[str, Any]:
        """Roll the last table of a tunable back; {} where none was put in force here."""
        swap = self._swaps.pop(tunable, None)
        if swap is None:
            return {}
        order = swap | {
            "id": swap["id"] + ":back",
            "kind": "rollback",
            "undoes": swap["id"],
            "epoch": time.time_ns() // 1000,
            "artifact": "",
        }
        answer = self.ask({"op": "tunable-rollback", "order": order, "term": _TERM})
        self.pauses_us.append(float(answer.get("pause_us") or 0.0))
        return answer

    def summary(self) -> dict[str, Any]:
        """Return the time for which the launching thread was held, microseconds."""
        held = self.pauses_us
        return {
            "switches": len(held),
            "pause_us_median": round(statistics.median(held), 1) if held else None,
            "pause_us_max": round(max(held), 1) if held else None,
        }
