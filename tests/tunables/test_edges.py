"""Both ends of a size class: launches there are made, and a rule leaves an end where it loses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retuned.errors import CandidateError
from retuned.runtime.tunables.records import bucket
from retuned.tunables.attention import lengths_of
from retuned.tunables.edges import edges_of, ends_of, narrowed
from retuned.tunables.tune import rules_of, tune_class

MOE = {
    "id": "tunable:moe:k:00000000",
    "family": "moe",
    "geometry": {"E": 8, "N": 128, "K": 256, "top_k": 2, "block_shape": []},
}


def recipe(tokens: int) -> dict[str, Any]:
    call = {"tokens": tokens, "in_force": {}}
    return {"tunable": MOE["id"], "family": "moe", "axes": {"tokens": tokens}, "call": call}


@given(st.integers(1, 2**30))
def test_ends_are_of_the_same_class(value: int) -> None:
    low, high = ends_of("tokens", value)
    assert bucket(low) == bucket(value) == bucket(high) == high
    assert low <= value <= high
    assert low == 1 or bucket(low - 1) < high


def test_a_layer_of_experts_is_built_at_both_ends() -> None:
    made = edges_of(recipe(100))
    assert [(e.end, e.recipe["axes"], e.recipe["call"]["tokens"]) for e in made] == [
        ("low", {"tokens": 65}, 65),
        ("high", {"tokens": 128}, 128),
    ]
    assert [each.end for each in edges_of(recipe(128))] == ["low"]


@given(st.integers(1, 300), st.integers(1, 5_000), st.integers(1, 40_000), st.booleans())
def test_calls_of_attention_at_the_ends_can_be_built(
    sequences: int,
    rows: int,
    longest: int,
    decode: bool,
) -> None:
    rows = sequences if decode else max(rows, sequences)
    axes = {"rows": rows, "sequences": sequences, "decode": int(decode), "longest": longest}
    whole = {"family": "attention", "axes": axes, "call": {"lengths": [{}], "arguments": []}}
    for each in edges_of(whole):
        found = each.recipe["axes"]
        queries, keys = lengths_of((), axes=found, longest=found["longest"])
        assert len(queries) == found["sequences"]
        assert sum(queries) == found["rows"]
        assert all(query <= key for query, key in zip(queries, keys, strict=True))
        assert max(queries) == 1 or not decode
        assert each.recipe["call"]["lengths"] == []


def test_an_autotuned_kernel_has_the_ends_that_were_described() -> None:
    def launch(elements: int, edge: str = "") -> dict[str, Any]:
        made = {"family": "autotune", "axes": {"elements": elements, "programs": 4}, "call": {}}
        return made | ({"edge": edge} if edge else {})

    described = [launch(600), launch(520, "low"), launch(1000, "high"), launch(2000, "high")]
    found = edges_of(described[0], described)
    assert [(each.end, each.recipe["axes"]["elements"]) for each in found] == [
        ("low", 520),
        ("high", 1000),
    ]


class Child:
    """A child whose winner loses, or is wrong, from some number of tokens on."""

    def __init__(self, *, loses_from: int = 10**9, wrong_below: int = 0, full: int = 10**9) -> None:
        self.loses_from, self.wrong_below, self.full = loses_from, wrong_below, full
        self.open: list[int] = []

    def restart(self) -> None:
        raise AssertionError("nothing ends this child")

    def ask(self, request: Mapping[str, Any], *, limit_s: float) -> dict[str, Any]:
        if request["op"] == "open":
            tokens = request["recipe"]["axes"]["tokens"]
            if tokens >= self.full:
                raise CandidateError("device-memory", detail="too many tokens")
            self.open.append(tokens)
            return {"case": len(self.open) - 1}
        if request["op"] == "check":
            wrong = self.open[request["case"]] < self.wrong_below
            return {"intact": True, "error": 0.5 * wrong, "worst": 0.0, "spread": 0.0}
        if request["op"] == "pairs":
            block = request["configs"][1]["BLOCK_SIZE_N"]
            lost = self.open[request["case"]] >= self.loses_from
            return {"pairs": [[10.0, 12.0 if lost else 640.0 / (64 + block)]] * request["pairs"]}
        return {}


@pytest.mark.parametrize(
    ("child", "when", "edges"),
    [
        (Child(), [65, 128], {"low": "", "high": ""}),
        (Child(loses_from=120), [65, 100], {"low": "", "high": "slower"}),
        (Child(wrong_below=70), [100, 128], {"low": "wrong-result", "high": ""}),
        (Child(full=120), [65, 128], {"low": ""}),
    ],
    ids=["holds", "slower", "wrong", "no-memory"],
)
def test_a_rule_keeps_to_the_sizes_at_which_it_was_no_loss(
    child: Child, when: list[int], edges: dict[str, str]
) -> None:
    found = tune_class(child, MOE, recipe(100))
    assert found.best is not None
    assert found.edges == edges
    assert rules_of([found])[0]["when"] == {"tokens": when}


@given(
    st.dictionaries(st.sampled_from(["rows", "longest"]), st.integers(1, 2**20), min_size=1),
    st.lists(st.sampled_from(["low", "high"]), max_size=2),
)
def test_a_narrowed_rule_still_has_the_size_that_was_searched(
    axes: dict[str, int], bad: list[str]
) -> None:
    ranges = narrowed(axes, bad)
    assert all(ranges[name][0] <= value <= ranges[name][1] for name, value in axes.items())
