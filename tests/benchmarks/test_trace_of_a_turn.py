"""The picture in docs/tracing.md is what the spans of a real run say."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree

from benchmarks.trace_of_a_turn import DATA, PICTURE, draw, read, turn_of
from tests.expect import raises_naming
from tests.telemetry.receiver import Seen

TURN = read(DATA)
_TEXT = "{http://www.w3.org/2000/svg}text"


def test_the_picture_in_the_documents_is_made_of_the_spans_that_were_kept() -> None:
    assert draw(TURN) == PICTURE.read_text("utf-8"), "python -m benchmarks.trace_of_a_turn"


def test_what_was_kept_is_one_whole_turn_in_which_the_rollback_links_to_the_swap() -> None:
    names = [step.name for step in TURN]
    for earlier, later in pairwise(
        ("drift", "hypothesis", "lab", "verdict", "proposal", "gate", "swap", "watch", "rollback")
    ):
        assert names.index(earlier) < names.index(later)
    assert [step.name for step in TURN if step.parent is None] == ["observe"]
    (rollback,) = [step for step in TURN if step.name == "rollback"]
    (swap,) = [TURN[at] for at in rollback.links]
    assert (swap.name, swap.about["kind"]) == ("deliver", "swap")


def test_a_name_that_is_markup_is_drawn_as_text() -> None:
    evil = "<script>alert(1)</script>' & \""
    first = replace(TURN[0], name=evil, about={"kernel": evil})
    drawn = ElementTree.fromstring(draw((first, *TURN[1:])))
    assert evil in {each.text for each in drawn.iter(_TEXT)}


def test_spans_of_a_run_that_did_not_end_are_no_turn() -> None:
    span = Seen(
        name="observe",
        trace_id="a",
        span_id="b",
        parent_id="",
        links=frozenset(),
        about={},
        start_ns=0,
        end_ns=1,
        failed=False,
        service="retuned",
    )
    with raises_naming(ValueError, "rollback"):
        turn_of([span])
