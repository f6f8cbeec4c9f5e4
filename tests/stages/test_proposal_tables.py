"""The text of a table follows from the variant, its guard, the rules in force, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest

from retuned.contract import Digest, Guard, Solution, SourceFile, TrustClass
from retuned.errors import CandidateError
from retuned.runtime.tunables.records import MAX_RULES, digest_of_text, parse_table
from retuned.stages.proposal import (
    Refusal,
    RefusalReason,
    TableText,
    proves,
    read_table,
    rollback_text,
    rules_in,
    rules_of,
    table_of,
    variant_of,
    verified,
)

NAME = "tunable:attention:kernel:00000000"
SOURCE = "sha256:" + "5" * 64
RULE = {"when": {"rows": [1, 64]}, "config": {"BLOCK_M": 32}}
BEFORE: Digest = "sha256:" + "b" * 64


@dataclass(frozen=True)
class Class:
    axes: Mapping[str, int]
    captured: int = 0
    sizes: Sequence[int] = ()


@dataclass(frozen=True)
class Server:
    family: str = "attention"
    module: str = "m"
    source: str = SOURCE
    ways: Mapping[str, str] = field(default_factory=lambda: {"recapture": "on"})
    asked: Sequence[Class] = (Class({"rows": 64}, captured=3, sizes=(60, 64)),)


def won(*rules: Mapping[str, Any]) -> Solution:
    return variant_of(NAME, rules or [RULE], author="search")


def made(
    solution: Solution | None = None, guard: Guard | None = None, **changes: Any
) -> TableText | Refusal:
    facts: dict[str, Any] = {
        "definition": NAME,
        "measured_source": SOURCE,
        "launched": Server(),
        "in_force": (),
        "before": None,
        "recapture": False,
    }
    return table_of(solution or won(), guard or Guard(), **facts | changes)


def text_of(answer: TableText | Refusal) -> str:
    assert isinstance(answer, TableText), answer
    return answer.text


def why(answer: TableText | Refusal) -> RefusalReason:
    assert isinstance(answer, Refusal), answer
    return answer.reason


def test_the_rules_of_a_win_come_before_those_in_force_and_the_runtime_reads_them() -> None:
    old = {"when": {"rows": [1, 8192]}, "config": {"BLOCK_M": 16}}
    answer = made(guard=Guard(bounds={"rows": (33, 64)}), in_force=[old], before=BEFORE)
    assert isinstance(answer, TableText)
    table = parse_table(json.loads(answer.text), text=answer.text)
    assert table.choose({"rows": 64}) == {"BLOCK_M": 32}
    assert table.choose({"rows": 32}) == {"BLOCK_M": 16}, "the guard does not allow it"
    assert (table.tunable, table.source, table.before) == (NAME, SOURCE, BEFORE)
    assert answer.digest == table.digest == digest_of_text(answer.text)


def test_graphs_are_captured_again_only_where_the_policy_allows_it() -> None:
    assert json.loads(text_of(made()))["captures"] == []
    text = json.loads(text_of(made(recapture=True)))
    assert [each["size"] for each in text["captures"]] == [60, 64]
    assert not {"capture_after_s", "capture_share"} & set(text)


def test_a_table_says_when_captures_run_beside_requests_and_how_much_time_they_take() -> None:
    after = timedelta(seconds=90)
    text = text_of(made(recapture=True, recapture_after=after, capture_share=0.1))
    table = parse_table(json.loads(text), text=text)
    assert (table.capture_after_s, table.capture_share) == (90, 0.1)


def test_a_server_with_another_source_gets_no_table() -> None:
    assert why(made(launched=replace(Server(), source=BEFORE))) is RefusalReason.SOURCE_DIFFERS


def test_a_win_outside_of_its_guard_changes_nothing() -> None:
    guard = Guard(bounds={"rows": (65, 128)})
    assert why(made(guard=guard)) is RefusalReason.NOTHING_TO_CHANGE


@pytest.mark.parametrize(
    "rules",
    [
        [{"when": {"rows": [64, "1"]}, "config": {"a": 1}}],
        [{"when": {"rows": [1]}, "config": {"a": 1}}],
        [{"when": {"rows": [-1, 4]}, "config": {"a": 1}}],
        [{"when": {"Rows!": [1, 4]}, "config": {"a": 1}}],
        [{"when": {"rows": [1, 4]}, "config": {}}],
        [{"when": {"rows": [1, 4]}, "config": {"a": "x" * (32 << 10)}}],
        [{"when": {"rows": [1, 4]}, "config": {"a": 1}}] * (MAX_RULES + 1),
    ],
    ids=["text", "one-end", "negative", "axis", "empty", "long", "many"],
)
def test_what_the_runtime_would_not_read_is_no_table(rules: list[dict[str, Any]]) -> None:
    assert why(made(won(*rules))) is RefusalReason.NOT_A_TABLE


def test_too_many_rules_with_those_in_force_are_no_table() -> None:
    assert why(made(in_force=[RULE] * MAX_RULES)) is RefusalReason.NOT_A_TABLE


def test_a_table_is_made_again_from_its_rules_alone() -> None:
    found = won().model_copy(update={"author": "a pod", "name": "x"})
    again = verified(found, NAME)
    assert (again.author, again.digest) == ("search", found.digest)
    assert rules_of(again) == [RULE]


def other(text: str) -> Solution:
    return won().model_copy(update={"sources": (SourceFile(path="table.json", content=text),)})


@pytest.mark.parametrize(
    "found",
    [
        other(json.dumps({"rules": [RULE], "frozen": {}}, indent=1, sort_keys=True)),
        other(json.dumps({"rules": [{**RULE, "more": 1}]}, indent=1, sort_keys=True)),
        other('{"rules": [], "rules": []}'),
        other('{"rules": [{"when": {"rows": [1, 2]}, "config": {"a": NaN}}]}'),
        other('{"rules": 7}'),
        other("[]"),
        won().model_copy(update={"params": {"a": 1}}),
        won().model_copy(update={"structure": "rows"}),
        won().model_copy(update={"trust": TrustClass.GENERATED}),
        variant_of("tunable:moe:kernel:11111111", [RULE], author="search"),
    ],
    ids=[
        *("frozen", "more", "twice", "nan", "number", "list"),
        *("params", "structure", "generated", "another"),
    ],
)
def test_a_table_with_anything_besides_rules_is_refused(found: Solution) -> None:
    with pytest.raises(CandidateError) as error:
        verified(found, NAME)
    assert error.value.reason == "not-a-table"


def test_a_text_is_proven_by_its_variant_its_guard_and_what_was_in_force() -> None:
    old = {"when": {"rows": [1, 8192]}, "config": {"BLOCK_M": 16}}
    guard = Guard(bounds={"rows": (33, 64)})
    text = text_of(made(guard=guard, in_force=[old], before=BEFORE))
    assert proves(text, won(), guard, in_force=[old])
    assert not proves(text, won(), Guard(), in_force=[old])
    assert not proves(text, won(), guard, in_force=[])
    assert not proves(text, won({**RULE, "config": {"BLOCK_M": 64}}), guard, in_force=[old])
    body = json.loads(text)
    body["rules"].append(old)
    assert not proves(json.dumps(body), won(), guard, in_force=[old])


def test_a_text_is_read_with_the_runtimes_rules() -> None:
    text = text_of(made())
    assert read_table(text).digest == digest_of_text(text)
    assert rules_in(text) == [RULE]
    for bad in ("", "[]", "{}", text[:-1], text.replace('"rules"', '"rulez"'), text + " " * 40_000):
        with pytest.raises(CandidateError) as error:
            read_table(bad)
        assert error.value.reason == "table-invalid"


def test_a_rollback_needs_the_tunable_and_what_comes_back_alone() -> None:
    for before in (None, BEFORE):
        table = read_table(rollback_text(NAME, before=before))
        assert (table.tunable, table.before, table.rules) == (NAME, before, ())
