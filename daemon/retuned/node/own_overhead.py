"""What Retuned itself costs the server: measured now and then, and bounded.

The runner of live proofs lets Retuned's wrappers leave the server's calls and return, in turns of a
few steps. Where steps are longer by one per cent or more with them, the runtime counts launches in
a share of the time only. One machine and the sidecar run it.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, TypeVar

from pydantic import AwareDatetime, ValidationError

from retuned.contract import Digest, Record
from retuned.errors import RetunedError
from retuned.node.live_proof import ProofRunner, Switch, TurnTaker, UnstoredProof, claim_of
from retuned.ports import Clock, Event, LiveSteps, Store, Telemetry
from retuned.stages.gate import LiveProof, LiveProofMode
from retuned.stages.watch import own_overhead, proof
from retuned.stages.watch.own_overhead import OverheadRecord
from retuned.telemetry.metric_types import Row

log = logging.getLogger(__name__)

OWN_OVERHEAD = "own-overhead"
"""What Retuned costs the server, an `OverheadRecord`: current."""
SERVER = "server"
"""Id of the records."""
OVERHEAD_PAIRS = "own-overhead-pairs"
"""Pairs of that measurement, an `OverheadPairs`, where they are reported: current."""
_CURRENT = "current"
RecordT = TypeVar("RecordT", bound=Record)


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


class OverheadPairs(Record):
    """A measurement as a node reports it."""

    at: AwareDatetime
    """As `OverheadRecord.at`."""
    engine: str
    claim: proof.ProofClaim


class OverheadKeeper:
    """Measures what Retuned costs the server, and keeps it below the budget.

    Parameters
    ----------
    arm
        The wrappers in the server.
    live
        The server's steps.
    reports
        Whether pairs are kept, so that a reader can compute the result again.
    """

    def __init__(
        self,
        arm: OverheadArm,
        *,
        live: LiveSteps,
        store: Store,
        clock: Clock,
        telemetry: Telemetry,
        reports: bool = False,
    ) -> None:
        self._arm, self._live = arm, live
        self._store, self._clock, self._telemetry = store, clock, telemetry
        self._reports = reports
        self._began_at: datetime | None = None
        self._followed: float | None = None
        """Share that `follow` sent to the server last; None before: an earlier process of this
        node may have sent another one."""

    def keep_up(self, stop: threading.Event, *, wanted: Callable[[], bool]) -> None:
        """Measure when it is due, and set the server's share from the last measurement.

        Parameters
        ----------
        stop
            Ends a measurement.
        wanted
            Whether nothing else is measured or in force in the server; asked several times a
            second.
        """
        try:
            if self._is_due() and wanted() and not self._live.unavailable():
                self._measure(stop, wanted)
            last = last_of(self._store)
            if last is None:
                return
            self._telemetry.table("retuned_own_overhead_ratio", _rows(last.report))
            if last.share < 1.0:
                self._arm.set_share(last.share)  # a server that restarted counts always
        except RetunedError as error:
            log.info("the overhead of Retuned is not known now: %s", error)

    def follow(self, share: float) -> None:
        """Set the share from a measurement of another server, until this one has its own.

        Parameters
        ----------
        share
            Share of the time, over 0 to 1.
        """
        if last_of(self._store) is not None or share == self._followed == 1.0:
            return
        try:
            self._arm.set_share(share)  # repeated: a restarted server counts always
        except RetunedError as error:
            log.info("the share of counting cannot be set in the server: %s", error)
            return
        self._followed = share

    def _is_due(self) -> bool:
        now = self._clock.now()
        if self._began_at is None:
            if self._live.unavailable():
                return False
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
        before = last_of(self._store)
        found = own_overhead.judged(
            state.report,
            share_before=before.share if before is not None else self._followed or 1.0,
            at=self._clock.now(),
            engine=self._live.engine()[:200],
        )
        self._keep(found, state)
        if found.share >= 1.0:
            self._arm.set_share(1.0)
        (log.info if found.share >= 1.0 else log.warning)("%s", found.sentence)

    def _keep(self, found: OverheadRecord, state: proof.ProofState) -> None:
        with self._store.transaction():
            self._write(OWN_OVERHEAD, found)
            if self._reports:
                claim = claim_of(found.report, state.model_dump(mode="json"))
                pairs = OverheadPairs(at=found.at, engine=found.engine, claim=claim)
                self._write(OVERHEAD_PAIRS, pairs)
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

    def _write(self, kind: str, record: Record) -> None:
        body = record.model_dump(mode="json")
        if not self._store.add(kind, SERVER, body, phase=_CURRENT):
            self._store.advance(kind, SERVER, expect=_CURRENT, to=_CURRENT, body=body)


def _rows(report: proof.ProofReport) -> list[Row]:
    """Return step time with the wrappers over that without, by bound."""
    bounds = {"low": report.low, "effect": report.effect, "high": report.high}
    return [
        ({"bound": name}, math.exp(value)) for name, value in bounds.items() if value is not None
    ]


def last_of(store: Store) -> OverheadRecord | None:
    """Return the last measurement; None without one."""
    return _read(store, OWN_OVERHEAD, OverheadRecord)


def pairs_of(store: Store) -> OverheadPairs | None:
    """Return the last measurement with its pairs; None without one, or where none are kept."""
    return _read(store, OVERHEAD_PAIRS, OverheadPairs)


def _read(store: Store, kind: str, model: type[RecordT]) -> RecordT | None:
    stored = store.get(kind, SERVER)
    if stored is None:
        return None
    try:
        return model.model_validate(stored.body)
    except ValidationError as error:
        log.warning("the record %s cannot be read: %s", kind, error)
        return None
