"""The search on recorded surfaces, and over a child that is scripted."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from retuned.errors import CandidateError
from retuned.tunables.search import (
    MAX_SPACE,
    STARTS,
    WHOLE,
    Space,
    key_of,
    proposals,
    space_of,
)
from retuned.tunables.tune import MAX_RESTARTS, tune_class

MOE = {
    "id": "tunable:moe:fused_moe_kernel:00000000",
    "family": "moe",
    "geometry": {"E": 64, "N": 128, "K": 256, "top_k": 2, "dtype": None, "block_shape": []},
}
_SPELLED = {"TILE": "TILE_SIZE", "SEG": "segments"}


def searched(space: Space, surface: Mapping[str, float]) -> dict[str, float]:
    tried: dict[str, float] = {}
    while (config := proposals(space, tried)) is not None:
        tried[key_of(config)] = surface[key_of(config)]
    return tried


@pytest.mark.shared
def test_recorded_attention_surfaces_are_searched_well(shared: Path) -> None:
    """Surfaces and starting points come from the same H200: another card is not shown by this."""
    recorded = json.loads((shared / "measurements" / "stake_attn.json").read_text())["rows"]
    found = []
    for row in recorded:
        kind = "attention-prefill" if "prefill" in row["case"] else "attention-decode"
        every = [({_SPELLED.get(k, k): v for k, v in c.items()}, us) for us, c in row["all"]]
        names = Counter(tuple(sorted(config)) for config, _ in every).most_common(1)[0][0]
        surface = {key_of(c): us for c, us in every if tuple(sorted(c)) == names}
        starts = [{n: v for n, v in start.items() if n in names} for start in STARTS[kind]]
        space = Space(configs=tuple(json.loads(key) for key in surface), starts=tuple(starts))
        tried = searched(space, surface)
        assert len(tried) <= 0.15 * len(surface)
        found.append(min(surface.values()) / min(tried.values()))
    assert len(found) == 13
    assert min(found) >= 0.95


def test_a_small_space_is_tried_whole() -> None:
    space = Space(configs=tuple({"a": n} for n in range(WHOLE)))
    assert len(searched(space, {key_of(c): 1.0 for c in space.configs})) == WHOLE


def test_no_space_of_experts_is_larger_than_declared_or_lacks_a_block_height() -> None:
    for tokens in (1, 16, 256, 1024, 8192):
        for in_force in ({}, {"BLOCK_SIZE_M": 128}, {"BLOCK_SIZE_M": 16}):
            space = space_of(MOE, axes={"tokens": tokens}, in_force=in_force)
            assert WHOLE < len(space.configs) <= MAX_SPACE
            heights = {each["BLOCK_SIZE_M"] for each in space.configs}
            assert set(in_force.values()) <= heights
            assert {each["BLOCK_SIZE_N"] for each in space.configs} == {64, 128, 256}


class Child:
    """A child whose configurations end it, or take a scripted time."""

    def __init__(self, *, fatal: str = "", only: int = 10**9) -> None:
        self.fatal, self.only = fatal, only
        self.alive, self.starts, self.checks, self.cases = True, 1, 0, 0

    def restart(self) -> None:
        self.alive, self.starts = True, self.starts + 1

    def ask(self, request: Mapping[str, Any], *, limit_s: float) -> dict[str, Any]:
        if not self.alive:
            raise CandidateError("crashed", detail="the child ended")
        if request["op"] == "open":
            self.cases += 1
            return {"case": self.cases}
        if request["op"] == "check":
            self.checks += 1
            if self.fatal and self.checks <= self.only:
                self.alive = False
                raise CandidateError(self.fatal, detail="it ended")
            return {"intact": True, "error": 0.0, "worst": 0.0, "spread": 0.0}
        if request["op"] == "pairs":
            us = 10.0 / (1 + request["configs"][1]["BLOCK_SIZE_N"] / 64)
            return {"pairs": [[10.0, us]] * request["pairs"]}
        return {}


def recipe(tokens: int) -> dict[str, Any]:
    return {"tunable": MOE["id"], "axes": {"tokens": tokens}, "call": {"in_force": {}}}


def test_classes_of_one_tunable_are_searched_one_after_the_other() -> None:
    """Each class has its own values; a cache over all of them once mixed them up."""
    child = Child()
    for tokens in (256, 512, 1024, 16, 256):
        found = tune_class(child, MOE, recipe(tokens))
        assert found.best is not None
        assert found.best["BLOCK_SIZE_N"] == 256


@pytest.mark.parametrize("reason", ["crashed", "hangs", "device-memory"])
def test_a_configuration_that_ends_the_child_does_not_end_the_search(reason: str) -> None:
    child = Child(fatal=reason, only=2)
    found = tune_class(child, MOE, recipe(256))
    assert [each.reason for each in found.trials[:3]] == [reason, reason, ""]
    assert (found.reason, child.starts) == ("", 3)
    assert found.best is not None


def test_a_class_that_ends_every_child_is_left() -> None:
    child = Child(fatal="crashed")
    found = tune_class(child, MOE, recipe(256))
    assert (found.reason, child.starts) == ("child-ended", 1 + MAX_RESTARTS)
    assert all(each.us == math.inf for each in found.trials)


def test_an_autotuner_with_more_configurations_than_are_tried_whole_is_searched() -> None:
    configs = tuple({"kwargs": {"B": n}, "num_warps": w} for n in range(20) for w in (4, 8))
    space, tried = Space(configs=configs), dict[str, float]()
    while (config := proposals(space, tried)) is not None:
        tried[key_of(config)] = float(config["kwargs"]["B"])
    assert len(tried) == space.budget
