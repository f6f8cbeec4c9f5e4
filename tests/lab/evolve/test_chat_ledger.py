"""The day's money: one file for all who spend, and no way around it."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
from tests.expect import raises_code, raises_naming

from retuned.clock import FakeClock, SystemClock
from retuned.errors import HarnessError
from retuned.lab.llm.budget import (
    LEDGER,
    BudgetSpent,
    ChatBudget,
    DayLedger,
    Prices,
    RemainingBudget,
    Usage,
)
from retuned.lab.llm.client import PaidChatModel, ScriptedWire, WireAnswer
from retuned.lab.llm.transcript import Transcript
from retuned.ports import ChatMessage, ChatRequest

DOLLAR = Prices(prompt_usd_per_mtok=0.0, completion_usd_per_mtok=1e6)
"""A dollar for each token that is written."""
DAY = timedelta(days=1)


def ledger(folder: Path, clock: FakeClock | None = None) -> DayLedger:
    return DayLedger(folder / LEDGER, clock=clock or FakeClock())


def left(folder: Path, *, most_usd: float = 10.0, clock: FakeClock | None = None) -> float:
    return ledger(folder, clock).reserve(1e9, most_usd=most_usd)[1]


def purse(folder: Path, *, day_usd: float) -> RemainingBudget:
    budget = ChatBudget(max_tokens=10**9, max_usd=1e9, max_usd_per_day=day_usd)
    return RemainingBudget(budget, DOLLAR, ledger=ledger(folder))


def bound(tokens: int) -> Usage:
    return Usage(completion_tokens=tokens)


def test_what_another_conversation_spends_is_seen_at_the_next_question(tmp_path: Path) -> None:
    here, there = purse(tmp_path, day_usd=10.0), purse(tmp_path, day_usd=10.0)
    here.admit(bound(3))
    here.pay(bound(1))
    there.admit(bound(6))  # not paid yet, and set aside all the same
    with raises_code(BudgetSpent, "budget-spent", "$4.0000", "$3.0000", "$10.00", "24 hours"):
        here.admit(bound(4))
    there.pay(bound(2))
    here.admit(bound(7))
    assert left(tmp_path) == pytest.approx(0.0)


def test_a_crash_between_question_and_answer_leaves_the_money_as_paid(tmp_path: Path) -> None:
    dead = purse(tmp_path, day_usd=10.0)
    dead.admit(bound(6))
    del dead
    with pytest.raises(BudgetSpent):
        purse(tmp_path, day_usd=10.0).admit(bound(5))
    purse(tmp_path, day_usd=10.0).admit(bound(4))


def test_a_day_later_the_money_is_there_again(tmp_path: Path) -> None:
    clock = FakeClock()
    name, _ = ledger(tmp_path, clock).reserve(10.0, most_usd=10.0)
    clock.advance(23 * 3600.0)
    ledger(tmp_path, clock).settle(name, 9.0)  # counts from when it was asked
    assert left(tmp_path, clock=clock) == pytest.approx(1.0)
    clock.advance(3601.0)
    assert left(tmp_path, clock=clock) == pytest.approx(10.0)


def test_conversations_of_before_there_was_a_ledger_count(tmp_path: Path) -> None:
    clock = FakeClock()
    begun = DayLedger(
        tmp_path / LEDGER,
        clock=clock,
        before=lambda since: 4.0 if since == clock.now() - DAY else 0.0,
    )
    name, rest = begun.reserve(7.0, most_usd=10.0)
    assert (name, rest) == ("", 6.0)
    again = DayLedger(tmp_path / LEDGER, clock=clock, before=lambda _: 99.0)
    assert again.reserve(6.0, most_usd=10.0)[0]


def test_torn_and_strange_lines_take_nothing_away(tmp_path: Path) -> None:
    first = ledger(tmp_path)
    first.reserve(4.0, most_usd=10.0)
    with (tmp_path / LEDGER).open("ab") as stream:
        stream.write(b'["x", 1e99, -5.0]\n["y"]\n{}\n[["z"], 0, 0]\n')
        stream.write(b'["long", 1' + b"0" * 400 + b', 0]\n["torn", 17')
    assert left(tmp_path) == pytest.approx(6.0)
    assert first.reserve(6.0, most_usd=10.0)[0]
    assert left(tmp_path) == pytest.approx(0.0)


def test_a_long_ledger_is_folded_and_says_the_same(tmp_path: Path) -> None:
    clock = FakeClock()
    mine = ledger(tmp_path, clock)
    mine.reserve(1.0, most_usd=10.0)
    old = f'["old", {clock.now().timestamp() - 2 * DAY.total_seconds()}, 1.0]\n'
    with (tmp_path / LEDGER).open("a") as stream:
        stream.write(old * 12_000)
    mine.reserve(2.0, most_usd=10.0)
    assert (tmp_path / LEDGER).stat().st_size < 1_000
    assert left(tmp_path, clock=clock) == pytest.approx(7.0)
    assert (tmp_path / LEDGER).stat().st_mode & 0o777 == 0o600


def test_a_ledger_that_cannot_be_kept_spends_nothing(tmp_path: Path) -> None:
    (tmp_path / LEDGER).mkdir()
    with raises_naming(HarnessError, LEDGER, os.strerror(errno.EISDIR)):
        purse(tmp_path, day_usd=10.0).admit(bound(1))


def test_spenders_at_once_never_pass_the_bound(tmp_path: Path) -> None:
    def spend(_: int) -> int:
        mine = DayLedger(tmp_path / LEDGER, clock=SystemClock())  # a lock of its own
        return sum(bool(mine.reserve(1.0, most_usd=25.0)[0]) for _ in range(10))

    with ThreadPoolExecutor(3) as pool:
        assert sum(pool.map(spend, range(3))) == 25  # of thirty
    assert len((tmp_path / LEDGER).read_text().splitlines()) == 25


def test_every_answer_settles_what_its_question_set_aside(tmp_path: Path) -> None:
    transcript = Transcript(tmp_path / "t.jsonl")
    model = PaidChatModel(
        ScriptedWire([WireAnswer(text="x", finish="stop", usage=bound(2))]),
        purse=purse(tmp_path, day_usd=10.0),
        transcript=transcript,
        clock=FakeClock(),
    )
    request = ChatRequest(messages=(ChatMessage(role="user", content=""),), max_tokens=8)
    assert model.ask(request).usd == pytest.approx(2.0)
    assert left(tmp_path) == pytest.approx(8.0)
    model.close()
