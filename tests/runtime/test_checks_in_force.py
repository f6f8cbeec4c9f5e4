"""What checks find, how soon, what they cost, and which kernel is served meanwhile."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from retuned.runtime.core.active_order import Swapped
from retuned.runtime.core.orders import parse_order
from retuned.runtime.core.slots import Slot
from retuned.runtime.shadow.checker import NO_ROOM
from retuned.runtime.shadow.cusum import DECAY, PACE, Cusum, CusumRule
from retuned.runtime.shadow.input_copies import InputCopier
from retuned.runtime.shadow.outcome import PACE_EVERY, Judge
from retuned.runtime.shadow.rates import BURST_S, Cost, Rates
from retuned.runtime.shadow.sampler import Comparison, Sampler, Stratum

DEFINITION = {
    "name": "double",
    "op_type": "double",
    "axes": {"M": {"type": "var"}, "K": {"type": "const", "value": 8}},
    "inputs": {"x": {"shape": ["M", "K"], "dtype": "float32"}},
    "outputs": {"y": {"shape": ["M", "K"], "dtype": "float32"}},
}


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Kernel:
    """A variant that does what a function of its inputs does."""

    def __init__(self, run: Callable[..., Any]) -> None:
        self.run = run

    def launcher(self, _: tuple[int, ...]) -> Callable[[tuple[Any, ...]], Any]:
        return lambda inputs: self.run(*inputs)

    checked_launcher = launcher

    def capturing(self) -> None:
        return None

    def fingerprint(self, inputs: tuple[Any, ...]) -> object:
        return [value.clone().flatten().tolist() for value in inputs if torch.is_tensor(value)]


def by_number(served: Any, expected: Any, tolerance: float) -> Comparison:
    """Compare plain numbers; a kernel's answer is its error in units of what is allowed."""
    (ours,), (theirs,) = served, expected
    if not math.isfinite(ours) or not math.isfinite(theirs):
        return Comparison(nonfinite=ours is not theirs, ratio=0.0)
    return Comparison(nonfinite=False, ratio=abs(ours - theirs), rms_ratio=abs(ours - theirs))


class Rows:
    shape = (4, 8)


def order(**fields: Any) -> Any:
    body: dict[str, Any] = {
        "id": "order-1",
        "kind": "swap",
        "definition": "double",
        "artifact": "sha256:" + "a" * 64,
        "previous": None,
        "guard": {"bounds": {}},
        "epoch": 1,
        "shadow_every": 50,
    }
    return parse_order(body | fields)


def numbers(run: Callable[..., float], **fields: Any) -> tuple[Slot, Swapped]:
    """A slot whose original answers 0 and whose variant answers its error."""
    slot = Slot(DEFINITION, lambda _: 0.0)
    chosen = {k: fields.pop(k) for k in ("clock", "sampler") if k in fields}
    swapped = Swapped(slot, order(**fields), variant=Kernel(run), compare=by_number, **chosen)
    slot.commit(swapped)
    return slot, swapped


@pytest.mark.parametrize("seed", range(20))
def test_a_kernel_wrong_in_one_launch_of_a_hundred_is_found_within_a_minute(seed: int) -> None:
    """At 500 launches a second and one check in 50, in the server itself; time is launches."""
    chance = random.Random(seed)
    clock = Clock()
    sampler = Sampler(Rates(50), random.Random(seed + 1_000), clock=clock)
    slot, _ = numbers(lambda _: 9.0 * (chance.random() < 0.01), clock=clock, sampler=sampler)
    launches = 0
    while slot.table.state == "swapped":
        slot(Rows())
        launches += 1
        clock.now_s = launches / 500.0
        assert clock.now_s < 60.0
    assert slot.table.state == "tripped:shadow-mismatch"
    assert slot(Rows()) == 0.0


def test_the_same_in_real_time_at_a_higher_rate() -> None:
    """As many launches as 60 s at 500 a second would give, as fast as they go."""
    chance = random.Random(7)
    sampler = Sampler(Rates(50), random.Random(1_007))  # or one run in 400 finds nothing
    slot, _ = numbers(lambda _: 9.0 * (chance.random() < 0.01), sampler=sampler)
    launches = 0
    while slot.table.state == "swapped":
        slot(Rows())
        launches += 1
        assert launches < 30_000


@pytest.mark.parametrize("answer", [float("nan"), float("inf")])
def test_a_check_with_nan_takes_the_kernel_back_before_it_is_served(answer: float) -> None:
    slot, _ = numbers(lambda _: answer)
    assert slot(Rows()) == 0.0
    assert slot.table.state == "tripped:shadow-nonfinite"


def test_a_slow_decay_is_found_while_every_check_is_still_allowed() -> None:
    """From check 500 on the error grows to twice what it was, over 100 checks."""
    chance, done = random.Random(3), [0]

    def decaying(_: Any) -> float:
        grown = min(2.0, 2.0 ** (max(0, done[0] - 500) / 100.0))
        return float(0.2 * grown * chance.lognormvariate(0.0, 0.3))

    slot, swapped = numbers(decaying, shadow_every=1)
    while slot.table.state == "swapped" and swapped.stats.checks < 900:
        slot(Rows())
        done[0] = swapped.stats.checks
    assert slot.table.state == "tripped:slow-decay"
    assert 500 < swapped.stats.checks < 700
    assert swapped.stats.mismatches <= 2


def test_a_steady_error_of_any_size_allowed_is_no_decay() -> None:
    chance = random.Random(5)
    slot, swapped = numbers(lambda _: 0.2 * chance.lognormvariate(0.0, 0.3), shadow_every=1)
    for _ in range(5_000):
        slot(Rows())
    assert slot.table.state == "swapped"
    assert swapped.stats.checks >= 5_000


def test_buckets_with_errors_of_their_own_are_no_decay_when_traffic_moves() -> None:
    chance = random.Random(5)

    class Batch:
        def __init__(self, rows: int) -> None:
            self.shape = (rows, 8)

    def run(x: Any) -> float:
        return (0.8 if x.shape[0] > 8 else 0.1) * chance.lognormvariate(0.0, 0.1)

    slot, _ = numbers(run, shadow_every=1)
    for rows in (4, 64, 4, 64):
        for _ in range(400):
            slot(Batch(rows))
    assert slot.table.state == "swapped"


def test_an_rms_over_four_times_what_the_incumbents_noise_allows_goes_back() -> None:
    """The largest difference is within what is allowed; the incumbent itself is far better."""
    noise = [{"bucket": [3], "rms": 1e-6}]
    judged = {}
    for rms_ratio in (0.0039, 0.0041):  # times the tolerance of 1e-3; 4e-6 is the bound
        judge = Judge(order(shadow_noise=noise), clock=Clock())
        seen = Comparison(nonfinite=False, ratio=0.5, rms_ratio=rms_ratio)
        judged[rms_ratio] = judge.check((4,), Stratum(), seen, untouched=True)
        assert judge.check((9,), Stratum(), seen, untouched=True) is None, "nothing is known there"
    assert judged == {0.0039: None, 0.0041: "shadow-mismatch"}


def test_a_variant_slower_than_the_incumbent_goes_back_and_a_faster_one_stays() -> None:
    stratum = Stratum()
    judge = Judge(order(), clock=Clock())
    chance = random.Random(1)
    for _ in range(10_000):  # as fast as the incumbent, on a machine with better things to do
        times = [int(1e5 * chance.lognormvariate(0.0, 1.0)) for _ in range(2)]
        assert judge.pace(stratum, *times) is None
    found = [judge.pace(stratum, 200_000, 100_000) for _ in range(60)]
    assert "slow" in found
    assert judge.slowdown == 2.0


def test_a_slow_variant_trips_in_its_slot_and_its_right_answer_is_served() -> None:
    def slow(_: Any) -> float:
        end = time.perf_counter() + 1e-4
        while time.perf_counter() < end:
            pass
        return 0.0

    slot, swapped = numbers(slow, shadow_every=1)
    while slot.table.state == "swapped" and swapped.stats.checks < 200 * PACE_EVERY:
        assert slot(Rows()) == 0.0
    assert slot.table.state == "tripped:slow"


def test_checks_are_often_at_first_and_rarer_with_a_buckets_age() -> None:
    clock = Clock()
    rates = Rates(50, ((600.0, 1_000), (86_400.0, 10_000)))
    sampler = Sampler(rates, random.Random(1), clock=clock)
    stratum, checks = sampler.stratum((4,)), {}
    for age_s in (0.0, 700.0, 90_000.0):
        clock.now_s, count = age_s, 0
        for _ in range(200_000):
            if stratum.ran >= stratum.check_at:
                count += 1
                sampler.advance(stratum)
            stratum.ran += 1
        checks[age_s] = count
    assert checks[0.0] == pytest.approx(4_000, abs=2)
    assert checks[700.0] == pytest.approx(200, abs=2)
    assert checks[90_000.0] == pytest.approx(20, abs=2)
    clock.now_s = 90_000.0
    assert sampler.stratum((64,)).since_s == 90_000.0, "a bucket that comes late starts anew"


def test_a_first_rate_that_is_rarer_stays() -> None:
    assert Rates(5_000, ((600.0, 1_000),)).every(700.0) == 5_000


def test_checks_beyond_their_share_of_time_are_left_out_and_counted() -> None:
    clock = Clock()
    cost = Cost(0.01, clock=clock)
    made = 0
    for _ in range(10_000):
        clock.now_s += 0.01
        if cost.allows():
            made += 1
            cost.spend(0.01)
    assert cost.spent_s <= 0.01 * clock.now_s + BURST_S + 0.01
    assert made + cost.throttled == 10_000
    assert cost.throttled > 9_000


def test_the_first_check_of_a_bucket_is_made_whatever_checks_have_cost() -> None:
    clock = Clock()
    slot, swapped = numbers(lambda _: 0.0, shadow_every=1, shadow_share=0.01, clock=clock)
    swapped.judge.cost.spend(1e6)
    for _ in range(10):
        slot(Rows())
    assert swapped.stats.checks == 1
    assert swapped.judge.cost.throttled == 9


def double(x: Any) -> Any:
    return x * 2


def tensors(variant: Callable[..., Any], **fields: Any) -> tuple[Slot, Swapped, list[int]]:
    """A slot over tensors, and how often its original ran."""
    from retuned.runtime.shadow.sampler import compare_tensors

    runs: list[int] = []

    def original(x: Any) -> Any:
        runs.append(1)
        return double(x)

    slot = Slot(DEFINITION, original)
    swapped = Swapped(slot, order(**fields), variant=Kernel(variant), compare=compare_tensors)
    slot.commit(swapped)
    return slot, swapped, runs


DARK = {"canary": [{"fraction": 0.0}], "shadow_every": 1}


def test_in_the_shadow_the_incumbent_serves_and_the_variant_is_checked() -> None:
    served_by: list[str] = []

    def variant(x: Any) -> Any:
        served_by.append("variant")
        return x + x

    slot, swapped, runs = tensors(variant, **DARK)
    x = torch.randn(4, 8)
    for _ in range(5):
        assert torch.equal(slot(x), double(x))
    assert (swapped.stats.checks, swapped.swapped_launches, len(runs)) == (5, 0, 5)
    assert served_by == ["variant"] * 5
    swapped.ramp(1.0, excluded=())
    slot(x)
    assert swapped.swapped_launches == 1


def test_a_variant_that_is_wrong_in_the_shadow_never_serves() -> None:
    slot, _, _ = tensors(lambda x: x * 3, **DARK)
    x = torch.randn(4, 8)
    for _ in range(3):
        assert torch.equal(slot(x), double(x))
    assert slot.table.state == "tripped:shadow-mismatch"


def test_a_variant_that_raises_in_the_shadow_is_noticed_and_harms_nobody() -> None:
    def broken(_: Any) -> Any:
        raise OSError("no such luck")

    slot, swapped, _ = tensors(broken, **DARK)
    x = torch.randn(4, 8)
    for _ in range(5):
        assert torch.equal(slot(x), double(x))
    assert swapped.stats.errors == 3
    assert slot.table.state == "tripped:launch-errors"


def meddling(x: Any) -> Any:
    answer = x * 2
    x += 1
    return answer


def test_a_variant_that_writes_to_its_inputs_in_the_shadow_spoils_none() -> None:
    slot, _, _ = tensors(meddling, **DARK)
    x = torch.randn(4, 8)
    before = x.clone()
    assert torch.equal(slot(x), double(before))
    assert torch.equal(x, before)
    assert slot.table.state == "tripped:input-modified"


def test_what_a_serving_variant_has_written_to_its_inputs_is_put_back() -> None:
    slot, _, _ = tensors(meddling, shadow_every=1)
    x = torch.randn(4, 8)
    before = x.clone()
    assert torch.equal(slot(x), double(before)), "the incumbent's answer, from clean inputs"
    assert torch.equal(x, before)
    assert slot.table.state == "tripped:input-modified"


def test_an_incumbent_that_works_in_place_is_not_run_twice_on_the_servers_inputs() -> None:
    from retuned.runtime.shadow.sampler import compare_tensors

    slot = Slot(DEFINITION, lambda x: x.mul_(2))
    variant = Kernel(lambda x: x * 2)
    slot.commit(Swapped(slot, order(shadow_every=1), variant=variant, compare=compare_tensors))
    x = torch.randn(4, 8)
    before = x.clone()
    for _ in range(6):
        slot(x)
    assert torch.equal(x, before)


def test_copies_are_held_to_a_budget_and_given_back() -> None:
    keeper = InputCopier(budget_bytes=1_000)
    small, large = torch.zeros(100), torch.zeros(200)
    first = keeper.keep((small, 3, large), constant=(2,))
    assert first is not None
    assert (first.copied, first.size, keeper.held_bytes) == ((0,), 400, 400)
    assert first.inputs[0] is not small
    assert first.inputs[2] is large, "weights are not copied"
    assert keeper.keep((large,), constant=()) is None
    keeper.release(first)
    assert keeper.held_bytes == 0
    assert keeper.keep((large,), constant=()) is not None


def test_without_room_for_copies_nothing_is_shadowed_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slot, swapped, _ = tensors(double, **DARK)
    assert swapped._checker is not None
    monkeypatch.setattr(swapped._checker, "_keeper", InputCopier(budget_bytes=1))
    x = torch.randn(4, 8)
    assert torch.equal(slot(x), double(x))
    assert (swapped.stats.checks, swapped.stats.ineligible) == (0, {NO_ROOM: 1})


def test_all_copies_are_given_back_whatever_happens() -> None:
    from retuned.runtime.shadow.input_copies import KEEPER

    for variant in (double, meddling, lambda x: x * 3, lambda _: 1 / 0):
        for fields in ({"shadow_every": 1}, DARK):
            slot, _, _ = tensors(variant, **fields)
            for _ in range(5):
                slot(torch.randn(4, 8))
    assert KEEPER.held_bytes == 0


def test_the_rms_of_a_difference_is_told_in_units_of_what_is_allowed() -> None:
    from retuned.runtime.shadow.sampler import compare_tensors

    theirs = torch.tensor([3.0, -3.0, 3.0, -3.0])
    ours = theirs + torch.tensor([0.006, 0.0, 0.0, 0.0])
    seen = compare_tensors([ours], [theirs], 1e-3)
    assert seen.rms_ratio == pytest.approx(1.0, rel=1e-3)
    assert compare_tensors([theirs], [theirs], 1e-3).rms_ratio == 0.0


def test_a_course_learns_what_is_usual_once_and_then_no_more() -> None:
    rule = CusumRule(slack=0.5, threshold=5.0, clip=4.0, warmup=10, least_spread=0.1)
    course = Cusum(rule)
    for number in range(10):
        assert not course.add(5.0 + 0.1 * (number % 2))
    mean, spread = course.mean, course.spread
    assert mean == pytest.approx(5.05)
    assert spread == 0.1, "hardly any scatter is taken as the least"
    assert [course.add(6.0) for _ in range(3)] == [False, True, True]
    assert (course.mean, course.spread) == (mean, spread)
    with pytest.raises(ValueError, match="course"):
        course.add(float("nan"))


def test_one_wild_number_is_no_decay() -> None:
    course = Cusum(DECAY)
    for _ in range(DECAY.warmup):
        course.add(0.0)
    assert not course.add(1e9)
    assert course.score <= DECAY.clip
    assert PACE.warmup == 0
