"""Several generators as one: turns are recorded, and nobody's fault ends the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.lab.generators.portfolio_world import (
    DEFINITION,
    INCUMBENT,
    WORKLOADS,
    FakeTime,
    Law,
    Scripted,
    finding,
    solution,
)

from retuned.contract import Solution
from retuned.errors import MissingDependency, TemporaryError
from retuned.lab.generators.portfolio import Portfolio, TurnFolder, TurnList, TurnLog, close_turn
from retuned.lab.generators.portfolio.portfolio import MAX_RESTS
from retuned.ports import Finding, Generator
from retuned.stages.experiment import Turn, TurnOutcome, turns_sentence


def portfolio(
    *members: Generator,
    log: TurnLog | None = None,
    clock: Callable[[], float] | None = None,
    made: Mapping[str, Callable[[], Generator]] | None = None,
) -> Portfolio:
    factories: dict[str, Callable[[], Generator]] = {
        member.name: (lambda member=member: member)  # type: ignore[misc]
        for member in members
    }
    return Portfolio(
        {**factories, **(made or {})},
        seed=0,
        log=log or TurnList(),
        clock=clock or FakeTime(),
        taken={INCUMBENT.digest},
    )


def ask(asked: Portfolio, history: list[Finding], *, count: int = 4) -> list[Solution]:
    return list(asked.propose(DEFINITION, WORKLOADS, history=tuple(history), count=count))


def run(asked: Portfolio, laws: Mapping[str, Law], *, candidates: int) -> list[Finding]:
    history: list[Finding] = []
    while len(history) < candidates:
        batch = ask(asked, history, count=min(4, candidates - len(history)))
        if not batch:
            break
        for each in batch:
            number = int(each.params["N"])
            history.append(finding(each, lower=laws[each.structure](number)))
    asked.settle(history)
    return history


def test_each_turn_says_who_was_asked_why_what_came_and_what_it_brought() -> None:
    asked = portfolio(Scripted("a"), Scripted("b"))
    run(asked, {"a": lambda n: 1.0 + n / 10, "b": lambda _n: None}, candidates=12)
    first, second, third = asked.turns[:3]
    assert (first.generator, first.because) == ("a", "it was never asked")
    assert (first.tried, first.correct) == (4, 4)
    assert first.gain_ratio == pytest.approx(1.3)
    assert first.proposed == tuple(solution("a", n).digest for n in range(4))
    assert (second.generator, second.tried, second.correct, second.gain_ratio) == ("b", 4, 0, 1.0)
    assert third.number == 3
    assert "gain a second" in third.because
    assert all(turn.seconds == 4.0 for turn in asked.turns)


def test_the_gain_of_a_turn_is_over_the_best_of_everybody_before_it() -> None:
    asked = portfolio(Scripted("a"), Scripted("b"))
    run(asked, {"a": lambda _n: 1.5, "b": lambda _n: 1.8}, candidates=8)
    assert [turn.gain_ratio for turn in asked.turns] == [pytest.approx(1.5), pytest.approx(1.2)]


def test_a_generator_that_fails_drops_out_and_the_others_go_on() -> None:
    broken = Scripted("broken", error=ZeroDivisionError("its own mistake"), after=1)
    asked = portfolio(broken, Scripted("sound"))
    history = run(asked, {"broken": lambda _n: 1.1, "sound": lambda _n: 1.0}, candidates=40)
    assert len(history) == 40
    failed = [turn for turn in asked.turns if turn.outcome is TurnOutcome.FAILED]
    assert len(failed) <= 1
    assert broken.calls <= 2
    assert all(turn.detail == "ZeroDivisionError: its own mistake" for turn in failed)


class Strange(Exception):
    """Nobody has heard of it."""


@pytest.mark.parametrize("error", [Strange("x"), KeyError("k"), RecursionError(), OSError(5, "io")])
def test_whatever_a_generator_raises_only_it_is_dropped(error: Exception) -> None:
    asked = portfolio(Scripted("broken", error=error), Scripted("sound", most=3))
    assert [each.structure for each in ask(asked, [])] == ["sound"] * 3
    assert [turn.outcome for turn in asked.turns] == [TurnOutcome.FAILED, TurnOutcome.OPEN]


def test_a_generator_that_cannot_be_made_drops_out_with_what_to_do() -> None:
    def absent() -> Generator:
        raise MissingDependency("needs a package: pip install it")

    asked = portfolio(Scripted("sound"), made={"other": absent})
    run(asked, {"sound": lambda _n: 1.0}, candidates=12)
    (turn,) = [turn for turn in asked.turns if turn.generator == "other"]
    assert turn.outcome is TurnOutcome.FAILED
    assert "pip install it" in turn.detail


def test_what_a_generator_says_when_it_fails_is_shortened_and_made_harmless() -> None:
    asked = portfolio(Scripted("broken", error=ValueError("\x1b[2J" + "x" * 9000)))
    assert ask(asked, []) == []
    (turn,) = asked.turns
    assert len(turn.detail) <= 400
    assert turn.detail.isprintable()


def test_a_generator_that_rests_is_asked_again_later_but_not_for_ever() -> None:
    clock = FakeTime()
    resting = Scripted("model", error=TemporaryError("busy", delay_s=10.0))
    asked = portfolio(Scripted("search"), resting, clock=clock)
    history: list[Finding] = []
    for _ in range(60):
        history += [finding(each, lower=1.0) for each in ask(asked, history)]
        clock.now += 6.0
    assert resting.calls == 3
    outcomes = [turn.outcome for turn in asked.turns if turn.generator == "model"]
    assert outcomes == [TurnOutcome.RESTING] * 3


def test_a_portfolio_of_the_resting_ends_instead_of_waiting() -> None:
    asked = portfolio(Scripted("model", error=TemporaryError("busy", delay_s=1e6)))
    assert ask(asked, []) == []


class WaitsForOthers(Scripted):
    """Has something to say only once somebody else has tried this many candidates."""

    def __init__(self, name: str, *, needs: int) -> None:
        super().__init__(name, most=2)
        self._needs = needs

    def propose(self, *args: Any, history: Sequence[Finding], count: int) -> Sequence[Solution]:
        if len(history) < self._needs:
            self.calls += 1
            raise TemporaryError("needs results of others", delay_s=0.0)
        return super().propose(*args, history=history, count=count)


def test_who_waits_for_others_stops_nobody_and_is_asked_once_there_are_results() -> None:
    waiting = WaitsForOthers("late", needs=9)
    asked = portfolio(waiting, Scripted("search", most=12))
    history = run(asked, {"late": lambda _n: 1.0, "search": lambda _n: 1.0}, candidates=99)
    assert len(history) == 14, "everything that either had was tried"
    outcomes = [turn.outcome for turn in asked.turns if turn.generator == "late"]
    assert outcomes.count(TurnOutcome.WAITING) >= MAX_RESTS, "waiting is no resting for ever"
    assert TurnOutcome.TRIED in outcomes


def test_who_waits_for_others_and_has_none_ends_the_search() -> None:
    waiting = WaitsForOthers("late", needs=9)
    asked = portfolio(waiting)
    assert ask(asked, []) == []
    assert ask(asked, []) == []
    assert waiting.calls == 1
    assert asked.wakes_in_s() is None


def test_it_is_said_when_the_first_of_the_resting_wakes_and_never_for_who_is_given_up() -> None:
    clock = FakeTime()
    resting = Scripted("model", error=TemporaryError("busy", delay_s=10.0))
    asked = portfolio(resting, clock=clock)
    for _ in range(MAX_RESTS):
        assert ask(asked, []) == []
        left_s = asked.wakes_in_s()
        clock.now += 10.0
    assert left_s is None
    assert resting.calls == MAX_RESTS


def test_who_is_exhausted_is_asked_again_only_after_somebody_found_a_new_best() -> None:
    short = Scripted("short", most=2)
    asked = portfolio(short, Scripted("long"))
    laws: Mapping[str, Law] = {"short": lambda _n: 1.0, "long": lambda n: 1.5 if n >= 20 else 1.0}
    run(asked, laws, candidates=60)
    ended = [turn for turn in asked.turns if turn.outcome is TurnOutcome.EXHAUSTED]
    best = next(turn for turn in asked.turns if turn.gain_ratio > 1.0)
    assert len(ended) == 2
    assert ended[0].number < best.number < ended[1].number


def test_when_all_are_exhausted_it_is_over() -> None:
    asked = portfolio(Scripted("a", most=3), Scripted("b", most=5))
    history = run(asked, {"a": lambda _n: 1.0, "b": lambda _n: 1.0}, candidates=99)
    assert len(history) == 8
    assert ask(asked, history) == []


def test_what_was_tried_and_the_incumbent_are_not_handed_on() -> None:
    class Stubborn(Scripted):
        def propose(self, *_args: object, **_more: object) -> list[Solution]:
            return [INCUMBENT, solution("a", 0), solution("a", 0), solution("a", 1)]

    asked = portfolio(Stubborn("a"))
    history = [finding(solution("a", 0), lower=1.0)]
    assert ask(asked, history) == [solution("a", 1)]


def test_no_more_is_handed_on_or_recorded_than_was_asked_for() -> None:
    class Eager(Scripted):
        def propose(self, *_args: object, **_more: object) -> list[Solution]:
            return [solution("a", n) for n in range(50)]

    asked = portfolio(Eager("a"))
    assert len(ask(asked, [], count=3)) == 3
    assert len(asked.turns[0].proposed) == 3


def test_a_killed_experiment_takes_its_turns_up_again(tmp_path: Path) -> None:
    log = TurnFolder(tmp_path / "turns")
    before = portfolio(Scripted("a"), Scripted("broken", error=ValueError("no")), log=log)
    batch = ask(before, [])
    history = [finding(batch[0], lower=1.2, seconds=3.0)]  # killed after the first of four

    after = portfolio(Scripted("a"), Scripted("broken", error=ValueError("no")), log=log)
    again = ask(after, history)
    assert [turn.number for turn in after.turns] == list(range(1, len(after.turns) + 1))
    first = after.turns[0]
    assert first.outcome is TurnOutcome.TRIED
    assert first.tried == 1
    assert first.gain_ratio == pytest.approx(1.2)
    assert first.seconds >= 3.0
    assert batch[0] not in again
    assert log.read() == after.turns


def test_a_resumed_portfolio_remembers_who_failed(tmp_path: Path) -> None:
    log = TurnFolder(tmp_path / "turns")
    broken = Scripted("broken", error=ValueError("no"))
    ask(portfolio(broken, Scripted("a"), log=log), [])
    again = Scripted("broken", error=ValueError("no"))
    resumed = portfolio(again, Scripted("a"), log=log)
    run(resumed, {"a": lambda _n: 1.0}, candidates=20)
    assert again.calls == 0


def test_a_turn_that_cannot_be_read_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = TurnFolder(tmp_path / "turns")
    for number in (1, 2):
        log.write(Turn(number=number, generator="a", because="b", outcome=TurnOutcome.EXHAUSTED))
    (tmp_path / "turns" / "000001.json").write_text("{")
    assert [turn.number for turn in log.read()] == [2]
    assert "unreadable" in caplog.text


def test_a_turn_whose_candidates_nobody_tried_brought_nothing() -> None:
    opened = Turn(
        number=1,
        generator="a",
        because="b",
        outcome=TurnOutcome.OPEN,
        proposed=(solution("a", 0).digest,),
        asked_s=2.0,
    )
    closed = close_turn(opened, [finding(solution("other", 0), lower=1.4)])
    assert (closed.outcome, closed.tried, closed.gain_ratio) == (TurnOutcome.TRIED, 0, 1.0)
    assert closed.seconds == 2.0


def test_the_sentence_about_turns_names_who_failed() -> None:
    asked = portfolio(Scripted("broken", error=ValueError("no")), Scripted("a", most=2))
    run(asked, {"a": lambda _n: 1.1}, candidates=9)
    sentence = turns_sentence(asked.turns)
    assert "broken: 1 turn, 0 candidates" in sentence
    assert "then it failed (ValueError: no)" in sentence
    assert "a: 2 turns, 2 candidates, 1.10x" in sentence
