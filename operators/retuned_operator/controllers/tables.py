"""Wins on tunables: the table that a proposal puts in force, made from what was verified.

What an experiment's pod delivered is untrusted. Its rules are read strictly, and the text is made
here: from the verified variant, its guard, the rules of the table in force, and what the servers
launch now.
"""

from __future__ import annotations

from retuned.api.target import TuningTarget
from retuned.control.facts import PolicyFact
from retuned.errors import TemporaryError
from retuned.stages.gate import Pauses, limits_of
from retuned.stages.hypothesis import NotTried
from retuned.stages.proposal import (
    Proposal,
    Refusal,
    RefusalReason,
    TableText,
    proposal_id,
    read_table,
    rules_in,
    table_of,
)
from retuned_operator.controllers.cluster_view import ClusterView
from retuned_operator.controllers.ports import VerifiedWin

_RETRY_S = 10.0


def with_table(
    world: ClusterView,
    win: VerifiedWin,
    proposal: Proposal,
    *,
    target: TuningTarget,
    chosen: PolicyFact | None,
) -> Proposal | str:
    """Return a proposal whose artifact is a signed table, or the reason code for none.

    Parameters
    ----------
    proposal
        Of stage 7; its artifact is the variant.
    chosen
        Policy that decides; None where none does.

    Raises
    ------
    TemporaryError
        If it is not known what the servers launch, or the table cannot be kept now.
    """
    table = _table(world, win, proposal, target=target, chosen=chosen)
    if isinstance(table, str):
        return table
    assert win.table is not None, "asked for its rules"
    world.ledger.keep_table(table, win.table, guard=proposal.guard, target=target.full_name)
    assert proposal.environment is not None, "the plan of an experiment names one"
    id = proposal_id(
        target=proposal.target,
        artifact=table.digest,
        baseline=proposal.baseline,
        environment=proposal.environment,
        attempt=proposal.attempt,
    )
    return proposal.model_copy(update={"artifact": table.digest, "id": id})


def _table(
    world: ClusterView,
    win: VerifiedWin,
    proposal: Proposal,
    *,
    target: TuningTarget,
    chosen: PolicyFact | None,
) -> TableText | str:
    if win.table is None:
        return str(RefusalReason.NOT_A_TABLE)
    launched = world.tunables.launched(target.full_name, proposal.definition)
    if launched is None:
        message = f"what the servers launch of {proposal.definition} is not known now"
        raise TemporaryError(message, delay_s=_RETRY_S)
    if launched.refused:
        return str(NotTried.SERVER_REFUSES)
    entries = target.status.active_kernels
    entry = next((each for each in entries if each.kernel == proposal.definition), None)
    before = world.ledger.table(entry.digest) if entry is not None else None
    if entry is not None and before is None:
        return str(RefusalReason.NOT_A_TABLE)
    if before is not None and before.solution == win.table.digest:
        return str(RefusalReason.ALREADY_LIVE)
    pauses = limits_of(chosen.policy).pauses if chosen is not None else Pauses(recapture=False)
    table = table_of(
        win.table,
        proposal.guard,
        definition=proposal.definition,
        measured_source=read_table(before.text).source if before else launched.source,
        launched=launched,
        in_force=rules_in(before.text) if before is not None else (),
        before=entry.digest if entry is not None else None,
        recapture=pauses.recapture,
        recapture_after=pauses.recapture_after,
        capture_share=pauses.max_share,
    )
    return str(table.reason) if isinstance(table, Refusal) else table
