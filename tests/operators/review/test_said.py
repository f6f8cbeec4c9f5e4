"""Whoever has just spoken sees their word, also before the watch has brought it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from tests.operators.examples import a_decision
from tests.operators.review.conftest import Looking, Page

from retuned.clock import FakeClock
from retuned_operator.kube.resources import DECISIONS, Obj, Resource
from retuned_operator.review.decisions import KEEP_S, PendingDecisions

KEY = "serving/swp-1"
NAME = "serving/swp-0123456789abcdef0123"


def test_a_word_is_there_until_the_watch_has_brought_it_and_never_twice() -> None:
    clock = FakeClock(datetime(2026, 3, 2, tzinfo=UTC))
    said, word = PendingDecisions(clock), a_decision()
    said.keep(word)
    assert said.among(KEY, []) == [word]
    assert said.among(KEY, [word]) == [word]
    assert said.among("serving/swp-2", []) == []
    assert said.among(KEY, None) is None, "what is not known may be a no"
    clock.advance(KEEP_S)
    assert said.among(KEY, []) == []


def test_the_page_after_a_word_has_it_although_no_watch_ever_brings_it(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(self: Looking, resource: Resource, index: str, word: str) -> Sequence[Obj]:
        return [] if resource is DECISIONS else before(self, resource, index, word)

    before = Looking.by
    monkeypatch.setattr(Looking, "by", late)
    page.cluster.proposal(page.cluster.policy())
    assert page.say(NAME, "approve", comment="numbers look right").status_code == 303
    assert "<strong>Approved</strong> by ada" in page.get(f"/proposals/{NAME}").text
