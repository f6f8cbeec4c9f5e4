"""Fractions of launches: exact, deterministic, and right under threads that never stop."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retuned.runtime.core.active_order import Swapped
from retuned.runtime.core.canary import BLOCK, PERIOD, CanaryShare, pattern, per_mille
from retuned.runtime.core.orders import parse_order
from retuned.runtime.core.slots import Slot
from retuned.runtime.shadow.sampler import Comparison

DEFINITION = {
    "name": "copy",
    "op_type": "copy",
    "axes": {"M": {"type": "var"}},
    "inputs": {"x": {"shape": ["M"], "dtype": "float32"}},
    "outputs": {"y": {"shape": ["M"], "dtype": "float32"}},
}


@dataclass(frozen=True)
class Rows:
    """An input of some rows."""

    rows: int

    @property
    def shape(self) -> tuple[int]:
        return (self.rows,)


class Answering:
    """A variant that answers with its name."""

    def __init__(self, name: str = "variant") -> None:
        self.name = name
        self.launches = 0

    def launcher(self, _: tuple[int, ...]) -> Callable[[tuple[Any, ...]], Any]:
        return lambda _: self.name

    checked_launcher = launcher

    def capturing(self) -> None:
        return None

    def fingerprint(self, _: tuple[Any, ...]) -> object:
        return 0


def agreeing(*_: object) -> Comparison:
    return Comparison(nonfinite=False, ratio=0.0)


def order(**fields: Any) -> dict[str, Any]:
    body: dict[str, Any] = {
        "id": "order-1",
        "kind": "swap",
        "definition": "copy",
        "artifact": "sha256:" + "a" * 64,
        "previous": None,
        "guard": {"bounds": {}},
        "epoch": 1,
        "shadow_every": 10**9,
    }
    return body | fields


def canary(slot: Slot, fraction: float, **fields: Any) -> Swapped:
    body = order(canary=[{"fraction": fraction}], **fields)
    swapped = Swapped(slot, parse_order(body), variant=Answering(), compare=agreeing)
    slot.commit(swapped)
    return swapped


@given(st.integers(0, BLOCK), st.integers(0, PERIOD))
@settings(max_examples=60, deadline=None)
def test_any_thousand_launches_in_a_row_hold_the_share_to_within_one(share: int, at: int) -> None:
    table = pattern(share) * 2
    assert abs(sum(table[at : at + BLOCK]) - share) <= 1
    whole = at - at % BLOCK
    assert sum(table[whole : whole + BLOCK]) == share


@given(st.integers(1, BLOCK - 1), st.integers(1, 3 * PERIOD))
@settings(max_examples=60, deadline=None)
def test_the_first_launches_hold_the_share_to_within_one_however_many(
    share: int, count: int
) -> None:
    table = pattern(share)
    ran = sum(table) * (count // PERIOD) + sum(table[: count % PERIOD])
    assert abs(ran - share * count / BLOCK) < 1.0 + 1e-9


@pytest.mark.parametrize("layers", [5, 24, 25, 40])
def test_no_layer_of_a_model_is_always_left_out(layers: int) -> None:
    """A period that falls into step with the layers would only ever swap one of them."""
    table = pattern(10)
    hit = {number % layers for number in range(PERIOD) if table[number]}
    assert len(hit) == layers


def test_the_same_launches_are_chosen_in_every_process_and_every_time() -> None:
    pattern.cache_clear()
    first = pattern(37)
    pattern.cache_clear()
    assert pattern(37) == first


def test_a_fraction_above_none_is_at_least_one_launch_in_a_thousand() -> None:
    assert [per_mille(f) for f in (0.0, 1e-7, 0.01, 0.5, 0.9999, 1.0, 2.0)] == [
        *(0, 1, 10, 500),
        *(999, 1000, 1000),
    ]


@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.5, 0.9])
def test_each_shape_has_its_share_of_launches(fraction: float) -> None:
    slot = Slot(DEFINITION, lambda _: "original")
    swapped = canary(slot, fraction)
    for rows in (1, 7, 300):
        answers = [slot(Rows(rows)) for _ in range(2 * BLOCK)]
        assert answers.count("variant") == 2 * per_mille(fraction)
    assert swapped.swapped_launches == 6 * per_mille(fraction)
    assert slot.total() == 6 * BLOCK


def test_numbering_goes_on_where_it_was_when_the_table_of_routes_is_built_anew() -> None:
    slot = Slot(DEFINITION, lambda _: "original")
    swapped = canary(slot, 0.25)
    answers = []
    for _ in range(BLOCK):
        answers.append(slot(Rows(4)))
        assert slot.replace(swapped, state="swapped")
    assert answers.count("variant") == 250


def test_steps_lead_to_all_launches_and_back_to_none() -> None:
    slot = Slot(DEFINITION, lambda _: "original")
    swapped = canary(slot, 0.1)
    for fraction in (0.5, 1.0, 0.3, 1.0, 0.001):
        swapped.ramp(fraction, excluded=())
        answers = [slot(Rows(4)) for _ in range(BLOCK)]
        assert abs(answers.count("variant") - per_mille(fraction)) <= 1
    swapped.trip("because", "")
    assert {slot(Rows(4)) for _ in range(BLOCK)} == {"original"}
    swapped.ramp(1.0, excluded=())
    assert slot(Rows(4)) == "original", "a step does not bring back what went back by itself"


def test_shapes_left_out_of_the_guard_are_the_originals_and_no_others() -> None:
    slot = Slot(DEFINITION, lambda _: "original")
    swapped = canary(slot, 1.0)
    swapped.ramp(1.0, excluded=[(3,)])  # 4 to 7 rows
    served = {rows: slot(Rows(rows)) for rows in range(1, 10)}
    assert {rows for rows, answer in served.items() if answer == "original"} == {4, 5, 6, 7}
    swapped.ramp(1.0, excluded=[])
    assert slot(Rows(5)) == "variant"


def test_time_at_a_fraction_counts_from_its_change() -> None:
    now = [100.0]
    live = CanaryShare(0.1, clock=lambda: now[0])
    now[0] = 130.0
    assert live.seconds == 30.0
    live.set(0.5)
    assert (live.fraction, live.seconds) == (0.5, 0.0)


@pytest.fixture
def brisk() -> Iterator[None]:
    """Let threads take turns fifty times as often as usual."""
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(usual_s)


@pytest.mark.usefixtures("brisk")
def test_eight_threads_and_a_thousand_changes_give_no_wrong_answer_and_lose_no_launch() -> None:
    """Every answer is one kernel's or the other's, and as many are the variant's as it says."""
    slot = Slot(DEFINITION, lambda _: "original")
    swapped = canary(slot, 0.5)
    shares, chance = (1, 100, 250, 500, 750, 900, 999), random.Random(1)
    seen: list[list[str]] = [[] for _ in range(8)]
    stop, started = threading.Event(), threading.Barrier(9)

    def work(mine: list[str]) -> None:
        x = Rows(4)
        started.wait()
        while not stop.is_set():
            mine.append(slot(x))

    threads = [threading.Thread(target=work, args=(mine,)) for mine in seen]
    for thread in threads:
        thread.start()
    started.wait()
    least = most = 0.0
    since, last = slot.total(), 0.5
    for _ in range(1_000):
        share = chance.choice(shares) / BLOCK
        until = slot.total()
        swapped.ramp(share, excluded=())
        now = slot.total()
        # what was launched while the share changed may have been decided by either
        least += last * (until - since) + min(last, share) * (now - until)
        most += last * (until - since) + max(last, share) * (now - until)
        since, last = now, share
        until_s = time.monotonic() + 200.0
        while slot.total() < now + 200:  # every share is launched under, however busy the machine
            assert time.monotonic() < until_s
            time.sleep(0.0001)  # lets the others go on
    stop.set()
    for thread in threads:
        thread.join()
    answers = [answer for mine in seen for answer in mine]
    least, most = (bound + last * (len(answers) - since) for bound in (least, most))
    ran = answers.count("variant")
    assert ran + answers.count("original") == len(answers) == slot.total()
    assert ran == swapped.swapped_launches
    # each table may be one off where it begins and where it ends, and the launches of eight threads
    # that are under way are decided by the table before: ten a change, of two hundred and more
    assert least - 10_000 <= ran <= most + 10_000
    assert most - least < 0.5 * len(answers)  # hardly a hundredth, unless this thread stood still
    assert len(answers) > 200_000


@pytest.mark.parametrize("share", [10, 250, 999])
def test_eight_threads_together_hold_the_share_exactly(share: int) -> None:
    slot = Slot(DEFINITION, lambda _: "original")
    swapped = canary(slot, share / BLOCK)
    found: list[int] = []

    def work() -> None:
        x = Rows(4)
        found.append([slot(x) for _ in range(BLOCK)].count("variant"))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(found) == 8 * share == swapped.swapped_launches


@pytest.mark.parametrize(
    "fields",
    [
        {"canary": "all"},
        {"canary": [0.5]},
        {"canary": [{"fraction": 1.5}]},
        {"canary": [{"fraction": float("nan")}]},
        {"canary": [{"fraction": True}]},
        {"canary": [{}]},
        {"canary": [{"fraction": 0.1}] * 300},
        {"shadow_later": [[10, 5], [10, 6]]},
        {"shadow_later": [[-1, 5]]},
        {"shadow_later": [[10, 0]]},
        {"shadow_later": [10]},
        {"shadow_share": -0.1},
        {"shadow_share": "all"},
        {"lease_s": float("inf")},
        {"orphan": "wait"},
        {"shadow_noise": [{"bucket": [1], "rms": 0.0}]},
        {"shadow_noise": [{"bucket": [70], "rms": 0.1}]},
        {"shadow_noise": [{"bucket": "1", "rms": 0.1}]},
        {"shadow_noise": [[[1], 0.1]]},
    ],
)
def test_an_order_with_an_odd_canary_is_refused(fields: dict[str, Any]) -> None:
    from retuned.runtime.schema import Refused

    with pytest.raises(Refused) as caught:
        parse_order(order(**fields))
    assert caught.value.reason == "order-invalid"
