"""Variants by another search package: it edits programs, the lab says what they are worth.

The package runs elsewhere (`Package`) and waits for our answers: to what it asks the model, which
goes through our own budget, redaction and transcript, and to what it asks about a program, which
becomes a variant that the lab judges like any stranger's. Between two turns it stands still. What
it keeps is its own affair; after a kill it begins anew from the best variant that is known, and
gets the outcome of what was measured before at once.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from retuned.contract import Definition, Digest, Solution, Workload
from retuned.errors import Refused, TemporaryError
from retuned.lab.generators.evolve.dialects import solution_of
from retuned.lab.generators.evolve.edits import AnswerRefused
from retuned.lab.generators.evolve.evaluator import assess, shape_lines
from retuned.lab.generators.evolve.lineage import Lineage
from retuned.lab.generators.evolve.package import (
    BackendFailed,
    ModelAsked,
    Opening,
    Package,
    ProgramAsked,
    Worth,
)
from retuned.lab.generators.evolve.programs import program_of, read_program, system_of
from retuned.lab.generators.evolve.task import Task
from retuned.ports import ChatModel, Finding

log = logging.getLogger(__name__)

_SYSTEM_SHARE = 0.5
"""Part of a prompt that is ours; the rest is the package's."""
_SPARE_ASKS = 16
_ASKS_PER_VARIANT = 8
"""A package that asks more than this for each variant that it may make is out of its mind."""


class ForeignGenerator:
    """Variants that a search package makes, one at a time.

    Parameters
    ----------
    package
        The package; not started yet.
    chat
        The model, with its budget and what was said so far.
    task
        What is evolved; its rules say how many variants, its seed is for the package's choices.
    """

    name = "evolve"

    def __init__(self, package: Package, chat: ChatModel, *, task: Task) -> None:
        self._package = package
        self._chat = chat
        self._task = task
        self._started = False
        self._ended = False
        self._asks = 0
        self._questions = 0
        self._prompt: Digest | None = None
        self._waiting: tuple[ProgramAsked, Solution] | None = None

    def propose(
        self,
        definition: Definition,
        workloads: Sequence[Workload],
        *,
        history: Sequence[Finding],
        count: int,
    ) -> Sequence[Solution]:
        """Return the next variant of the package; empty when it has ended.

        Raises
        ------
        UsageError
            If this generator was made for another definition.
        Refused
            If the budget is spent, the endpoint refuses, or the package failed; it is ended then.
        TemporaryError
            If the model does not answer; the package goes on at the next turn.
        """
        self._task.require(definition)
        if self._ended or count < 1:
            return ()
        lives_on = False
        try:
            found = self._turn(workloads, history)
            lives_on = True
        except TemporaryError:
            lives_on = True
            raise
        finally:
            if not lives_on:  # whatever went wrong, nobody will answer it again
                self._end()
        return found

    def _turn(self, workloads: Sequence[Workload], history: Sequence[Finding]) -> list[Solution]:
        if not self._started:
            self._started = True
            self._package.start(self._opening(workloads, history))
        if self._waiting is not None:
            asked, solution = self._waiting
            self._waiting = None
            self._package.tell(asked, self._worth(solution, history) or _NOT_MEASURED)
        while (asked_next := self._next()) is not None:
            if isinstance(asked_next, ModelAsked):
                self._answer(asked_next)
            elif (fresh := self._judge(asked_next, history)) is not None:
                self._waiting = (asked_next, fresh)
                return [fresh]
        self._end()
        return []

    def _next(self) -> ModelAsked | ProgramAsked | None:
        self._asks += 1
        most = (
            _ASKS_PER_VARIANT * self._task.rules.islands * self._task.rules.generations
            + _SPARE_ASKS
        )
        if self._asks > most:
            raise BackendFailed(f"{self._package.name} asked more than {most} times")
        return self._package.next()

    def _answer(self, asked: ModelAsked) -> None:
        """Ask the model; whatever becomes of it, the package hears of it."""
        request = replace(
            asked.request,
            purpose={"role": self._package.name, "step": self._questions},
            max_tokens=min(asked.request.max_tokens, self._task.rules.answer_tokens),
        )
        self._questions += 1
        try:
            answer = self._chat.ask(request)
        except (Refused, TemporaryError) as error:
            self._package.say(asked, error)
            raise
        self._prompt = answer.request
        self._package.say(asked, answer)

    def _judge(self, asked: ProgramAsked, history: Sequence[Finding]) -> Solution | None:
        """Return a variant that the lab must judge; None where the answer is known and given."""
        try:
            solution = self._solution(asked.text)
        except AnswerRefused as error:
            said = f"The program was refused ({error.reason}): {error.detail}"
            self._package.tell(asked, _refused(said))
            return None
        known = self._worth(solution, history)
        if known is None:
            return solution
        self._package.tell(asked, known)
        return None

    def _solution(self, text: str) -> Solution:
        lineage = Lineage(
            island=0, step=0, parent=None, prompt=self._prompt or _NO_PROMPT, model=self._task.model
        )
        made = solution_of(
            read_program(text),
            self._task.definition,
            dialect=self._task.dialect,
            base=self._task.incumbent,
            headers=self._task.incumbent.sources[1:],
            lineage=lineage,
        )
        model = lineage.author().rpartition("model=")[2]
        return made.model_copy(
            update={"author": f"{self._package.name} model={model}", "prompt": self._prompt}
        )

    def _worth(self, solution: Solution, history: Sequence[Finding]) -> Worth | None:
        """Return what is known of a variant; None where nothing is."""
        if _same(solution, self._task.incumbent):
            said = "This is the kernel in production; a variant's speed is relative to it."
            return _timed(1.0, said=said, rows=())
        for finding in history:
            if finding.solution.digest == solution.digest:
                return worth_of(finding)
        return None

    def _opening(self, workloads: Sequence[Workload], history: Sequence[Finding]) -> Opening:
        return Opening(
            program=program_of(self._first(history), self._task.dialect),
            system=system_of(
                self._task.brief(workloads),
                limit=int(_SYSTEM_SHARE * self._task.rules.prompt_bytes),
            ),
            language=self._task.dialect.fences[0],
            suffix="." + self._task.dialect.path.rpartition(".")[2],
            iterations=self._task.rules.islands * self._task.rules.generations,
            islands=self._task.rules.islands,
            answer_tokens=self._task.rules.answer_tokens,
            seed=self._task.seed,
        )

    def _first(self, history: Sequence[Finding]) -> Solution:
        """Return the fastest that is right, of those whose headers variants may include."""
        headers = self._task.incumbent.sources[1:]
        best, most = self._task.incumbent, 1.0
        for finding in history:
            ratio, solution = assess(finding).merit, finding.solution
            fits = solution.language is best.language and solution.sources[1:] == headers
            if ratio is not None and ratio > most and fits:
                best, most = solution, ratio
        return best

    def _end(self) -> None:
        self._ended = True
        self._package.close()


def worth_of(finding: Finding) -> Worth:
    """Return a finding as a package reads it."""
    assessment = assess(finding)
    if assessment.merit is None:
        return _refused(f"{assessment.said} {assessment.detail}".strip())
    return _timed(assessment.merit, said=assessment.said, rows=shape_lines(finding.verdict.shapes))


def _same(one: Solution, other: Solution) -> bool:
    """Whether two variants are one but for how their files and structures are called."""
    return (
        [each.content.strip() for each in one.sources]
        == [each.content.strip() for each in other.sources]
        and (one.entry, one.params, one.grid, one.layouts, one.scratch_bytes)
        == (other.entry, other.params, other.grid, other.layouts, other.scratch_bytes)
    )  # fmt: skip


def _timed(ratio: float, *, said: str, rows: Sequence[str]) -> Worth:
    return Worth(
        metrics={"combined_score": ratio, "correct": 1.0, "speedup": ratio},
        artifacts={"verdict": said, **({"shapes": "\n".join(rows)} if rows else {})},
    )


def _refused(said: str) -> Worth:
    return Worth(
        metrics={"combined_score": 0.0, "correct": 0.0, "speedup": 0.0},
        artifacts={"verdict": said},
    )


_NOT_MEASURED = _refused("It was not measured: the lab had no time for it.")
_NO_PROMPT = "sha256:" + "0" * 64
