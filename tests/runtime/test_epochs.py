"""Sequences: of orders by epochs, of daemons by terms, and the leases of what is prepared."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.expect import raises_code

from retuned.runtime.core.epochs import (
    MAX_HISTORY,
    PREPARED_FOR_S,
    Fence,
    Ledger,
    new_instance,
    rank_of_environment,
)
from retuned.runtime.schema import Refused


@given(st.lists(st.integers(0, 5), min_size=1, max_size=20))
def test_no_daemon_is_let_in_after_one_that_came_later(terms: list[int]) -> None:
    fence = Fence()
    highest = 0
    for term in terms:
        if term < highest:
            with raises_code(Refused, "former-daemon"):
                fence.admit({"term": term})
        else:
            fence.admit({"term": term})
            highest = term
        assert fence.term == highest


def test_where_a_term_was_told_a_daemon_without_one_is_a_former_one() -> None:
    fence = Fence()
    fence.admit({})
    fence.admit({"term": 3})
    with raises_code(Refused, "former-daemon"):
        fence.admit({})


@pytest.mark.parametrize("term", ["1", 1.0, True, -1, 2**60, None, [1]])
def test_a_term_that_is_no_number_changes_nothing(term: Any) -> None:
    fence = Fence()
    with raises_code(Refused, "bad-request"):
        fence.admit({"term": term})
    assert fence.term == 0


@given(st.lists(st.tuples(st.integers(1, 9), st.sampled_from("abc")), max_size=30))
def test_epochs_only_grow_and_a_repeated_order_is_remembered(told: list[tuple[int, str]]) -> None:
    ledger = Ledger()
    for epoch, name in told:
        id = f"{name}{epoch}"
        before = ledger.epoch
        if ledger.done(id) is not None:
            continue
        if epoch <= before:
            with raises_code(Refused, "stale-epoch"):
                ledger.check(epoch)
            continue
        ledger.check(epoch)
        ledger.carried_out(id, epoch=epoch, artifact=None, flip_ns=epoch)
        assert ledger.epoch == epoch > before
        assert ledger.done(id) == epoch


def test_only_the_newest_orders_are_remembered() -> None:
    ledger = Ledger()
    for epoch in range(1, 1000):
        ledger.carried_out(f"o{epoch}", epoch=epoch, artifact=None, flip_ns=1)
    assert ledger.done("o999") == 1
    assert ledger.done(f"o{1000 - MAX_HISTORY}") == 1
    assert ledger.done(f"o{999 - MAX_HISTORY}") is None
    with raises_code(Refused, "stale-epoch"):
        ledger.check(1)


def test_a_lease_ends_after_a_while_unless_it_is_renewed_or_committed() -> None:
    now_s = [0.0]
    ledger = Ledger(clock=lambda: now_s[0])
    for artifact in ("forgotten", "renewed", "committed", "aborted"):
        ledger.prepared(artifact)
    ledger.carried_out("o", epoch=1, artifact="committed", flip_ns=1)
    assert ledger.release("aborted")
    assert not ledger.release("aborted")
    assert not ledger.release("committed"), "what is in force is not dropped"
    now_s[0] = PREPARED_FOR_S * 0.75
    ledger.renew("renewed")
    ledger.renew("never prepared")
    now_s[0] = PREPARED_FOR_S * 1.25
    assert ledger.expired() == ["forgotten"]
    assert ledger.expired() == []
    now_s[0] = PREPARED_FOR_S * 2
    assert ledger.expired() == ["renewed"]


def test_each_start_has_a_name_of_its_own() -> None:
    first, second = new_instance(), new_instance()
    assert first != second
    pid, started, _ = first.split("-")
    assert (int(pid), int(started) > 0) == (os.getpid(), True)
    assert first.split("-")[:2] == second.split("-")[:2]


@pytest.mark.parametrize(("value", "rank"), [("3", "3"), ("", ""), ("x", ""), ("9" * 30, "")])
def test_a_launchers_rank_is_told_where_it_is_a_number(
    value: str, rank: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RANK", value)
    assert rank_of_environment() == rank
