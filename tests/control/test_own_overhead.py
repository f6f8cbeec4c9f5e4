"""Which pod of an environment measures Retuned's own cost, and what follows for the others."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from retuned.api.agent import OverheadOrder
from retuned.api.target import OwnOverheadState
from retuned.control.own_overhead import OverheadFact, asked, observed, overhead_order
from retuned.stages.watch.proof import ProofReason, ProofReport, Verdict

NOW = datetime(2026, 11, 28, 12, tzinfo=UTC)
A, B = "sha256:" + "a" * 64, "sha256:" + "b" * 64
DEAR = ProofReport(
    verdict=Verdict.HARMS,
    reason=ProofReason.SLOWER,
    effect=math.log1p(0.02),
    low=math.log1p(0.015),
    high=math.log1p(0.03),
)
CHEAP = ProofReport(
    verdict=Verdict.NO_MEASURABLE_EFFECT,
    reason=ProofReason.WITHIN_MARGIN,
    effect=0.001,
    low=0.0,
    high=0.002,
)
UNKNOWN = ProofReport(verdict=Verdict.NOT_CONCLUDED, reason=ProofReason.CONTRADICTED)

Entries = tuple[OwnOverheadState, ...]


def pod(name: str, environment: str | None = A, *, ready: bool = True) -> OverheadFact:
    return OverheadFact(name=name, uid=f"u-{name}", ready=ready, environment=environment)


def says(fact: OverheadFact, report: ProofReport, *, minute: int = 0) -> OverheadFact:
    return replace(fact, report=report, reported=NOW + timedelta(minutes=minute))


def measuring(entries: Entries) -> list[str]:
    return [each.name for each in entries if each.measures]


def test_one_pod_of_each_environment_measures() -> None:
    pods = [pod("c"), pod("b"), pod("d", B), pod("a", ready=False), pod("e", None)]
    entries = asked((), pods, allowed=True)
    assert measuring(entries) == ["b", "d"]
    assert asked(entries, pods, allowed=True) == entries


def test_nothing_is_measured_where_a_policy_forbids_it() -> None:
    entries = asked((), [pod("a")], allowed=True)
    assert measuring(asked(entries, [pod("a")], allowed=False)) == []


def test_the_pod_stays_until_it_is_gone_or_cannot_be_measured() -> None:
    entries = asked((), [pod("b")], allowed=True)
    assert measuring(asked(entries, [pod("a"), pod("b", ready=False)], allowed=True)) == ["b"]
    silent = pod("b", None)
    assert measuring(asked(entries, [pod("a"), silent], allowed=True)) == ["b"]
    ranks = replace(pod("b"), unavailable="several-ranks")
    assert measuring(asked(entries, [pod("a"), ranks], allowed=True)) == ["a"]
    assert measuring(asked(entries, [pod("a")], allowed=True)) == ["a"]
    assert measuring(asked(entries, [ranks], allowed=True)) == []


def test_an_environment_without_pods_is_left_out_once_that_is_known() -> None:
    entries = asked((), [pod("a"), pod("b", B)], allowed=True)
    later = asked(entries, [pod("a"), pod("c", None)], allowed=True)
    assert [each.environment for each in later] == [A, B]
    assert measuring(later) == ["a"]
    assert [e.environment for e in asked(later, [pod("a")], allowed=True)] == [A]


def test_a_result_lowers_the_share_of_its_environment() -> None:
    pods = [pod("a"), pod("b"), pod("c", B)]
    entries = asked((), pods, allowed=True)
    entries = observed(entries, [says(pods[0], DEAR), *pods[1:]], now=NOW)
    (first, second) = entries
    assert (first.outcome, first.share, first.at) == ("lowered", 0.25, NOW)
    assert "launches are counted in 25% of the time" in first.sentence
    assert (second.outcome, second.share) == ("", 1.0)
    mine = OverheadOrder(measure=True, heard=NOW, shares={A: 0.25})
    assert overhead_order("u-a", entries) == mine
    assert overhead_order("u-b", entries) == OverheadOrder(shares={A: 0.25})
    assert overhead_order("u-b", entries[1:]) is None


def test_a_result_counts_once_and_only_of_the_pod_that_measures() -> None:
    pods = [pod("a"), pod("b")]
    entries = asked((), pods, allowed=True)
    assert observed(entries, [pods[0], says(pods[1], DEAR)], now=NOW) == entries
    once = observed(entries, [says(pods[0], DEAR)], now=NOW)
    again = observed(once, [says(pods[0], DEAR)], now=NOW + timedelta(hours=1))
    assert again == once
    cheaper = observed(once, [says(pods[0], CHEAP, minute=5)], now=NOW)
    assert (cheaper[0].outcome, cheaper[0].share) == ("within-budget", 1.0)


def test_a_result_that_says_nothing_changes_no_share() -> None:
    fact = pod("a")
    entries = observed(asked((), [fact], allowed=True), [says(fact, DEAR)], now=NOW)
    entries = observed(entries, [says(fact, UNKNOWN, minute=5)], now=NOW)
    assert (entries[0].outcome, entries[0].share) == ("unknown", 0.25)


def test_another_pod_takes_over_with_what_is_known() -> None:
    fact = pod("a")
    entries = observed(asked((), [fact], allowed=True), [says(fact, DEAR)], now=NOW)
    (entry,) = asked(entries, [pod("b")], allowed=True)
    assert (entry.name, entry.reported, entry.share) == ("b", None, 0.25)
    assert overhead_order("u-b", (entry,)) == OverheadOrder(measure=True, shares={A: 0.25})
