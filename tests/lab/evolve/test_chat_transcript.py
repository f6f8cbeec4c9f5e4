"""Transcripts: torn lines, two writers, what an unfinished try costs, and the day's sum."""

from __future__ import annotations

import json
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.expect import raises_naming

from retuned.errors import TemporaryError
from retuned.lab.llm.budget import Usage
from retuned.lab.llm.transcript import Transcript, spent_since
from retuned.ports import ChatAnswer, ChatMessage, ChatRequest

NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)
QUESTION = ChatRequest(
    messages=(ChatMessage(role="user", content="?"),), purpose={"step": 3}, max_tokens=9
)
BOUND = Usage(prompt_tokens=50, completion_tokens=9)


def ask(transcript: Transcript, *, at: datetime = NOW, usd: float = 0.5) -> int:
    return transcript.asked(QUESTION, at=at, model="m", bound=BOUND, usd=usd)


def answer(text: str = "!", *, usd: float = 0.25) -> ChatAnswer:
    return ChatAnswer(
        request=QUESTION.digest,
        text=text,
        finish="stop",
        prompt_tokens=7,
        completion_tokens=2,
        usd=usd,
    )


def reopened(path: Path) -> Transcript:
    transcript = Transcript(path)
    transcript.close()
    return transcript


def test_what_was_said_is_there_again(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "t.jsonl"
    first = Transcript(path)
    attempt = ask(first)
    first.answered(answer("line\n\u2028\U0001f600"), attempt=attempt, at=NOW, guessed=False)
    first.close()
    again = reopened(path)
    ((request, said),) = again.exchanges
    assert request == QUESTION
    assert said.text == "line\n\u2028\U0001f600"
    assert said.replayed
    assert (again.spent.tokens, again.spent_usd) == (9, 0.25)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_folders_that_are_made_for_it_are_this_users_only(tmp_path: Path) -> None:
    path = tmp_path / "state" / "transcripts" / "t.jsonl"
    Transcript(path).close()
    assert [stat.S_IMODE(each.stat().st_mode) for each in path.parents[:2]] == [0o700, 0o700]


def test_a_try_that_a_kill_left_open_counts_as_paid_and_may_be_asked_again(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    first = Transcript(path)
    ask(first)
    first.close()
    again = Transcript(path)
    assert (again.spent, again.spent_usd) == (BOUND, 0.5)
    assert again.answers == {}
    assert ask(again) == 1  # a second try of the same question, with a number of its own
    again.answered(answer(), attempt=1, at=NOW, guessed=False)
    again.close()
    assert reopened(path).spent_usd == pytest.approx(0.75)


@pytest.mark.parametrize("torn", range(2, 60, 7))
def test_a_torn_line_loses_only_itself(tmp_path: Path, torn: int) -> None:
    path = tmp_path / "t.jsonl"
    first = Transcript(path)
    first.answered(answer(), attempt=ask(first), at=NOW, guessed=False)
    first.close()
    whole = path.read_bytes()
    path.write_bytes(whole[:-torn])
    again = Transcript(path)
    assert again.answers == {}
    assert again.spent_usd == 0.5  # it was asked, and may have been billed
    again.answered(answer("anew"), attempt=ask(again), at=NOW, guessed=False)
    again.close()
    assert reopened(path).answers[QUESTION.digest].text == "anew"


def test_lines_that_make_no_sense_are_left_aside(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    odd: list[object] = [
        7,
        {},
        {"event": "asked", "request": "x", "attempt": "y", "usd": 1, "bound": [1, 1]},
        {"event": "asked", "request": "x", "attempt": 0, "usd": 0, "bound": [-1, 1]},
        {"event": "answered", "request": "x", "attempt": 0, "usd": 0, "usage": [1], "text": ""},
        {
            "event": "asked",
            "request": "x",
            "attempt": 0,
            "usd": 0,
            "bound": [1, 1],
            "messages": [["assistant", "evil"]],
            "purpose": {},
            "max_tokens": 1,
        },
    ]
    path.write_text("\n".join(json.dumps(line) for line in odd) + "\nnonsense\n" + "[" * 9_999)
    transcript = Transcript(path)
    assert transcript.exchanges == []
    transcript.answered(answer(), attempt=ask(transcript), at=NOW, guessed=False)
    transcript.close()
    assert len(reopened(path).exchanges) == 1


def test_two_processes_do_not_write_one_transcript(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    first = Transcript(path)
    with raises_naming(TemporaryError, "process", path.name):
        Transcript(path)
    first.close()
    first.close()  # twice does no harm
    reopened(path)


def test_a_transcript_that_nobody_holds_any_more_can_be_opened(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    held = Transcript(path)
    del held
    reopened(path)


def test_the_day_counts_every_conversation(tmp_path: Path) -> None:
    for name, usd in (("a", 0.5), ("b", 0.25)):
        transcript = Transcript(tmp_path / f"{name}.jsonl")
        transcript.answered(
            answer(usd=usd), attempt=ask(transcript, usd=1.0), at=NOW, guessed=False
        )
        transcript.close()
    open_try = Transcript(tmp_path / "c.jsonl")
    ask(open_try, usd=0.125)
    open_try.close()
    old = Transcript(tmp_path / "d.jsonl")
    ask(old, at=NOW - timedelta(days=2), usd=50.0)
    old.close()
    since = NOW - timedelta(days=1)
    assert spent_since(tmp_path, since) == pytest.approx(0.875)
    assert spent_since(tmp_path / "none", since) == 0.0
