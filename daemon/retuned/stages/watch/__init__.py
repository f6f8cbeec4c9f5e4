"""Stage 10, watch: keep a swap, wait, or roll it back. Pure.

`assess` judges the runtime's counters of a swap (`records`) and decides when a canary may spread.
`run_length` computes what clean checks prove and how long a decay may stay undetected. `end_to_end`
is gate G7, which judges the whole server with the swap on and off. `accounts` adds up costs of
experiments and savings of swaps.
"""

from retuned.stages.watch.accounts import (
    METHOD,
    SIZED,
    Account,
    ExperimentUsage,
    Hours,
    SwapUsage,
    claimed,
    of_all_gpus,
    saved,
    settle,
    total,
)
from retuned.stages.watch.assess import (
    CanaryAction,
    CanaryDecision,
    CanaryReason,
    assess,
    decay_score,
    decide_canary,
)
from retuned.stages.watch.end_to_end import (
    Block,
    Consequence,
    EndToEndOutcome,
    EndToEndReason,
    EndToEndReport,
    EndToEndSettings,
    Gain,
    Served,
    ServerResponse,
    compare_answers,
    consequence,
    judge_end_to_end,
    not_measured,
    order_of,
    predicted_gain,
    summarise,
)
from retuned.stages.watch.records import (
    BucketSample,
    WatchAction,
    WatchReason,
    WatchReport,
    WatchSample,
    WatchSettings,
)

__all__ = [
    "METHOD",
    "SIZED",
    "Account",
    "Block",
    "BucketSample",
    "CanaryAction",
    "CanaryDecision",
    "CanaryReason",
    "Consequence",
    "EndToEndOutcome",
    "EndToEndReason",
    "EndToEndReport",
    "EndToEndSettings",
    "ExperimentUsage",
    "Gain",
    "Hours",
    "Served",
    "ServerResponse",
    "SwapUsage",
    "WatchAction",
    "WatchReason",
    "WatchReport",
    "WatchSample",
    "WatchSettings",
    "assess",
    "claimed",
    "compare_answers",
    "consequence",
    "decay_score",
    "decide_canary",
    "judge_end_to_end",
    "not_measured",
    "of_all_gpus",
    "order_of",
    "predicted_gain",
    "saved",
    "settle",
    "summarise",
    "total",
]
