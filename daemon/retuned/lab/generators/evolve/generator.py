"""Variants by evolution: asks a language model, one variant at a time, and learns from findings.

Behind the same protocol as every other generator. All state lies in the history of findings and in
the conversation (`ChatModel.exchanges`): answers that were paid for before a kill are turned into
the same variants again and handed out first. What the model writes is only ever source and launch
data. It goes through the lab's gates like any untrusted code, and nothing in it changes a budget, a
gate or a file.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from retuned.contract import Definition, Digest, Solution, Workload
from retuned.errors import Refused, TemporaryError, UnreadableInput
from retuned.lab.generators.evolve.actions import (
    Action,
    Birth,
    Step,
    VariantRequest,
    next_step,
    purpose_of,
    read_purpose,
)
from retuned.lab.generators.evolve.dialects import solution_of
from retuned.lab.generators.evolve.edits import AnswerRefused
from retuned.lab.generators.evolve.lineage import Lineage
from retuned.lab.generators.evolve.population import Population, populate
from retuned.lab.generators.evolve.prompts import (
    Brief,
    generator_request,
    optimizer_request,
    parse_ideas,
    parse_reflection,
    reflector_request,
)
from retuned.lab.generators.evolve.responses import parse_answer
from retuned.lab.generators.evolve.task import Task
from retuned.ports import ChatAnswer, ChatModel, Finding

log = logging.getLogger(__name__)


class EvolveGenerator:
    """Islands of variants that a language model writes.

    Parameters
    ----------
    chat
        The model, with its budget and what was said so far.
    task
        What is evolved.
    """

    name = "evolve"

    def __init__(self, chat: ChatModel, *, task: Task) -> None:
        self._chat = chat
        self._task = task
        self._handed: set[Digest] = set()

    def propose(
        self,
        definition: Definition,
        workloads: Sequence[Workload],
        *,
        history: Sequence[Finding],
        count: int,
    ) -> Sequence[Solution]:
        """Return up to `count` variants not in `history`; empty when all generations were born.

        At most one variant per island comes at a time, so that each generation learns from the one
        before.

        Raises
        ------
        UsageError
            If this generator was made for another definition.
        Refused
            If the budget is spent or the endpoint refuses, before there was a variant.
        TemporaryError
            If the model does not answer, before there was a variant.
        UnreadableInput
            If no answer can be read, before there was a variant.
        """
        self._task.require(definition)
        population = self._population(history)
        births = self._births(population)
        chosen = self._left_over(births, population)[:count]
        wanted = min(count, self._task.rules.islands)
        while len(chosen) < wanted:
            step = next_step(population, births, rules=self._task.rules, seed=self._task.seed)
            if step is None:
                break
            try:
                self._ask(step, population, workloads=workloads)
            except (Refused, TemporaryError, UnreadableInput) as error:
                if not chosen:
                    raise
                log.warning("evolution of %s pauses: %s", self._task.definition.name, error)
                break
            births = self._births(population)
            birth = births[-1]
            if birth.refused is not None:
                log.info("answer %d is refused: %s", birth.step, birth.refused)
            elif birth.solution is not None and birth.solution.digest not in population.assessed:
                chosen.append(birth.solution)
        self._handed |= {solution.digest for solution in chosen}
        return chosen

    def _population(self, history: Sequence[Finding]) -> Population:
        bare = self._task.rules.start == "reference"
        return populate(
            history,
            incumbent=None if bare else self._task.incumbent,
            language=self._task.incumbent.language,
            rules=self._task.rules,
        )

    def _left_over(self, births: Sequence[Birth], population: Population) -> list[Solution]:
        """Return variants that were paid for and never measured: an earlier run was killed."""
        return [
            birth.solution
            for birth in births
            if birth.solution is not None
            and birth.solution.digest not in population.assessed
            and birth.solution.digest not in self._handed
        ]

    def _ask(self, step: Step, population: Population, *, workloads: Sequence[Workload]) -> None:
        """Ask for a variant, after a review of what broke or for directions where it is time."""
        brief = self._task.brief(workloads)
        request = generator_request(
            brief,
            step,
            rules=self._task.rules,
            purpose=dict(purpose_of(step)),
            reflection=self._reflection(brief, step),
            ideas=self._ideas(brief, step, population),
            failures=[
                (solution, assessment.said)
                for solution, assessment in population.islands[step.island].failures
            ],
        )
        self._chat.ask(request)

    def _births(self, population: Population) -> list[Birth]:
        """Turn the conversation so far into variants; the same now and after a kill."""
        births: list[Birth] = []
        known = {digest: member.solution for digest, member in population.members.items()}
        known[self._task.incumbent.digest] = self._task.incumbent
        for request, answer in self._chat.exchanges():
            asked = read_purpose(request.purpose)
            if asked is None:
                continue
            birth = self._birth(asked, answer, births=births, known=known)
            births.append(birth)
            if birth.solution is not None:
                known.setdefault(birth.solution.digest, birth.solution)
        return births

    def _birth(
        self,
        asked: VariantRequest,
        answer: ChatAnswer,
        *,
        births: Sequence[Birth],
        known: Mapping[Digest, Solution],
    ) -> Birth:
        """Read one answer."""
        base = known.get(asked.base) if asked.base is not None else None
        solution, refused = None, None
        try:
            if base is None and asked.base is not None:
                raise AnswerRefused("base-lost", detail="its base is not in the history any more")
            solution = self._solution(asked, answer, base=base)
            taken = {b.solution.digest for b in births if b.solution} | {
                self._task.incumbent.digest
            }
            if solution.digest in taken:
                detail = "it is the same as a variant that is there already; change something"
                raise AnswerRefused("same-as-known", detail=detail)
        except AnswerRefused as error:
            solution, refused = None, error
        return Birth(
            step=asked.step,
            island=asked.island % self._task.rules.islands,
            action=asked.action,
            repairs=asked.repairs,
            depth=asked.depth,
            base=base,
            solution=solution,
            refused=refused,
            answer=answer.text if refused is not None else "",
        )

    def _solution(
        self, asked: VariantRequest, answer: ChatAnswer, *, base: Solution | None
    ) -> Solution:
        draft = parse_answer(
            answer.text,
            finish=answer.finish,
            fences=self._task.dialect.fences,
            base=base.sources[0].content if base is not None else None,
            base_id=base.digest.removeprefix("sha256:") if base is not None else "",
        )
        return solution_of(
            draft,
            self._task.definition,
            dialect=self._task.dialect,
            base=base,
            headers=self._task.incumbent.sources[1:],
            lineage=Lineage(
                island=asked.island,
                step=asked.step,
                parent=base.digest if base is not None else None,
                prompt=answer.request,
                model=self._task.model,
            ),
        )

    def _reflection(self, brief: Brief, step: Step) -> str:
        if step.broken is None:
            return ""
        text = self._said("reflector", range(step.number, step.number + 1), step.island)
        if text is None:
            text = self._chat.ask(reflector_request(brief, step, rules=self._task.rules)).text
        found = parse_reflection(text)
        return f"{found.cause}\n{found.fix}" if found is not None else ""

    def _ideas(self, brief: Brief, step: Step, population: Population) -> tuple[str, ...]:
        """Return directions for a change, turned so that each step begins with another one."""
        every = self._task.rules.ideas_every
        if step.action is not Action.CHANGE or not every:
            return ()
        island = population.islands[step.island]
        begun = step.generation - step.generation % every
        text = self._said(
            "optimizer", range(begun * self._task.rules.islands, step.number + 1), step.island
        )
        if text is None:
            ranked = island.ranked()
            text = self._chat.ask(
                optimizer_request(brief, step, ranked, rules=self._task.rules)
            ).text
        ideas = parse_ideas(text)
        if not ideas:
            return ()
        turn = (step.generation - begun) % len(ideas)
        return (*ideas[turn:], *ideas[:turn])

    def _said(self, role: str, steps: range, island: int) -> str | None:
        """Return what a role answered last at one of these steps; None if it was not asked."""
        said = None
        for request, answer in self._chat.exchanges():
            purpose = request.purpose
            if (
                purpose.get("role") == role
                and purpose.get("step") in steps
                and purpose.get("island") == island
            ):
                said = answer.text
        return said
