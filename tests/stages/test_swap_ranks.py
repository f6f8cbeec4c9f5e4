from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retuned.stages.swap import (
    MixedEpochs,
    Outcome,
    Phase,
    PhaseReason,
    Rank,
    RankState,
    SwapKind,
    decide,
    must_go_back,
    outcome_of,
)

ranks_at = st.lists(st.sampled_from(list(RankState)), max_size=6).map(
    lambda standings: [
        Rank(name=str(n), instance=f"i{n}", standing=standing)
        for n, standing in enumerate(standings)
    ]
)


def at(standing: RankState, name: str = "1", instance: str = "a") -> Rank:
    return Rank(name=name, instance=instance, standing=standing)


@given(ranks_at)
def test_a_swap_is_committed_only_where_every_rank_can_carry_it_out(ranks: list[Rank]) -> None:
    ready = {RankState.PREPARED, RankState.COMMITTED}
    decision = decide(SwapKind.SWAP, ranks, prepared={})
    assert (decision.phase is Phase.COMMIT) == (
        bool(ranks) and all(rank.standing in ready for rank in ranks)
    )
    assert (decision.phase is Phase.COMMIT) != bool(decision.ranks) or not ranks


@given(ranks_at, st.dictionaries(st.sampled_from("0123456789"), st.sampled_from(["i0", "i1"])))
def test_a_way_back_waits_for_nobody(ranks: list[Rank], prepared: dict[str, str]) -> None:
    assert decide(SwapKind.ROLLBACK, ranks, prepared=prepared).phase is Phase.COMMIT


@given(ranks_at, st.dictionaries(st.sampled_from("abc"), st.just("x"), min_size=1))
def test_a_rank_that_died_after_it_prepared_lets_nobody_commit(
    ranks: list[Rank], gone: dict[str, str]
) -> None:
    assert decide(SwapKind.SWAP, ranks, prepared=gone).phase is not Phase.COMMIT


@pytest.mark.parametrize(
    ("rank", "prepared", "phase", "reason"),
    [
        (at(RankState.PREPARED), {"1": "a"}, Phase.COMMIT, PhaseReason.ALL_PREPARED),
        (at(RankState.COMMITTED), {}, Phase.COMMIT, PhaseReason.CATCHING_UP),
        (at(RankState.PREPARED), {"1": "b"}, Phase.ABORT, PhaseReason.RANK_RESTARTED),
        (at(RankState.UNPREPARED), {}, Phase.WAIT, PhaseReason.RANK_JOINED),
        (at(RankState.SILENT, instance=""), {}, Phase.WAIT, PhaseReason.RANK_SILENT),
        (at(RankState.AHEAD), {"1": "a"}, Phase.WAIT, PhaseReason.RANK_AHEAD),
        (at(RankState.PREPARED), {"1": "a", "2": "b"}, Phase.ABORT, PhaseReason.RANK_LOST),
    ],
)
def test_each_way_of_standing_has_its_reason(
    rank: Rank, prepared: dict[str, str], phase: Phase, reason: PhaseReason
) -> None:
    decision = decide(SwapKind.SWAP, [rank], prepared=prepared)
    assert (decision.phase, decision.reason) == (phase, reason)


def test_nobody_there_is_waited_for() -> None:
    assert decide(SwapKind.SWAP, [], prepared={}).reason is PhaseReason.NO_RANK


@given(st.lists(st.booleans()))
def test_a_commit_is_partial_exactly_where_ranks_differ(has_it: list[bool]) -> None:
    assert (outcome_of(has_it) is Outcome.PARTIAL) == (len(set(has_it)) == 2)


def test_a_late_rank_may_catch_up_for_a_while_and_a_partial_commit_may_not() -> None:
    refuse, allow = MixedEpochs.REFUSE, MixedEpochs.ALLOW
    late = [
        must_go_back(refuse, was_complete=True, behind_s=s, catch_up_s=30.0) for s in (0, 29.9, 30)
    ]
    assert late == [False, False, True]
    assert must_go_back(refuse, was_complete=False, behind_s=0.0, catch_up_s=30.0)
    for complete in (True, False):
        assert not must_go_back(allow, was_complete=complete, behind_s=9e9, catch_up_s=30.0)
