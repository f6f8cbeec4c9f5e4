"""What devices do while the loop is at work: shown, and written beside what they may explain."""

from __future__ import annotations

import os
from pathlib import Path

from retuned.node import devices
from retuned.ports import DeviceState, Event, Store
from retuned.stages.drift import DriftAction
from retuned.standalone.context import Context, RecordKind

_MAX_PROCESSES = 4096
WHAT = "devices"
"""Line of a history that says what devices did."""
_MOMENTS = {"begin": "as it began, ", "end": "as it ended, "}


class DevicePoller:
    """Looks at devices again and again.

    Parameters
    ----------
    ctx
        Where they are read from, and where the history is.
    """

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._explained = ""
        """Newest drift report that was looked at."""

    def look(self) -> None:
        """Show how devices stand, and write it beside an alarm about the machine."""
        ctx = self._ctx
        if ctx.devices is None:
            return
        states = ctx.devices.read()
        servers, lab = ctx.server_processes(), descendants(os.getpid())
        for name, rows in devices.rows(states, servers=servers, lab=lab).items():
            ctx.telemetry.table(name, rows)
        self._explain(devices.sentence(states, ours=servers | lab))

    def _explain(self, sentence: str) -> None:
        """Write what devices did beside each new alarm; nothing unusual is said as well."""
        ctx = self._ctx
        for stored in ctx.store.list(RecordKind.DRIFT, above=self._explained):
            self._explained = stored.id
            if stored.body.get("action") == DriftAction.ALARM:
                note(
                    ctx,
                    RecordKind.DRIFT,
                    stored.id,
                    sentence=sentence or "nothing unusual to be seen",
                )


def beside_experiment(ctx: Context, experiment: str, *, moment: str) -> None:
    """Write beside an experiment what devices did when it began or ended, if it may matter."""
    states: tuple[DeviceState, ...] = tuple(ctx.devices.read()) if ctx.devices is not None else ()
    ours = ctx.server_processes() | descendants(os.getpid()) if states else frozenset()
    sentence = devices.sentence(states, ours=ours)
    if sentence:
        note(ctx, RecordKind.EXPERIMENT, experiment, sentence=sentence, moment=moment)


def said_beside(store: Store, kind: RecordKind, id: str) -> str:
    """Return what was written last of what devices did beside something, moment by moment."""
    lines = [each.detail for each in store.events(id=id) if (each.kind, each.what) == (kind, WHAT)]
    said = {str(line.get("moment", "")): str(line.get("sentence", "")) for line in lines}
    return "; ".join(f"{_MOMENTS.get(moment, '')}{words}" for moment, words in said.items())


def note(ctx: Context, kind: RecordKind, id: str, **detail: str) -> None:
    """Write a line of a history."""
    at = ctx.clock.now()
    ctx.store.record(Event(at=at, kind=kind, id=id, what=WHAT, who="retuned", detail=detail))


def descendants(pid: int, *, proc: Path = Path("/proc")) -> frozenset[int]:
    """Return a process and all that it has started and that still run."""
    found, left = {pid}, [pid]
    while left and len(found) < _MAX_PROCESSES:
        parent = left.pop()
        for task in sorted(proc.glob(f"{parent}/task/*/children")):
            try:
                words = task.read_text("ascii").split()
            except OSError:
                continue  # it has just ended
            fresh = {int(word) for word in words if word.isdecimal()} - found
            found |= fresh
            left += fresh
    return frozenset(found)
