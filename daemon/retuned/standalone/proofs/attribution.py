"""Alarms about kernel times on one machine; swaps are tried off by `retuned.node.attribution`."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cached_property

from retuned.lifting.store_records import Geometries
from retuned.node.attribution import Attribution, suspect_of
from retuned.node.order_store import bringer
from retuned.ports import Stored
from retuned.stages.drift import DriftReport
from retuned.stages.gate import LiveProof
from retuned.stages.profile import SignatureStat
from retuned.stages.swap import SwapOrder
from retuned.stages.watch import proof
from retuned.stages.watch.attribution import Suspect, SuspectResult
from retuned.standalone import kernels
from retuned.standalone.context import Context, RecordKind
from retuned.standalone.proofs import live_proof
from retuned.standalone.proofs.repeated_proof import (
    ATTRIBUTION,
    KEPT_PHASES,
    RepeatedProof,
    newest_state,
)
from retuned.standalone.records import committed, say


def holds(ctx: Context, window: Stored, alarm: DriftReport) -> str:
    """Begin the attribution of an alarm; see `Attribution.holds`."""
    return Attribution(ctx, _Swaps(ctx)).holds(window, alarm)


def send(ctx: Context) -> None:
    """Send each alarm that has its answer, or that waited long enough for it."""
    Attribution(ctx, _Swaps(ctx)).send()


def try_off(ctx: Context, stop: threading.Event) -> None:
    """Try the suspects of each alarm off, in turn, until there is an answer or `stop` is set."""
    Attribution(ctx, _Swaps(ctx)).try_off(stop)


class _Swaps:
    """Swaps of one machine; see `AlarmNode`."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    @cached_property
    def _live(self) -> Geometries:
        return kernels.geometries(self._ctx)

    def swaps(self) -> Sequence[Suspect]:
        store = self._ctx.store
        orders = [kept.order for kept in committed(store).values()]
        found = (suspect_of(store, each, proposal=bringer(store, each).proposal) for each in orders)
        return [each for each in found if each is not None]

    def definitions_of(self, stat: SignatureStat) -> set[str]:
        return {share.workload.definition for share in self._live.shares_of(stat)}

    def order_of(self, suspect: Suspect) -> SwapOrder | None:
        kept = committed(self._ctx.store).get(suspect.definition)
        return kept.order if kept is not None and kept.order.id == suspect.order else None

    def rule_of(self, suspect: Suspect) -> LiveProof | None:
        return live_proof.rule_of(self._ctx, suspect.definition)

    def unavailable(self, suspect: Suspect) -> str:
        stored = self._ctx.store.get(RecordKind.PROPOSAL, suspect.proposal)
        if stored is None or stored.phase not in KEPT_PHASES:
            return "rollout-running"
        return live_proof.unavailable(self._ctx, suspect.proposal)

    def trial(self, suspect: Suspect, order: SwapOrder, *, alarm: str) -> RepeatedProof:
        return RepeatedProof(
            self._ctx, order, proposal=suspect.proposal, cause=ATTRIBUTION, number=alarm
        )

    def earlier(self, suspect: Suspect) -> proof.ProofState | None:
        return newest_state(self._ctx, suspect.proposal)

    def untried(self, result: SuspectResult) -> None:
        say(
            self._ctx,
            result.suspect.proposal,
            "attribution-untried",
            reason=result.reason,
            slot=result.suspect.definition,
        )

    def command(self, suspect: Suspect) -> str:
        return f"retuned rollback {suspect.proposal}"
