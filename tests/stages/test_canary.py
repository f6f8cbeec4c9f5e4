"""When a canary goes on, stays, goes back, or goes on without some shapes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.expect import raises_invalid

from retuned.contract import Digest, Guard
from retuned.stages.swap import CanaryStep, SwapKind, SwapOrder
from retuned.stages.watch import (
    BucketSample,
    CanaryAction,
    WatchAction,
    WatchReport,
    WatchSample,
    WatchSettings,
    assess,
    decide_canary,
)

ARTIFACT: Digest = "sha256:" + "a" * 64
STEPS = (
    CanaryStep(fraction=0.01, min_checks=300, min_s=60, patience_s=600),
    CanaryStep(fraction=0.1, min_checks=100, min_s=30, patience_s=600),
)
WAIT = WatchReport(action=WatchAction.WAIT, reason="canary")


def order(**changes: Any) -> SwapOrder:
    values: dict[str, Any] = {
        "id": "order",
        "kind": SwapKind.SWAP,
        "proposal": "p",
        "target": "demo",
        "definition": "linear",
        "artifact": ARTIFACT,
        "previous": None,
        "guard": Guard(),
        "epoch": 4,
        "canary": STEPS,
    }
    return SwapOrder(**(values | changes))


def sample(*step_checks: int, fraction: float = 0.01, **changes: Any) -> WatchSample:
    """Return a report of as many buckets as there are counts of checks."""
    rows = tuple(
        BucketSample(bucket=(n + 1,), launches=1_000, checks=checks + 7, step_checks=checks)
        for n, checks in enumerate(step_checks)
    )
    values: dict[str, Any] = {
        "definition": "linear",
        "artifact": ARTIFACT,
        "epoch": 4,
        "swapped_launches": 20_000,
        "fallback_launches": 10_000,
        "shadow_checks": sum(step_checks),
        "shadow_mismatches": 0,
        "shadow_nonfinite": 0,
        "worst_ratio": 0.2,
        "last_mean_ratio": 0.1,
        "errors": 0,
        "fraction": fraction,
        "fraction_s": 90.0,
        "buckets": rows,
    }
    return WatchSample(**(values | changes))


def decide(seen: WatchSample, *, report: WatchReport = WAIT, **changes: Any) -> tuple[str, ...]:
    decision = decide_canary(order(**changes), seen, report=report)
    return str(decision.action), str(decision.reason), f"{decision.fraction:g}"


def test_a_step_is_left_when_every_bucket_has_its_checks_and_the_time_is_over() -> None:
    assert decide(sample(300, 400)) == ("advance", "step-passed", "0.1")
    assert decide(sample(100, fraction=0.1)) == ("advance", "step-passed", "1")
    assert decide(sample(300, fraction_s=59.0)) == ("hold", "too-early", "0.01")
    assert decide(sample(300, 299)) == ("hold", "too-few-checks", "0.01")


def test_a_bucket_without_enough_checks_is_left_out_once_the_patience_is_over() -> None:
    seen = sample(300, 299, 5, fraction_s=600.0, excluded=((9,),))
    decision = decide_canary(order(), seen, report=WAIT)
    assert decision.action is CanaryAction.NARROW_GUARD
    assert decision.excluded == ((2,), (3,), (9,))
    assert decision.fraction == 0.1
    assert "2 of 3 shape buckets" in decision.detail


def test_where_no_bucket_gets_there_nothing_is_proven_and_it_stays() -> None:
    assert decide(sample(299, 0, fraction_s=1e9)) == ("hold", "nothing-proven", "0.01")
    assert decide(sample(fraction_s=1e9)) == ("hold", "no-launches", "0.01")


def test_buckets_that_are_left_out_or_not_launched_are_not_waited_for() -> None:
    assert decide(sample(300, 0, excluded=((2,),)))[0] == "advance"
    quiet = BucketSample(bucket=(5,), launches=0, checks=0, step_checks=0)
    seen = sample(300)
    assert decide(seen.model_copy(update={"buckets": (*seen.buckets, quiet)}))[0] == "advance"


def test_harm_goes_back_from_every_step() -> None:
    harm = WatchReport(action=WatchAction.ROLLBACK, reason="shadow-mismatch")
    for fraction in (0.0, 0.01, 0.1, 1.0):
        assert decide(sample(300, fraction=fraction), report=harm)[:2] == ("roll-back", "harm")


def test_a_swap_that_all_run_or_that_was_no_canary_has_no_next_step() -> None:
    assert decide(sample(300, fraction=1.0)) == ("hold", "complete", "1")
    assert decide(sample(300, fraction=0.5), canary=()) == ("hold", "complete", "0.5")


def test_a_process_behind_the_first_step_begins_with_it() -> None:
    assert decide(sample(9, fraction=0.001)) == ("advance", "restarted", "0.01")


def test_in_the_shadow_the_first_step_is_the_one_that_nobody_is_served_from() -> None:
    steps = (CanaryStep(fraction=0.0, min_checks=300, min_s=60), *STEPS)
    dark = sample(300, fraction=0.0, swapped_launches=0)
    assert decide(dark, canary=steps) == ("advance", "step-passed", "0.01")
    assert decide(sample(200, fraction=0.0), canary=steps)[1] == "too-few-checks"


@given(
    st.lists(st.integers(0, 600), max_size=5),
    st.floats(0, 1e5),
    st.sampled_from([0.0, 0.01, 0.05, 0.1, 1.0]),
)
def test_no_step_is_ever_taken_without_its_evidence(
    checks: list[int], seconds: float, fraction: float
) -> None:
    decision = decide_canary(
        order(), sample(*checks, fraction=fraction, fraction_s=seconds), report=WAIT
    )
    if decision.action is CanaryAction.HOLD or decision.reason == "restarted":
        return
    step = STEPS[1] if fraction >= 0.1 else STEPS[0]
    kept = [n for n, _ in enumerate(checks) if (n + 1,) not in decision.excluded]
    assert kept
    assert all(checks[n] >= step.min_checks for n in kept)
    assert seconds >= step.min_s
    assert decision.fraction > fraction


def judge(seen: WatchSample, *, seconds: float = 1e5, **changes: Any) -> tuple[str, str]:
    settings = WatchSettings(engage_within_s=60, min_checks=300, min_s=60)
    report = assess(order(**changes), [seen], seconds_since_commit=seconds, settings=settings)
    return str(report.action), report.reason


def test_a_clean_canary_is_not_kept_before_all_launches_run_it() -> None:
    assert judge(sample(400)) == ("wait", "canary")
    assert judge(sample(400, fraction=1.0)) == ("keep", "clean")


def test_a_small_fraction_may_take_longer_to_be_seen_at_all() -> None:
    """One launch in a hundred: a minute of few launches proves nothing."""
    unseen = {"swapped_launches": 0, "fallback_launches": 50}
    assert judge(sample(0, fraction_s=100.0, **unseen))[0] == "wait"
    assert judge(sample(0, fraction_s=7_000.0, **unseen)) == ("rollback", "not-engaged")
    just_all = sample(0, fraction=1.0, fraction_s=5.0, **unseen)
    assert judge(just_all)[0] == "wait"
    assert judge(just_all.model_copy(update={"fraction_s": 61.0})) == ("rollback", "not-engaged")


def test_in_the_shadow_nothing_runs_it_and_that_is_no_harm() -> None:
    dark = sample(400, fraction=0.0, swapped_launches=0, fraction_s=1e6)
    assert judge(dark)[0] == "wait"
    assert judge(dark.model_copy(update={"shadow_nonfinite": 1}))[0] == "rollback"


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"fraction": 1.5}, "less_than_equal"),
        ({"min_checks": 0}, "greater_than_equal"),
        ({"min_s": -1}, "greater_than_equal"),
    ],
)
def test_an_odd_step_is_no_step(fields: dict[str, Any], kind: str) -> None:
    with raises_invalid(*fields, kind=kind):
        CanaryStep(**({"fraction": 0.5} | fields))
