"""What must hold at the moment at which a server is to load a variant; a way back is never asked.

Its evidence is verified once more, and the server's own environment is compared with the one in
which it was measured.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from retuned.contract import Environment
from retuned.errors import CandidateError
from retuned.local import proving
from retuned.local.context import Context, RecordKind
from retuned.local.reading import UNREADABLE, understood
from retuned.stages.proposal import Proposal
from retuned.stages.swap import SwapOrder
from retuned.stages.verdict import (
    Difference,
    EvidenceFault,
    ServerEnvironment,
    differences,
)

log = logging.getLogger(__name__)

UNKNOWN = "server-environment-unknown"
"""The server cannot say yet what it runs on: no launch has shown its device."""
DIFFERS = "server-environment-differs"
"""The server runs on something else than what was measured."""
_SHOWN_BY_A_LAUNCH = frozenset({"arch", "GPU_NAME"})
"""What may be known later; a switch that is not set, or Triton that is not there, is an answer."""


def check_before_load(ctx: Context, order: SwapOrder) -> None:
    """Verify what a swap rests on, and that the server is what it was measured on.

    Raises
    ------
    CandidateError
        With the fault of the evidence, ``record-unreadable``, ``server-environment-differs``, or
        ``server-environment-unknown`` while a process cannot say yet.
    TemporaryError
        If the server does not answer, or the evidence cannot be read now.
    """
    stored = ctx.store.get(RecordKind.PROPOSAL, order.proposal)
    if stored is None:
        raise CandidateError(EvidenceFault.MISSING, detail="the order has no proposal")
    proposal = understood(ctx, stored, Proposal)
    if proposal is None:
        raise CandidateError(UNREADABLE, detail="the order's proposal cannot be understood")
    document, doubt = proving.believed(ctx, proposal)
    if document is None or doubt is not None:
        assert doubt is not None, "what cannot be read is in doubt"
        raise CandidateError(doubt.fault, detail=doubt.detail)
    if (order.artifact, order.guard) != (proposal.artifact, proposal.guard):
        detail = "the order is for another artifact or other shapes than its proposal"
        raise CandidateError(EvidenceFault.CONTRADICTED, detail=detail)
    for process in ctx.swapper.environments():
        _compare(ctx, order, document.environment, process)


def _compare(
    ctx: Context, order: SwapOrder, measured: Environment, process: ServerEnvironment
) -> None:
    found = differences(measured, process)
    deciding = [difference for difference in found if difference.decides]
    if deciding and ctx.settings.environment_mismatch == "refuse":
        unknown = all(not d.serving and d.what in _SHOWN_BY_A_LAUNCH for d in deciding)
        raise CandidateError(UNKNOWN if unknown else DIFFERS, detail=_sentence(process, deciding))
    if found:
        log.warning("%s is swapped in although %s", order.definition, _sentence(process, found))


def _sentence(process: ServerEnvironment, found: Sequence[Difference]) -> str:
    return f"in process {process.process} {'; '.join(map(str, found))}"
