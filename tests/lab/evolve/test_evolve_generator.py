"""Evolution behind the generator's protocol: learns, repairs, resumes, and ends."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.expect import raises_code, raises_naming
from tests.lab.evolve.evolve_world import (
    BLOCK,
    WORKLOADS,
    Actor,
    Evolution,
    faster,
    finding,
    incumbent,
    judged,
    prompt_of,
    whole,
)

from retuned import catalog
from retuned.contract import Language, TrustClass
from retuned.errors import TemporaryError, UsageError
from retuned.lab.generators.evolve import EvolveRules
from retuned.lab.generators.evolve.lineage import lineage_of
from retuned.lab.llm.budget import BudgetSpent
from retuned.lab.llm.client import WireAnswer, WireFailed
from retuned.ports import ChatRequest
from retuned.stages.verdict import Reason


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Evolution]:
    made = Evolution(folder=tmp_path, actor=Actor(faster))
    yield made
    made.close()


def best(world: Evolution) -> float:
    return max(
        shape.incumbent_us / shape.candidate_us
        for found in world.history
        for shape in found.verdict.shapes
    )


def test_generations_build_on_each_other_and_end(world: Evolution) -> None:
    world.rules = EvolveRules(islands=2, generations=5)
    speeds = []
    while world.round():
        speeds.append(best(world))
    assert len(world.history) == 10  # two islands, five generations
    assert speeds == sorted(speeds)
    assert speeds[-1] > 1.5**3
    winner = max(world.history, key=lambda f: -f.verdict.shapes[0].candidate_us).solution
    ancestors = []
    by_digest = {f.solution.digest: f.solution for f in world.history}
    while (lineage := lineage_of(winner)) is not None:
        ancestors.append(lineage.step)
        if lineage.parent not in by_digest:
            assert lineage.parent == world.start.digest
            break
        winner = by_digest[lineage.parent]
    assert len(ancestors) >= 3
    assert ancestors == sorted(ancestors, reverse=True)


def test_the_same_seed_and_answers_give_the_same_variants(tmp_path: Path) -> None:
    digests = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        world = Evolution(folder=tmp_path / name, actor=Actor(faster))
        while world.round():
            pass
        digests.append([f.solution.digest for f in world.history])
        world.close()
    assert digests[0] == digests[1]
    assert len(set(digests[0])) == len(digests[0])


def test_a_killed_experiment_hands_out_what_was_paid_for_and_asks_nothing_again(
    world: Evolution,
) -> None:
    first = world.propose()
    assert len(first) == 3
    paid = len(world.actor.asked)
    world.history = [judged(first[0])]  # the lab was killed after the first
    world.begin()
    again = world.propose()
    assert [s.digest for s in again[:2]] == [s.digest for s in first[1:]]
    assert [s.author for s in again[:2]] == [s.author for s in first[1:]]
    assert world.actor.roles()[paid:].count("generator") == len(again) - 2
    world.history += [judged(s) for s in again]
    digests = [f.solution.digest for f in world.history]
    assert len(set(digests)) == len(digests)


def test_a_kill_at_any_moment_costs_no_answer_twice(tmp_path: Path) -> None:
    whole_run = Evolution(folder=tmp_path, actor=Actor(faster), rules=EvolveRules(generations=3))
    asked: list[str] = []
    while True:
        whole_run.begin()  # killed before every round
        found = whole_run.round(count=2)
        if not found:
            break
    whole_run.close()
    asked = [request.digest for request in whole_run.actor.asked]
    assert len(set(asked)) == len(asked)
    assert len(whole_run.history) == 9


def test_a_variant_is_of_the_lowest_trust_whatever_the_answer_says(world: Evolution) -> None:
    (found, *_) = world.propose()
    assert found.trust is TrustClass.GENERATED
    assert found.definition == world.start.definition
    assert found.sources[1].path == "vec.h"  # what the incumbent may include, its children may
    assert found.language is Language.CPU_CPP


def test_what_broke_is_reviewed_and_repaired_with_the_compilers_words(world: Evolution) -> None:
    world.rules = EvolveRules(islands=1, ideas_every=0)

    def respond(request: ChatRequest) -> str:
        if request.purpose["role"] == "reflector":
            return BLOCK.format("json", '{"cause": "no speed", "fix": "name one"}')
        if request.purpose["action"] == "repair":
            return whole("// speed 3\nvoid k() {}")
        return whole("void broken() {}")

    world.actor.respond = respond
    (broken,) = world.round()
    (repaired,) = world.round()
    assert world.actor.roles() == ["generator", "reflector", "generator"]
    review, repair = (prompt_of(request) for request in world.actor.asked[1:])
    for prompt in (review, repair):
        assert "k.cpp:1: error: no speed" in prompt
        assert "void broken() {}" in prompt
    assert "name one" in repair
    lineage = lineage_of(repaired)
    assert lineage is not None
    assert lineage.parent == broken.digest
    assert best(world) == 3.0


def test_repairs_end_and_the_search_goes_on_from_the_parent(world: Evolution) -> None:
    world.rules = EvolveRules(islands=1, generations=6, repairs=2, ideas_every=0)
    count = 0

    def respond(request: ChatRequest) -> str:
        nonlocal count
        count += 1
        return "no idea" if request.purpose["role"] == "reflector" else whole(f"void b{count}();")

    world.actor.respond = respond
    while world.round():
        pass
    actions = [r.purpose["action"] for r in world.actor.asked if r.purpose["role"] == "generator"]
    assert actions == ["change", "repair", "repair", "change", "repair", "repair"]
    changes = [r for r in world.actor.asked if r.purpose.get("action") == "change"]
    assert "# Failed before" in prompt_of(changes[1])


def test_a_refused_answer_is_given_back_with_its_reason_at_once(world: Evolution) -> None:
    world.rules = EvolveRules(islands=1, ideas_every=0)
    answers = iter(["Sure! Here you go.", "```json\n{}\n```", whole("// speed 2\n")])

    def respond(request: ChatRequest) -> str:
        return "" if request.purpose["role"] == "reflector" else next(answers)

    world.actor.respond = respond
    (found,) = world.round()
    assert "speed 2" in found.sources[0].content
    prompts = [prompt_of(r) for r in world.actor.asked if r.purpose["role"] == "generator"]
    assert "no-block" in prompts[1]
    assert "Sure! Here you go." in prompts[1]
    assert "// speed 1" in prompts[1]  # the base is shown again


def test_an_edit_of_the_wrong_base_is_refused_and_said(world: Evolution) -> None:
    world.rules = EvolveRules(islands=1, generations=2, repairs=1, ideas_every=0)
    edit = "<<<<<<< SEARCH\nx\n=======\ny\n>>>>>>> REPLACE"
    world.actor.respond = lambda _: (
        BLOCK.format("json", '{"base": "0123456789ab"}') + BLOCK.format("edit", edit)
    )
    assert world.propose() == []
    assert "wrong-base" in prompt_of(world.actor.asked[-1])
    assert world.propose() == []  # both generations were born, and nothing came of them


def test_an_edit_of_a_repair_applies_to_the_broken_one(world: Evolution) -> None:
    world.rules = EvolveRules(islands=1, ideas_every=0)

    def respond(request: ChatRequest) -> str:
        if request.purpose["role"] == "reflector":
            return ""
        if request.purpose["action"] == "change":
            return whole("void broken() {}")
        base = re.search(r"# Base, id (\w{12})", prompt_of(request))
        assert base is not None
        edit = "<<<<<<< SEARCH\nvoid broken() {}\n=======\n// speed 2\n>>>>>>> REPLACE"
        return BLOCK.format("json", f'{{"base": "{base[1]}"}}') + BLOCK.format("edit", edit)

    world.actor.respond = respond
    world.round()
    (found,) = world.round()
    assert found.sources[0].content == "// speed 2\n"


def test_a_variant_that_was_there_already_is_no_variant(world: Evolution) -> None:
    world.rules = EvolveRules(islands=2, generations=2, ideas_every=0)
    world.actor.respond = lambda _: whole("// speed 2\n", entry="k")
    assert len(world.round()) == 1
    assert world.round() == []
    assert len(world.actor.asked) == 4


def test_directions_are_asked_for_and_each_step_begins_with_another(world: Evolution) -> None:
    world.rules = EvolveRules(islands=1, generations=4, ideas_every=2)
    while world.round():
        pass
    assert world.actor.roles() == [
        "optimizer", "generator", "generator", "optimizer", "generator", "generator",
    ]  # fmt: skip
    shown = [prompt_of(r) for r in world.actor.asked if r.purpose["role"] == "generator"]
    assert "unroll the loop" in shown[0]
    assert "wider vectors" in shown[1]
    assert "x the kernel in production" in prompt_of(world.actor.asked[3])


def test_a_spent_budget_ends_evolution_with_its_reason(world: Evolution) -> None:
    world.rules = EvolveRules(islands=4, generations=9, ideas_every=0, answer_tokens=1_000)
    world.max_tokens = 25_000
    first = world.round()
    assert 0 < len(first) < 4  # what was paid for comes
    with raises_code(BudgetSpent, "budget-spent", "25000"):
        world.round()
    assert world.generator is not None


def test_a_model_that_is_away_is_said_to_be_away(world: Evolution) -> None:
    class Away:
        model = "away"

        def ask(self, request: ChatRequest, *, timeout_s: float = 0.0) -> WireAnswer:
            raise WireFailed("status-503", detail="busy", again=True, pause_s=3_600.0)

    world.actor = Away()  # type: ignore[assignment]
    with pytest.raises(TemporaryError) as caught:
        world.propose()
    assert caught.value.delay_s >= 3_600.0


def test_islands_that_begin_with_the_reference_get_no_base(world: Evolution) -> None:
    world.rules = EvolveRules(islands=2, generations=2, start="both", ideas_every=0)
    world.round()
    first, second = (prompt_of(request) for request in world.actor.asked)
    assert "# Base" in first
    assert "# Base" not in second
    assert "np.sqrt" in second  # the definition's reference
    assert "There is no base" in second
    world.rules = EvolveRules(islands=1, start="reference", ideas_every=0)


def test_variants_of_other_generators_become_parents(world: Evolution) -> None:
    world.rules = EvolveRules(islands=1, ideas_every=0)
    other = incumbent("// speed 9\nvoid other() {}\n")
    world.history = [finding(other, ratio=9.0)]
    prompts = []
    for _ in range(6):
        world.round()
        prompts.append(prompt_of(world.actor.asked[-1]))
    assert any("void other()" in prompt.partition("# Base")[2] for prompt in prompts)


def test_a_trick_is_no_parent(world: Evolution) -> None:
    world.rules = EvolveRules(islands=1, ideas_every=0)
    trick = incumbent("// speed 99\nvoid trick() {}\n")
    world.history = [finding(trick, ratio=99.0, reason=Reason.IMPOSSIBLY_FAST)]
    world.round()
    assert "void trick()" not in prompt_of(world.actor.asked[0])


def test_triton_goes_to_triton(tmp_path: Path) -> None:
    source = "import triton\n\n# speed 1\n"

    def respond(request: ChatRequest) -> str:
        assert "@triton.jit" in request.messages[0].content
        return BLOCK.format("json", '{"params": {"BLOCK": 64}, "grid": ["M"]}') + BLOCK.format(
            "python", "import triton\n# speed 2"
        )

    world = Evolution(
        folder=tmp_path,
        actor=Actor(respond),
        rules=EvolveRules(islands=1, ideas_every=0),
        start=incumbent(source, Language.TRITON),
    )
    (found,) = world.propose()
    assert (found.language, found.sources[0].path) == (Language.TRITON, "kernel.py")
    assert (found.grid, found.params) == (("M",), {"BLOCK": 64})
    world.close()


def test_another_definition_is_refused(world: Evolution) -> None:
    generator = world.begin()
    with raises_naming(UsageError, "rmsnorm_h64", "rmsnorm_h65"):
        generator.propose(catalog.get("rmsnorm_h65").definition, WORKLOADS, history=[], count=1)
