"""Live kernels in the loop: seen, lifted, kept, believed of, and told to people."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.lifting import live
from tests.standalone.local_world import WINDOW, World
from typer.testing import CliRunner

from retuned import catalog
from retuned.cli.commands import app
from retuned.contract import AxisConst, Guard, Language, digest_of
from retuned.errors import CandidateError, HarnessError
from retuned.lifting.lift import Lifted
from retuned.lifting.recognition import assignments, fitted
from retuned.node import order_executor
from retuned.ports import TraceBatch
from retuned.runtime_client import kernels as runtime_kernels
from retuned.runtime_client.kernels import FakeKernelTap, RuntimeKernels
from retuned.stages.profile import Signature, SignatureStat, bucket
from retuned.stages.swap import SwapKind, SwapOrder
from retuned.stages.trace import LaunchRecord
from retuned.standalone import experiments
from retuned.standalone import kernels as lifting
from retuned.standalone.context import Context, RecordKind
from retuned.standalone.daemon import Loop
from retuned.standalone.kernels import KnownKernels
from retuned.standalone.node import LocalNode

pytest.importorskip("triton", reason="Triton is not installed")

KERNEL = "_rms_norm_forward"
SEEN = (1, 7, 64)


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    yield
    catalog.forget()


@pytest.fixture
def tap() -> FakeKernelTap:
    return FakeKernelTap(records=[live.rmsnorm(rows) for rows in SEEN])


@pytest.fixture
def ctx(world: World, tap: FakeKernelTap) -> Context:
    known = KnownKernels(language=Language.TRITON)
    found = replace(world.loop.ctx, kernels=tap, catalog=known)
    world.loop = Loop(found)
    return found


def stat(rows: int, *, threads: int = 128, launches: int = 100) -> SignatureStat:
    return SignatureStat(
        signature=Signature(kernel=KERNEL, blocks=(rows, 1, 1), threads=(threads, 1, 1)),
        launches=launches,
        gpu_time_ns=1_000_000,
        median_ns=10_000,
    )


def window(world: World, rows: int) -> None:
    """Let a window go by in which the live kernel ran; the trace shows its name and grid."""
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


def test_a_live_kernel_is_asked_once_what_it_computes_and_keeps_its_structures(
    ctx: Context, tap: FakeKernelTap
) -> None:
    asked: list[str] = []

    def structures(lifted: Lifted) -> Lifted:
        asked.append(lifted.own.name)
        return fitted(lifted, next(iter(assignments(lifted.own))))

    ctx = replace(ctx, structures=structures)
    lifting.observe(ctx)
    (record,) = lifting.lifted(ctx.store)
    assert {each.definition for each in record.workloads} == {record.own.name}
    assert ctx.catalog.structures(record.own.name) == ("lifted", "rows", "blocks")
    assert ctx.catalog.audited(record.own.name) == ("lifted",), "what runs is tried first"
    (said,) = [e for e in ctx.store.events(id=record.own.name) if e.what == "kernel-recognised"]
    assert said.detail["computes"] == "rmsnorm"
    tap.records = [*tap.records, live.rmsnorm(99)]
    lifting.observe(ctx)
    (again,) = lifting.lifted(ctx.store)
    assert (again.own.name, len(again.workloads)) == (record.own.name, 4)
    assert len(asked) == 1


def test_a_live_kernel_that_cannot_be_asked_is_lifted_as_it_is_and_asked_again(
    ctx: Context, tap: FakeKernelTap
) -> None:
    def busy(_: Lifted) -> Lifted:
        raise HarnessError("no child")

    ctx = replace(ctx, structures=busy)
    lifting.observe(ctx)
    (record,) = lifting.lifted(ctx.store)
    assert ctx.catalog.structures(record.own.name) == ("lifted",)
    asked: list[str] = []

    def nothing(lifted: Lifted) -> Lifted:
        asked.append(lifted.own.name)
        return lifted

    for rows in (99, 100):
        tap.records = [*tap.records, live.rmsnorm(rows)]
        lifting.observe(replace(ctx, structures=nothing))
    assert asked == [record.own.name]


def test_what_is_seen_is_lifted_once_and_known_from_then_on(
    ctx: Context, tap: FakeKernelTap
) -> None:
    lifting.observe(ctx)
    lifting.observe(ctx)
    (record,) = lifting.lifted(ctx.store)
    assert catalog.own_definition(record.own.name) == record.own
    assert [w.axes for w in record.workloads] == [{"rows": rows} for rows in SEEN]
    events = [event for event in ctx.store.events(id=record.own.name)]
    assert [event.what for event in events] == ["kernel-lifted"]
    catalog.forget()
    assert lifting.recall(ctx.store) == 1
    assert ctx.catalog.audited(record.own.name) == ("lifted",)
    assert len(tap.records) == 3


def test_further_launches_lift_what_needed_them(ctx: Context, tap: FakeKernelTap) -> None:
    tap.records = [live.rmsnorm(7)]
    lifting.observe(ctx)
    assert [each.reason for each in lifting.refused(ctx.store)] == ["needs-more-launches"]
    tap.records = [live.rmsnorm(7), live.rmsnorm(64)]
    lifting.observe(ctx)
    assert len(list(lifting.lifted(ctx.store))) == 1
    assert list(lifting.refused(ctx.store)) == []


def test_a_kernel_that_was_seen_again_keeps_its_name_and_gets_its_shapes(
    ctx: Context, tap: FakeKernelTap
) -> None:
    tap.records = [live.scale(n) for n in (700, 7, 4096)]
    lifting.observe(ctx)
    (before,) = lifting.lifted(ctx.store)
    tap.records = [live.scale(n) for n in (700, 7, 4096, 9000)]
    lifting.observe(ctx)
    (after,) = lifting.lifted(ctx.store)
    assert after.own.name == before.own.name
    assert len(after.workloads) == 4
    assert after.own.where == "n_elements <= 9000"
    assert catalog.own_definition(after.own.name) == after.own


def test_a_kernel_whose_lengths_turn_out_to_vary_is_another_definition(
    ctx: Context, tap: FakeKernelTap
) -> None:
    tap.records = [live.softmax(rows, 512) for rows in (1, 7)]
    lifting.observe(ctx)
    (before,) = lifting.lifted(ctx.store)
    tap.records = [*tap.records, live.softmax(3, 1000)]
    lifting.observe(ctx)
    (after,) = lifting.lifted(ctx.store)
    assert before.own.definition.variable_axes == ("n_rows",)
    assert after.own.definition.variable_axes == ("n_rows", "n_cols")
    catalog.forget()
    assert lifting.recall(ctx.store) == 2, "what was found about the first is still read"


def test_a_server_that_does_not_answer_stops_nothing(ctx: Context, tap: FakeKernelTap) -> None:
    tap.away = True
    lifting.observe(ctx)
    assert list(lifting.lifted(ctx.store)) == []


def test_a_trace_without_shapes_is_bound_by_name_grid_and_threads(ctx: Context) -> None:
    lifting.observe(ctx)
    (share,) = lifting.geometries(ctx).shares_of(stat(64))
    assert share.workload.axes == {"rows": 64}
    assert (share.workload.weight, share.part) == (100, 1.0)
    assert lifting.geometries(ctx).shares_of(stat(65)) == ()
    assert lifting.geometries(ctx).shares_of(stat(64, threads=512)) == ()


def test_a_trace_that_shows_an_operator_s_tensors_is_bound_by_the_largest_of_them(
    ctx: Context,
) -> None:
    """As an eager launch within an autograd function is shown, whose weights are tensors too."""
    lifting.observe(ctx)
    (record,) = lifting.lifted(ctx.store)
    width = next(
        axis.value for axis in record.own.definition.axes.values() if isinstance(axis, AxisConst)
    )

    def shown(rows: int) -> SignatureStat:
        signature = Signature(kernel=KERNEL, dims=((1, rows, width), (width,)))
        return stat(rows).model_copy(update={"signature": signature})

    for rows in SEEN:
        (share,) = lifting.geometries(ctx).shares_of(shown(bucket(rows, ctx.settings.profile)))
        assert share.workload.axes == {"rows": rows}
    assert lifting.geometries(ctx).shares_of(shown(2048)) == ()


def test_shapes_of_one_grid_share_its_time_as_they_were_launched(
    ctx: Context, tap: FakeKernelTap
) -> None:
    tap.records = [
        live.scale(n) | {"count": c} for n, c in ((700, 30), (760, 10), (7, 1), (4096, 1))
    ]
    lifting.observe(ctx)
    found = lifting.geometries(ctx).shares_of(
        SignatureStat(
            signature=Signature(kernel="scale_kernel", blocks=(3, 1, 1)),
            launches=100,
            gpu_time_ns=1_000_000,
            median_ns=10_000,
        ),
    )
    assert {s.workload.axes["n_elements"]: s.part for s in found} == {700: 0.75, 760: 0.25}
    assert sum(share.workload.weight for share in found) == 100


def test_kernels_of_another_language_are_believed_nothing_of(
    ctx: Context, tap: FakeKernelTap
) -> None:
    lifting.observe(ctx)
    others = replace(ctx, catalog=KnownKernels())
    assert lifting.geometries(others).shares_of(stat(64)) == ()
    assert len(tap.records) == 3


def test_drift_to_a_live_kernel_becomes_an_experiment_at_its_live_shapes(
    ctx: Context, world: World
) -> None:
    for rows in (7,) * 6 + (64,) * 8:
        window(world, rows)
        world.loop.observe()
    plan = experiments.open_experiment(ctx)
    assert plan is not None, world.phases(RecordKind.DRIFT)
    (record,) = lifting.lifted(ctx.store)
    assert plan.definition == record.own.name
    assert plan.structures == ("lifted",)
    assert [w.axes for w in plan.workloads] == [{"rows": 64}]
    assert plan.workloads[0].weight > 0
    assert plan.incumbent == ctx.catalog.incumbent(record.own.name).digest


def test_an_order_for_a_live_kernel_opens_its_slot(
    ctx: Context,
) -> None:
    lifting.observe(ctx)
    (record,) = lifting.lifted(ctx.store)
    name = record.own.name
    swapper: Any = ctx.swapper
    swapper.live = frozenset({name})
    solution = ctx.catalog.incumbent(name)
    found = {"solution": solution.model_dump(mode="json")}
    ctx.store.add(RecordKind.FINDING, f"x/{solution.digest}", found, phase="final")
    order = SwapOrder(
        id="o", kind=SwapKind.ROLLBACK, proposal="p", target=ctx.settings.target, definition=name,
        artifact=solution.digest, previous=None, guard=Guard(), epoch=7,
    )  # fmt: skip
    ctx.store.add(RecordKind.ORDER, order.id, order.model_dump(mode="json"), phase="new")
    order_executor.carry_out(LocalNode.over(ctx))
    assert swapper.flips == ["o"]
    assert name in {slot.definition for slot in swapper.slots()}


def test_people_are_told_what_was_lifted_and_what_was_not(
    ctx: Context, tap: FakeKernelTap, world: World
) -> None:
    evil = live.scale(7) | {"kernel": "evil\x1b]0;x\x07:scale_kernel"}
    told_apart = [live.cross_entropy(rows) for rows in (1, 7)]
    turned = [live.rope(rows, in_place=True) for rows in (1, 7)]
    tap.records = [*tap.records, evil, *told_apart, *turned]
    lifting.observe(ctx)
    command = ["kernels", "lifted", "--state-dir", str(world.folder / "state")]
    plain = CliRunner().invoke(app, command)
    assert plain.exit_code == 0, plain.output
    assert "thirdparty.ops:_rms_norm_forward" in plain.output
    assert "index-bounds-unknown" in plain.output
    assert "q_ptr_out[rows, q_row_stride] over q_ptr" in plain.output
    assert "\x1b" not in plain.output
    assert "2 lifted, 2 not." in plain.output
    told = json.loads(CliRunner().invoke(app, [*command, "--json"]).output)
    one, other = told["lifted"]
    assert (one["in_place"], other["in_place"]) == ({}, {"q_ptr_out": "q_ptr"})
    assert one["oracle"] == "incumbent"
    assert one["grid"] == ["rows"]
    assert one["shapes"][2] == {"axes": {"rows": 64}, "launches": 10}
    reasons = {each["reason"] for each in told["refused"]}
    assert reasons == {"index-bounds-unknown", "observation-invalid"}


def test_bounds_that_somebody_sets_lift_what_was_seen_before(
    ctx: Context, tap: FakeKernelTap
) -> None:
    tap.records = [live.cross_entropy(rows) for rows in (1, 7, 40)]
    lifting.observe(ctx)
    assert list(lifting.lifted(ctx.store)) == []
    bounds = {"thirdparty.ops:cross_entropy_kernel": {"Y_ptr": (0, "n_cols - 1")}}
    said = replace(ctx, settings=replace(ctx.settings, kernel_bounds=bounds))
    lifting.observe(said)
    (record,) = lifting.lifted(ctx.store)
    assert record.own.definition.inputs["Y_ptr"].values is not None
    assert list(lifting.refused(ctx.store)) == []


class _Process:
    """A process that answers in pages."""

    pages: tuple[object, ...] = ()

    def __init__(self, path: Path) -> None:
        self._path = path

    def processes(self) -> list[Path]:
        return [self._path / "1", self._path / "2"]

    def ask(self, request: Mapping[str, Any]) -> list[Any]:
        if self._path.name == "2":
            raise CandidateError("unknown-op", detail="an older runtime")
        return [self.pages[int(request["after"])]]


def test_pages_of_every_process_are_read_and_put_together(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(runtime_kernels, "RuntimeSocket", _Process)
    one = {"kernel": "a:b", "source_digest": "d"}
    monkeypatch.setattr(
        _Process,
        "pages",
        (
            {"records": [one, 3], "sources": {"d": "text"}, "next": 1},
            {"records": [one], "sources": {}, "next": 1},
        ),
    )
    found = RuntimeKernels(tmp_path).observed()
    assert found == [{**one, "source": "text"}, {**one, "source": None}]
    monkeypatch.setattr(_Process, "pages", ({"records": 7, "next": "x"},))
    assert RuntimeKernels(tmp_path).observed() == []
