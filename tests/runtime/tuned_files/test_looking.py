"""What a daemon is told of files: what is picked today, and whether an order still holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.expect import raises_code
from tests.runtime.tuned_files import fake_servers as fakes
from tests.runtime.tuned_files.test_service import (
    LOOKUP,
    NAME,
    NEW,
    OLD,
    Load,
    back,
    files,
    folder,
    load,
    module,
    moe_change,
    order,
    picks,
)

from retuned.runtime.schema import Refused
from retuned.runtime.tuned_files.strict import MAX_M, digest_of

__all__ = ["folder", "load", "module"]
ASK = {"format": "moe-vllm", "lookup": LOOKUP}
A, B = "sha256:" + "a" * 64, "sha256:" + "b" * 64


def stands(tuned: Any) -> dict[str, Any]:
    (found,) = tuned.state({})["files"]
    assert isinstance(found, dict)
    return found


def swap(tuned: Any, body: dict[str, Any], *, epoch: int, artifact: str) -> dict[str, Any]:
    request = order(body, epoch=epoch, artifact=artifact)
    tuned.prepare(request)
    said = tuned.commit(request)
    assert isinstance(said, dict)
    return said


def test_what_is_picked_for_every_size_is_told_with_the_digest_of_the_file(
    module: Any, folder: Path
) -> None:
    said = files().look(ASK)
    assert said["digest"] == digest_of((folder / NAME).read_bytes())
    assert said["path"] == str(folder / NAME)
    assert [(a, b, c["BLOCK_SIZE_M"]) for a, b, c in said["runs"]] == [
        (1, 32, 16),
        (33, 288, 64),
        (289, MAX_M, 128),
    ]


def test_without_a_file_the_server_is_asked_size_by_size(module: Any, folder: Path) -> None:
    (folder / NAME).unlink()
    said = files().look(ASK)
    assert (said["digest"], said["reload"]) == (None, "now")
    assert [(a, b, c["BLOCK_SIZE_M"]) for a, b, c in said["runs"]] == [
        (1, 64, 16),
        (65, MAX_M, 128),
    ]


def test_a_server_that_still_changes_its_mind_for_huge_sizes_has_no_known_defaults(
    module: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / NAME).unlink()
    monkeypatch.setattr(fakes, "default", lambda m: {"BLOCK_SIZE_M": 16 if m < 100_000 else 32})
    with raises_code(Refused, "default-unknown", "M=16384") as refused:
        files().look(ASK)
    assert refused.value.reason == "default-unknown"


def test_a_server_that_picks_by_something_else_than_its_file_is_not_looked_at(
    module: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "try_get_optimal_moe_config", lambda *_: {"BLOCK_SIZE_M": 1})
    with pytest.raises(Refused) as refused:
        files().look(ASK)
    assert refused.value.reason == "picks-differ"


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        ({}, "bad-request"),
        ({"format": "moe-vllm"}, "bad-request"),
        ({"format": "aiter", "lookup": {"N": 1, "K": 1, "table": "FMOE"}}, "format-unsupported"),
        ({"format": "aiter", "lookup": {}}, "lookup-invalid"),
        ({"format": "tunable-op", "lookup": {"N": 1, "K": True}}, "lookup-invalid"),
        ({"format": "moe-sglang", "lookup": LOOKUP}, "server-not-here"),
        ({"format": "moe-vllm", "lookup": {"E": -1}}, "lookup-invalid"),
    ],
)
def test_what_cannot_be_looked_at_is_said(
    module: Any, request_: dict[str, Any], reason: str
) -> None:
    with pytest.raises(Refused) as refused:
        files().look(request_)
    assert refused.value.reason == reason


def test_an_order_is_proven_anew_whenever_somebody_asks(module: Any, folder: Path) -> None:
    tuned = files()
    swap(tuned, moe_change((folder / NAME).read_bytes()), epoch=3, artifact=A)
    said = stands(tuned)
    assert (said["definition"], said["artifact"], said["epoch"]) == ("fused_moe", A, 3)
    assert (said["state"], said["reach"]) == ("engaged", "all")
    written = (folder / NAME).read_bytes()
    (folder / NAME).write_bytes(written + b"\n")
    assert (stands(tuned)["state"], stands(tuned)["reason"]) == ("lost", "changed-by-others")
    (folder / NAME).write_bytes(written)
    assert stands(tuned)["state"] == "engaged"
    frozen = {"BLOCK_SIZE_M": 16}
    module.try_get_optimal_moe_config = lambda *_: frozen
    assert (stands(tuned)["state"], stands(tuned)["reason"]) == ("lost", "picks-differ")


def test_an_order_told_again_under_a_later_epoch_stands_at_that_epoch(
    module: Any, folder: Path
) -> None:
    tuned = files()
    body = moe_change((folder / NAME).read_bytes())
    swap(tuned, body, epoch=1, artifact=A)
    again = order(body, epoch=7, artifact=A, id="order-1")
    assert tuned.commit(again)["already"]
    assert stands(tuned)["epoch"] == 7
    with pytest.raises(Refused) as refused:
        tuned.rollback(back(body, epoch=5))
    assert refused.value.reason == "stale-epoch"


def test_one_rollback_takes_two_changes_back_to_the_very_first_bytes(
    module: Any, folder: Path
) -> None:
    tuned = files()
    first = (folder / NAME).read_bytes()
    before = picks(module)
    eldest = moe_change(first)
    swap(tuned, eldest, epoch=1, artifact=A)
    newer = moe_change(
        (folder / NAME).read_bytes(), rows=[{"M": 24, "config": NEW | {"num_warps": 2}}]
    )
    swap(tuned, newer, epoch=2, artifact=B)
    assert stands(tuned)["artifact"] == B
    one = order(newer, epoch=3, kind="rollback", undoes="order-2", id="back-2", artifact=A)
    assert tuned.rollback(one)["outcome"] == "engaged"
    assert (stands(tuned)["artifact"], stands(tuned)["state"]) == (A, "engaged")
    swap(tuned, newer | {"guard": [[19, 28]]}, epoch=4, artifact=B)
    both = order(eldest, epoch=5, kind="rollback", undoes="order-4", older=["order-1"], id="back-4")
    assert tuned.rollback(both)["outcome"] == "engaged"
    assert (folder / NAME).read_bytes() == first
    assert picks(module) == before
    assert stands(tuned)["artifact"] is None


def test_a_rollback_may_leave_what_others_wrote_and_ends_there(module: Any, folder: Path) -> None:
    tuned = files()
    body = moe_change((folder / NAME).read_bytes())
    swap(tuned, body, epoch=1, artifact=A)
    theirs = json.dumps(OLD | {"2048": {"BLOCK_SIZE_M": 256}}).encode()
    (folder / NAME).write_bytes(theirs)
    with pytest.raises(Refused) as refused:
        tuned.rollback(back(body))
    assert refused.value.reason == "changed-by-others"
    said = tuned.rollback(order(body, epoch=2, kind="rollback", undoes="order-1", leaves=True))
    assert (said["outcome"], said["restored"]) == ("left-alone", False)
    assert (folder / NAME).read_bytes() == theirs
    assert picks(module, (2048,)) == {2048: {"BLOCK_SIZE_M": 256}}, "nothing of ours is in memory"
    assert (stands(tuned)["artifact"], stands(tuned)["state"]) == (None, "engaged")


def test_a_rollback_after_which_the_server_still_picks_the_new_row_is_told_again(
    module: Any, folder: Path
) -> None:
    tuned = files()
    body = moe_change((folder / NAME).read_bytes())
    swap(tuned, body, epoch=1, artifact=A)
    stuck = module.try_get_optimal_moe_config
    module.try_get_optimal_moe_config = lambda *_: NEW
    assert tuned.rollback(back(body))["outcome"] == "not-engaged"
    assert stands(tuned)["artifact"] == A
    module.try_get_optimal_moe_config = stuck
    assert tuned.rollback(back(body))["outcome"] == "engaged"
    assert stands(tuned)["artifact"] is None


@pytest.mark.parametrize("older", ["order-1", [""], [1], ["x"] * 17])
def test_a_list_of_older_orders_that_is_none_is_refused(
    module: Any, folder: Path, older: object
) -> None:
    body = moe_change((folder / NAME).read_bytes())
    with pytest.raises(Refused) as refused:
        files().rollback(order(body, kind="rollback", undoes="order-1", older=older))
    assert refused.value.reason == "order-invalid"


def test_nothing_is_looked_at_where_no_orders_are_taken(load: Load) -> None:
    tuned = files()
    tuned._on = False
    with pytest.raises(Refused) as refused:
        tuned.look(ASK)
    assert refused.value.reason == "tuned-off"
