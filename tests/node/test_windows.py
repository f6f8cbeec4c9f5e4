"""Windows of many trace files: all launches are in, and memory is that of a few files."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path

from tests.sidecar.sidecar_world import PodWorld

from retuned.node import windows
from retuned.node.context import BATCH, WINDOW
from retuned.ports import TraceBatch
from retuned.stages.profile import ProfileSettings, WorkloadProfile
from retuned.stages.trace import LaunchRecord, ShapeSource

_FILES = 48
_KEPT = 512
_BOUND_BYTES = 24 << 20
"""All files' profiles at once would take more than twice as much."""


def _file(world: PodWorld, number: int) -> TraceBatch:
    """Return a file in which nearly every launch is of a kernel that no other file has."""
    at_ns = int(world.clock.now().timestamp() * 1e9)
    names = ["gemm"] * 200 + [f"stranger_{number}_{n}" for n in range(600)]
    launches = [
        LaunchRecord(
            kernel=name,
            start_ns=n * 10_000,
            duration_ns=5_000,
            dims=((16, 64),),
            shape_source=ShapeSource.OP,
            shape_confidence=1.0,
        )
        for n, name in enumerate(names)
    ]
    return TraceBatch(
        origin=f"/traces/{number}.csv",
        digest=f"sha256:{number:064x}",
        format="test",
        launches=launches,
        span_ns=10_000 * len(launches),
        completed_at_ns=at_ns,
    )


def test_the_log_says_how_far_the_baseline_is_and_no_window_is_the_sixth_of_five(
    tmp_path: Path,
) -> None:
    ctx = PodWorld(tmp_path).ctx
    needed = ctx.settings.baseline_windows
    said = []
    for number in range(needed + 1):
        ctx.store.add(WINDOW, f"{number:020d}.0", {}, phase="new")
        said.append(windows._standing(ctx))
    assert said[0] == f"1 of at least {needed} windows for the baseline"
    assert said[-2] == f"{needed} of at least {needed} windows for the baseline"
    assert said[-1].startswith(f"window {needed + 1}; the baseline waits for {needed} that can be")


def test_a_window_of_many_files_has_all_launches_and_takes_the_memory_of_a_few(
    tmp_path: Path,
) -> None:
    world = PodWorld(tmp_path)
    numbers = replace(world.ctx.settings.numbers, profile=ProfileSettings(max_signatures=_KEPT))
    ctx = replace(world.ctx, settings=replace(world.ctx.settings, numbers=numbers))
    for number in range(_FILES):
        world.traces.add(_file(world, number))
        assert windows.ingest(ctx) == 1
    world.clock.advance(600.0)
    tracemalloc.start()
    try:
        assert windows.close_windows(ctx) == 1
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    (window,) = ctx.store.list(WINDOW)
    profile = WorkloadProfile.model_validate(window.body["profile"])
    assert profile.launches == _FILES * 800
    assert len(profile.stats) <= _KEPT + 1, "with one for all others"
    assert profile.stats[0].signature.kernel in {"gemm", "(other)"}
    gemm = next(stat for stat in profile.stats if stat.signature.kernel == "gemm")
    assert gemm.launches == _FILES * 200, "what is often is counted exactly"
    assert not ctx.store.ids(BATCH, phase="new")
    assert peak_bytes < _BOUND_BYTES, f"{peak_bytes / 2**20:.1f} MiB"
