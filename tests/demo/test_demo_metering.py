"""What the demo makes of the client's counts."""

from __future__ import annotations

import os

import pytest

from retuned.demo.processes import Cores
from retuned.demo.throughput import timeline_of


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
