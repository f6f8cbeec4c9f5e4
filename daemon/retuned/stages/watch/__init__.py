"""Stage 10, watch: keep, wait or roll back. Pure.

`assessing` judges what the runtime counted of a swap (`records`), `canary` when it may spread to
more launches, `power` what so many clean checks prove, `cusum` how long a decay may go unseen.
`end_to_end` is gate G7, which judges the whole server with the swap on and off; `blocks` and
`paired` are what it is judged on. `accounts` adds up what experiments cost and swaps saved.
"""

from retuned.stages.watch.accounts import (
    METHOD,
    Account,
    ExperimentUsage,
    Hours,
    SwapUsage,
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
