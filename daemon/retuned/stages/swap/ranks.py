"""Two-phase commit over the processes (ranks) of one server. Pure.

First every rank prepares: it fetches, verifies, loads and checks, and nothing changes. Only if all
that are there stand prepared is any of them told to commit. `decide` says so from where each rank
stands; `outcome_of` says what became of a commit. A daemon that died in between asks the ranks
where they stand and decides from that: nothing needs to be remembered that they do not know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from retuned.stages.swap.orders import SwapKind

NOT_YET = frozenset(
    {
        "unknown-slot",  # a process that is still building its model
        "kernel-unseen",  # a live kernel that no launch has shown yet
        "torch-missing",  # the same, earlier
        "device-unknown",  # no launch has shown yet which of several GPUs it serves
        "self-check-no-shape",  # no launch has shown yet what to check with
        "runtime-error",  # such as no memory for the check just now
    }
)
"""Refusals to prepare that say nothing of the artifact: the order waits, and is told again. What
the other ranks have prepared stays there meanwhile, unused, for as long as their lease."""


class RankState(StrEnum):
    """Where a rank is with an order."""

    UNPREPARED = "unprepared"
    """It has not loaded the artifact; it came late, or started anew."""
    PREPARED = "prepared"
    """A commit would be carried out at once."""
    COMMITTED = "committed"
    """It has carried this order out."""
    AHEAD = "ahead"
    """It has carried out a later order, or another one of the same epoch."""
    SILENT = "silent"
    """It listens and does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One process of the server, asked just now."""

    name: str
    """Of its socket."""
    instance: str = ""
    """Changes with every start of the process; empty where it does not say."""
    standing: RankState
    """Where it is with the order."""
    detail: str = ""
    """What it said, for people."""


class Phase(StrEnum):
    """What to do with an order that is prepared."""

    COMMIT = "commit"
    """Tell every rank to commit."""
    ABORT = "abort"
    """Tell none; what was prepared is dropped, and the order starts over."""
    WAIT = "wait"
    """Tell none; ask again."""


class PhaseReason(StrEnum):
    """Why; stable codes."""

    ALL_PREPARED = "all-prepared"
    """Every rank stands prepared, or has committed already."""
    CATCHING_UP = "catching-up"
    """Some ranks have it, and the others stand prepared to follow."""
    GOING_BACK = "going-back"
    """A way back waits for nobody."""
    NO_RANK = "no-rank"
    """Nobody is there."""
    RANK_LOST = "rank-lost"
    """A rank that had prepared is gone."""
    RANK_RESTARTED = "rank-restarted"
    """A rank that had prepared is another process now."""
    RANK_JOINED = "rank-joined"
    """A rank came that was not there to prepare; it has to prepare first."""
    RANK_SILENT = "rank-silent"
    """A rank does not answer."""
    RANK_AHEAD = "rank-ahead"
    """A rank has a later order; this one needs another epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What `decide` says."""

    phase: Phase
    """What to do."""
    reason: PhaseReason
    """Why."""
    ranks: tuple[str, ...] = ()
    """Names of the ranks that are the reason."""


def decide(kind: SwapKind, ranks: Sequence[Rank], *, prepared: Mapping[str, str]) -> Decision:
    """Say whether the ranks of a server may be told to commit.

    Parameters
    ----------
    kind
        A rollback waits for nobody: each rank that hears it goes back.
    ranks
        Everybody that listens, asked after all have prepared.
    prepared
        Instance of each rank that has prepared, by name; empty where that is not known, as after a
        restart of the daemon: then the ranks' own word decides.

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
    """What became of a commit."""

    COMMITTED = "committed"
    """Every rank has it."""
    ABORTED = "aborted"
    """None has it."""
    PARTIAL = "partial"
    """Some have it and some do not, or nobody can say of some: go back, or make them follow."""


def outcome_of(has_it: Sequence[bool]) -> Outcome:
    """Say what became of a commit that each rank has carried out, or has not.

    Examples
    --------
    >>> [str(outcome_of(each)) for each in ([True, True], [False], [True, False], [])]
    ['committed', 'aborted', 'partial', 'aborted']
    """
    if not any(has_it):
        return Outcome.ABORTED
    return Outcome.COMMITTED if all(has_it) else Outcome.PARTIAL


class MixedEpochs(StrEnum):
    """Whether ranks of one server may differ in what they run."""

    REFUSE = "refuse"
    """They go back together: kernels that take part in collectives must not differ."""
    ALLOW = "allow"
    """Those behind are told again until they follow."""


def must_go_back(
    policy: MixedEpochs, *, was_complete: bool, behind_s: float, catch_up_s: float
) -> bool:
    """Whether ranks that have an order go back because others do not have it.

    Parameters
    ----------
    policy
        Whether they may differ.
    was_complete
        Whether every rank had it once: then somebody came late, and may catch up.
    behind_s
        How long somebody has been behind, seconds.
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
