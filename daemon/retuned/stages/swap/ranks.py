"""Two-phase commit over the processes (ranks) of one server. Pure.

First every rank prepares: it fetches, verifies, loads and checks, and nothing changes. Ranks commit
only if all that are present are prepared. `decide` derives this from the state of each rank;
`outcome_of` classifies a commit. After a crash a daemon queries the ranks and decides from their
state: it needs no memory that the ranks do not have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from retuned.stages.swap.orders import SwapKind

NOT_YET = frozenset(
    {
        "unknown-slot",  # a process that is still building its model
        "kernel-unseen",  # a live kernel without a launch so far
        "torch-missing",  # the same, earlier
        "device-unknown",  # without a launch it is unknown which of several GPUs it serves
        "self-check-no-shape",  # without a launch, the check has no inputs
        "unknown-tunable",  # a tunable without a launch so far
        "rule-without-launch",  # its sizes were not launched so far
        "rule-not-described",  # the same, a moment later
        "runtime-error",  # such as no memory for the check just now
    }
)
"""Refusals to prepare that do not depend on the artifact: the order waits and is sent again.

Meanwhile the other ranks keep what they prepared, unused, until their lease ends."""


class RankState(StrEnum):
    """State of an order in a rank."""

    UNPREPARED = "unprepared"
    """It has not loaded the artifact; it came late or restarted."""
    PREPARED = "prepared"
    """It would execute a commit immediately."""
    COMMITTED = "committed"
    """It has committed this order."""
    AHEAD = "ahead"
    """It has committed a later order, or another one of the same epoch."""
    SILENT = "silent"
    """It listens but does not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One process of the server with its current state."""

    name: str
    """Name of its socket."""
    instance: str = ""
    """Changes with every start of the process; empty if unknown."""
    standing: RankState
    """State of the order in it."""
    detail: str = ""
    """Its message."""


class Phase(StrEnum):
    """What to do with a prepared order."""

    COMMIT = "commit"
    """Send a commit to every rank."""
    ABORT = "abort"
    """Send no commit; prepared variants are dropped, and the order restarts."""
    WAIT = "wait"
    """Send no commit; query again."""


class PhaseReason(StrEnum):
    """Stable codes."""

    ALL_PREPARED = "all-prepared"
    """Every rank is prepared or has committed."""
    CATCHING_UP = "catching-up"
    """Some ranks have committed, and the others are prepared."""
    GOING_BACK = "going-back"
    """A rollback waits for no rank."""
    NO_RANK = "no-rank"
    """No rank is present."""
    RANK_LOST = "rank-lost"
    """A rank that had prepared is gone."""
    RANK_RESTARTED = "rank-restarted"
    """A rank that had prepared has restarted."""
    RANK_JOINED = "rank-joined"
    """A new rank was not prepared; it has to prepare first."""
    RANK_SILENT = "rank-silent"
    """A rank does not answer."""
    RANK_AHEAD = "rank-ahead"
    """A rank has a later order; this one needs another epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Result of `decide`."""

    phase: Phase
    reason: PhaseReason
    ranks: tuple[str, ...] = ()
    """Names of the ranks that are the reason."""


def decide(kind: SwapKind, ranks: Sequence[Rank], *, prepared: Mapping[str, str]) -> Decision:
    """Decide whether the ranks of a server may commit.

    Parameters
    ----------
    kind
        A rollback waits for no rank: each rank that receives it rolls back.
    ranks
        All that listen, queried after all have prepared.
    prepared
        Instance of each rank that has prepared, by name. Empty if unknown, as after a restart of
        the daemon: then the state that the ranks report decides.

    Examples
    --------
    >>> ready = Rank(name="1", instance="a", standing=RankState.PREPARED)
    >>> str(decide(SwapKind.SWAP, [ready], prepared={"1": "a"}).phase)
    'commit'
    >>> decision = decide(SwapKind.SWAP, [ready], prepared={"1": "a", "2": "b"})
    >>> str(decision.phase), str(decision.reason), decision.ranks
    ('abort', 'rank-lost', ('2',))
    """
    if kind is SwapKind.ROLLBACK:
        return Decision(phase=Phase.COMMIT, reason=PhaseReason.GOING_BACK)
    if not ranks:
        return Decision(phase=Phase.WAIT, reason=PhaseReason.NO_RANK)
    known = {rank.name for rank in ranks}
    spoke = [rank for rank in ranks if rank.standing is not RankState.SILENT]
    restarted = [r.name for r in spoke if prepared.get(r.name, r.instance) != r.instance]
    unprepared = [r.name for r in ranks if r.standing is RankState.UNPREPARED]
    problems = (
        (Phase.WAIT, PhaseReason.RANK_AHEAD, _at(ranks, RankState.AHEAD)),
        (Phase.ABORT, PhaseReason.RANK_LOST, sorted(prepared.keys() - known)),
        (Phase.ABORT, PhaseReason.RANK_RESTARTED, restarted),
        (Phase.WAIT, PhaseReason.RANK_JOINED, unprepared),
        (Phase.WAIT, PhaseReason.RANK_SILENT, _at(ranks, RankState.SILENT)),
    )
    for phase, reason, names in problems:
        if names:
            return Decision(phase=phase, reason=reason, ranks=tuple(names))
    some = any(rank.standing is RankState.COMMITTED for rank in ranks)
    reason = PhaseReason.CATCHING_UP if some else PhaseReason.ALL_PREPARED
    return Decision(phase=Phase.COMMIT, reason=reason)


class Outcome(StrEnum):
    """Result of a commit."""

    COMMITTED = "committed"
    """Every rank has committed."""
    ABORTED = "aborted"
    """No rank has committed."""
    PARTIAL = "partial"
    """Some have committed and some have not or are unknown: roll back, or make them follow."""


def outcome_of(has_it: Sequence[bool]) -> Outcome:
    """Classify a commit by whether each rank executed it.

    Examples
    --------
    >>> [str(outcome_of(each)) for each in ([True, True], [False], [True, False], [])]
    ['committed', 'aborted', 'partial', 'aborted']
    """
    if not any(has_it):
        return Outcome.ABORTED
    return Outcome.COMMITTED if all(has_it) else Outcome.PARTIAL


class MixedEpochs(StrEnum):
    """Whether ranks of one server may run different variants."""

    REFUSE = "refuse"
    """All roll back together: kernels that take part in collectives must not differ."""
    ALLOW = "allow"
    """The order is sent to late ranks until they follow."""


def must_go_back(
    policy: MixedEpochs, *, was_complete: bool, behind_s: float, catch_up_s: float
) -> bool:
    """Whether ranks that have an order roll back because others do not have it.

    Parameters
    ----------
    policy
        Whether they may differ.
    was_complete
        Whether every rank had it once: then a late rank may catch up.
    behind_s
        How long a rank has been behind, seconds.
    catch_up_s
        How long a late rank may take, seconds.

    Examples
    --------
    >>> must_go_back(MixedEpochs.REFUSE, was_complete=False, behind_s=0.0, catch_up_s=30.0)
    True
    >>> must_go_back(MixedEpochs.REFUSE, was_complete=True, behind_s=1.0, catch_up_s=30.0)
    False
    """
    if policy is MixedEpochs.ALLOW:
        return False
    return not was_complete or behind_s >= catch_up_s


def _at(ranks: Sequence[Rank], standing: RankState) -> list[str]:
    return [rank.name for rank in ranks if rank.standing is standing]
