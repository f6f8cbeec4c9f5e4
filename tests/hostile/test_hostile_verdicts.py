"""What a verdict makes of times that cannot be, of one shape that pays for all, of yesterday's mix.

Only the clock is simulated: samples, bounds, p-values, floors and verdicts are the product's own.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from tests.lab.judge_simulation import Modelled, Shape, simulate

from retuned.contract import TrustClass, Workload
from retuned.stages.experiment import ExperimentPlan
from retuned.stages.proposal import (
    Proposal,
    ProposalLimits,
    Refusal,
    RefusalReason,
    covered_share,
    propose,
)
from retuned.stages.verdict import Reason, Status, Verdict

NOISE = Modelled(drift=0.005, jitter=0.002, spikes=0.0)
SMALL, LARGE = {"M": 2}, {"M": 16}
"""Lengths that the simulation gives to its first and second shape."""


def judged(*shapes: Shape) -> Verdict:
    return simulate(np.random.default_rng(7), shapes, noise=NOISE).verdict


def test_times_that_can_be_are_promoted() -> None:
    found = judged(Shape(speedup=1.25, floor_us=50.0))
    assert (found.status, found.reason) == (Status.PROMOTE, Reason.FASTER)


@pytest.mark.parametrize("speedup", [2.5, 10.0, 1e5])
def test_a_time_below_the_floor_is_impossibly_fast(speedup: float) -> None:
    """H23, H25: bytes and arithmetic take the time they take, wherever they were kept."""
    found = judged(
        Shape(speedup=speedup, floor_us=50.0), Shape(speedup=1.02, base_us=900.0, floor_us=500.0)
    )
    assert (found.status, found.reason) == (Status.REJECT, Reason.IMPOSSIBLY_FAST)


def test_one_shape_near_nothing_does_not_pay_for_the_others() -> None:
    """H23: the geometric mean of these is 30 times faster; where most time goes it is slower."""
    found = judged(Shape(speedup=1000.0, base_us=1.0), Shape(speedup=0.97, base_us=900.0))
    assert not (found.status is Status.PROMOTE and found.guard.allows(LARGE)), found


def test_a_shape_that_hardly_runs_pays_for_nothing() -> None:
    """H23: however fast the rare shape became, all the time is where nothing was won."""
    found = judged(
        Shape(speedup=1000.0, base_us=1.0, weight=0.001), Shape(speedup=1.0, base_us=900.0)
    )
    assert not found.guard.allows(LARGE) or found.status is not Status.PROMOTE
    assert covered_share(found) < 1e-5 or found.status is not Status.PROMOTE


# --- yesterday's mix ------------------------------------------------------------------------------


def mix(small: float, large: float) -> Verdict:
    """A variant twice as fast at small shapes and 3 % slower at large ones, under a mix."""
    return judged(Shape(speedup=2.0, weight=small), Shape(speedup=0.97, weight=large))


def proposed(verdict: Verdict) -> Proposal | Refusal:
    now = datetime(2026, 11, 21, tzinfo=UTC)
    plan = ExperimentPlan(
        id="plan",
        hypothesis="h",
        definition="toy",
        workloads=tuple(
            Workload(definition="toy", axes=each.axes, weight=each.weight)
            for each in verdict.shapes
        ),
        incumbent=verdict.incumbent,
        environment="sha256:" + "f" * 64,
    )
    return propose(
        verdict.model_copy(update={"evidence": "sha256:" + "e" * 64}),
        plan=plan,
        share=0.5,
        target="demo",
        trust=TrustClass.PARAMETERS,
        first_swap=False,
        limits=ProposalLimits(),
        now=now,
        ttl=timedelta(hours=1),
        quarantined=(),
        live_baseline=verdict.incumbent,
    )


def test_a_win_under_yesterday_s_mix_is_proposed_for_where_it_wins() -> None:
    found = mix(small=1000.0, large=10.0)
    assert found.status is Status.PROMOTE
    assert found.guard.allows(SMALL)
    assert not found.guard.allows(LARGE), "a common shape would get slower"
    answer = proposed(found)
    assert isinstance(answer, Proposal)
    assert not answer.guard.allows(LARGE)


def test_the_same_variant_is_not_proposed_under_today_s_mix() -> None:
    found = mix(small=1.0, large=1000.0)
    assert found.speedup is not None
    assert not found.guard.allows(LARGE), "narrowed to shapes in which hardly any time is left"
    assert covered_share(found) < 0.01
    answer = proposed(found)
    assert isinstance(answer, Refusal)
    assert answer.reason is RefusalReason.NOT_WORTH_IT


@pytest.mark.parametrize("large", [0.5, 5.0, 200.0])
def test_the_guard_leaves_out_the_shape_that_loses_whatever_its_share(large: float) -> None:
    found = judged(Shape(speedup=2.0, weight=1000.0), Shape(speedup=0.98, weight=large))
    assert found.status is Status.PROMOTE
    assert found.guard.allows(SMALL)
    assert not found.guard.allows(LARGE)
