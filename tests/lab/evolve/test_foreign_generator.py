"""Variants by another package: the lab judges each, the model is asked through our own budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.lab.evolve.evolve_world import KERNEL, WORKLOADS, finding, incumbent, judged

from retuned import catalog
from retuned.contract import Definition, Language, Solution, TrustClass
from retuned.errors import (
    CandidateError,
    HarnessError,
    Refused,
    RetunedError,
    TemporaryError,
    UsageError,
)
from retuned.lab.generators.evolve import DeviceBrief, EvolveRules, ForeignGenerator, Task
from retuned.lab.generators.evolve.dialects import dialect_of
from retuned.lab.generators.evolve.lineage import lineage_of
from retuned.lab.generators.evolve.package import (
    BackendFailed,
    ModelAsked,
    Opening,
    ProgramAsked,
    Worth,
)
from retuned.lab.generators.evolve.programs import program_of, read_program
from retuned.ports import ChatAnswer, ChatMessage, ChatRequest, Finding
from retuned.stages.verdict import Reason

ZERO = "sha256:" + "0" * 64


@dataclass(slots=True)
class ScriptedPackage:
    """Asks what a list says: text after ``?`` the model, anything else about a program."""

    script: list[str | BackendFailed]
    name: str = "scripted"
    openings: list[Opening] = field(default_factory=list)
    said: list[ChatAnswer | Refused | TemporaryError] = field(default_factory=list)
    told: list[Worth] = field(default_factory=list)
    closed: int = 0
    place: int = 0

    def start(self, opening: Opening) -> None:
        self.openings.append(opening)

    def next(self) -> ModelAsked | ProgramAsked | None:
        if self.place == len(self.script):
            return None
        line, number, self.place = self.script[self.place], self.place, self.place + 1
        if isinstance(line, BackendFailed):
            raise line
        if line.startswith("?"):
            messages = (ChatMessage(role="user", content=line),)
            return ModelAsked(
                number=number, request=ChatRequest(messages=messages, max_tokens=10**9)
            )
        return ProgramAsked(number=number, text=line)

    def say(self, asked: ModelAsked, answer: ChatAnswer | Refused | TemporaryError) -> None:
        self.said.append(answer)

    def tell(self, asked: ProgramAsked, worth: Worth) -> None:
        self.told.append(worth)

    def close(self) -> None:
        self.closed += 1


@dataclass(slots=True)
class ScriptedChat:
    """A model that says what it is asked, or fails."""

    failures: list[RetunedError] = field(default_factory=list)
    asked: list[ChatRequest] = field(default_factory=list)

    def ask(self, request: ChatRequest) -> ChatAnswer:
        self.asked.append(request)
        if self.failures:
            raise self.failures.pop(0)
        return ChatAnswer(
            request=request.digest,
            text="said",
            finish="stop",
            prompt_tokens=1,
            completion_tokens=1,
            usd=0.0,
        )

    def exchanges(self) -> Sequence[tuple[ChatRequest, ChatAnswer]]:
        return ()


@dataclass(slots=True)
class World:
    """A generator over a script."""

    package: ScriptedPackage
    chat: ScriptedChat = field(default_factory=ScriptedChat)
    start: Solution = field(default_factory=incumbent)
    rules: EvolveRules = field(default_factory=EvolveRules)
    history: list[Finding] = field(default_factory=list)
    judge: Callable[[Solution], Finding] = judged
    generator: ForeignGenerator | None = None

    def propose(self, count: int = 4) -> Sequence[Solution]:
        if self.generator is None:
            self.generator = ForeignGenerator(
                self.package,
                self.chat,
                task=Task(
                    definition=catalog.get(KERNEL).definition,
                    incumbent=self.start,
                    rules=self.rules,
                    facts=DeviceBrief(arch="cpu:test", cores=2),
                    model="m x",
                    seed=7,
                    hint="think of caches",
                ),
            )
        return self.generator.propose(
            catalog.get(KERNEL).definition, WORKLOADS, history=tuple(self.history), count=count
        )

    def round(self) -> Sequence[Solution]:
        found = self.propose()
        self.history += [self.judge(solution) for solution in found]
        return found


def world(*script: str | BackendFailed) -> World:
    return World(ScriptedPackage(list(script)))


def program(source: str, launch: str = '{"entry": "k"}') -> str:
    return (
        f"// EVOLVE-BLOCK-START\n// RETUNED-LAUNCH {launch}\n{source}\n// EVOLVE-BLOCK-END\n"
    )  # fmt: skip


def test_each_program_goes_to_the_lab_and_its_worth_comes_back() -> None:
    here = world("?first", program("// speed 2"), "?second", program("// speed 3"))
    (first,) = here.round()
    assert first.sources[0].content == "// speed 2\n"
    assert [source.path for source in first.sources] == ["kernel.cpp", "vec.h"]
    assert first.trust is TrustClass.GENERATED
    assert (first.author, lineage_of(first)) == ("scripted model=m_x", None)
    assert first.prompt == here.chat.asked[0].digest
    assert here.package.told == []  # it waits
    (second,) = here.round()
    assert second.prompt == here.chat.asked[1].digest != first.prompt
    assert here.round() == []
    assert [worth.metrics["combined_score"] for worth in here.package.told] == [2.0, 3.0]
    assert "M=16" in here.package.told[0].artifacts["shapes"]
    assert here.package.closed == 1
    assert here.propose() == ()  # it has ended


def test_a_package_begins_with_the_kernel_in_production_and_our_rules() -> None:
    here = world()
    here.round()
    (opening,) = here.package.openings
    assert read_program(opening.program).source == here.start.sources[0].content
    assert opening.program.startswith("// EVOLVE-BLOCK-START\n// RETUNED-LAUNCH {")
    for words in ("think of caches", "extern", "EVOLVE-BLOCK", "RETUNED-LAUNCH", "M=16", "vec.h"):
        assert words in opening.system
    assert len(opening.system.encode()) <= here.rules.prompt_bytes
    assert (opening.iterations, opening.islands) == (24, 3)
    assert (opening.language, opening.suffix) == ("cpp", ".cpp")


def test_a_package_begins_with_the_best_that_is_known() -> None:
    here = world()
    rival = incumbent("// speed 4\n")
    other = rival.model_copy(update={"sources": rival.sources[:1]})  # without our header
    other = other.model_copy(update={"params": {"X": 1}})
    here.history = [judged(incumbent("// speed 2\n")), judged(rival), finding(other, ratio=9.0)]
    here.round()
    assert "// speed 4" in here.package.openings[0].program


def test_what_is_known_is_answered_without_the_lab() -> None:
    here = world(
        program("// speed 1\nvoid k() {}"), program("// speed 2"), program("// speed 2"),
        program("// speed 2", "{}"), program("// speed 5"),
    )  # fmt: skip
    here.round()
    (last,) = here.round()
    assert "speed 5" in last.sources[0].content
    assert [w.metrics["combined_score"] for w in here.package.told] == [1.0, 2.0, 2.0, 2.0]


@pytest.mark.parametrize(
    "bad",
    [
        program("int x;", "{"),
        program("int x;", '{"trust": "P"}'),
        program("int x;", '{"entry": "1x"}'),
        program("int x;") + "// RETUNED-LAUNCH {}\n",
        "",
        program("x" * 200_000),
    ],
)
def test_a_program_that_is_none_is_refused_with_a_reason_and_no_lab(bad: str) -> None:
    here = world(bad, program("// speed 2"))
    (only,) = here.round()
    assert "speed 2" in only.sources[0].content
    (told,) = here.package.told
    assert told.metrics["combined_score"] == 0.0
    assert "refused" in told.artifacts["verdict"]


def test_what_broke_is_worth_nothing_and_says_why() -> None:
    here = world(program("no speed"), program("// speed 2"))
    here.round()
    here.judge = lambda s: finding(s, ratio=30.0, reason=Reason.IMPOSSIBLY_FAST)
    here.round()
    here.round()
    broken, trick = here.package.told
    assert broken.metrics == {"combined_score": 0.0, "correct": 0.0, "speedup": 0.0}
    assert "compiler" in broken.artifacts["verdict"]
    assert "no speed" in broken.artifacts["verdict"]
    assert trick.metrics["combined_score"] == 0.0


def test_what_the_lab_had_no_time_for_is_said() -> None:
    here = world(program("// speed 2"))
    here.propose()  # and nobody judges it
    assert here.round() == []
    assert "not measured" in here.package.told[0].artifacts["verdict"]


def test_a_spent_budget_ends_the_package() -> None:
    here = world("?question", program("// speed 2"))
    here.chat.failures = [Refused("the budget is spent")]
    with pytest.raises(Refused, match="budget"):
        here.propose()
    assert isinstance(here.package.said[0], Refused)
    assert here.package.closed == 1
    assert here.propose() == ()


def test_a_model_that_is_away_costs_one_question_and_not_the_package() -> None:
    here = world("?question", "?again", program("// speed 2"))
    here.chat.failures = [TemporaryError("busy", delay_s=5.0)]
    with pytest.raises(TemporaryError, match="busy"):
        here.propose()
    assert here.package.closed == 0
    assert len(here.propose()) == 1
    assert len(here.package.openings) == 1  # it went on


def test_a_package_that_fails_ends_its_turn_with_a_reason() -> None:
    here = world(program("// speed 2"), BackendFailed("died with status 1: no memory"))
    here.round()
    with pytest.raises(BackendFailed, match="no memory"):
        here.round()
    assert here.package.closed == 1


def test_a_package_that_asks_for_ever_is_ended() -> None:
    here = world(*["", "?why"] * 500)
    with pytest.raises(BackendFailed, match="asked more than"):
        here.round()
    assert here.package.closed == 1
    assert len(here.chat.asked) < 150


def test_no_answer_is_longer_than_the_rules_say_and_questions_are_told_apart() -> None:
    here = world("?same", "?same")
    here.round()
    assert [request.max_tokens for request in here.chat.asked] == [8_000, 8_000]
    assert len({request.digest for request in here.chat.asked}) == 2


def test_a_failure_that_nobody_foresaw_ends_the_package_too() -> None:
    here = world("?question")
    here.chat.failures = [HarnessError("the ledger cannot be kept")]
    with pytest.raises(HarnessError):
        here.propose()
    assert here.package.closed == 1
    assert here.propose() == ()


def test_another_definition_is_refused() -> None:
    here = world()
    here.propose()
    assert here.generator is not None
    other: Definition = catalog.get("softmax_n128").definition
    with pytest.raises(UsageError, match="evolves"):
        here.generator.propose(other, (), history=(), count=1)


@pytest.mark.parametrize(
    ("name", "language"),
    [
        (name, language)
        for name in ("rmsnorm_h64", "softmax_n128", "silu_mul_i128", "linear_w8_n64_k128")
        for language in (Language.CPU_CPP, Language.TRITON)
    ],
)
def test_every_kernel_comes_back_from_its_program(name: str, language: Language) -> None:
    entry = catalog.get(name, language=language)
    made = entry.incumbent
    back = read_program(program_of(made, dialect_of(language)))
    assert back.source.rstrip() == made.sources[0].content.rstrip()
    launch = back.launch
    assert (launch.entry, launch.params, launch.layouts) == (made.entry, made.params, made.layouts)
    assert (launch.grid or ()) == made.grid
    assert launch.scratch_bytes == made.scratch_bytes
    here = World(ScriptedPackage([program_of(made, dialect_of(language))]), start=made)
    here.start = replace_definition(made)
    assert here.round() == []
    assert here.package.told[0].metrics["combined_score"] == 1.0


def replace_definition(solution: Solution) -> Solution:
    return solution.model_copy(update={"definition": KERNEL})


@settings(deadline=None)
@given(st.text(max_size=300))
def test_any_text_is_a_program_or_refused(text: str) -> None:
    reasons = {"bad-launch-data", "no-block", "too-long"}
    try:
        draft = read_program(text)
    except CandidateError as error:
        reasons.remove(error.reason)  # raises where it is another
        return
    assert draft.source.strip()
    assert not draft.edited
