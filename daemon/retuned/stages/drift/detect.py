"""One window against what is known: novel? and if so, worth a retune?"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from retuned.stages.drift.adopt import adopt
from retuned.stages.drift.latency import LatencyShift, watch_latency
from retuned.stages.drift.records import DriftAction, DriftReport
from retuned.stages.drift.report import Evidence, report_of, unjudged
from retuned.stages.drift.settings import DriftSettings
from retuned.stages.drift.state import DetectorState, Reading, read
from retuned.stages.profile import Signature, WorkloadProfile, merge

_DAY_NS = 86_400 * 10**9
_PENDING_FACTOR = 4
_REMEMBERED = 8


def detect(
    profile: WorkloadProfile,
    *,
    state: DetectorState,
    settings: DriftSettings | None = None,
    gains: Mapping[Signature, float] | None = None,
) -> tuple[DriftReport, DetectorState]:
    """Judge one window and return the report and the state for the next.

    Stage one, novelty. (a) GPU time in signatures never seen exceeds ``new_share`` for
    ``new_windows`` windows in a row. (b) Distance d of the roll-up to the nearest library profile,
    as ``z = clip((d - location) / scale, -3, 8)``: its sum ``S = max(0, S + z - k)`` exceeds h, for
    slow shifts; or two z in a row exceed every pair of the baseline, for abrupt ones. (c) The
    environment's digest is another one.

    Stage two, worth. RETUNE if the uncovered share, averaged over the last roll-ups, reaches
    ``uncovered_share``, and what a retune would save over the fleet and horizon exceeds an
    experiment's cost, and neither cool-down nor the day's limit is against it; or if the
    environment changed. Else the mix is adopted: known from now on. Apart from all that, a hot
    signature whose median latency moved at a known mix is an ALARM.

    The CUSUM of (b) is calibrated to alarm once in ``run_length`` roll-ups of the baseline; the
    pairs of (b) are bounded by the baseline's own, which gives no rate. One odd window fires
    neither (a) nor (b). Rates measured on real weeks, where the budget was missed too, lie in
    ``benchmarks/results/drift.json``: what moves among known mixes, and slow ramps, mostly pass.

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
    none 0.0 The workload is one that is known.
    none 7.0 The workload may be leaving the known ones; one window alone
    retune 14.0 gemm at 256x64 rose from 26 % to 88 % of GPU time; gemm at 8
    none 7.0 The workload may be leaving the known ones; one window alone

    References
    ----------
    Page, "Continuous inspection schemes", Biometrika 1954 (CUSUM). Lin, "Divergence measures based
    on the Shannon entropy", IEEE Trans. Inf. Theory 1991 (Jensen-Shannon).
    """
    settings = settings or DriftSettings()
    if profile.gpu_time_ns <= 0:
        return unjudged(profile, "no-gpu-time"), state
    window = read(profile, state.library, settings)
    pending, rolled = _roll_up((*state.pending, profile), settings)
    judged = read(rolled, state.library, settings) if rolled else window
    state = state.model_copy(update={"pending": pending})
    evidence, state = _weigh(window, judged if rolled else None, state, settings, gains or {})
    if rolled is None and profile.launches < settings.new_launches:
        return unjudged(profile, "too-few-launches", evidence), state
    action = _decide(evidence, state, settings)
    report = report_of(evidence, action, state, profile.window_start_ns)
    return report, _after(evidence, action, state, settings)


def _roll_up(
    pending: tuple[WorkloadProfile, ...], settings: DriftSettings
) -> tuple[tuple[WorkloadProfile, ...], WorkloadProfile | None]:
    """Windows still waiting, and the roll-up if they make one.

    Windows that stay too thin for four roll-ups are given up: they say nothing about now.
    """
    enough = sum(p.launches for p in pending) >= settings.size_classes[0]
    if len(pending) >= settings.rollup_windows and enough:
        return (), pending[0] if len(pending) == 1 else merge(pending)
    return pending[-_PENDING_FACTOR * settings.rollup_windows :], None


def _weigh(
    window: Reading,
    rolled: Reading | None,
    state: DetectorState,
    settings: DriftSettings,
    gains: Mapping[Signature, float],
) -> tuple[Evidence, DetectorState]:
    """Update every statistic by one window."""
    profile = window.profile
    judged = rolled or window
    streak = state.new_windows
    if profile.launches >= settings.new_launches:
        streak = streak + 1 if window.new_share > state.new_share else 0
    cusum, score, mix_fired = state.cusum, state.score, False
    latencies = state.latencies
    shifts: tuple[LatencyShift, ...] = ()
    recent = (*state.uncovered, judged.uncovered)[-settings.uncovered_windows :]
    if rolled:
        cusum, score, mix_fired = _accumulate(rolled, state, settings)
        if not mix_fired and streak == 0:
            latencies, shifts = watch_latency(rolled, state.latencies, settings)
    evidence = Evidence(
        reading=judged,
        rolled=rolled is not None,
        new_share=window.new_share,
        new_fired=streak >= settings.new_windows,
        mix_fired=mix_fired,
        environment_fired=_moved(profile, state),
        shifts=shifts,
        cusum=cusum,
        uncovered=float(np.mean(recent)),
        saving=_saving(judged, state, settings, gains),
        end_ns=profile.window_start_ns + profile.window_ns,
    )
    update = {
        "new_windows": streak,
        "cusum": cusum,
        "score": score,
        "latencies": latencies,
        "uncovered": recent if rolled else state.uncovered,
    }
    return evidence, state.model_copy(update=update)


def _moved(profile: WorkloadProfile, state: DetectorState) -> bool:
    """Whether both environments are known, and this one was neither tuned for nor reported."""
    known = (state.environment, *state.flagged)
    return bool(profile.environment and state.environment) and profile.environment not in known


def _accumulate(
    rolled: Reading, state: DetectorState, settings: DriftSettings
) -> tuple[float, float, bool]:
    """CUSUM and score after this roll-up, and whether the mix is news."""
    launches = rolled.profile.launches
    fitting = [c for c in state.classes if c.launches <= launches] or [state.classes[0]]
    size = fitting[-1]
    score = (rolled.distance - size.location) / size.scale
    score = min(settings.score_high, max(settings.score_low, score))
    cusum = max(0.0, state.cusum + score - settings.slack)
    twice = min(score, state.score) > size.pair
    return cusum, score, cusum > size.threshold or twice


def _saving(
    reading: Reading,
    state: DetectorState,
    settings: DriftSettings,
    gains: Mapping[Signature, float],
) -> float:
    """Share of GPU time saved if every signature reached its expected gain.

    Where a gain is known it holds for all of the signature, else the prior for what is uncovered.
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
    """Stage two. Nothing here looks at what was novel, only at what it would be worth."""
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
    """State once the report is out."""
    update: dict[str, object] = {"novel": state.novel or evidence.novel}
    if evidence.environment_fired:
        flagged = (*state.flagged, evidence.reading.profile.environment)
        update["flagged"] = flagged[-_REMEMBERED:]
    if action is DriftAction.RETUNE:
        update |= {"cusum": 0.0, "score": 0.0, "new_windows": 0}
        update["retunes_ns"] = (*state.retunes_ns, evidence.end_ns)[-_REMEMBERED:]
    elif action is DriftAction.ALARM:
        update["alarm_ns"] = evidence.end_ns
    state = state.model_copy(update=update)
    if action is DriftAction.ADOPT:
        state = adopt(state, evidence.reading.profile, tuned=False, settings=settings)
    return state
