"""Whose turn it is: fair at first, then where the gain is, and never the same for ever."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping

from hypothesis import given
from hypothesis import strategies as st
from tests.expect import raises_naming

from retuned.lab.generators.portfolio import choose
from retuned.stages.experiment import Turn, TurnOutcome

Arm = Callable[[int], tuple[float, float]]
"""From the number of the arm's turn to its gain (ratio) and its seconds."""


def turn(number: int, generator: str, *, gain: float = 1.0, seconds: float = 1.0) -> Turn:
    return Turn(
        number=number,
        generator=generator,
        because="test",
        outcome=TurnOutcome.TRIED,
        gain_ratio=gain,
        seconds=seconds,
    )


def play(arms: Mapping[str, Arm], *, seconds: float, seed: int) -> list[Turn]:
    turns: list[Turn] = []
    while sum(each.seconds for each in turns) < seconds:
        name = choose(turns, alive=list(arms), seed=seed).generator
        gain, cost = arms[name](sum(each.generator == name for each in turns))
        turns.append(turn(len(turns) + 1, name, gain=gain, seconds=cost))
    return turns


def total(turns: list[Turn]) -> float:
    return sum(math.log(each.gain_ratio) for each in turns)


def test_everybody_is_asked_once_first_in_the_order_of_the_plan() -> None:
    turns: list[Turn] = []
    for name in ("search", "recipes", "evolve"):
        chosen = choose(turns, alive=["search", "recipes", "evolve"], seed=0)
        assert chosen.generator == name
        assert "never asked" in chosen.because
        turns.append(turn(len(turns) + 1, name))


def test_who_is_alone_is_asked_without_a_draw() -> None:
    assert choose([], alive=["search"], seed=1).because == "no other generator is left"


def test_nobody_to_ask_is_an_error() -> None:
    with raises_naming(ValueError, "alive"):
        choose([], alive=[], seed=0)


@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b", "c"]), st.floats(1.0, 2.0), st.floats(0.0, 60.0)),
        min_size=1,
        max_size=30,
    ),
    st.integers(0, 1000),
)
def test_the_same_seed_and_turns_give_the_same_choice_with_numbers(
    played: list[tuple[str, float, float]], seed: int
) -> None:
    turns = [
        turn(number + 1, name, gain=gain, seconds=seconds)
        for number, (name, gain, seconds) in enumerate(played)
    ]
    first = choose(turns, alive=["a", "b", "c"], seed=seed)
    assert first == choose(turns, alive=["a", "b", "c"], seed=seed)
    assert first.generator in ("a", "b", "c")
    assert first.because


def test_who_brings_more_per_second_gets_most_of_the_time() -> None:
    arms: dict[str, Arm] = {
        "poor": lambda _n: (1.0, 4.0),
        "rich": lambda _n: (1.02, 4.0),
        "dear": lambda _n: (1.02, 40.0),
    }
    shares = []
    for seed in range(20):
        turns = play(arms, seconds=1200.0, seed=seed)
        rich = sum(each.seconds for each in turns if each.generator == "rich")
        shares.append(rich / sum(each.seconds for each in turns))
    assert statistics.median(shares) > 0.5


def test_when_a_generator_dries_up_another_gets_its_chance() -> None:
    arms: dict[str, Arm] = {
        "early": lambda n: (1.1 if n < 4 else 1.0, 5.0),
        "late": lambda n: (1.0 if n < 2 else 1.05, 5.0),
    }
    late = []
    for seed in range(20):
        turns = play(arms, seconds=400.0, seed=seed)
        late.append(sum(each.generator == "late" for each in turns[40:]) / len(turns[40:]))
    assert statistics.median(late) > 0.6


def test_it_gains_more_than_taking_turns() -> None:
    arms: dict[str, Arm] = {
        "a": lambda n: (1.0 + 0.08 / (n + 1), 5.0),
        "b": lambda _n: (1.0, 5.0),
        "c": lambda n: (1.03 if n % 3 == 2 else 1.0, 5.0),
    }

    def in_turns(seconds: float) -> float:
        names = list(arms)
        gained = (math.log(arms[names[n % 3]](n // 3)[0]) for n in range(int(seconds / 5.0)))
        return sum(gained)

    bandit = statistics.fmean(total(play(arms, seconds=300.0, seed=seed)) for seed in range(30))
    assert bandit > 1.1 * in_turns(300.0)


def test_who_was_good_before_is_asked_first_and_everybody_once() -> None:
    turns: list[Turn] = []
    order = []
    for _ in range(3):
        alive = ["search", "recipes", "evolve"]
        advantages = {"evolve": 3.0, "search": 0.2}
        name = choose(turns, alive=alive, seed=0, advantages=advantages).generator
        order.append(name)
        turns.append(turn(len(turns) + 1, name))
    assert order == ["evolve", "recipes", "search"]


def test_a_prior_that_lies_is_overruled_in_a_few_turns() -> None:
    """One generator brings ten per cent a turn, the other nothing; the prior says the opposite."""
    wrong = {"idle": 1e9, "good": 1e-9, "odd": math.nan}
    asked = 0
    for seed in range(20):
        turns: list[Turn] = []
        for _ in range(12):
            name = choose(turns, alive=["good", "idle"], seed=seed, advantages=wrong).generator
            turns.append(turn(len(turns) + 1, name, gain=1.1 if name == "good" else 1.0))
        asked += sum(each.generator == "idle" for each in turns)
    assert asked / 20 <= 4.0


def test_a_prior_without_an_advantage_changes_few_choices_and_a_true_one_helps() -> None:
    arms: dict[str, Arm] = {"good": lambda _n: (1.05, 1.0), "poor": lambda _n: (1.001, 1.0)}
    gained = {}
    for label, advantages in (("none", {}), ("true", {"good": 4.0, "poor": 0.2})):
        gained[label] = 0.0
        for seed in range(40):
            turns: list[Turn] = []
            for _ in range(8):
                name = choose(
                    turns, alive=["poor", "good"], seed=seed, advantages=advantages
                ).generator
                gain, cost = arms[name](0)
                turns.append(turn(len(turns) + 1, name, gain=gain, seconds=cost))
            gained[label] += total(turns)
    assert gained["true"] > gained["none"]
