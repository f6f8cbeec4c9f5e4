"""Rewards, sources that are the same, and splits that no kernel crosses."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.bench.dataset_world import NORM, points, written
from tests.standalone.proofs import interval

from retuned import catalog
from retuned.contract import Language
from retuned.stages.verdict import Reason, ShapeResult, Status, Verdict
from retuned_bench.dataset.records import Split
from retuned_bench.dataset.rules import (
    BEST,
    BROKEN,
    DISHONEST,
    REWARD_DEFINITION,
    SLOWEST,
    WRONG,
    kin_of,
    reward_of,
    split_of,
)
from retuned_bench.dataset.sources import group_of, tokens

_LENGTHS = {"T": 2, "G": 4, "P": 16}
"""Of choices, groups and pages, which are few."""
A, B = "sha256:" + "a" * 64, "sha256:" + "b" * 64


def verdict(reason: Reason, *, speedup: float | None = None) -> Verdict:
    status = Status.PROMOTE if reason is Reason.FASTER else Status.REJECT
    shape = ShapeResult(
        axes={}, weight=1.0, incumbent_us=2.0, candidate_us=1.0, speedup=interval(speedup or 1.0)
    )
    return Verdict(
        status=status,
        reason=reason,
        gate="G6",
        candidate=A,
        incumbent=B,
        speedup=interval(speedup) if speedup is not None else None,
        noise_floor_ratio=1.001,
        shapes=(shape,),
    )


def test_rewards_are_ordered_from_cheating_to_winning() -> None:
    ladder = [
        reward_of(verdict(Reason.IMPOSSIBLY_FAST, speedup=100.0)),
        reward_of(verdict(Reason.CRASHED)),
        reward_of(verdict(Reason.WRONG_OUTPUT)),
        reward_of(verdict(Reason.SLOWER, speedup=0.01)),
        reward_of(verdict(Reason.SLOWER, speedup=0.9)),
        reward_of(verdict(Reason.LOST_SEARCH)),
        reward_of(verdict(Reason.FASTER, speedup=1.2)),
        reward_of(verdict(Reason.FASTER, speedup=2.0)),
    ]
    known = [worth for worth in ladder if worth is not None]
    assert known == sorted(set(known))
    assert len(known) == len(ladder)
    assert known[:4] == [DISHONEST, BROKEN, WRONG, SLOWEST]


def test_a_speedup_that_was_not_confirmed_earns_nothing() -> None:
    for reason in (Reason.LOST_SEARCH, Reason.WITHIN_NOISE, Reason.NOT_FASTER_ENOUGH):
        assert reward_of(verdict(reason, speedup=5.0)) == 0.0


def test_a_winner_earns_its_lower_bound_up_to_a_limit() -> None:
    assert reward_of(verdict(Reason.FASTER, speedup=4.0 / 0.95)) == pytest.approx(2.0, abs=0.01)
    assert reward_of(verdict(Reason.FASTER, speedup=1000.0)) == BEST


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_of_the_judge_has_a_place_in_the_definition(reason: Reason) -> None:
    worth = reward_of(verdict(reason, speedup=2.0))
    text = ", ".join(REWARD_DEFINITION.values()).replace(":", ",").replace(" and ", ", ")
    named = str(reason) in {word.strip() for word in text.split(",")}
    assert named is (worth is None or worth < 0.0)


def test_parameters_comments_and_spaces_make_no_other_group() -> None:
    plain = written(NORM, "void f(int a) { a += 1; }")
    spaced = written(NORM, "/* hm */ void f(int a)\n{\n  a += 1; // one\n}", params={"VEC": 32})
    other = written(NORM, "void f(int a) { a += 2; }")
    assert group_of(plain) == group_of(spaced) != group_of(other)
    assert len({group_of(each) for each in points(NORM, 5)}) == 1


def test_a_line_that_ends_a_directive_is_told_from_one_that_does_not() -> None:
    ends = list(tokens("#define A\nb", python=False))
    assert ends != list(tokens("#define A b", python=False))
    assert list(tokens("#define A \\\n b\n", python=False)) == ["#", "define", "A", "b", "\n"]


def test_comment_signs_in_strings_are_no_comments() -> None:
    assert list(tokens('s = "// no"; // yes', python=False)) == ["s", "=", '"// no"', ";"]
    assert list(tokens("s = '# no' # yes", python=True)) == ["s", "=", "'# no'", "\n"][:3]


def test_indentation_counts_in_python_only() -> None:
    one, two = "if a:\n  b\n  c", "if a:\n  b\nc"
    assert list(tokens(one, python=True)) != list(tokens(two, python=True))
    assert list(tokens(one, python=False)) == list(tokens(two, python=False))


@given(text=st.text(alphabet=st.sampled_from("ab1 \n\t/*#\"'\\(){};\r"), max_size=80))
def test_any_text_has_tokens_and_reading_them_twice_changes_nothing(text: str) -> None:
    for python in (False, True):
        once = list(tokens(text, python=python))
        assert once == list(tokens(text, python=python))
        assert sum(map(len, once)) <= len(text) + len(once)


def test_kernels_of_the_catalog_that_share_sources_are_kin() -> None:
    owners: dict[str, set[str]] = {}
    for family in catalog.families():
        name = family.name({axis: _LENGTHS.get(axis, 32) for axis in family.constants})
        for language in family.languages:
            for space in catalog.get(name, language=language).spaces:
                for source in space.sources:
                    owners.setdefault(source, set()).add(kin_of(family.op_type))
    assert len(owners) > 20
    shared = {source: kins for source, kins in owners.items() if len(kins) > 1}
    assert set(shared) <= {"vec.h"}


def test_the_usual_seed_fills_every_split_from_the_catalog() -> None:
    assert {split_of(kin_of(family.op_type)) for family in catalog.families()} == set(Split)


@given(kin=st.text(max_size=20), seed=st.text(max_size=5))
def test_a_kin_is_in_one_split_whatever_else_there_is(kin: str, seed: str) -> None:
    assert split_of(kin, seed=seed) is split_of(kin, seed=seed)


def test_many_kins_are_split_in_the_promised_proportions() -> None:
    found = [split_of(f"kin{number}") for number in range(4000)]
    assert 0.66 < found.count(Split.TRAIN) / 4000 < 0.74
    assert 0.12 < found.count(Split.TEST) / 4000 < 0.18


def test_languages_and_entries_tell_groups_apart() -> None:
    plain = written(NORM, "x")
    languages = [plain.model_copy(update={"language": each}) for each in Language]
    entry = plain.model_copy(update={"entry": "another"})
    groups = [group_of(each) for each in (*languages, entry)]
    assert all(a != b for a, b in itertools.combinations(groups, 2))
