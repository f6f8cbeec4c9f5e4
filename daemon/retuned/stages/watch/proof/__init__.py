"""Live proof: a randomised trial of a swap on the server's own traffic. Pure.

The server runs pairs of short blocks of whole steps, one with the swap on and one with it off, in
the order of a coin. `decide` is the fold from events to a verdict; an adapter toggles the slot,
records steps and stores the state.

    state = begin(settings, at_s=now)
    while not state.done:
        state = next_pair(state, secrets.SystemRandom())   # store it, then run state.plan.runs
        state = step(state, PairMeasured(state.plan.number, first, second, at_s=now))  # store it
    consequence(state.report, settings)

A control plane that hears of a verdict computes it again from the pairs: `replay`.

`normaliser` fits what a step should take, `design` computes the difference of a pair, `evidence`
the E-values, `account` where the time of a step went, `calibration` claims against results.
Where nothing can be switched, `replicas` compares boots of canary and control replicas; `boots`
measures one boot.
"""

from retuned.stages.watch.proof.account import (
    LEAST_STEPS,
    Forecast,
    ForecastReason,
    Pace,
    Prediction,
    forecast,
    predict,
    settle_account,
)
from retuned.stages.watch.proof.boots import (
    BootPair,
    BootPlan,
    BootSettings,
    BootSpread,
    BootVoid,
    BootWindow,
    ReplicaReport,
    boot_settings_of,
    check_window,
    spread_of,
    window_of,
)
from retuned.stages.watch.proof.calibration import Calibration, EffectInterval, calibrate
from retuned.stages.watch.proof.course import CoursePoint, course
from retuned.stages.watch.proof.decide import begin, begin_again, next_pair, step
from retuned.stages.watch.proof.design import Coin, MeasuredBlock, block_is_over, block_length_s
from retuned.stages.watch.proof.kernels import kernel_times
from retuned.stages.watch.proof.records import (
    Arm,
    ArmLaunches,
    ArmSums,
    EvidenceLogs,
    KernelTime,
    PairKind,
    PairPlan,
    PairResult,
    ProofClaim,
    ProofReason,
    ProofReport,
    ProofSettings,
    StepAccount,
    StepColumns,
    StepRecord,
    Verdict,
    VoidReason,
    columns_of,
    joined,
    percent_of,
    settings_of,
)
from retuned.stages.watch.proof.replay import replay, replay_day, replayed
from retuned.stages.watch.proof.replicas import (
    BootsAbandoned,
    BootsMeasured,
    ReplicaEvent,
    ReplicaState,
    assign,
    begin_replicas,
    step_replicas,
    visible_by_boots,
    wanted_pairs,
)
from retuned.stages.watch.proof.report import (
    Consequence,
    consequence,
    effect_so_far,
    keeps,
    next_scale,
)
from retuned.stages.watch.proof.sentinel import (
    DAY_S,
    SentinelAction,
    SentinelPlan,
    action_of,
    day_settings,
    effect_changed,
    is_over,
    next_plan,
)
from retuned.stages.watch.proof.state import (
    Event,
    Interrupted,
    KernelsMeasured,
    PairAbandoned,
    PairMeasured,
    Phase,
    ProofState,
    ServiceLevel,
    Tick,
    Vetoed,
)

__all__ = [
    "DAY_S",
    "LEAST_STEPS",
    "Arm",
    "ArmLaunches",
    "ArmSums",
    "BootPair",
    "BootPlan",
    "BootSettings",
    "BootSpread",
    "BootVoid",
    "BootWindow",
    "BootsAbandoned",
    "BootsMeasured",
    "Calibration",
    "Coin",
    "Consequence",
    "CoursePoint",
    "EffectInterval",
    "Event",
    "EvidenceLogs",
    "Forecast",
    "ForecastReason",
    "Interrupted",
    "KernelTime",
    "KernelsMeasured",
    "MeasuredBlock",
    "Pace",
    "PairAbandoned",
    "PairKind",
    "PairMeasured",
    "PairPlan",
    "PairResult",
    "Phase",
    "Prediction",
    "ProofClaim",
    "ProofReason",
    "ProofReport",
    "ProofSettings",
    "ProofState",
    "ReplicaEvent",
    "ReplicaReport",
    "ReplicaState",
    "SentinelAction",
    "SentinelPlan",
    "ServiceLevel",
    "StepAccount",
    "StepColumns",
    "StepRecord",
    "Tick",
    "Verdict",
    "Vetoed",
    "VoidReason",
    "action_of",
    "assign",
    "begin",
    "begin_again",
    "begin_replicas",
    "block_is_over",
    "block_length_s",
    "boot_settings_of",
    "calibrate",
    "check_window",
    "columns_of",
    "consequence",
    "course",
    "day_settings",
    "effect_changed",
    "effect_so_far",
    "forecast",
    "is_over",
    "joined",
    "keeps",
    "kernel_times",
    "next_pair",
    "next_plan",
    "next_scale",
    "percent_of",
    "predict",
    "replay",
    "replay_day",
    "replayed",
    "settings_of",
    "settle_account",
    "spread_of",
    "step",
    "step_replicas",
    "visible_by_boots",
    "wanted_pairs",
    "window_of",
]
