"""One suite over both wires: a model behind HTTP and the scripted one mean the same."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.expect import raises_code, raises_naming
from tests.lab.evolve.scripted_endpoint import Reply, chat, endpoint, in_order

from retuned.clock import FakeClock
from retuned.errors import Refused, TemporaryError, UnreadableInput
from retuned.lab.generators.evolve import redactor, secrets_only
from retuned.lab.llm.budget import BudgetSpent, ChatBudget, Prices, RemainingBudget, Usage
from retuned.lab.llm.client import (
    ChatTransport,
    PaidChatModel,
    ScriptedWire,
    WireAnswer,
    WireFailed,
)
from retuned.lab.llm.http import Endpoint, HttpWire
from retuned.lab.llm.transcript import Transcript
from retuned.ports import ChatMessage, ChatModel, ChatRequest

PRICES = Prices(prompt_usd_per_mtok=1.0, completion_usd_per_mtok=10.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One answer of the model, or one failure."""

    text: str = ""
    usage: tuple[int, int] | None = (1000, 100)
    finish: str = "stop"
    status: int = 200
    pause_s: float | None = None
    broken: bool = False


@dataclass(slots=True, kw_only=True)
class World:
    """A model over one of the wires, and what is seen of it."""

    kind: str
    folder: Path
    stack: ExitStack
    slept: list[float] = field(default_factory=list)
    sent: Callable[[], list[list[str]]] = lambda: []
    wire: ChatTransport | None = None
    open: PaidChatModel | None = None

    def say(self, *said: Said) -> None:
        """Set what the model says."""
        if self.kind == "http":
            server = self.stack.enter_context(endpoint(in_order(*map(_reply, said))))
            self.wire = HttpWire(Endpoint(url=server.url, model="m", timeout_s=30.0))
            self.sent = lambda: [
                [m["content"] for m in received.body["messages"]] for received in server.received
            ]
        else:
            scripted = ScriptedWire([_scripted(each) for each in said])
            self.wire = scripted
            self.sent = lambda: [[m.content for m in r.messages] for r in scripted.asked]

    def model(
        self,
        *,
        max_tokens: int = 10**6,
        max_usd: float = 100.0,
        max_bytes: int = 2**26,
        left_s: Callable[[], float] = lambda: math.inf,
    ) -> ChatModel:
        """Open the conversation, again if it was open: a daemon that was killed does that."""
        assert self.wire is not None
        if self.open is not None:
            self.open.close()
        transcript = Transcript(self.folder / "t.jsonl", max_bytes=max_bytes)
        purse = RemainingBudget(
            ChatBudget(max_tokens=max_tokens, max_usd=max_usd),
            PRICES,
            spent=transcript.spent,
            spent_usd=transcript.spent_usd,
        )
        self.open = PaidChatModel(
            self.wire,
            purse=purse,
            transcript=transcript,
            clock=FakeClock(),
            secrets_out=redactor(["s3cr3t"]),
            answers_out=secrets_only(["s3cr3t"]),
            sleep=self.slept.append,
            left_s=left_s,
        )
        return self.open


def _reply(said: Said) -> Reply:
    if said.broken:
        return Reply(parts=[b'{"choices": [{"mess'], length=19)
    if said.status != 200:
        headers = {} if said.pause_s is None else {"retry-after": f"{said.pause_s:g}"}
        return Reply(parts=[b"no"], length=2, status=said.status, headers=headers)
    return chat(said.text, finish=said.finish, usage=said.usage)


def _scripted(said: Said) -> WireAnswer | WireFailed:
    if said.broken:
        return WireFailed("unreadable-json", detail="no JSON", again=True, billed=True)
    if said.status != 200:
        again = said.status in (429, 503)
        return WireFailed(f"status-{said.status}", detail="no", again=again, pause_s=said.pause_s)
    usage = (
        None
        if said.usage is None
        else Usage(prompt_tokens=said.usage[0], completion_tokens=said.usage[1])
    )
    return WireAnswer(text=said.text, finish=said.finish, usage=usage)


@pytest.fixture(params=["http", "scripted"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with ExitStack() as stack:
        made = World(kind=request.param, folder=tmp_path, stack=stack)
        yield made
        if made.open is not None:
            made.open.close()


def question(text: str = "why?", **purpose: int | str) -> ChatRequest:
    return ChatRequest(
        messages=(
            ChatMessage(role="system", content="be brief"),
            ChatMessage(role="user", content=text),
        ),
        purpose=purpose,
        max_tokens=500,
    )


def lines(folder: Path) -> Sequence[dict[str, object]]:
    return [json.loads(line) for line in (folder / "t.jsonl").read_text().splitlines()]


def test_an_answer_comes_with_its_tokens_and_its_price(world: World) -> None:
    world.say(Said(text="because", usage=(1000, 100)))
    answer = world.model().ask(question())
    assert (answer.text, answer.finish, answer.replayed) == ("because", "stop", False)
    assert (answer.prompt_tokens, answer.completion_tokens) == (1000, 100)
    assert answer.usd == pytest.approx(0.002)
    assert world.sent() == [["be brief", "why?"]]


def test_an_answer_that_was_paid_for_is_not_asked_for_again_even_after_a_kill(
    world: World,
) -> None:
    world.say(Said(text="once"), Said(text="twice"))
    first = world.model().ask(question(step=1))
    again = world.model().ask(question(step=1))
    assert (again.text, again.replayed, again.usd) == (first.text, True, first.usd)
    assert len(world.sent()) == 1
    assert world.model().ask(question(step=2)).text == "twice"  # another question


def test_what_was_said_is_found_again_oldest_first(world: World) -> None:
    world.say(Said(text="a"), Said(text="b"))
    model = world.model()
    model.ask(question("first", step=1, role="x"))
    model.ask(question("second", step=2))
    for seen in (model.exchanges(), world.model().exchanges()):
        assert [(r.messages[1].content, dict(r.purpose), a.text) for r, a in seen] == [
            ("first", {"step": 1, "role": "x"}, "a"),
            ("second", {"step": 2}, "b"),
        ]
        assert all(request.digest == answer.request for request, answer in seen)


def test_a_question_that_might_pass_the_budget_is_not_asked(world: World) -> None:
    world.say(Said(text="x"))
    for limits, left in (({"max_tokens": 520}, "520 "), ({"max_usd": 0.004}, "$0.0040 ")):
        with raises_code(BudgetSpent, "budget-spent", left):
            world.model(**limits).ask(question())
    assert world.sent() == []


def test_the_budget_holds_over_a_kill(world: World) -> None:
    world.say(Said(text="x", usage=(3000, 100)))
    world.model(max_tokens=4_000).ask(question("one"))
    with pytest.raises(BudgetSpent):
        world.model(max_tokens=3_600).ask(question("two"))
    assert len(world.sent()) == 1


@pytest.mark.parametrize("usage", [None, (1, 0)])
def test_usage_that_is_not_reported_or_not_possible_costs_the_most_it_can(
    world: World, usage: tuple[int, int] | None
) -> None:
    world.say(Said(text="long" * 100, usage=usage))
    answer = world.model().ask(question("y" * 2_000))
    assert answer.completion_tokens == 500
    assert answer.prompt_tokens >= 2_000
    assert lines(world.folder)[-1]["guessed"] is True


def test_a_busy_endpoint_is_asked_again_when_it_said(world: World) -> None:
    world.say(Said(status=429, pause_s=7.0), Said(status=503), Said(text="now"))
    assert world.model().ask(question()).text == "now"
    assert 7.0 <= world.slept[0] <= 9.0
    assert 2.0 <= world.slept[1] <= 2.5  # twice the first pause, as nothing was said
    assert [line["event"] for line in lines(world.folder)] == [
        "asked", "failed", "asked", "failed", "asked", "answered",
    ]  # fmt: skip


def test_an_endpoint_that_stays_busy_is_given_up_until_later(world: World) -> None:
    world.say(Said(status=503))
    with raises_naming(TemporaryError, "4 tries", "status-503") as caught:
        world.model().ask(question())
    assert caught.value.delay_s > 0
    assert len(world.slept) == 3


def test_an_endpoint_that_wants_a_long_rest_is_not_waited_for(world: World) -> None:
    world.say(Said(status=429, pause_s=600.0))
    with pytest.raises(TemporaryError) as caught:
        world.model().ask(question())
    assert caught.value.delay_s >= 600.0
    assert world.slept == []


@pytest.mark.parametrize("status", [400, 401, 403, 404])
def test_a_refusal_is_not_asked_again_and_costs_nothing(world: World, status: int) -> None:
    world.say(Said(status=status))
    with raises_code(Refused, "endpoint-refused", f"status-{status}"):
        world.model().ask(question())
    assert len(world.sent()) == 1
    assert lines(world.folder)[-1]["usd"] == 0.0


def test_answers_that_cannot_be_read_are_asked_for_again_and_counted(world: World) -> None:
    world.say(Said(broken=True), Said(text="whole"))
    assert world.model().ask(question()).text == "whole"
    failed = lines(world.folder)[1]
    assert failed["event"] == "failed"
    assert failed["usd"] == pytest.approx(float(str(lines(world.folder)[0]["usd"])))
    world.say(Said(broken=True))
    with pytest.raises(UnreadableInput) as caught:
        world.model().ask(question("another"))
    assert caught.value.code == "unreadable-answer"


def test_no_secret_is_sent_or_written_down(world: World) -> None:
    world.say(Said(text="your key is s3cr3t, float z = tile.local;"))
    told = "see /home/lovelace/x.cpp on build7.corp.internal, api_key=abcd1234, s3cr3t"
    answer = world.model().ask(question(told))
    assert answer.text == "your key is [key], float z = tile.local;"
    seen = (world.folder / "t.jsonl").read_text() + json.dumps(world.sent())
    for secret in ("s3cr3t", "lovelace", "build7", "abcd1234"):
        assert secret not in seen, secret


def test_a_transcript_without_room_ends_the_conversation_before_it_is_paid(world: World) -> None:
    world.say(Said(text="x"))
    with raises_code(Refused, "transcript-full", "t.jsonl", "1000 bytes"):
        world.model(max_bytes=1000).ask(question())
    assert world.sent() == []


def test_an_answer_that_was_cut_off_says_so(world: World) -> None:
    world.say(Said(text="half", finish="length"))
    assert world.model().ask(question()).finish == "length"


def test_without_time_nothing_is_asked_and_nothing_is_paid(world: World) -> None:
    world.say(Said(text="x"))
    with raises_naming(TemporaryError, "time is left"):
        world.model(left_s=lambda: 0.5).ask(question())
    assert world.sent() == []
    assert lines(world.folder) == []


def test_a_pause_that_outlasts_the_plan_is_not_begun(world: World) -> None:
    world.say(Said(status=503, pause_s=20.0))
    with raises_naming(TemporaryError, "1 tries", "status-503"):
        world.model(left_s=lambda: 10.0).ask(question())
    assert world.slept == []
