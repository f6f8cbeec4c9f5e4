"""Alarms about kernel times in a pod; swaps are tried off by `retuned.node.attribution`.

The operator names the swaps that may be tried off, and the rule. A trial is reported with its
pairs; the operator computes its verdict again and decides what follows.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from retuned.api.agent import AlarmOrder
from retuned.errors import TemporaryError
from retuned.node.attribution import Attribution, suspect_of
from retuned.node.live_proof import report_in
from retuned.node.service_levels import lacks_levels
from retuned.sidecar import live_proofs, sentinels
from retuned.sidecar.context import Context
from retuned.sidecar.store import TRIAL
from retuned.stages.gate import LiveProof
from retuned.stages.profile import SignatureStat
from retuned.stages.swap import SwapOrder
from retuned.stages.watch import proof
from retuned.stages.watch.attribution import Suspect, SuspectResult

if TYPE_CHECKING:
    from retuned.lifting.store_records import Geometries

log = logging.getLogger(__name__)

_AGAIN_S = 5.0


def attribution_of(ctx: Context) -> Attribution:
    """Return the alarms of a pod's server."""
    return Attribution(ctx, _Swaps(ctx))


class _Swaps:
    """Swaps of a pod; see `AlarmNode`."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    @cached_property
    def _live(self) -> Geometries | None:
        """Return the shapes of live kernels; what reads them is loaded if there are any."""
        texts = tuple(self._ctx.standing.lifted.values())
        if not texts:
            return None
        from retuned.lifting.store_records import Geometries, LiftedRecord

        records = map(LiftedRecord.model_validate_json, texts)
        return Geometries(records, buckets=self._ctx.settings.profile)

    def swaps(self) -> Sequence[Suspect]:
        orders = [kept.order for kept in live_proofs.in_force(self._ctx)]
        found = (suspect_of(self._ctx.store, each, proposal=each.proposal) for each in orders)
        return [each for each in found if each is not None]

    def definitions_of(self, stat: SignatureStat) -> set[str]:
        live = self._live
        return set() if live is None else {e.workload.definition for e in live.shares_of(stat)}

    def order_of(self, suspect: Suspect) -> SwapOrder | None:
        found = (kept.order for kept in live_proofs.in_force(self._ctx))
        return next((order for order in found if order.id == suspect.order), None)

    def rule_of(self, suspect: Suspect) -> LiveProof | None:
        asked = self._asked(suspect)
        return None if asked is None else asked.rule

    def unavailable(self, suspect: Suspect) -> str:
        asked = self._asked(suspect)
        if asked is not None and lacks_levels(self._ctx.service_counts, asked.rule):
            return str(proof.ProofReason.NO_SERVICE_LEVELS)
        reason, temporary = live_proofs.unavailable(self._ctx)
        if temporary:
            raise TemporaryError(f"the server's steps are not known ({reason})", delay_s=_AGAIN_S)
        return reason

    def trial(self, suspect: Suspect, order: SwapOrder, *, alarm: str) -> _Trial:
        return _Trial(self._ctx, order, id=f"{order.id}/{alarm}")

    def earlier(self, suspect: Suspect) -> proof.ProofState | None:
        return sentinels.earlier_proof(self._ctx, suspect.order)

    def untried(self, result: SuspectResult) -> None:
        log.info("%s was not tried off: %s", result.suspect.definition, result.reason)

    def command(self, suspect: Suspect) -> str:
        asked = live_proofs.asked_alarm(self._ctx, suspect.order)
        name = asked.name if asked is not None else suspect.proposal
        return f"kubectl retuned rollback {name}"

    def _asked(self, suspect: Suspect) -> AlarmOrder | None:
        """Return what the operator allows; raises before its first answer to this process."""
        if not self._ctx.standing.revision:
            raise TemporaryError("the operator has not answered yet", delay_s=_AGAIN_S)
        return live_proofs.asked_alarm(self._ctx, suspect.order)


class _Trial(live_proofs.PodProofRecord):
    """The pairs of one suspect for one alarm."""

    def __init__(self, ctx: Context, order: SwapOrder, *, id: str) -> None:
        super().__init__(
            ctx, order, asked=live_proofs.asked_alarm, what="attribution", kind=TRIAL, id=id
        )
        self._name = id

    def report(self) -> proof.ProofReport | None:
        """Return the verdict; None without one."""
        return report_in(self._ctx.store.get(TRIAL, self._name))
