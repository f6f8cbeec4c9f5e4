"""Canary replicas against control replicas: a live proof of what only a start can change. Pure.

    A/A pairs of boots -> pairs of boots, one with the swap and one without -> a verdict

The unit is the boot (`boots`). Pairs of boots start together; a coin, stored before the boots,
decides which of the two holds the swap. The fold has the form of `decide`:

    state = begin_replicas(settings, environment=environment, at_s=now)
    while not state.done:
        state = assign(state, ("pod-a", "pod-b"), coin=secrets.SystemRandom())  # store, then boot
        state = step_replicas(state, BootsMeasured(number, first, second, at_s=now))  # store

Everything that a pair is compared with is known before its coin: the normaliser is fitted on the
A/A boots alone, and the noise of a pair is that of earlier pairs. So if the swap changes nothing,
the sign of each difference is a coin, whatever boots are like.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pydantic import Field

from retuned.contract import Digest, Record
from retuned.stages.watch.proof.boots import (
    LEAST_PAIRS,
    BootPair,
    BootPlan,
    BootSettings,
    BootSpread,
    BootVoid,
    BootWindow,
    ReplicaReport,
    check_window,
    interval_of_boots,
    log_e_of_boots,
    normalised,
    spread_of,
)
from retuned.stages.watch.proof.design import Coin
from retuned.stages.watch.proof.evidence import FASTER, SLOWER, location
from retuned.stages.watch.proof.normaliser import FitRows, StepFit, fit
from retuned.stages.watch.proof.records import Arm, ArmSums, EvidenceLogs, ProofReason, Verdict
from retuned.stages.watch.proof.state import Interrupted, Tick

_LEAST_VISIBLE_PAIRS = 8
"""Fewer pairs show no effect of any size."""
_VISIBLE, _VISIBLE_FROM = 4.0, 1.66
_OF_FIVE = 1.19
"""Quantile of four in five proofs, 0.84, times the noise of a pair in boot spreads."""


class ShamBoots(Record):
    """One A/A pair that waits for the first fit."""

    plan: BootPlan
    first: BootWindow
    second: BootWindow


class ReplicaState(Record):
    """All that a proof by boots has to remember. Store it after each change."""

    settings: BootSettings = BootSettings()
    environment: Digest
    """What all boots of this proof run on."""
    began_s: float
    """Start of the proof, on a clock that continues over restarts, seconds."""
    planned: int = Field(default=0, ge=0)
    """Pairs planned so far."""
    open: tuple[BootPlan, ...] = ()
    """Pairs whose boots run."""
    sham: tuple[ShamBoots, ...] = ()
    """A/A pairs before the first fit."""
    fit: StepFit | None = None
    """Expected times, fitted on the A/A boots; None before they are complete."""
    fitted_s: float | None = None
    """When they were complete; None before."""
    pairs: tuple[BootPair, ...] = ()
    """All results in the order in which they came, A/A and void pairs included."""
    boots: tuple[str, ...] = ()
    """Starts that have been reported; none counts twice."""
    report: ReplicaReport | None = None
    """The result; None before."""

    @property
    def done(self) -> bool:
        return self.report is not None

    @property
    def spread(self) -> BootSpread | None:
        """The boot spread by the pairs until now; None before the A/A pairs are complete."""
        if self.fit is None:
            return None
        return spread_of(_values(self, sham=True), _values(self, sham=False))

    def counted(self, *, sham: bool) -> tuple[BootPair, ...]:
        """Return the pairs that count, of one kind."""
        return tuple(p for p in self.pairs if p.plan.sham is sham and p.void is None)


@dataclass(frozen=True, slots=True)
class BootsMeasured:
    """Both boots of a pair have reported their windows."""

    number: int
    first: BootWindow
    """Of the first replica of the plan."""
    second: BootWindow
    at_s: float


@dataclass(frozen=True, slots=True)
class BootsAbandoned:
    """A boot of a pair failed, was replaced, or does not report."""

    number: int
    at_s: float


ReplicaEvent = BootsMeasured | BootsAbandoned | Interrupted | Tick


def begin_replicas(
    settings: BootSettings | None = None, *, environment: Digest, at_s: float
) -> ReplicaState:
    """Return the state of a proof by boots that starts now; no boot holds the swap yet."""
    return ReplicaState(settings=settings or BootSettings(), environment=environment, began_s=at_s)


def wanted_pairs(state: ReplicaState) -> int:
    """Return how many further pairs may start now.

    After the last A/A pair has been assigned none starts until their results are there.

    Examples
    --------
    >>> wanted_pairs(begin_replicas(environment="sha256:" + 64 * "0", at_s=0.0))
    8
    """
    settings = state.settings
    if state.done:
        return 0
    have = len(state.sham) if state.fit is None else len(state.counted(sham=False))
    most = settings.sham_pairs if state.fit is None else settings.most_pairs
    return max(0, min(most - have, settings.open_pairs) - len(state.open))


def assign(state: ReplicaState, replicas: tuple[str, str], *, coin: Coin) -> ReplicaState:
    """Draw which of two replicas holds the swap; the result has it as the last of `open`.

    Store the result before either of them boots.

    Raises
    ------
    ValueError
        If no pair may start, or a replica has an open pair already.
    """
    if not wanted_pairs(state):
        raise ValueError("no further pair of boots may start now")
    busy = {name for plan in state.open for name in plan.replicas}
    if len(set(replicas)) < len(replicas) or busy & set(replicas):
        raise ValueError(f"replicas {' and '.join(replicas)} are not two free ones")
    plan = BootPlan(
        number=state.planned,
        sham=state.fit is None,
        replicas=replicas,
        first=Arm.ON if coin.getrandbits(1) else Arm.OFF,
    )
    return state.model_copy(update={"open": (*state.open, plan), "planned": state.planned + 1})


def step_replicas(state: ReplicaState, event: ReplicaEvent) -> ReplicaState:
    """Return the state after an event; a proof that is done does not change.

    Raises
    ------
    ValueError
        If a pair is reported that is not open, or a report has numbers that no boot has. The state
        is as before then: abandon the pair.
    """
    if state.done:
        return state
    match event:
        case Interrupted():
            return _end(state, Verdict.NOT_CONCLUDED, ProofReason.INTERRUPTED, at_s=event.at_s)
        case BootsAbandoned():
            state = _void(state, _open_plan(state, event.number), BootVoid.ABANDONED)
        case BootsMeasured():
            state = _measured(state, event)
        case Tick():
            pass
    late = event.at_s - state.began_s >= state.settings.max_duration_s
    return _out_of_boots(state, at_s=event.at_s) if late and not state.done else state


def _open_plan(state: ReplicaState, number: int) -> BootPlan:
    plan = next((each for each in state.open if each.number == number), None)
    if plan is None:
        raise ValueError(f"pair {number} is not open; its plan must be stored first")
    return plan


def _void(state: ReplicaState, plan: BootPlan, why: BootVoid) -> ReplicaState:
    pair = BootPair(plan=plan, void=why)
    return state.model_copy(
        update={
            "open": tuple(each for each in state.open if each.number != plan.number),
            "pairs": (*state.pairs, pair),
        }
    )


def _measured(state: ReplicaState, event: BootsMeasured) -> ReplicaState:
    plan, windows = _open_plan(state, event.number), (event.first, event.second)
    for window, replica in zip(windows, plan.replicas, strict=True):
        check_window(window)
        if window.replica != replica:
            raise ValueError(f"{window.replica} reports a boot of {replica}")
    starts = tuple(window.boot for window in windows)
    if len(set(starts)) < len(starts) or set(starts) & set(state.boots):
        raise ValueError(f"a boot of pair {plan.number} counts already")
    state = state.model_copy(update={"boots": (*state.boots, *starts)})
    why = _void_reason(state, plan, windows)
    if why is not None:
        return _void(state, plan, why)
    state = state.model_copy(
        update={"open": tuple(each for each in state.open if each.number != plan.number)}
    )
    if plan.sham:
        waiting = ShamBoots(plan=plan, first=event.first, second=event.second)
        state = state.model_copy(update={"sham": (*state.sham, waiting)})
        complete = len(state.sham) >= state.settings.sham_pairs
        return _end_sham(state, at_s=event.at_s) if complete else state
    return _judge(_with_pair(state, plan, windows), at_s=event.at_s)


def _void_reason(
    state: ReplicaState, plan: BootPlan, windows: tuple[BootWindow, BootWindow]
) -> BootVoid | None:
    """Return why a pair does not count. Times of steps do not decide."""
    settings = state.settings
    if any(window.sums.steps < settings.least_steps for window in windows):
        return BootVoid.FEW_STEPS
    if any(window.arm is not arm for window, arm in zip(windows, plan.runs, strict=True)):
        return BootVoid.MIXED_ARMS
    if any(window.environment != state.environment for window in windows):
        return BootVoid.ENVIRONMENTS_DIFFER
    if abs(windows[0].began_s - windows[1].began_s) > settings.together_s:
        return BootVoid.NOT_TOGETHER
    return None


def _end_sham(state: ReplicaState, *, at_s: float) -> ReplicaState:
    """Fit the normaliser on the A/A boots and measure how far they differ.

    Each pair is compared by a fit of the other pairs: a fit that includes its steps would remove a
    part of its difference.
    """
    shams = state.sham
    pairs = []
    for held in shams:
        others = fit(_rows_of([each for each in shams if each is not held]))
        pairs.append(_pair_of(held.plan, (held.first, held.second), others, scale=0.0))
    scale = spread_of([pair.d for pair in pairs if pair.d is not None]).scale
    measured = tuple(pair.model_copy(update={"scale": scale}) for pair in pairs)
    state = state.model_copy(
        update={
            "sham": (),
            "fit": fit(_rows_of(shams)),
            "fitted_s": at_s,
            "pairs": (*state.pairs, *measured),
        }
    )
    d = _values(state, sham=True)
    shown = max(log_e_of_boots(d, [scale] * len(d), m=0.0, side=side) for side in (FASTER, SLOWER))
    if shown >= state.settings.log_bound:
        return _end(state, Verdict.NOT_CONCLUDED, ProofReason.INSTRUMENT_BROKEN, at_s=at_s)
    return state


def _rows_of(shams: list[ShamBoots] | tuple[ShamBoots, ...]) -> FitRows:
    """Return steps of all these boots, of each the same share of what a fit uses."""
    windows = [window for each in shams for window in (each.first, each.second)]
    return FitRows(rows=tuple(row for window in windows for row in window.rows.rows))


def _with_pair(
    state: ReplicaState, plan: BootPlan, windows: tuple[BootWindow, BootWindow]
) -> ReplicaState:
    known_fit, spread = state.fit, state.spread
    assert known_fit is not None  # only A/A pairs are assigned before
    assert spread is not None
    pair = _pair_of(plan, windows, known_fit, scale=spread.scale)
    return state.model_copy(update={"pairs": (*state.pairs, pair)})


def _pair_of(
    plan: BootPlan, windows: tuple[BootWindow, BootWindow], known_fit: StepFit, *, scale: float
) -> BootPair:
    first, second = (normalised(window, known_fit) for window in windows)
    on, off = (first, second) if plan.first is Arm.ON else (second, first)
    return BootPair(
        plan=plan,
        d=_log_ratio(on) - _log_ratio(off),
        scale=scale,
        on=on,
        off=off,
        boots=tuple(window.boot for window in windows),
    )


def _log_ratio(sums: ArmSums) -> float:
    return math.log(sums.seconds / sums.expected_s)


def _judge(state: ReplicaState, *, at_s: float) -> ReplicaState:
    settings, spread = state.settings, state.spread
    assert spread is not None
    if _guardrail(state):
        return _end(state, Verdict.HARMS, ProofReason.SLOWER, at_s=at_s)
    count = len(state.counted(sham=False))
    if count < LEAST_PAIRS:
        return state
    bound, margin = settings.log_bound, max(settings.min_effect, spread.high)
    if _log_e(state, m=0.0, side=SLOWER) >= bound:
        return _end(state, Verdict.HARMS, ProofReason.SLOWER, at_s=at_s)
    if _log_e(state, m=0.0, side=FASTER) >= bound and _is_a_win(state, margin=margin):
        return _end(state, Verdict.HELPS, ProofReason.FASTER, at_s=at_s)
    within = (_log_e(state, m=-margin, side=SLOWER), _log_e(state, m=margin, side=FASTER))
    if min(within) >= bound:
        wide = margin > settings.min_effect
        reason = ProofReason.BOOT_SPREAD if wide else ProofReason.WITHIN_MARGIN
        return _end(state, Verdict.NO_MEASURABLE_EFFECT, reason, at_s=at_s)
    return _out_of_boots(state, at_s=at_s) if count >= settings.most_pairs else state


def _guardrail(state: ReplicaState) -> bool:
    """Return whether the last pairs show harm that boots of one configuration do not show."""
    settings = state.settings
    last = state.counted(sham=False)[-settings.harm_pairs :]
    limit = max(math.log1p(settings.max_harm), settings.harm_scales * _before(state))
    return len(last) == settings.harm_pairs and all((pair.d or 0.0) > limit for pair in last)


def _before(state: ReplicaState) -> float:
    """Return the upper end of a pair's noise, without the pairs that the guardrail looks at."""
    earlier = _values(state, sham=False)[: -state.settings.harm_pairs]
    return spread_of(_values(state, sham=True), earlier).high_scale


def _is_a_win(state: ReplicaState, *, margin: float) -> bool:
    """Return whether the measured gain exceeds the boot spread and the smallest effect.

    A restart alone can show a gain up to that size by chance. The plain mean must agree with the
    robust one.
    """
    d = _values(state, sham=False)
    effect = location(d, _scales(state))
    return max(effect, sum(d) / len(d)) <= -margin


def _out_of_boots(state: ReplicaState, *, at_s: float) -> ReplicaState:
    """End a proof that has no further pair or no further time."""
    little = Verdict.TOO_LITTLE_TRAFFIC
    if len(state.counted(sham=False)) < LEAST_PAIRS:
        return _end(state, little, ProofReason.FEW_BOOTS, at_s=at_s)
    if _log_e(state, m=0.0, side=FASTER) >= state.settings.log_bound:  # less than the spread
        return _end(state, Verdict.NO_MEASURABLE_EFFECT, ProofReason.BOOT_SPREAD, at_s=at_s)
    return _end(state, little, ProofReason.BOOT_SPREAD, at_s=at_s)


def _end(
    state: ReplicaState, verdict: Verdict, reason: ProofReason, *, at_s: float
) -> ReplicaState:
    for plan in state.open:
        state = _void(state, plan, BootVoid.ABANDONED)
    report = _report_of(state, verdict, reason, at_s=at_s)
    return state.model_copy(update={"sham": (), "report": report})


def _report_of(
    state: ReplicaState, verdict: Verdict, reason: ProofReason, *, at_s: float
) -> ReplicaReport:
    pairs, spread = state.counted(sham=False), state.spread
    effect = low = high = visible = None
    evidence = EvidenceLogs()
    if spread is not None:
        visible = visible_by_boots(spread, len(pairs))
    if pairs and spread is not None:
        d, scales = _values(state, sham=False), _scales(state)
        margin = max(state.settings.min_effect, spread.high)
        effect = location(d, scales)
        low, high = interval_of_boots(d, scales, log_bound=state.settings.log_bound)
        evidence = EvidenceLogs(
            faster=_log_e(state, m=0.0, side=FASTER),
            slower=_log_e(state, m=0.0, side=SLOWER),
            above_margin=_log_e(state, m=-margin, side=SLOWER),
            below_margin=_log_e(state, m=margin, side=FASTER),
        )
    void = sum(pair.void is not None and not pair.plan.sham for pair in state.pairs)
    since = state.fitted_s
    return ReplicaReport(
        verdict=verdict,
        reason=reason,
        effect=effect,
        low=low,
        high=high,
        visible=visible,
        pairs=len(pairs),
        void_pairs=void,
        seconds=0.0 if since is None else max(at_s - since, 0.0),
        exposed_s=sum(pair.on.wall_s for pair in pairs),
        evidence=evidence,
        spread=spread,
    )


def visible_by_boots(spread: BootSpread, pairs: int) -> float | None:
    """Return the least effect that so many pairs show in four of five proofs, log ratio.

    With few pairs the evidence is the limit, with many the boot spread, which the measured gain
    must exceed. None where so few pairs show no effect of any size. The first two factors are those
    of the simulations in ``benchmarks/live_proof_replicas.py``.
    """
    if pairs < _LEAST_VISIBLE_PAIRS:
        return None
    root = math.sqrt(pairs)
    shown = _VISIBLE * spread.sd / (root - _VISIBLE_FROM)
    return max(shown, spread.high + _OF_FIVE * spread.sd / root)


def _log_e(state: ReplicaState, *, m: float, side: int) -> float:
    return log_e_of_boots(_values(state, sham=False), _scales(state), m=m, side=side)


def _values(state: ReplicaState, *, sham: bool) -> list[float]:
    return [pair.d for pair in state.counted(sham=sham) if pair.d is not None]


def _scales(state: ReplicaState) -> list[float]:
    return [p.scale for p in state.counted(sham=False) if p.scale is not None]
