"""Recovery of a search on whole surfaces: the logic of a benchmark that runs on a GPU."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from benchmarks.gpu.vllm_live import surfaces
from benchmarks.gpu.vllm_live.surfaces import DRAWS, Surface, measure, recovery

from retuned.errors import CandidateError, HarnessError
from retuned.tunables.search import Space, key_of

REPORT = {"family": "attention", "geometry": {"query_heads": 8, "kv_heads": 2}}
RECIPE = {"axes": {"rows": 64, "decode": 0}, "call": {}}
OWN_US = 100.0


def time_of(config: Mapping[str, int]) -> float:
    """Return microseconds on a surface with one valley."""
    best = {"BLOCK_M": 64, "TILE_SIZE": 32, "num_warps": 8, "num_stages": 3}
    return 20.0 * math.prod(1.0 + 0.2 * (config[name] != value) for name, value in best.items())


class Child:
    """A child on this surface; one configuration ends its process, one is wrong."""

    def __init__(self) -> None:
        self.cases, self.restarts = 0, 0

    def restart(self) -> None:
        self.restarts += 1

    def ask(self, request: Mapping[str, Any], *, limit_s: float) -> dict[str, Any]:
        if request["op"] == "open":
            self.cases += 1
            return {"case": self.cases}
        if request["op"] == "check":
            config = request["config"]
            if config["BLOCK_M"] == 128 and config["TILE_SIZE"] == 128:
                raise CandidateError("crashed", detail="the process ended")
            wrong = config["TILE_SIZE"] == 16
            return {"intact": True, "error": 0.5 * wrong, "worst": 0.0, "spread": 0.0}
        if request["op"] == "pairs":
            assert request["case"] == self.cases, "a case of this process"
            return {"pairs": [[OWN_US, time_of(request["configs"][1])]] * request["pairs"]}
        return {}


def test_a_space_is_measured_whole_and_the_search_finds_its_best() -> None:
    children = [Child(), Child()]
    surface = measure(children, REPORT, RECIPE, until_s=math.inf)
    assert len(surface.draws) == DRAWS
    assert all(len(draw) == len(surface.space.configs) == 64 for draw in surface.draws)
    assert set(surface.failed.values()) == {"crashed", "wrong-result"}
    assert sum(child.restarts for child in children) == 4
    found = recovery(surface)
    assert found["evaluations"] <= found["budget"] == 9
    assert found["best_us"] == pytest.approx(20.0)
    assert found["recovered"] == pytest.approx(found["best_us"] / found["found_us"])
    assert found["failed"] == 20


def test_without_time_nothing_is_claimed() -> None:
    surface = measure([Child()], REPORT, RECIPE, until_s=time.monotonic() - 1.0)
    assert set(surface.failed.values()) == {"no-time-left"}
    assert recovery(surface)["recovered"] is None


def test_the_best_and_the_choice_are_valued_by_a_draw_that_chose_neither() -> None:
    a, b = {"n": 1}, {"n": 2}
    one, two = key_of(a), key_of(b)
    surface = Surface(
        axes={},
        space=Space(configs=(a, b)),
        in_force_us=1.0,
        draws=({one: 1.0, two: 9.0}, {one: 9.0, two: 1.0}, {one: 5.0, two: 4.0}),
        failed={},
    )
    found = recovery(surface)
    assert (found["found"], found["best"]) == (one, two)
    assert found["recovered"] == pytest.approx(0.8)


def test_every_tunable_of_a_server_gets_its_first_class_before_a_second(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    opened: list[str] = []

    class Named(Child):
        def __init__(self, environment: Mapping[str, Any], *, device: str, folder: Path) -> None:
            super().__init__()
            assert (environment["device"], device) == ({"name": "X"}, "1")

        def __enter__(self) -> Named:
            return self

        def __exit__(self, *_: object) -> None: ...

        def ask(self, request: Mapping[str, Any], *, limit_s: float) -> dict[str, Any]:
            if request["op"] == "open":
                opened.append(request["recipe"]["name"])
                if request["recipe"]["name"] == "b1":
                    raise HarnessError("not described")
            return super().ask(request, limit_s=limit_s)

    def recipe(name: str) -> dict[str, Any]:
        return {**RECIPE, "name": name}

    monkeypatch.setattr(surfaces, "ChildProcess", Named)
    described = {
        "environment": {"device": {"name": "X"}},
        "tunables": [
            {"report": {**REPORT, "id": "a"}, "recipes": [recipe("a1"), recipe("a2")]},
            {"report": {**REPORT, "id": "b"}, "recipes": [recipe("b1")]},
        ],
    }
    out = tmp_path / "out.json"
    surfaces.measure_all(described, out, device="1", processes=1, until_s=math.inf)
    assert list(dict.fromkeys(opened)) == ["a1", "b1", "a2"]
    rows = json.loads(out.read_text())["rows"]
    assert [each["tunable"] for each in rows] == ["a", "b", "a"]
    assert "not described" in rows[1]["error"]
    assert rows[0]["recovered"] == rows[2]["recovered"] > 0.8
