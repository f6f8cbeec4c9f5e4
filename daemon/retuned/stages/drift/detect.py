"""Detection of drift: whether a window is novel, and whether a retune pays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from retuned.stages.drift.adoption import adopt
from retuned.stages.drift.latency import LatencyShift, watch_latency
from retuned.stages.drift.records import DriftAction, DriftReport
from retuned.stages.drift.report import Evidence, report_of, unjudged
from retuned.stages.drift.settings import DriftSettings
from retuned.stages.drift.state import DetectorState, Reading, read
from retuned.stages.profile import Signature, WorkloadProfile, merge

_DAY_NS = 86_400 * 10**9
_PENDING_FACTOR = 4
_REMEMBERED = 8
_NO_SHIFTS: tuple[LatencyShift, ...] = ()


def detect(
    profile: WorkloadProfile,
    *,
    state: DetectorState,
    settings: DriftSettings | None = None,
    gains: Mapping[Signature, float] | None = None,
) -> tuple[DriftReport, DetectorState]:
    """Judge one window; return the report and the state for the next.

    Stage one, novelty. (a) Kernel time in signatures never seen exceeds ``new_share`` in
    ``new_windows`` of the last ``new_span`` windows. (b) Distance d of the roll-up that ends with
    the window to the nearest library profile, as ``z = clip((d - location) / scale, low, high)``:
    its sum ``S = max(0, S + z - k)`` over roll-ups without common windows exceeds h, for slow
    shifts; or two such z in a row exceed ``pair``, for abrupt ones. (c) The environment's digest
    changed.

    Stage two, worth. The action is RETUNE if all of these hold: the uncovered share, averaged over
    the last roll-ups, reaches ``uncovered_share``; the saving over the fleet and horizon exceeds an
    experiment's cost; cool-down and daily limit allow it. It is also RETUNE if the environment
    changed. Else the mix is adopted: it is known from now on. Separately, a hot signature whose
    median latency moved at a known mix is an ALARM.

    The CUSUM of (b) is calibrated on the baseline, see `learn`; the pairs are not. One odd window
    fires neither (a) nor (b). If the baseline was counted, a window whose launches were only
    sampled is not judged, unless counters stay away for ``uncounted_windows``. Rates measured on
    weeks and services that chose no setting are in ``benchmarks/results/drift.json``. A shift of
    kernel time among known mixes is usually not drift: in real traffic the next hour shifts too.

    Parameters
    ----------
    profile
        The newest window; windows must come in order.
    state
        From `learn`, the last `detect`, or `adopt`.
    settings
        As given to `learn`.
    gains
        Expected time before over time after by signature, where something is known.

    Examples
    --------
    >>> from retuned.stages.drift import DEMO_SETTINGS, learn
    >>> from retuned.stages.profile import SignatureStat
    >>> def window(start, small, large):
    ...     return WorkloadProfile(window_start_ns=start, window_ns=5, observed_ns=5, stats=tuple(
    ...         SignatureStat(signature=Signature(kernel="gemm", dims=((m, 64),)), launches=n,
    ...                       gpu_time_ns=n * m, median_ns=m)
    ...         for m, n in ((8, small), (256, large))))
    >>> state = learn([window(i, 900 + 9 * i, 9 + i % 2) for i in range(6)], settings=DEMO_SETTINGS)
    >>> for start, large in ((6, 10), (7, 200), (8, 200), (9, 200)):
    ...     report, state = detect(window(start, 900, large), state=state, settings=DEMO_SETTINGS)
    ...     print(report.action.value, round(report.cusum, 1), report.sentence[:60])
    none 0.0 The workload is a known one.
    none 1.5 The workload may be leaving known ones; one window is not en
    none 3.0 The workload may be leaving known ones; one window is not en
    retune 4.5 gemm at 256x64 rose from 26 % to 88 % of kernel time; gemm a

    References
    ----------
    Page, "Continuous inspection schemes", Biometrika 1954 (CUSUM). Lin, "Divergence measures based
    on the Shannon entropy", IEEE Trans. Inf. Theory 1991 (Jensen-Shannon).
    """
    settings = settings or DriftSettings()
    if profile.gpu_time_ns <= 0:
        return unjudged(profile, "no-gpu-time"), state
    if state.counted:
        row = 0 if profile.counted else state.uncounted + 1
        state = state.model_copy(update={"uncounted": row})
        if 0 < row <= settings.uncounted_windows:
            return unjudged(profile, "not-counted"), state
    span, state = _span((*state.pending, profile), state, settings)
    window = read(profile, state.library, settings)
    judged = read(span.profile, state.library, settings) if span else None
    evidence, state = _weigh(window, judged, span, state, settings, gains or {})
    if not evidence.rolled and profile.launches < settings.new_launches:
        return unjudged(profile, "too-few-launches", evidence), state
    action = _decide(evidence, state, settings)
    report = report_of(evidence, action, state, profile.window_start_ns)
    return report, _after(evidence, action, state, settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Span:
    """The windows on which the mix is judged."""

    profile: WorkloadProfile
    complete: bool
    """Whether they are a complete roll-up that shares no window with the one before."""
    regular: bool
    """Whether they are at least ``rollup_windows`` windows."""


def _span(
    together: tuple[WorkloadProfile, ...], state: DetectorState, settings: DriftSettings
) -> tuple[_Span | None, DetectorState]:
    """Find the roll-up that ends now, and consume its windows.

    A roll-up is complete with ``rollup_windows`` windows and enough launches. In between, the
    trailing windows count if they contain enough. Windows that stay too thin for four roll-ups are
    dropped: they no longer describe the present.
    """
    size, floor = settings.rollup_windows, settings.size_classes[0]
    if len(together) >= size and sum(p.launches for p in together) >= floor:
        regular = len(together) == size
        state = state.model_copy(
            update={"pending": (), "rolled": together if regular else ()},
        )
        return _Span(profile=_merged(together), complete=True, regular=regular), state
    kept = together[-_PENDING_FACTOR * size :]
    state = state.model_copy(update={"pending": kept})
    recent = (*state.rolled, *kept)[-size:]
    if len(recent) < size or sum(p.launches for p in recent) < floor:
        return None, state
    return _Span(profile=_merged(recent), complete=False, regular=True), state


def _merged(windows: Sequence[WorkloadProfile]) -> WorkloadProfile:
    return windows[0] if len(windows) == 1 else merge(windows)


def _weigh(
    window: Reading,
    judged: Reading | None,
    span: _Span | None,
    state: DetectorState,
    settings: DriftSettings,
    gains: Mapping[Signature, float],
) -> tuple[Evidence, DetectorState]:
    """Update every statistic by one window."""
    profile, reading = window.profile, judged or window
    fresh = state.new_recent
    if profile.launches >= settings.new_launches:
        fresh = (*fresh, window.new_share > state.new_share)[-settings.new_span :]
    update: dict[str, object] = {"new_recent": fresh}
    mix_fired, shifts = False, _NO_SHIFTS
    cusums = state.cusums
    if judged and span:
        cusums, scores, mix_fired = _accumulate(judged, span, state, settings)
        update |= {"cusums": cusums, "scores": scores}
    recent = (*state.uncovered, reading.uncovered)[-settings.uncovered_windows :]
    complete = span is not None and span.complete
    if complete:
        update["uncovered"] = recent
        if not mix_fired and not any(fresh[-1:]):
            update["latencies"], shifts = watch_latency(reading, state.latencies, settings)
    evidence = Evidence(
        reading=reading,
        rolled=complete,
        new_share=window.new_share,
        new_fired=sum(fresh) >= settings.new_windows and any(fresh[-1:]),
        mix_fired=mix_fired,
        environment_fired=_moved(profile, state),
        shifts=shifts,
        cusum=max(cusums, default=0.0),
        uncovered=float(np.mean(recent)),
        saving=_saving(reading, state, settings, gains),
        end_ns=profile.window_start_ns + profile.window_ns,
    )
    return evidence, state.model_copy(update=update)


def _moved(profile: WorkloadProfile, state: DetectorState) -> bool:
    """Whether both environments are known, and this one was neither tuned for nor reported."""
    known = (state.environment, *state.flagged)
    return bool(profile.environment and state.environment) and profile.environment not in known


def _accumulate(
    judged: Reading, span: _Span, state: DetectorState, settings: DriftSettings
) -> tuple[tuple[float, ...], tuple[float, ...], bool]:
    """CUSUMs and scores after this roll-up, and whether the mix is new.

    A roll-up ends at every window. Each sum and each pair takes only roll-ups that share no window
    with one another, so there are as many sums as windows in a roll-up. A longer roll-up, of thin
    windows, counts for all of them.
    """
    fitting = [c for c in state.classes if c.launches <= judged.profile.launches]
    size = fitting[-1] if fitting else state.classes[0]
    score = (judged.distance - size.location) / size.scale
    score = min(settings.score_high, max(settings.score_low, score))
    count = settings.rollup_windows
    cusums = state.cusums if len(state.cusums) == count else (0.0,) * count
    scores = state.scores if len(state.scores) == count else (settings.score_low,) * count
    before, previous = (cusums[0], scores[0]) if span.regular else (max(cusums), scores[-1])
    cusum = max(0.0, before + score - settings.slack)
    fired = cusum > size.threshold or min(score, previous) > size.pair
    if not span.regular:
        return (cusum,) * count, (score,) * count, fired
    return (*cusums[1:], cusum), (*scores[1:], score), fired


def _saving(
    reading: Reading,
    state: DetectorState,
    settings: DriftSettings,
    gains: Mapping[Signature, float],
) -> float:
    """Share of kernel time saved if every signature reached its expected gain.

    A known gain applies to the whole signature; the prior applies to the uncovered rest.
    """
    index, envelope = state.library.index, state.library.envelope
    total = max(1, sum(stat.gpu_time_ns for stat in reading.stats))
    saving = 0.0
    for stat in reading.stats:
        share = stat.gpu_time_ns / total
        gain = gains.get(stat.signature)
        if gain is None:
            covered = settings.covered_growth * envelope[index.get(stat.signature, -1)]
            share, gain = max(0.0, share - covered), settings.expected_gain_ratio
        saving += share * (1.0 - 1.0 / max(1.0, gain))
    return min(1.0, float(saving))


def _decide(evidence: Evidence, state: DetectorState, settings: DriftSettings) -> DriftAction:
    """Stage two: decide by worth only, without regard to what was novel."""
    if evidence.environment_fired:
        return DriftAction.RETUNE
    worth = (
        evidence.uncovered >= settings.uncovered_share
        and evidence.saving * settings.fleet_gpus * settings.horizon_s > settings.experiment_gpu_s
    )
    if worth and (evidence.novel or (state.novel and evidence.rolled)):
        return DriftAction.RETUNE if _may_retune(evidence, state, settings) else DriftAction.NONE
    if evidence.novel:
        return DriftAction.ADOPT
    calm = state.alarm_ns is None or evidence.end_ns - state.alarm_ns >= settings.cooldown_s * 1e9
    return DriftAction.ALARM if evidence.shifts and calm else DriftAction.NONE


def _may_retune(evidence: Evidence, state: DetectorState, settings: DriftSettings) -> bool:
    ages_ns = [evidence.end_ns - then for then in state.retunes_ns]
    today = sum(age < _DAY_NS for age in ages_ns)
    return today < settings.retunes_per_day and all(
        age >= settings.cooldown_s * 1e9 for age in ages_ns
    )


def _after(
    evidence: Evidence, action: DriftAction, state: DetectorState, settings: DriftSettings
) -> DetectorState:
    update: dict[str, object] = {"novel": state.novel or evidence.novel}
    if evidence.environment_fired:
        flagged = (*state.flagged, evidence.reading.profile.environment)
        update["flagged"] = flagged[-_REMEMBERED:]
    if action is DriftAction.RETUNE:
        update |= {"cusums": (), "scores": (), "new_recent": ()}
        update["retunes_ns"] = (*state.retunes_ns, evidence.end_ns)[-_REMEMBERED:]
    elif action is DriftAction.ALARM:
        update["alarm_ns"] = evidence.end_ns
    state = state.model_copy(update=update)
    if action is DriftAction.ADOPT:
        state = adopt(state, evidence.reading.profile, tuned=False, settings=settings)
    return state
