"""Profiles and comparisons of real traces: what the format readers hand over, end to end."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from pathlib import Path

import pytest

from retuned.stages.drift import DriftAction, DriftCode, compare
from retuned.stages.profile import WorkloadProfile, fold
from retuned.stages.trace import LaunchRecord
from retuned.traces import read_trace

FIXTURES = Path(__file__).parents[2] / ".." / "shared" / "fixtures"
QWEN = FIXTURES / "kineto_amd" / "mi300_Qwen1.5-0.5B-Chat.json.gz"

pytestmark = [
    pytest.mark.shared,
    pytest.mark.skipif(not FIXTURES.is_dir(), reason="no real traces beside the project"),
]


def profile(launches: list[LaunchRecord], span_ns: int) -> WorkloadProfile:
    return fold(launches, window_start_ns=0, window_ns=span_ns, observed_ns=span_ns)


def kernel_csv(name: str) -> WorkloadProfile:
    batch = read_trace(next((FIXTURES / "rocprofv3_csv").rglob(name)))
    return profile(list(batch.launches), batch.span_ns)


def test_prefill_and_decode_of_one_model_on_one_gpu_are_drift() -> None:
    report = compare(kernel_csv("prefill_kernel_trace.csv"), kernel_csv("decode_kernel_trace.csv"))
    assert (report.detected, report.action) == (True, DriftAction.RETUNE)
    assert report.distance > 0.9
    assert report.reasons[0].code is DriftCode.NEW_SIGNATURE
    assert "mul_mat_vec_q" in report.sentence


def test_every_other_launch_of_a_trace_is_not_drift_from_the_rest() -> None:
    batch = read_trace(QWEN)
    ordered = sorted(batch.launches, key=lambda launch: launch.start_ns)
    report = compare(profile(ordered[::2], batch.span_ns), profile(ordered[1::2], batch.span_ns))
    assert not report.detected


def test_gemms_of_one_geometry_and_two_depths_are_told_apart_by_duration() -> None:
    batch = read_trace(QWEN)
    blind = [dataclasses.replace(launch, dims=(), dtypes=()) for launch in batch.launches]
    modes = defaultdict(list)
    for stat in profile(blind, batch.span_ns).stats:
        key = stat.signature
        if "MT256x128x64" in key.kernel and key.blocks == (280, 1, 1):
            modes[key.kernel].append((key.mode, stat.launches, stat.median_ns))
    found = {tuple((mode, count) for mode, count, _ in sorted(m)) for m in modes.values()}
    assert ((0, 96), (1, 24)) in found
    medians = [m[2] for m in sorted(next(iter(modes.values())))]
    assert 39_200 <= medians[0] <= 45_000
    assert 93_700 <= medians[1] <= 105_900
