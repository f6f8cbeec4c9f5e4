"""The reflector and the optimizer: two more ways to ask, each from records to a prompt and back.

The reflector reads why a variant broke and says what to change. The optimizer reads what was
measured and says which directions are worth a try. Both answer with one small JSON block; an answer
that is none is left aside, and the generator goes on without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, ValidationError

from retuned.contract import Record
from retuned.lab.generators.evolve.answers import MAX_ANSWER_CHARS, find_blocks, parse_json
from retuned.lab.generators.evolve.config import EvolveRules
from retuned.lab.generators.evolve.editing import AnswerRefused
from retuned.lab.generators.evolve.population import Member
from retuned.lab.generators.evolve.prompts import (
    Brief,
    Section,
    definition_text,
    fit,
    sources_text,
    what_broke,
)
from retuned.lab.generators.evolve.quoting import RULE
from retuned.lab.generators.evolve.roofline import position, shape_table
from retuned.lab.generators.evolve.steps import Step, base_of
from retuned.ports import ChatMessage, ChatRequest

_TOKENS = 1_500
_ROLE_SOURCE_CHARS = 16_000
_SHOWN = 4
_REFLECT = (
    "You review compute kernels that were refused by a compiler or a checker. Say what is wrong "
    "and what to change, and write no code. Answer with one fenced block ```json and nothing "
    'else: {"cause": "...", "fix": "..."}, each at most three sentences.'
)
_DIRECT = (
    "You advise on making compute kernels faster. From the numbers, say what bounds them, and name "
    "up to four changes of structure that are worth a try, the most promising first; unlike each "
    "other, and unlike what was tried. Answer with one fenced block ```json and nothing else: "
    '{"ideas": ["...", "..."]}, each at most three sentences.'
)

Sentence = Annotated[str, Field(min_length=1, max_length=800)]


class Reflection(Record):
    """What the reflector says."""

    cause: Sentence
    """What is wrong."""
    fix: Sentence
    """What to change."""


class Ideas(Record):
    """What the optimizer says."""

    ideas: Annotated[tuple[Sentence, ...], Field(min_length=1, max_length=8)]
    """Directions, the most promising first."""


def reflector_request(brief: Brief, step: Step, *, rules: EvolveRules) -> ChatRequest:
    """Ask why the variant that a step repairs broke.

    Raises
    ------
    ValueError
        If the step repairs nothing.
    """
    if step.broken is None:
        raise ValueError("nothing broke")
    base = base_of(step)
    sections = [Section(weight=0, text=f"# Kernel\n{definition_text(brief.definition)}")]
    if step.broken.solution is not None and base is not None:
        shown = sources_text(base, limit=_ROLE_SOURCE_CHARS, name="refused source")
        sections.append(Section(weight=0, text=f"# Source\n{shown}"))
    sections.append(Section(weight=0, text=f"# What went wrong\n{what_broke(step)}"))
    sections.append(Section(weight=1, text=f"# What a kernel may be\n{brief.dialect.contract}"))
    return _request(_REFLECT, sections, rules=rules, role="reflector", step=step)


def optimizer_request(
    brief: Brief, step: Step, members: Sequence[Member], *, rules: EvolveRules
) -> ChatRequest:
    """Ask for directions, given the best variants so far."""
    shapes = "\n".join(
        f"- {row}" for row in shape_table(brief.definition, brief.workloads, brief.facts)
    )
    device = "\n".join(f"- {fact}" for fact in brief.facts.lines())
    head = f"# Kernel\n{definition_text(brief.definition)}\n\n# Shapes\n{shapes}"
    sections = [Section(weight=0, text=head), Section(weight=0, text=f"# Device\n{device}")]
    for place, member in enumerate(members[:_SHOWN]):
        rows = [f"# Variant, {member.merit:.3f}x the kernel in production"]
        rows.append(member.features.sentence())
        if member.finding is not None:
            rows += [
                position(brief.definition, shape, brief.facts)
                for shape in member.finding.verdict.shapes
            ]
        rows.append(sources_text(member.solution, limit=_ROLE_SOURCE_CHARS // 2, name="source"))
        sections.append(Section(weight=_SHOWN - place, text="\n".join(rows)))
    return _request(_DIRECT, sections, rules=rules, role="optimizer", step=step)


def parse_reflection(text: str) -> Reflection | None:
    """Read the reflector's answer; None where it is none."""
    body = _body(text)
    try:
        return Reflection.model_validate(body) if body is not None else None
    except ValidationError:
        return None


def parse_ideas(text: str) -> tuple[str, ...]:
    """Read the optimizer's answer; empty where it is none."""
    body = _body(text)
    try:
        return Ideas.model_validate(body).ideas if body is not None else ()
    except ValidationError:
        return ()


def _body(text: str) -> object | None:
    if len(text) > MAX_ANSWER_CHARS:
        return None
    try:
        blocks = find_blocks(text)
        if len(blocks) != 1 or blocks[0].word != "json":
            return None
        return parse_json(blocks[0].text, what="the answer")
    except AnswerRefused:
        return None


def _request(
    system: str, sections: Sequence[Section], *, rules: EvolveRules, role: str, step: Step
) -> ChatRequest:
    messages = (
        ChatMessage(role="system", content=f"{system}\n\n{RULE}"),
        ChatMessage(role="user", content=fit(sections, rules.prompt_bytes)),
    )
    purpose: dict[str, int | str] = {"role": role, "step": step.number, "island": step.island}
    return ChatRequest(
        messages=messages, purpose=purpose, max_tokens=min(_TOKENS, rules.answer_tokens)
    )
