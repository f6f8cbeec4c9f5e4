"""Autotuners of a server: counted, recorded, changed by a table for some sizes only, restored."""

# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from tests.expect import raises_code

from retuned.runtime.artifacts.trust import Trust
from retuned.runtime.core.epochs import Fence
from retuned.runtime.schema import Refused
from retuned.runtime.tunables.records import canonical
from retuned.runtime.tunables.service import Tunables

CONFIGS = [triton.Config({"BLOCK": size}, num_warps=2, num_stages=1) for size in (16, 32, 64)]


@triton.jit
def _blocks(
    x_ptr: Any, seen_ptr: Any, index_ptr: Any, n: Any, wide: Any, BLOCK: tl.constexpr
) -> None:
    """Write to each element the size of the block that wrote it.

    No check may compare that: the cast hides which tensors are written.
    """
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    shift = tl.load(index_ptr).to(tl.int64, bitcast=True)
    kept = tl.load(x_ptr + at, mask=at < n, other=0.0) * 0
    tl.store(seen_ptr + at, kept + BLOCK + shift, mask=at < n)


def tuner(*, frozen: int) -> Any:
    """Return an autotuner that chose once: the key lacks the size."""
    made = triton.autotune(configs=CONFIGS, key=["wide"])(_blocks)
    made.cache[1, "torch.float32", "torch.float32", "torch.int64"] = CONFIGS[frozen]
    return made


def launch(kernel: Any, n: int) -> float:
    """Launch by a grid that follows the block; return the block that ran."""
    x, seen = torch.ones(n), torch.zeros(n)
    kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](
        x, seen, torch.zeros(1, dtype=torch.int64), n=n, wide=1
    )
    assert seen.unique().numel() == 1
    return float(seen[0])


@pytest.fixture
def tunables() -> Iterator[Tunables]:
    fence = Fence()
    made = Tunables(trust=Trust(), fence=lambda: fence, may_record=True)
    assert made.turn_on(lambda: None)["autotune"] == "on"
    yield made
    made.close()


def only(tunables: Tunables) -> dict[str, Any]:
    (report,) = tunables.state({})["tunables"]
    return dict(report)


def table(
    report: dict[str, Any],
    block: int,
    *,
    low: int = 0,
    high: int = 2**40,
    before: str | None = None,
) -> str:
    config = next(c for c in report["space"]["configs"] if c["kwargs"]["BLOCK"] == block)
    return canonical(
        {
            "format": "table",
            "tunable": report["id"],
            "family": "autotune",
            "source": report["source"],
            "rules": [{"when": {"elements": [low, high]}, "config": config}],
            "captures": [],
            "before": before,
        }
    )


_EPOCHS = itertools.count(1)


def order(text: str, **changed: Any) -> dict[str, Any]:
    epoch = next(_EPOCHS)
    body = {
        "id": f"order-{epoch}",
        "kind": "swap",
        "definition": json.loads(text)["tunable"],
        "target": "chat",
        "epoch": epoch,
        "change": text,
        "artifact": "sha256:" + "a" * 64,
    }
    return {"order": {**body, **changed}}


def swap(tunables: Tunables, text: str) -> dict[str, Any]:
    request = order(text)
    tunables.prepare(request)
    return {**tunables.commit(request), "id": request["order"]["id"]}


def test_a_choice_that_was_made_once_is_reported_with_the_sizes_that_it_serves(
    tunables: Tunables,
) -> None:
    kernel = tuner(frozen=0)
    assert [launch(kernel, n) for n in (60, 60, 1000)] == [16.0, 16.0, 16.0]
    report = only(tunables)
    assert report["id"].startswith("tunable:autotune:_blocks:")
    assert [(a["axes"], a["launches"], a["how"]) for a in report["asked"]] == [
        ({"elements": 64, "programs": 4}, 2, "frozen"),
        ({"elements": 1024, "programs": 64}, 1, "frozen"),
    ]
    assert report["asked"][0]["config"]["kwargs"] == {"BLOCK": 16}
    assert report["recorded"] == 2


def test_a_batch_below_large_weights_has_a_size_class_of_its_own(tunables: Tunables) -> None:
    kernel = tuner(frozen=0)
    weights = torch.zeros(4096, dtype=torch.int64)
    for n in (60, 1000):
        x, seen = torch.ones(n), torch.zeros(n)
        kernel[lambda meta, n=n: (triton.cdiv(n, meta["BLOCK"]),)](x, seen, weights, n=n, wide=1)
    asked = [each["axes"] for each in only(tunables)["asked"]]
    assert asked == [
        {"elements": 4096, "programs": 4},
        {"elements": 4096, "programs": 64},
    ]


def test_a_table_changes_the_sizes_that_it_names_and_comes_back(tunables: Tunables) -> None:
    kernel = tuner(frozen=0)
    assert (launch(kernel, 60), launch(kernel, 1000)) == (16.0, 16.0)
    result = swap(tunables, table(only(tunables), 64, low=512))
    assert (result["outcome"], result["reach"]) == ("engaged", "all")
    assert (launch(kernel, 60), launch(kernel, 1000)) == (16.0, 64.0)
    assert only(tunables)["table"]["matched"] == 1
    assert kernel.cache[1, "torch.float32", "torch.float32", "torch.int64"] is CONFIGS[0]
    text = table(only(tunables), 64, low=512)
    back = order(text, kind="rollback", undoes=result["id"], artifact="")
    assert tunables.rollback(back)["outcome"] == "engaged"
    assert launch(kernel, 1000) == 16.0
    assert only(tunables)["table"] is None
    assert tunables.rollback(back)["already"] is True


def test_a_second_table_replaces_the_first_and_goes_back_to_it(tunables: Tunables) -> None:
    kernel = tuner(frozen=0)
    launch(kernel, 60)
    swap(tunables, table(only(tunables), 64))
    first = only(tunables)["table"]["digest"]
    text = table(only(tunables), 32, before=first)
    second = swap(tunables, text)
    assert launch(kernel, 60) == 32.0
    tunables.rollback(order(text, kind="rollback", undoes=second["id"]))
    assert launch(kernel, 60) == 64.0
    assert only(tunables)["table"]["digest"] == first


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"source": "sha256:" + "0" * 64}, "source-differs"),
        ({"rules": [{"when": {}, "config": {"kwargs": {"BLOCK": 7}}}]}, "config-unknown"),
        ({"rules": [{"when": {"elements": [9, 1]}, "config": {"a": 1}}]}, "table-invalid"),
        ({"extra": 1}, "table-invalid"),
        ({"tunable": "tunable:autotune:other:00000000"}, "unknown-tunable"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_and_changes_nothing(
    tunables: Tunables, change: dict[str, Any], code: str
) -> None:
    kernel = tuner(frozen=0)
    launch(kernel, 60)
    text = canonical({**json.loads(table(only(tunables), 64)), **change})
    with raises_code(Refused, code):
        tunables.prepare(order(text))
    assert launch(kernel, 60) == 16.0


def test_a_launch_under_a_table_that_fails_runs_the_servers_choice_and_its_rule_ends(
    tunables: Tunables, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = tuner(frozen=0)
    launch(kernel, 60)
    swap(tunables, table(only(tunables), 64))
    assert launch(kernel, 60) == 64.0

    def fails(*_: object) -> None:
        raise RuntimeError("out of resources: shared memory")

    with monkeypatch.context() as patch:
        patch.setattr("retuned.runtime.tunables.autotune._launch", fails)
        assert launch(kernel, 60) == 16.0
    assert launch(kernel, 60) == 16.0
    assert tunables.state({})["failures"] == 1


def test_a_rule_for_a_size_that_was_not_launched_acts_once_it_is_compiled(
    tunables: Tunables,
) -> None:
    kernel = tuner(frozen=0)
    launch(kernel, 60)
    text = json.loads(table(only(tunables), 64, low=33, high=64))
    text["rules"].append(text["rules"][0] | {"when": {"elements": [513, 1024]}})
    swap(tunables, canonical(text))
    assert launch(kernel, 60) == 64.0
    assert launch(kernel, 1000) == 16.0
    tunables.housekeeping()
    assert launch(kernel, 1000) == 64.0


def test_recorded_values_go_when_recording_ends(tunables: Tunables) -> None:
    kernel = tuner(frozen=0)
    launch(kernel, 60)
    name = only(tunables)["id"]
    assert [each["ready"] for each in only(tunables)["asked"]] == [False]
    tunables.record({"id": name, "on": True})
    launch(kernel, 60)
    assert [each["ready"] for each in only(tunables)["asked"]] == [True]
    tunables.record({"id": name, "on": False})
    assert tunables.recipes({"id": name})["recipes"] == []
    assert [each["ready"] for each in only(tunables)["asked"]] == [False]


def test_the_smallest_and_the_largest_launch_of_a_class_are_described(tunables: Tunables) -> None:
    kernel = tuner(frozen=0)
    for n in (100, 102, 115, 70, 71, 128, 65):
        launch(kernel, n)
    name = only(tunables)["id"]
    described = tunables.recipes({"id": name})["recipes"]
    found = {each.get("edge", ""): each["axes"]["elements"] for each in described}
    assert found == {"": 100, "low": 70, "high": 128}, "102 and 65 are within a tenth"
    tunables.record({"id": name, "on": True})
    launch(kernel, 100)
    assert [each.get("edge") for each in tunables.recipes({"id": name})["recipes"]] == [None]


def test_a_table_replaces_the_one_that_it_names_or_the_original(tunables: Tunables) -> None:
    kernel = tuner(frozen=0)
    launch(kernel, 60)
    unknown = "sha256:" + "0" * 64
    swap(tunables, table(only(tunables), 64, before=unknown))  # the server was started again
    assert launch(kernel, 60) == 64.0
    with raises_code(Refused, "table-changed"):
        tunables.prepare(order(table(only(tunables), 32, before=unknown)))
    assert launch(kernel, 60) == 64.0


def test_a_table_is_refused_and_reported_lost_where_other_code_took_the_hooks_place(
    tunables: Tunables, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = tuner(frozen=0)
    launch(kernel, 60)
    text = table(only(tunables), 64)
    swap(tunables, text)
    monkeypatch.setattr(triton.runtime.Autotuner, "run", lambda *_, **__: None)
    assert only(tunables)["table"]["state"] == "lost"
    (report,) = tunables.state({})["files"]
    assert (report["state"], report["reason"]) == ("lost", "hook-replaced")


@pytest.mark.parametrize("number", [{"num_warps": 3}, {"num_warps": "x"}, {"num_stages": 0}])
def test_numbers_that_triton_does_not_take_are_refused(
    tunables: Tunables, number: dict[str, Any]
) -> None:
    launch(tuner(frozen=0), 60)
    body = json.loads(table(only(tunables), 64))
    body["rules"][0]["config"] |= number
    with raises_code(Refused, "config-unknown"):
        tunables.prepare(order(canonical(body)))


def test_a_commit_needs_its_preparation_and_a_later_epoch(tunables: Tunables) -> None:
    kernel = tuner(frozen=0)
    launch(kernel, 60)
    text = table(only(tunables), 64)
    with raises_code(Refused, "not-prepared"):
        tunables.commit(order(text))
    swap(tunables, text)
    stale = order(text, epoch=1, id="stale")
    tunables.prepare(stale)
    with raises_code(Refused, "stale-epoch"):
        tunables.commit(stale)


def test_a_recorded_launch_has_its_grids_and_only_integer_values(tunables: Tunables) -> None:
    kernel = tuner(frozen=0)
    launch(kernel, 60)
    report = only(tunables)
    (recipe,) = tunables.recipes({"id": report["id"], "offset": 0})["recipes"]
    arguments = dict(recipe["call"]["arguments"])
    assert recipe["call"]["grids"] == [[4], [2], [1]]
    assert arguments["n"] == {"value": 60}
    assert arguments["index_ptr"]["tensor"]["data"] is None
    tunables.record({"id": report["id"], "on": True})
    launch(kernel, 60)
    (recipe,) = tunables.recipes({"id": report["id"], "offset": 0})["recipes"]
    arguments = dict(recipe["call"]["arguments"])
    assert arguments["index_ptr"]["tensor"]["data"] == "AAAAAAAAAAA="
    assert arguments["x_ptr"]["tensor"]["data"] is None


def test_recording_needs_the_servers_permission() -> None:
    made = Tunables(trust=Trust(), fence=Fence, may_record=False)
    made.turn_on(lambda: None)
    try:
        launch(tuner(frozen=0), 60)
        with raises_code(Refused, "capture-off"):
            made.record({"id": only(made)["id"], "on": True})
    finally:
        made.close()


def test_a_failure_of_the_runtime_leaves_the_servers_launch(
    tunables: Tunables, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise ValueError("a fault of ours")

    kernel = tuner(frozen=1)
    monkeypatch.setattr("retuned.runtime.tunables.autotune._seen", fails)
    assert launch(kernel, 60) == 32.0
    assert tunables.registry.failures == 1


def test_a_fork_and_a_close_leave_the_original(tunables: Tunables) -> None:
    kernel = tuner(frozen=0)
    launch(kernel, 60)
    swap(tunables, table(only(tunables), 64))
    tunables.after_fork()
    assert launch(kernel, 60) == 16.0
    swap(tunables, table(only(tunables), 64))
    tunables.close()
    assert launch(kernel, 60) == 16.0
    assert not hasattr(triton.runtime.Autotuner.run, "__wrapped__")


def test_a_pause_needs_steps(tunables: Tunables) -> None:
    with raises_code(Refused, "no-step-hook"):
        tunables.pause({"id": "p", "seconds": 0.1})
