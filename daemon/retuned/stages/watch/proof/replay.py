"""The report of a node's proof, computed again from the pairs that the node reports. Pure."""

from __future__ import annotations

from retuned.stages.watch.proof.decide import (
    KINDS,
    by_time,
    ended,
    judge_long,
    judge_pilot,
    judge_sentinel,
    judge_short,
    with_bet,
)
from retuned.stages.watch.proof.design import result_of
from retuned.stages.watch.proof.evidence import scale_of
from retuned.stages.watch.proof.records import (
    Arm,
    PairKind,
    PairResult,
    ProofClaim,
    ProofReason,
    ProofReport,
    ProofSettings,
    Verdict,
    VoidReason,
)
from retuned.stages.watch.proof.report import next_scale
from retuned.stages.watch.proof.state import Phase, ProofState

_OF_THE_PILOT = (ProofReason.NOT_SWITCHABLE, ProofReason.INSTRUMENT_BROKEN)
_SHORTEST_S, _LONGEST_S = 1e-6, 1e6
"""Bounds of what a node may report of one block."""
_JUDGES = {
    Phase.SHORT: judge_short,
    Phase.LONG: judge_long,
    Phase.SENTINEL: judge_sentinel,
}
_SHORTEST_TURNS_S = 0.25
"""A node looks so often whether the turns of a pair are over, seconds."""
_SPARE_PAIRS = 200
"""Pairs that restarts may have cut short."""


def replay(claim: ProofClaim, settings: ProofSettings) -> ProofReport:
    """Return the report that follows from a node's pairs: the same bets on the same differences.

    The sums of each block are the node's word. Differences, scales, capitals and the verdict are
    computed again from them. Times of the kernel in place are in the account, and in nothing else.

    Parameters
    ----------
    claim
        What the node reports; untrusted.
    settings
        Settings under which the node was asked to prove.

    Raises
    ------
    ValueError
        If the claim does not follow from its pairs, with what contradicts it.
    """
    return _report_of(replayed(claim, settings))


def replayed(claim: ProofClaim, settings: ProofSettings) -> ProofState:
    """Return the finished proof that follows from a node's pairs; see `replay`.

    Raises
    ------
    ValueError
        As `replay`.
    """
    _check(claim, settings)
    return _of_pairs(_pilot_of(claim, settings), claim)


def replay_day(claim: ProofClaim, settings: ProofSettings) -> ProofReport:
    """Return the report that follows from a node's pairs of one day of a sentinel.

    The sham pairs are those of the proof that let the swap stay; their pilot is over.

    Parameters
    ----------
    claim
        What the node reports; untrusted.
    settings
        Settings of a day under which the node was asked to measure.

    Raises
    ------
    ValueError
        As `replay`.
    """
    _check(claim, settings)
    state = _shams_of(claim, settings)
    count = len(state.of(PairKind.SHAM))
    if count < settings.least_pilot_pairs:
        raise ValueError(f"it has {count} sham pairs")
    update = {"phase": Phase.SENTINEL, "pilot_ended_s": 0.0}
    return _report_of(_of_pairs(state.model_copy(update=update), claim))


def _report_of(state: ProofState) -> ProofReport:
    assert state.report is not None, "a proof that is done has one"
    return state.report


def _of_pairs(state: ProofState, claim: ProofClaim) -> ProofState:
    """Return the finished state after the pairs of a claim that are not sham."""
    for pair in (each for each in claim.pairs if not each.sham):
        if state.done:
            raise ValueError(f"pair {pair.number} comes after a verdict")
        state = _replayed(state, pair)
    if not state.done:
        state = _ended_otherwise(state, claim)
    report = _report_of(state)
    if (report.verdict, report.reason) != (claim.verdict, claim.reason):
        raise ValueError(
            f"its pairs lead to {report.verdict} ({report.reason}), not to {claim.verdict} "
            f"({claim.reason})"
        )
    report = report.model_copy(update={"seconds": claim.seconds})
    return state.model_copy(update={"report": report})


def _check(claim: ProofClaim, settings: ProofSettings) -> None:
    """Refuse pairs that no proof has, before anything is computed from them."""
    numbers = [pair.number for pair in claim.pairs]
    if numbers != sorted(set(numbers)):
        raise ValueError("its pairs are not in order")
    pair_s = _SHORTEST_TURNS_S if settings.turn_steps else 2.0 * settings.block_s
    most = settings.max_duration_s / pair_s + _SPARE_PAIRS
    most += settings.long_within_s / (2.0 * settings.long_block_s)
    if len(numbers) > most:
        raise ValueError(f"it has {len(numbers)} pairs, more than its time allows")
    for pair in claim.pairs:
        for sums in (pair.on, pair.off):
            values = [sums.wall_s, sums.host_s or 0.0, sums.steps, sums.slow, sums.huge]
            if not all(0.0 <= each <= _LONGEST_S for each in values):
                raise ValueError(f"pair {pair.number} has numbers that no block has")


def _pilot_of(claim: ProofClaim, settings: ProofSettings) -> ProofState:
    """Return the state after the pilot of a claim."""
    state = _shams_of(claim, settings)
    count = len(state.of(PairKind.SHAM))
    shams = len(state.pairs)
    if count >= settings.least_pilot_pairs:
        state = state.model_copy(update={"phase": Phase.SHORT, "pilot_ended_s": 0.0})
        complete = count >= settings.pilot_pairs or len(claim.pairs) > shams
        complete = complete or claim.reason in _OF_THE_PILOT
        return judge_pilot(state, at_s=0.0) if complete else state
    if len(claim.pairs) > shams:
        raise ValueError(f"its pilot has {count} pairs")
    return state


def _shams_of(claim: ProofClaim, settings: ProofSettings) -> ProofState:
    """Return the state with the sham pairs of a claim alone."""
    shams = [
        _void(pair) if pair.void else _again(pair, scale=0.0) for pair in claim.pairs if pair.sham
    ]
    scale = scale_of([pair.d for pair in shams if pair.d is not None], ())
    pairs = tuple(pair if pair.void else pair.model_copy(update={"scale": scale}) for pair in shams)
    return ProofState(
        settings=settings,
        began_s=0.0,
        pairs=pairs,
        pilot_huge=claim.pilot_huge,
        kernels=claim.kernels,
    )


def _replayed(state: ProofState, pair: PairResult) -> ProofState:
    if pair.void is not None:
        return state.model_copy(update={"pairs": (*state.pairs, _void(pair))})
    if state.phase not in _JUDGES or pair.kind is not KINDS[state.phase]:
        raise ValueError(f"pair {pair.number} is {pair.kind} in the {state.phase} phase")
    if min(pair.on.steps, pair.off.steps) < state.settings.least_counted:
        raise ValueError(f"pair {pair.number} has too few steps")
    result = _again(pair, scale=next_scale(state))
    state = with_bet(state.model_copy(update={"pairs": (*state.pairs, result)}), result)
    return _JUDGES[state.phase](state, at_s=0.0)


def _void(pair: PairResult) -> PairResult:
    """Return a void pair without the numbers that its node may have added."""
    return pair.model_copy(update={"d": None, "scale": None, "d_busy": None})


def _again(pair: PairResult, *, scale: float) -> PairResult:
    """Return a pair with its differences computed from its sums."""
    for sums in (pair.on, pair.off):
        times = [sums.seconds, sums.expected_s, *([] if sums.busy_s is None else [sums.busy_s])]
        times.append(sums.seconds - sums.excess_s)
        if sums.excess_s < 0.0 or not all(_SHORTEST_S <= each <= _LONGEST_S for each in times):
            raise ValueError(f"pair {pair.number} has times that no block has")
    first, second = (pair.on, pair.off) if pair.first is Arm.ON else (pair.off, pair.on)
    return result_of(pair, first, second, scale=scale)


_OF_THE_SERVER = (
    (Verdict.NOT_CONCLUDED, ProofReason.INTERRUPTED),
    (Verdict.HARMS, ProofReason.ERRORS),  # the server took the swap back, and reports that, too
)


def _ended_otherwise(state: ProofState, claim: ProofClaim) -> ProofState:
    """End a replayed proof that its pairs do not end, by the cause that its node names."""
    end = (claim.verdict, claim.reason)
    if end in _OF_THE_SERVER:
        return ended(state, *end, at_s=0.0)
    if end == (Verdict.TOO_LITTLE_TRAFFIC, ProofReason.SLO_PRESSURE):
        # each pause has cut a pair short
        cut = sum(pair.void is VoidReason.ABANDONED for pair in state.pairs)
        if cut < state.settings.max_pauses:
            raise ValueError(f"{cut} of its pairs were cut short, too few for its pauses")
        return ended(state, *end, at_s=0.0)
    settings = state.settings
    long = state.phase is Phase.LONG
    return by_time(state, at_s=settings.long_within_s if long else settings.max_duration_s)
