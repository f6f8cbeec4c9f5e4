"""What the demo makes of the client's counts."""

from __future__ import annotations

import os
from typing import Any

import pytest

from retuned.demo.processes import Cores
from retuned.demo.throughput import gain_of, timeline_of


def measured(*rates: float) -> list[dict[str, Any]]:
    states = ("on", "off")
    return [{"state": states[i % 2], "tokens_per_s": rate} for i, rate in enumerate(rates)]


def test_each_on_is_compared_with_the_off_beside_it_so_that_drift_of_the_machine_cancels() -> None:
    gain = gain_of(measured(150.0, 100.0, 75.0, 50.0, 300.0, 200.0))
    assert gain is not None
    assert gain["pairs"] == 3
    speedup = gain["speedup"]
    assert speedup["point"] == pytest.approx(1.5)
    assert speedup["lower"] == pytest.approx(1.5)


def test_a_steady_decline_of_the_machine_is_no_gain_when_the_order_turns_round() -> None:
    states = ("on", "off", "off", "on") * 2
    declining = [{"state": s, "tokens_per_s": 100.0 * 0.97**n} for n, s in enumerate(states)]
    gain = gain_of(declining)
    assert gain is not None
    assert gain["speedup"]["point"] == pytest.approx(1.0)


def test_noise_widens_the_interval_until_it_holds_one() -> None:
    gain = gain_of(measured(100.0, 120.0, 120.0, 100.0, 110.0, 100.0))
    assert gain is not None
    assert gain["speedup"]["lower"] < 1.0 < gain["speedup"]["upper"]


@pytest.mark.parametrize("rates", [(), (100.0, 90.0), (100.0, 0.0, 100.0, 90.0)])
def test_without_two_good_pairs_nothing_is_claimed(rates: tuple[float, ...]) -> None:
    assert gain_of(measured(*rates)) is None


def test_the_timeline_adds_prompt_and_output_tokens_per_second_and_names_the_phase() -> None:
    phases = [{"name": "chat", "start_s": 0.2}, {"name": "code", "start_s": 1.5}]
    bins = [(10.0, 5, 1), (10.5, 0, 2), (11.2, 7, 0), (12.9, 1, 1)]
    assert timeline_of(bins, phases, origin_s=10.0) == [
        {"t_s": 0, "tokens_per_s": 8, "phase": "chat"},
        {"t_s": 1, "tokens_per_s": 7, "phase": "chat"},
        {"t_s": 2, "tokens_per_s": 2, "phase": "code"},
    ]


def test_on_a_wide_machine_the_gpu_s_server_and_the_lab_share_no_core(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    two, wide = Cores.choose(), Cores.choose(wide=True)
    assert (two.server, two.lab) == ((0,), (1,))
    assert (wide.server, wide.lab) == ((0, 1, 2, 3), tuple(range(4, 16)))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    assert Cores.choose(wide=True) == Cores(server=(3,), lab=(3,))
