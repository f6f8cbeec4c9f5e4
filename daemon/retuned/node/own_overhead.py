"""What Retuned itself costs the server: measured now and then, and bounded.

The runner of live proofs lets Retuned's wrappers leave the server's calls and return, in turns of a
few steps. Where steps are longer by one per cent or more with them, the runtime counts launches in
a share of the time only. One machine runs it.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from pydantic import ValidationError

from retuned.contract import Digest
from retuned.errors import RetunedError
from retuned.node.live_proof import ProofRunner, Switch, TurnTaker, UnstoredProof
from retuned.ports import Clock, Event, LiveSteps, Store, Telemetry
from retuned.stages.gate import LiveProof, LiveProofMode
from retuned.stages.watch import own_overhead, proof
from retuned.stages.watch.own_overhead import OverheadRecord
from retuned.telemetry.metric_types import Row

log = logging.getLogger(__name__)

OWN_OVERHEAD = "own-overhead"
"""What Retuned costs the server, an `OverheadRecord`: current."""
SERVER = "server"
"""Id of the record."""
_CURRENT = "current"


class OverheadArm(Switch, TurnTaker, Protocol):
    """Retuned's wrappers in the server; see `retuned.runtime_client.own_overhead`."""

    def set_share(self, share: float) -> None:
        """Count launches in a share of the time.

        Raises
        ------
        CandidateError, TemporaryError
            If the server refuses, or does not answer.
        """
        ...


@dataclass(frozen=True, slots=True)
class _Wrappers:
    """The wrappers, as what a proof is about."""

    definition: str
    artifact: Digest | None
    epoch: int


class OverheadKeeper:
    """Measures what Retuned costs the server, and keeps it below the budget.

    Parameters
    ----------
    arm
        The wrappers in the server.
    live
        The server's steps.
    """

    def __init__(
        self,
        arm: OverheadArm,
        *,
        live: LiveSteps,
        store: Store,
        clock: Clock,
        telemetry: Telemetry,
    ) -> None:
        self._arm, self._live = arm, live
        self._store, self._clock, self._telemetry = store, clock, telemetry
        self._began_at: datetime | None = None

    def keep_up(self, stop: threading.Event, *, wanted: Callable[[], bool]) -> None:
        """Measure if it is time to, and let the server count as the last measurement says.

        Parameters
        ----------
        stop
            Ends a measurement.
        wanted
            Whether nothing else is measured or in force in the server; asked several times a
            second.
        """
        try:
            if not self._live.unavailable() and self._is_due() and wanted():
                self._measure(stop, wanted)
            last = last_of(self._store)
            if last is None:
                return
            self._telemetry.table("retuned_own_overhead_ratio", _rows(last.report))
            if last.share < 1.0:
                self._arm.set_share(last.share)  # a server that restarted counts always
        except RetunedError as error:
            log.info("what Retuned costs the server is not known now: %s", error)

    def _is_due(self) -> bool:
        now = self._clock.now()
        if self._began_at is None:
            self._began_at = now
        return own_overhead.is_due(last_of(self._store), began_at=self._began_at, now=now)

    def _measure(self, stop: threading.Event, wanted: Callable[[], bool]) -> None:
        kept = UnstoredProof(wanted)
        (slot,) = self._arm.slots()
        ProofRunner(
            _Wrappers(slot.definition, slot.active, slot.epoch),
            LiveProof(mode=LiveProofMode.OBSERVE),  # the wrappers stay whatever is shown
            record=kept,
            swapper=self._arm,
            live=self._live,
            clock=self._clock,
            first=lambda at_s: proof.begin(own_overhead.SETTINGS, at_s=at_s),
            turns=self._arm,
        ).run(stop)
        state = kept.state
        if state is None or state.report is None:
            return  # it was cut short: later
        found = own_overhead.judged(
            state.report,
            before=last_of(self._store),
            at=self._clock.now(),
            engine=self._live.engine()[:200],
        )
        self._keep(found)
        if found.share >= 1.0:
            self._arm.set_share(1.0)
        (log.info if found.share >= 1.0 else log.warning)("%s", found.sentence)

    def _keep(self, found: OverheadRecord) -> None:
        body = found.model_dump(mode="json")
        with self._store.transaction():
            if not self._store.add(OWN_OVERHEAD, SERVER, body, phase=_CURRENT):
                self._store.advance(OWN_OVERHEAD, SERVER, expect=_CURRENT, to=_CURRENT, body=body)
            self._store.record(
                Event(
                    at=found.at,
                    kind=OWN_OVERHEAD,
                    id=SERVER,
                    what=f"own-overhead-{found.outcome}",
                    who="retuned",
                    detail={"sentence": found.sentence, "share": found.share},
                )
            )
        self._telemetry.count("retuned_own_overhead_measurements_total", outcome=found.outcome)


def _rows(report: proof.ProofReport) -> list[Row]:
    """Return step time with the wrappers over that without, by bound."""
    bounds = {"low": report.low, "effect": report.effect, "high": report.high}
    return [
        ({"bound": name}, math.exp(value)) for name, value in bounds.items() if value is not None
    ]


def last_of(store: Store) -> OverheadRecord | None:
    """Return the last measurement; None without one."""
    stored = store.get(OWN_OVERHEAD, SERVER)
    if stored is None:
        return None
    try:
        return OverheadRecord.model_validate(stored.body)
    except ValidationError as error:
        log.warning("the last measurement of Retuned's cost cannot be read: %s", error)
        return None
