"""What slots counted is told with the window that it was counted in."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError
from tests.sidecar.sidecar_world import POD, TARGET, PodWorld

from retuned.api.agent import MAX_COUNTED, ProfileReport
from retuned.node.context import WINDOW
from retuned.sidecar import reports
from retuned.stages.profile import WorkloadProfile

PROFILE = WorkloadProfile(window_start_ns=0, window_ns=60, observed_ns=60, stats=())


def told(world: PodWorld, counts: dict[str, dict[str, int]] | None) -> ProfileReport:
    world.turn()  # whom it serves
    body = {"profile": PROFILE.model_dump(mode="json")} | ({"counts": counts} if counts else {})
    world.ctx.store.add(WINDOW, "1.0", body, phase="judged")
    reports.queue_reports(world.ctx)
    reports.flush(world.ctx)
    return world.said(ProfileReport)[-1]


def test_a_window_is_told_with_what_was_counted_in_it(tmp_path: Path) -> None:
    counts = {"gemm": {"16": 5, "1x256": 2}}
    assert told(PodWorld(tmp_path), counts).counts == counts


def test_a_window_of_which_nothing_was_counted_is_told_all_the_same(tmp_path: Path) -> None:
    assert told(PodWorld(tmp_path), None).counts == {}


def test_of_very_many_lengths_those_launched_most_often_are_told(tmp_path: Path) -> None:
    counts = {"gemm": {str(n): n for n in range(1, 2 * MAX_COUNTED + 1)}}
    kept = told(PodWorld(tmp_path), counts).counts["gemm"]
    assert len(kept) == MAX_COUNTED
    assert min(kept.values()) == MAX_COUNTED + 1


@pytest.mark.parametrize(
    "counts",
    [
        {"gemm": {"-1": 5}},
        {"gemm": {"16": -5}},
        {"gemm": {"x".join("1" * 9): 5}},
        {"gemm": {"1" * 13: 5}},
        {"gemm": {str(n): 1 for n in range(MAX_COUNTED + 1)}},
        {"<script>": {"1": 5}},
    ],
)
def test_counts_that_no_sidecar_writes_are_refused(counts: dict[str, dict[str, int]]) -> None:
    with pytest.raises(ValidationError):
        ProfileReport(pod=POD, target=TARGET, id="w", profile=PROFILE, counts=counts)
