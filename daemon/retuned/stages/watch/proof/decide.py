"""The fold of a proof: state and event to the next state. Pure.

    pilot -> short pairs -> harms | no-measurable-effect | too-little-traffic
                         -> helps, not final -> long pairs -> helps | harms | no-measurable-effect
    kept swap -> short pairs, as above | sentinel pairs of a day -> any verdict

A guardrail, an interruption or the end of the time ends any of them. Each verdict but `helps` turns
the swap off.
"""

from __future__ import annotations

import math

from retuned.stages.watch.proof.design import (
    Coin,
    block_length_s,
    counted,
    huge_steps,
    measure,
    plan_pair,
    result_of,
    void_reason,
)
from retuned.stages.watch.proof.evidence import (
    FASTER,
    SLOWER,
    interval,
    location,
    log_e,
    scale_of,
    visible_effect,
)
from retuned.stages.watch.proof.normaliser import (
    REFITS,
    FeatureSums,
    FitRows,
    StepFit,
    fit,
    sums_of,
)
from retuned.stages.watch.proof.records import (
    ArmSums,
    PairKind,
    PairResult,
    ProofReason,
    ProofSettings,
    StepColumns,
    Verdict,
    VoidReason,
)
from retuned.stages.watch.proof.report import (
    next_scale,
    report_of,
    scales_of,
    total_effect,
    values,
)
from retuned.stages.watch.proof.state import (
    Event,
    Interrupted,
    KernelsMeasured,
    PairAbandoned,
    PairMeasured,
    Phase,
    PilotPair,
    ProofState,
    ServiceLevel,
    Vetoed,
)

KINDS = {
    Phase.PILOT: PairKind.SHAM,
    Phase.SHORT: PairKind.SHORT,
    Phase.LONG: PairKind.LONG,
    Phase.SENTINEL: PairKind.LONG,
}
"""Pairs of each phase."""
_LEAST_PAIRS = 30
_HUGE_STEPS = 2
_HUGE_MARGIN = math.log(10.0)


def begin(
    settings: ProofSettings | None = None, *, at_s: float, toggle_s: float = 0.0
) -> ProofState:
    """Return the state of a proof that starts now, with the swap off."""
    return ProofState(settings=settings or ProofSettings(), began_s=at_s, toggle_s=toggle_s)


def begin_again(
    earlier: ProofState | None,
    settings: ProofSettings,
    *,
    at_s: float,
    sentinel: bool = False,
) -> ProofState:
    """Return the state of another proof of a swap that has had one.

    It uses the fit and the sham pairs of the earlier proof, so that it needs no pilot: both are
    known before its first pair. Without them it begins with a pilot.

    Parameters
    ----------
    earlier
        The last proof of this swap in this server; None without one.
    settings
        Of the new proof.
    at_s
        Now, on the clock of `ProofState.began_s`.
    sentinel
        Whether it is a day of a sentinel instead of short pairs.

    Examples
    --------
    >>> str(begin_again(None, ProofSettings(), at_s=0.0).phase)
    'pilot'
    """
    if earlier is None or earlier.fit is None:
        return begin(settings, at_s=at_s)
    sham = tuple(earlier.of(PairKind.SHAM))
    return ProofState(
        settings=settings,
        began_s=at_s,
        toggle_s=earlier.toggle_s,
        phase=Phase.SENTINEL if sentinel else Phase.SHORT,
        planned=max((pair.number for pair in sham), default=-1) + 1,
        pilot_huge=earlier.pilot_huge,
        pace=earlier.pace,
        pilot_ended_s=at_s,
        fit=earlier.fit,
        pairs=sham,
    )


def next_pair(state: ProofState, coin: Coin) -> ProofState:
    """Draw the next pair; the result has it as `plan`. Store the result before the first block.

    Raises
    ------
    ValueError
        If the proof is done or paused, or a pair runs.
    """
    if state.done or state.paused or state.plan is not None:
        raise ValueError("a pair is planned only between pairs of a proof that runs")
    plan = plan_pair(
        state.planned,
        KINDS[state.phase],
        settings=state.settings,
        toggle_s=state.toggle_s,
        coin=coin,
    )
    return state.model_copy(update={"plan": plan, "planned": state.planned + 1})


def step(state: ProofState, event: Event) -> ProofState:
    """Return the state after an event; a proof that is done does not change.

    Raises
    ------
    ValueError
        If a pair is reported that is not the planned one.
    """
    if state.done:
        return state
    match event:
        case Interrupted():
            return ended(state, Verdict.NOT_CONCLUDED, ProofReason.INTERRUPTED, at_s=event.at_s)
        case Vetoed():
            return ended(state, Verdict.HARMS, event.reason, at_s=event.at_s)
        case KernelsMeasured():
            return state.model_copy(update={"kernels": event.kernels})
        case ServiceLevel():
            state = _service_level(state, event)
        case PairAbandoned():
            _check_number(state, event.number)
            state = _abandon(state)
        case PairMeasured():
            _check_number(state, event.number)
            state = _pair(state, event)
    return state if state.done else by_time(state, at_s=event.at_s)


def _check_number(state: ProofState, number: int) -> None:
    if state.plan is None or state.plan.number != number:
        raise ValueError(f"pair {number} is not the planned one; its plan must be stored first")


def _abandon(state: ProofState) -> ProofState:
    """Make the running pair void, if there is one."""
    plan = state.plan
    if plan is None:
        return state
    void = PairResult(
        number=plan.number, kind=plan.kind, first=plan.first, void=VoidReason.ABANDONED
    )
    return state.model_copy(update={"plan": None, "pairs": (*state.pairs, void)})


def _service_level(state: ProofState, event: ServiceLevel) -> ProofState:
    """Pause at a breach, and continue after service levels were met for long enough."""
    if not event.met and not state.paused:
        state = _abandon(state).model_copy(
            update={"paused": True, "pauses": state.pauses + 1, "met_since_s": None}
        )
        if state.pauses >= state.settings.max_pauses:
            traffic, reason = Verdict.TOO_LITTLE_TRAFFIC, ProofReason.SLO_PRESSURE
            return ended(state, traffic, reason, at_s=event.at_s)
        return state
    if not state.paused:
        return state
    if not event.met:
        return state.model_copy(update={"met_since_s": None})
    since = event.at_s if state.met_since_s is None else state.met_since_s
    clear = event.at_s - since >= state.settings.slo_clear_s
    return state.model_copy(update={"paused": not clear, "met_since_s": None if clear else since})


def _pair(state: ProofState, event: PairMeasured) -> ProofState:
    plan, known_fit = state.plan, state.fit
    assert plan is not None  # _check_number
    first, second = (counted(block, plan, settings=state.settings) for block in event.blocks)
    kept = first, second
    if state.phase is Phase.PILOT:
        return _pilot_pair(state, event, kept)
    assert known_fit is not None  # the pilot ended
    result = measure(
        plan,
        event.blocks,
        kept,
        fit=known_fit,
        scale=next_scale(state),
        settings=state.settings,
    )
    state = state.model_copy(update={"plan": None, "pairs": (*state.pairs, result)})
    if result.void is not None:
        return state
    state = _refit(with_bet(state, result), kept)
    judge = {Phase.SHORT: judge_short, Phase.LONG: judge_long, Phase.SENTINEL: judge_sentinel}
    return judge[state.phase](state, at_s=event.at_s)


def with_bet(state: ProofState, pair: PairResult) -> ProofState:
    """Return the state with the bets on a pair that counts."""
    assert pair.d is not None  # not void
    assert pair.scale is not None
    capitals = state.capitals.after_slow_steps(on=pair.on.slow, off=pair.off.slow)
    if pair.kind is PairKind.LONG:
        capitals = capitals.after_long(pair.d, scale=pair.scale)
    else:
        margin = state.settings.min_effect
        capitals = capitals.after_short(pair.d, scale=pair.scale, margin=margin)
    if pair.d_busy is not None:
        capitals = capitals.after_busy(pair.d_busy, scale=pair.scale)
    return state.model_copy(update={"capitals": capitals})


def _refit(state: ProofState, kept: tuple[StepColumns, StepColumns]) -> ProofState:
    """Keep steps of the pair, and fit again if it is time: for later pairs only."""
    count = len(state.of(PairKind.SHORT)) + len(state.of(PairKind.LONG))
    if count > REFITS[-1]:
        return state
    rows = state.rows.extend(kept[0]).extend(kept[1])
    if count not in REFITS:
        return state.model_copy(update={"rows": rows})
    left = rows if count < REFITS[-1] else FitRows()
    return state.model_copy(update={"rows": left, "fit": fit(rows)})


def _pilot_pair(
    state: ProofState, event: PairMeasured, kept: tuple[StepColumns, StepColumns]
) -> ProofState:
    plan = state.plan
    assert plan is not None  # _check_number
    blocks = (event.first, event.second)
    void = void_reason(plan, kept, settings=state.settings)
    if void is not None:
        result = PairResult(number=plan.number, kind=plan.kind, first=plan.first, void=void)
        return state.model_copy(update={"plan": None, "pairs": (*state.pairs, result)})
    first, second = (
        sums_of(steps, wall_s=block.wall_s) for steps, block in zip(kept, blocks, strict=True)
    )
    state = state.model_copy(
        update={
            "plan": None,
            "pilot": (*state.pilot, PilotPair(plan=plan, first=first, second=second)),
            "rows": state.rows.extend(kept[0]).extend(kept[1]),
            "pace": state.pace.after(kept[0]).after(kept[1]),
            "pilot_huge": state.pilot_huge + sum(map(huge_steps, kept)),
        }
    )
    return _end_pilot_if_complete(state, at_s=event.at_s)


def _end_pilot_if_complete(state: ProofState, *, at_s: float) -> ProofState:
    settings, count = state.settings, len(state.pilot)
    late = at_s - state.began_s >= settings.max_duration_s / 3.0
    enough = count >= settings.pilot_pairs or (late and count >= settings.least_pilot_pairs)
    return _end_pilot(state, at_s=at_s) if enough else state


def _end_pilot(state: ProofState, *, at_s: float) -> ProofState:
    """Begin with short pairs, unless the sham pairs show an effect or too much noise."""
    state = _settle_pilot(state)
    d = values(state.of(PairKind.SHAM))
    block_s = block_length_s(state.settings, toggle_s=state.toggle_s)
    left_s = state.settings.max_duration_s - (at_s - state.began_s)
    state = state.model_copy(
        update={
            "phase": Phase.SHORT,
            "pilot_ended_s": at_s,
            "forecast": visible_effect(scale_of(d, ()), left_s / (2.0 * block_s)),
        }
    )
    return judge_pilot(state, at_s=at_s)


def judge_pilot(state: ProofState, *, at_s: float) -> ProofState:
    """End a proof whose sham pairs have too much noise or show an effect."""
    d = values(state.of(PairKind.SHAM))
    scale = scale_of(d, ())
    if scale > state.settings.max_scale:
        return ended(state, Verdict.NOT_CONCLUDED, ProofReason.NOT_SWITCHABLE, at_s=at_s)
    scales = [scale] * len(d)
    sham = max(log_e(d, scales, m=0.0, side=side) for side in (FASTER, SLOWER))
    if sham >= state.settings.log_bound:
        return ended(state, Verdict.NOT_CONCLUDED, ProofReason.INSTRUMENT_BROKEN, at_s=at_s)
    return state


def _settle_pilot(state: ProofState) -> ProofState:
    """Fit the expected times, and compute the differences of the sham pairs.

    The labels of sham pairs are coins that nothing depends on, so that a fit and a scale of the
    same pairs keep their signs fair.
    """
    first_fit = fit(state.rows)
    shams = [_sham(pair, first_fit) for pair in state.pilot]
    scale = scale_of(values(shams), ())
    shams = [pair.model_copy(update={"scale": scale}) for pair in shams]
    pairs = tuple(sorted((*state.pairs, *shams), key=lambda pair: pair.number))
    return state.model_copy(update={"pilot": (), "pairs": pairs, "fit": first_fit})


def _sham(pair: PilotPair, known_fit: StepFit) -> PairResult:
    def sums(block: FeatureSums) -> ArmSums:
        return ArmSums(
            steps=block.steps,
            seconds=block.seconds,
            expected_s=known_fit.expected_of_sums(block),
            wall_s=block.wall_s,
        )

    return result_of(pair.plan, sums(pair.first), sums(pair.second), scale=0.0)


def judge_short(state: ProofState, *, at_s: float) -> ProofState:
    """End a proof that its short pairs decide, or begin its long pairs."""
    bound, capitals = state.settings.log_bound, state.capitals
    harm = _guardrail(state, PairKind.SHORT)
    if harm is None and state.settings.ask == "ceiling":
        return _judge_ceiling(state, at_s=at_s)
    if harm is None and capitals.slower.log_e >= bound:
        harm = ProofReason.SLOWER
    if harm is not None:
        return ended(state, Verdict.HARMS, harm, at_s=at_s)
    if capitals.faster.log_e >= bound:
        return _provisional(state, at_s=at_s)
    if min(capitals.above_margin.log_e, capitals.below_margin.log_e) >= bound:
        none, reason = Verdict.NO_MEASURABLE_EFFECT, ProofReason.WITHIN_MARGIN
        return ended(state, none, reason, at_s=at_s)
    return state


def _judge_ceiling(state: ProofState, *, at_s: float) -> ProofState:
    """Return the state after a pair where only one question counts: below `min_effect` or not."""
    settings, pairs = state.settings, state.of(PairKind.SHORT)
    if state.capitals.below_margin.log_e >= settings.log_bound:
        none, reason = Verdict.NO_MEASURABLE_EFFECT, ProofReason.WITHIN_MARGIN
        return ended(state, none, reason, at_s=at_s)
    above = log_e(values(pairs), scales_of(pairs), m=settings.min_effect, side=SLOWER)
    if above >= settings.log_bound:
        return ended(state, Verdict.HARMS, ProofReason.SLOWER, at_s=at_s)
    return state


def _guardrail(state: ProofState, kind: PairKind) -> ProofReason | None:
    """Return the reason to stop before a proof."""
    pairs, settings = state.of(kind), state.settings
    last = pairs[-settings.harm_pairs :]
    limit = settings.log_max_harm
    if len(last) == settings.harm_pairs and all(
        (pair.d or 0.0) > max(limit, 2.0 * (pair.scale or 0.0)) for pair in last
    ):
        return ProofReason.SLOWER
    if state.capitals.slow_steps.log_e >= settings.log_bound or _huge_steps(state):
        return ProofReason.SLOW_STEPS
    return None


def _huge_steps(state: ProofState) -> bool:
    """Return whether huge steps came with the swap only, and more often than by chance.

    A server without a swap has huge steps too. If each fell into a block by chance, all of them
    would fall into blocks with the swap with a probability of its share to the power of their
    number. A pilot with a huge step shows that the server has them: its time does not count then.
    """
    real = [pair for pair in state.pairs if pair.void is None and not pair.sham]
    huge = sum(pair.on.huge for pair in real)
    if huge < _HUGE_STEPS or any(pair.off.huge for pair in real):
        return False
    on = sum(pair.on.seconds for pair in real)
    known = real if state.pilot_huge else [pair for pair in state.pairs if pair.void is None]
    total = sum(pair.on.seconds + pair.off.seconds for pair in known)
    return huge * math.log(total / on) >= state.settings.log_bound + _HUGE_MARGIN


def _provisional(state: ProofState, *, at_s: float) -> ProofState:
    if not state.settings.long_blocks:
        if total_effect(state.of(PairKind.SHORT)) >= 0.0:
            return state  # slow steps use up the gain so far
        return ended(state, Verdict.HELPS, ProofReason.FASTER, at_s=at_s)
    report = report_of(state, Verdict.HELPS, ProofReason.FASTER, at_s=at_s)
    return state.model_copy(
        update={
            "phase": Phase.LONG,
            "long_began_s": at_s,
            "report": report.model_copy(update={"final": False}),
        }
    )


def judge_long(state: ProofState, *, at_s: float) -> ProofState:
    """Withdraw `helps` if long blocks show harm, and make it final after the last of them."""
    state = judge_sentinel(state, at_s=at_s)
    if state.done:
        return state
    pairs = state.of(PairKind.LONG)
    if len(pairs) < state.settings.long_blocks:
        return state
    if total_effect(pairs) >= 0.0:  # the middle of the pairs is faster, their sum is not
        none, reason = Verdict.NO_MEASURABLE_EFFECT, ProofReason.SLOW_STEPS
        return ended(state, none, reason, at_s=at_s)
    short = state.of(PairKind.SHORT)
    at = location(values(short), scales_of(short))
    bound = state.settings.log_bound
    low, high = interval(values(pairs), scales_of(pairs), log_bound=bound)
    outside = (low is not None and at < low) or (high is not None and at > high)
    reason = ProofReason.CARRY_OVER if outside else ProofReason.FASTER
    return ended(state, Verdict.HELPS, reason, at_s=at_s)


def judge_sentinel(state: ProofState, *, at_s: float) -> ProofState:
    """End the proof if long blocks show harm."""
    harm = _guardrail(state, PairKind.LONG)
    if harm is None and state.capitals.long_slower.log_e >= state.settings.log_bound:
        harm = ProofReason.SLOWER
    return state if harm is None else ended(state, Verdict.HARMS, harm, at_s=at_s)


def by_time(state: ProofState, *, at_s: float) -> ProofState:
    """End a proof whose time is over."""
    settings = state.settings
    if state.phase is Phase.LONG:
        began = state.began_s if state.long_began_s is None else state.long_began_s
        if at_s - began < settings.long_within_s:
            return state
        state = ended(state, Verdict.HELPS, ProofReason.FEW_STEPS, at_s=at_s)
        report = state.report
        assert report is not None  # ended wrote it
        return state.model_copy(update={"report": report.model_copy(update={"final": False})})
    if at_s - state.began_s < settings.max_duration_s:
        return state
    if state.phase is Phase.SENTINEL and state.capitals.long_faster.log_e >= settings.log_bound:
        return ended(state, Verdict.HELPS, ProofReason.FASTER, at_s=at_s)
    if state.pilot:  # what its pairs could have shown is a part of the report
        state = _settle_pilot(state)
    report = report_of(state, Verdict.TOO_LITTLE_TRAFFIC, ProofReason.NOISE, at_s=at_s)
    margin = 2.0 * settings.min_effect
    low = -math.inf if report.low is None else report.low
    high = math.inf if report.high is None else report.high
    if -margin <= low and high <= margin:
        none, reason = Verdict.NO_MEASURABLE_EFFECT, ProofReason.NOT_SHOWN_IN_TIME
        return ended(state, none, reason, at_s=at_s)
    few = report.pairs < _LEAST_PAIRS or report.void_pairs > report.pairs
    reason = ProofReason.FEW_STEPS if few else ProofReason.NOISE
    return ended(state, Verdict.TOO_LITTLE_TRAFFIC, reason, at_s=at_s)


def ended(state: ProofState, verdict: Verdict, reason: ProofReason, *, at_s: float) -> ProofState:
    """Return the state with its last report."""
    state = _abandon(state)
    report = report_of(state, verdict, reason, at_s=at_s)
    return state.model_copy(
        update={"phase": Phase.DONE, "report": report, "rows": FitRows(), "pilot": ()}
    )
