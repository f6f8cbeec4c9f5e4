"""The show's daemon: lifted kernels that traces name by their operator's shapes are believed of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from benchmarks.gpu.live.daemon import ShowLoop
from tests.lifting import live
from tests.standalone.local_world import WINDOW, World

from retuned import catalog
from retuned.contract import Language, digest_of
from retuned.ports import TraceBatch
from retuned.runtime_client.kernels import FakeKernelTap
from retuned.stages.trace import LaunchRecord, ShapeSource
from retuned.standalone import experiments, kernels
from retuned.standalone.context import RecordKind
from retuned.standalone.kernels import KnownKernels

pytest.importorskip("triton", reason="Triton is not installed")

KERNEL = "_rms_norm_forward"


@pytest.fixture
def show(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    tap = FakeKernelTap(records=[live.rmsnorm(rows) for rows in (1, 7, 64)])
    known = KnownKernels(language=Language.TRITON)
    world.loop = ShowLoop(replace(world.loop.ctx, kernels=tap, catalog=known))
    yield world
    assert world.unexpected() == 0
    world.store.close()
    catalog.forget()


def window(world: World, rows: int) -> None:
    """Let a window go by; its launches are named by the operator around them, with its shapes."""
    world.clock.advance(WINDOW.total_seconds())
    number = len(world.files)
    at = world.clock.now() - timedelta(seconds=3)
    batch = TraceBatch(
        origin=f"live-{number}.json",
        digest=digest_of(["live", number]),
        format="kineto-json",
        launches=tuple(
            LaunchRecord(
                kernel=KERNEL,
                blocks=(rows, 1, 1),
                threads=(128, 1, 1),
                dims=((1, rows, 96), (96,)),
                dtypes=("c10::BFloat16", "c10::BFloat16"),
                shape_source=ShapeSource.OP,
                shape_confidence=0.9,
                op="LigerRMSNormFunction",
                start_ns=i * 100_000,
                duration_ns=rows * 1000 + (i * 7919 + number) % 13,
            )
            for i in range(400)
        ),
        span_ns=40_000_000,
        completed_at_ns=int(at.timestamp() * 1e9),
    )
    world.files.append(batch)
    traces: Any = world.loop.ctx.traces
    traces.add(batch)


def test_a_lifted_kernel_that_the_drift_did_not_lead_to_is_tried_at_its_live_shapes(
    show: World,
) -> None:
    for rows in (7,) * 6 + (64,) * 8:
        window(show, rows)
        show.loop.observe()
    ctx = show.loop.ctx
    (record,) = kernels.lifted(ctx.store)
    plan = experiments.open_experiment(ctx)
    assert plan is not None, show.phases(RecordKind.DRIFT)
    assert plan.definition == record.own.name
    assert [w.axes for w in plan.workloads] == [w.axes for w in record.workloads]
    (belief,) = ctx.store.list(RecordKind.HYPOTHESIS)
    assert belief.body["share"] == pytest.approx(1.0)
    show.loop.observe()
    assert len(ctx.store.list(RecordKind.HYPOTHESIS)) == 1, "it is believed once"


def test_nothing_is_believed_before_the_traffic_drifts(show: World) -> None:
    for _ in range(8):
        window(show, 7)
        show.loop.observe()
    assert show.loop.ctx.store.list(RecordKind.HYPOTHESIS) == []
