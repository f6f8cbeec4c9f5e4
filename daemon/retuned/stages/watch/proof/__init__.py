"""Live proof: a randomised trial of a swap on the server's own traffic. Pure.

The server runs pairs of short blocks of whole steps, one with the swap on and one with it off, in
the order of a coin. `decide` is the fold from events to a verdict; an adapter toggles the slot,
records steps and stores the state.

    state = begin(settings, at_s=now)
    while not state.done:
        state = next_pair(state, secrets.SystemRandom())   # store it, then run state.plan.runs
        state = step(state, PairMeasured(state.plan.number, first, second, at_s=now))  # store it
    consequence(state.report, settings)

`normaliser` fits what a step should take, `design` computes the difference of a pair, `evidence`
the E-values, `account` where the time of a step went, `calibration` claims against results.
"""

from retuned.stages.watch.proof.account import (
    Forecast,
    ForecastReason,
    Pace,
    Prediction,
    forecast,
    predict,
    settle_account,
)
from retuned.stages.watch.proof.calibration import Calibration, EffectInterval, calibrate
from retuned.stages.watch.proof.course import CoursePoint, course
from retuned.stages.watch.proof.decide import begin, next_pair, step
from retuned.stages.watch.proof.design import Coin, MeasuredBlock, block_is_over, block_length_s
from retuned.stages.watch.proof.records import (
    Arm,
    ArmSums,
    EvidenceLogs,
    PairKind,
    PairPlan,
    PairResult,
    ProofReason,
    ProofReport,
    ProofSettings,
    StepAccount,
    StepColumns,
    StepRecord,
    Verdict,
    VoidReason,
    columns_of,
    percent_of,
)
from retuned.stages.watch.proof.report import Consequence, consequence, next_scale
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
    "Arm",
    "ArmSums",
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
    "ProofReason",
    "ProofReport",
    "ProofSettings",
    "ProofState",
    "ServiceLevel",
    "StepAccount",
    "StepColumns",
    "StepRecord",
    "Tick",
    "Verdict",
    "Vetoed",
    "VoidReason",
    "begin",
    "block_is_over",
    "block_length_s",
    "calibrate",
    "columns_of",
    "consequence",
    "course",
    "forecast",
    "next_pair",
    "next_scale",
    "percent_of",
    "predict",
    "settle_account",
    "step",
]
