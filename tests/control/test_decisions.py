"""Warnings before a decision: the same on one machine and in a cluster."""

from __future__ import annotations

from dataclasses import replace

import pytest

from retuned.control.decisions import DecisionFacts, warnings_for
from retuned.stages.gate import DecisionKind

FACTS = DecisionFacts(
    requested_by="retuned", missing_from=("group sre",), break_glass_group="leads"
)


def warned(facts: DecisionFacts, kind: DecisionKind, **changes: object) -> tuple[str, ...]:
    fields: dict[str, object] = {"user": "ada", "groups": ("sre",), "comment": "seen"}
    return warnings_for(facts, kind, **(fields | changes))  # type: ignore[arg-type]


def test_an_approval_that_counts_has_no_warning() -> None:
    assert warned(FACTS, DecisionKind.APPROVE) == ()


@pytest.mark.parametrize(
    ("facts", "kind", "changes", "part"),
    [
        (replace(FACTS, requested_by=" ADA"), DecisionKind.APPROVE, {}, "yourself"),
        (FACTS, DecisionKind.APPROVE, {"groups": ("web",)}, "from group sre"),
        (replace(FACTS, received=("Ada",)), DecisionKind.APPROVE, {}, "counts already"),
        (FACTS, DecisionKind.BREAK_GLASS, {}, "group leads"),
        (FACTS, DecisionKind.BREAK_GLASS, {"groups": ("leads",), "comment": " "}, "--comment"),
        (replace(FACTS, dry_run=True), DecisionKind.REJECT, {}, "dry run"),
    ],
)
def test_each_reason_for_which_the_gate_may_not_count_a_decision_is_named(
    facts: DecisionFacts, kind: DecisionKind, changes: dict[str, object], part: str
) -> None:
    (only,) = warned(facts, kind, **changes)
    assert part in only


def test_a_rejection_needs_no_group_and_no_comment() -> None:
    assert warned(FACTS, DecisionKind.REJECT, groups=(), comment="") == ()


def test_break_glass_under_an_unknown_policy_asks_for_no_group() -> None:
    facts = replace(FACTS, break_glass_group=None)
    assert warned(facts, DecisionKind.BREAK_GLASS, groups=()) == ()
