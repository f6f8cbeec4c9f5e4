"""Live kernels of a pod are lifted there and told to the operator once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.lifting import live
from tests.sidecar.sidecar_world import PodWorld

from retuned.api.agent import MAX_DEFINITION_CHARS, Ack, DefinitionPost, Report, WatchPost
from retuned.errors import Refused, TemporaryError
from retuned.lifting.store_records import LiftedRecord
from retuned.runtime_client.kernels import FakeKernelTap
from retuned.sidecar import live_kernels
from retuned.sidecar.main import Sidecar


@pytest.fixture
def tap() -> FakeKernelTap:
    return FakeKernelTap(records=[live.rmsnorm(rows) for rows in (1, 7, 64)])


@pytest.fixture
def world(tmp_path: Path, tap: FakeKernelTap) -> Iterator[PodWorld]:
    found = PodWorld(tmp_path)
    found.turn()  # whom it serves
    found.sidecar = Sidecar(replace(found.ctx, kernels=tap))
    yield found
    found.ctx.store.close()


def look(world: PodWorld) -> None:
    world.clock.advance(world.ctx.settings.lift_s)
    live_kernels.look(world.ctx)


def test_a_live_kernel_is_told_once_and_again_when_more_of_it_was_seen(
    world: PodWorld, tap: FakeKernelTap
) -> None:
    for _ in range(3):
        look(world)
        world.sidecar.tell()
    (said,) = world.said(DefinitionPost)
    record = LiftedRecord.model_validate_json(said.text)
    assert said.name == record.own.name
    assert [each.axes for each in record.workloads] == [{"rows": rows} for rows in (1, 7, 64)]
    tap.records = [*tap.records, live.rmsnorm(99)]
    live_kernels.look(world.ctx)
    assert len(world.ctx.standing.lifted) == 1
    look(world)
    world.sidecar.tell()
    assert [each.name for each in world.said(DefinitionPost)] == [said.name] * 2


def test_a_definition_that_the_operator_does_not_take_is_not_told_again(
    world: PodWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    post = world.operator.post

    def refuse(report: Report) -> Ack:
        if not isinstance(report, DefinitionPost):
            return post(report)
        asked.append(report)
        error = Refused("it brings code")
        error.code = "definition-brings-code"
        raise error

    monkeypatch.setattr(world.operator, "post", refuse)
    for _ in range(3):
        look(world)
        world.sidecar.tell()
    assert len(asked) == 1


def test_an_operator_of_an_older_release_hears_the_rest(
    world: PodWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    post = world.operator.post

    def older(report: Report) -> Ack:
        if isinstance(report, DefinitionPost):
            error = Refused("no such path")
            error.code = "status-404"
            raise error
        return post(report)

    monkeypatch.setattr(world.operator, "post", older)
    look(world)
    before = len(world.said(WatchPost))
    with pytest.raises(Refused):
        world.sidecar.tell()
    assert len(world.said(WatchPost)) == before + 1


def test_an_operator_that_is_away_hears_it_when_it_is_back(world: PodWorld) -> None:
    look(world)
    world.operator.away = True
    with pytest.raises(TemporaryError):
        world.sidecar.tell()
    world.operator.away = False
    world.sidecar.tell()
    assert len(world.said(DefinitionPost)) == 1


def test_a_server_that_shows_nothing_lifts_nothing(world: PodWorld, tap: FakeKernelTap) -> None:
    tap.away = True
    look(world)
    assert world.ctx.standing.lifted == {}
    tap.away = False
    tap.records = [{"kernel": "evil\x1b]0;x"}, live.rmsnorm(7)]
    look(world)
    assert world.ctx.standing.lifted == {}


def test_what_is_too_long_to_be_told_is_left_out(
    world: PodWorld, tap: FakeKernelTap, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_kernels, "MAX_DEFINITION_CHARS", 3000)
    tap.records = [*tap.records, *(live.scale(n) for n in (700, 7, 4096))]
    look(world)
    (text,) = world.ctx.standing.lifted.values()
    assert len(text) < 3000 < MAX_DEFINITION_CHARS


def test_of_many_shapes_those_launched_most_often_are_told(
    world: PodWorld, tap: FakeKernelTap, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_kernels, "_MAX_SHAPES", 2)
    tap.records = [live.rmsnorm(rows) | {"count": rows} for rows in (64, 1, 7)]
    look(world)
    (text,) = world.ctx.standing.lifted.values()
    record = LiftedRecord.model_validate_json(text)
    assert sorted(each.axes["rows"] for each in record.workloads) == [7, 64]
    assert len(record.grids) == 2
