"""Tunables of a pod's server are posted to the operator once a window."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from tests.sidecar.sidecar_world import PodWorld

from retuned.api.agent import MAX_DEFINITION_CHARS, Ack, Report, TunablePost, WatchPost
from retuned.errors import Refused, TemporaryError
from retuned.runtime_client.tunables import TunableProcess, process_of
from retuned.sidecar import tunables
from retuned.sidecar.main import Sidecar

NAME = "tunable:autotune:chunk_scan:0123abcd"
FROZEN = {"kwargs": {"BLOCK": 16}, "num_warps": 2}
HELLO = {"pid": 1, "environment": {"cpu": "cpu:a", "numerics": {}}}


@dataclass
class Tap:
    """A server with processes that launch a kernel at a steady rate."""

    clock_s: Any
    processes_: int = 1
    rate: float = 10.0
    source: str = "sha256:" + "1" * 64
    more: dict[str, Any] = field(default_factory=dict)
    recipe: dict[str, Any] = field(default_factory=lambda: {"axes": {"elements": 1024}})
    away: bool = False

    def processes(self) -> list[TunableProcess]:
        if self.away:
            raise TemporaryError("the server does not answer", delay_s=1.0)
        now_s = self.clock_s()
        return [self._process(n, now_s) for n in range(self.processes_)]

    def _process(self, number: int, now_s: float) -> TunableProcess:
        launches = int(self.rate * now_s)
        asked = {
            "axes": {"elements": 1024},
            "launches": launches,
            "timed": launches,
            "timed_us": 50.0 * launches,
            "config": FROZEN,
            "how": "frozen",
            "ready": True,
        }
        report = {
            "id": NAME,
            "family": "autotune",
            "kernel": "chunk_scan",
            "module": "m",
            "source": self.source if not number else self.source[:-1] + str(number + 1),
            "asked": [asked],
        }
        answer = {
            "environment": {"executable": "/usr/bin/python3"},
            "steps": {"hook": "on", "busy_s": 0.5 * now_s},
            "tunables": [report | self.more],
        }
        path = Path(f"/run/{number}.sock")
        return process_of(path, answer, hello=HELLO, seen_s=now_s)

    def recipes(self, process: TunableProcess, tunable: str) -> list[dict[str, Any]]:
        return [self.recipe]

    def record(self, process: TunableProcess, tunable: str, *, on: bool) -> None:
        raise AssertionError("a sidecar records nothing by itself")

    def paused(self, process: TunableProcess, *, seconds: float) -> AbstractContextManager[None]:
        return nullcontext()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[PodWorld]:
    found = PodWorld(tmp_path)
    found.turn()  # whom it serves
    tap = Tap(found.clock.monotonic_s)
    found.sidecar = Sidecar(replace(found.ctx, tunables=tap))
    yield found
    found.ctx.store.close()


def tap(world: PodWorld) -> Tap:
    found = world.ctx.tunables
    assert isinstance(found, Tap)
    return found


def window(world: PodWorld, count: int = 1) -> None:
    """Let windows go by."""
    for _ in range(8 * count):
        world.clock.advance(world.ctx.settings.window.total_seconds() / 8)
        tunables.look(world.ctx)


def test_a_post_has_what_the_window_brought_and_what_an_experiment_needs(world: PodWorld) -> None:
    window(world, 2)
    world.sidecar.tell()
    (said,) = world.said(TunablePost)
    assert (said.name, said.family, said.differs, said.refused) == (NAME, "autotune", False, "")
    assert said.busy_us == pytest.approx(0.5e6 * said.observed_s)
    (used,) = said.used
    assert used.launches == pytest.approx(10.0 * said.observed_s, rel=0.02)
    assert used.time_us == pytest.approx(50.0 * used.launches)
    assert json.loads(said.frozen) == FROZEN
    needs = json.loads(said.text)
    assert needs["report"]["id"] == NAME
    assert needs["environment"] == {"executable": "/usr/bin/python3"}
    assert needs["recipes"] == [{**tap(world).recipe, "call": {}}]


def test_nothing_is_posted_before_a_window_is_full_and_nothing_twice(world: PodWorld) -> None:
    tunables.look(world.ctx)
    world.sidecar.tell()
    assert world.said(TunablePost) == []
    window(world, 2)
    for _ in range(3):
        world.sidecar.tell()
    assert len(world.said(TunablePost)) == 1


def test_processes_with_different_sources_are_named(world: PodWorld) -> None:
    tap(world).processes_ = 2
    window(world, 2)
    world.sidecar.tell()
    (said,) = world.said(TunablePost)
    assert said.differs is True
    assert sum(each.launches for each in said.used) == pytest.approx(
        20.0 * said.observed_s, rel=0.02
    )


def test_a_refusal_of_the_server_is_posted(world: PodWorld) -> None:
    tap(world).more = {"refused": "batch-invariant"}
    window(world, 2)
    world.sidecar.tell()
    assert world.said(TunablePost)[0].refused == "batch-invariant"


def test_launches_that_do_not_fit_are_left_out(world: PodWorld) -> None:
    tap(world).recipe = {"axes": {"elements": 1024}, "data": "x" * MAX_DEFINITION_CHARS}
    window(world, 2)
    world.sidecar.tell()
    (said,) = world.said(TunablePost)
    assert json.loads(said.text)["recipes"] == []
    assert [each.ready for each in said.used] == [False]


def test_processes_describe_a_size_class_once(world: PodWorld) -> None:
    tap(world).processes_ = 3
    tap(world).recipe = {"axes": {"elements": 1024}, "data": "x" * (MAX_DEFINITION_CHARS // 2)}
    window(world, 2)
    world.sidecar.tell()
    (said,) = world.said(TunablePost)
    assert len(json.loads(said.text)["recipes"]) == 1
    assert [each.ready for each in said.used] == [True]


@pytest.mark.parametrize("recipe", [{"axes": 3}, {"axes": {"elements": "x"}}, {}])
def test_a_launch_without_sizes_is_left_out(world: PodWorld, recipe: dict[str, Any]) -> None:
    tap(world).recipe = recipe
    window(world, 2)
    world.sidecar.tell()
    (said,) = world.said(TunablePost)
    assert json.loads(said.text)["recipes"] == []
    assert [each.ready for each in said.used] == [False]


def test_values_of_tensors_never_leave_the_pod(world: PodWorld) -> None:
    index = {"dtype": "int32", "shape": [1], "stride": [1], "data": "c2VjcmV0"}
    arguments = [["index_ptr", {"tensor": index}], ["n", {"value": 3}]]
    tap(world).recipe = {"axes": {"elements": 1024}, "call": {"arguments": arguments}}
    window(world, 2)
    world.sidecar.tell()
    (said,) = world.said(TunablePost)
    assert "c2VjcmV0" not in said.text
    assert json.loads(said.text)["recipes"][0]["call"]["arguments"][1] == ["n", {"value": 3}]


@pytest.mark.parametrize("arguments", [[1], [["a"]], [["a", 3]], [["a", {"tensor": 3}]], 7])
def test_a_launch_that_is_described_wrongly_is_left_out(world: PodWorld, arguments: Any) -> None:
    tap(world).recipe = {"axes": {"elements": 1024}, "call": {"arguments": arguments}}
    window(world, 2)
    world.sidecar.tell()
    (said,) = world.said(TunablePost)
    assert json.loads(said.text)["recipes"] == []


def test_a_report_that_fits_no_post_hides_nothing_else(world: PodWorld) -> None:
    tap(world).more = {"space": {"configs": ["x" * MAX_DEFINITION_CHARS]}}
    window(world, 2)
    before = len(world.said(WatchPost))
    world.sidecar.tell()
    assert world.said(TunablePost) == []
    assert len(world.said(WatchPost)) == before + 1


def test_a_server_that_does_not_answer_is_asked_again(world: PodWorld) -> None:
    tap(world).away = True
    window(world, 2)
    tap(world).away = False
    window(world, 2)
    world.sidecar.tell()
    assert len(world.said(TunablePost)) == 1


def test_an_operator_of_an_older_release_hears_the_rest(
    world: PodWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = world.operator.post

    def older(report: Report) -> Ack:
        if isinstance(report, TunablePost):
            error = Refused("no such path")
            error.code = "status-404"
            raise error
        return send(report)

    monkeypatch.setattr(world.operator, "post", older)
    window(world, 2)
    before = len(world.said(WatchPost))
    with pytest.raises(Refused):
        world.sidecar.tell()
    assert len(world.said(WatchPost)) == before + 1
