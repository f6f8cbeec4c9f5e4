"""The generator role: from records to a request for one variant. Pure.

Everything that is not ours is quoted as data. A prompt has a size; what matters least is left out
first, so that a long reference or many partners never push out the rules.

The reflector and the optimizer: two more ways to ask, each from records to a prompt and back.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, ValidationError

from retuned.contract import AxisConst, Definition, Record, Solution, Workload
from retuned.lab.generators.evolve.actions import Action, Step, base_of
from retuned.lab.generators.evolve.config import EvolveRules
from retuned.lab.generators.evolve.device import DeviceBrief
from retuned.lab.generators.evolve.dialects import Dialect
from retuned.lab.generators.evolve.edits import AnswerRefused
from retuned.lab.generators.evolve.evaluator import assess, shape_lines
from retuned.lab.generators.evolve.population import Member
from retuned.lab.generators.evolve.redaction import RULE, line, quote
from retuned.lab.generators.evolve.responses import EDIT, MAX_ANSWER_CHARS, find_blocks, parse_json
from retuned.lab.generators.evolve.roofline import position, shape_table
from retuned.ports import ChatMessage, ChatRequest

_SOURCE_CHARS = 24_000
_HEADER_CHARS = 10_000
_PARTNER_CHARS = 6_000
_ANSWER_CHARS = 8_000
_FAILURES = 6

_ANSWER = """\
Answer with at most a few sentences, then exactly two fenced blocks and no others:
1. a block ```json with the launch data, an object with these fields and no others (leave out what
   stays as in the base): "base" (the base's id; needed for an edit), "entry", "params" (names to
   integers or words){grid}, "layouts" (constant input to "as-is", "transposed" or "panels-N"),
   "scratch_bytes", "idea" (one sentence on what you changed and why it is faster);
2. either a block ```{fence} with the whole source, or a block ```{edit} that edits the base:
<<<<<<< SEARCH
lines of the base, exactly, found there once
=======
lines instead
>>>>>>> REPLACE
   (as many of these as needed). Large changes are better written as the whole source."""
_GRID = ', "grid" (list of one to three expressions)'


@dataclass(frozen=True, slots=True, kw_only=True)
class Brief:
    """What stays the same over an experiment."""

    definition: Definition
    """What is computed."""
    workloads: tuple[Workload, ...]
    """Weighted shapes."""
    dialect: Dialect
    """Language."""
    facts: DeviceBrief
    """Device."""
    headers: Solution | None
    """The incumbent, whose further files every variant may include; None where there are none."""
    hint: str
    """A person's notes."""
    knowledge: str
    """Our notes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One part of a prompt."""

    weight: int
    """What is left out first has the lowest; 0 is never left out."""
    text: str
    """The part."""


def generator_request(
    brief: Brief,
    step: Step,
    *,
    rules: EvolveRules,
    purpose: dict[str, int | str],
    reflection: str,
    ideas: Sequence[str],
    failures: Sequence[tuple[Solution, str]],
) -> ChatRequest:
    """Return the request for one variant.

    Parameters
    ----------
    brief
        What stays the same.
    step
        The action, and the variants that it is about.
    rules
        Sizes.
    purpose
        What the answer is found by.
    reflection
        The reflector's words on what went wrong; empty where it was not asked.
    ideas
        The optimizer's directions; the one whose turn it is first.
    failures
        Broken variants of the same island, with our sentence on each.
    """
    sections = [
        *task_sections(brief),
        *_base(brief, step),
        *_broken(step, reflection),
        *_partners(step),
        *_ideas(ideas),
        *_failures(failures),
        *note_sections(brief),
        Section(weight=0, text=_goal(step)),
    ]
    messages = (
        ChatMessage(role="system", content=system(brief.dialect)),
        ChatMessage(role="user", content=fit(sections, rules.prompt_bytes)),
    )
    return ChatRequest(messages=messages, purpose=purpose, max_tokens=rules.answer_tokens)


def system(dialect: Dialect) -> str:
    """Return the rules that hold for every variant."""
    answer = _ANSWER.format(grid=_GRID if dialect.grids else "", fence=dialect.fences[0], edit=EDIT)
    return (
        "You write one compute kernel that is right for every input and as fast as the device "
        "allows on the shapes given. It is compiled, checked element by element against float64 on "
        "secret inputs of many kinds and odd lengths, and timed against the kernel in production; "
        "tricks are found out and rejected.\n\n"
        f"{RULE}\n\n# What a kernel may be\n{dialect.contract}\n\n# How to answer\n{answer}"
    )


def fit(sections: Sequence[Section], limit: int) -> str:
    """Join what fits; what matters least goes first.

    Examples
    --------
    >>> fit([Section(weight=0, text="must"), Section(weight=1, text="x" * 50)], 20)
    'must'
    """
    kept = [section for section in sections if section.text]
    while True:
        text = "\n\n".join(section.text for section in kept)
        least = min((section.weight for section in kept if section.weight), default=0)
        if len(text.encode()) <= limit or not least:
            return text
        last = max(place for place, section in enumerate(kept) if section.weight == least)
        del kept[last]


def definition_text(definition: Definition) -> str:
    """Return the table of axes and tensors."""
    axes = [
        f"{name} = {axis.value}" if isinstance(axis, AxisConst) else f"{name} varies"
        for name, axis in definition.axes.items()
    ]
    tensors = [
        f"- {side} {name}: {spec.dtype}[{', '.join(spec.shape)}]"
        + (", constant between launches" if spec.constant else "")
        for side, specs in (("input", definition.inputs), ("output", definition.outputs))
        for name, spec in specs.items()
    ]
    return "\n".join(
        [
            f"Kernel {definition.name} (family {definition.op_type}):\n"
            f"{quote('description', line(definition.description, 300), 300)}",
            f"axes, in order: {'; '.join(axes)}",
            *tensors,
        ]
    )


def sources_text(solution: Solution, *, limit: int, name: str) -> str:
    """Return a variant's own source and launch data."""
    launch = {
        "entry": solution.entry,
        "params": dict(solution.params),
        **({"grid": list(solution.grid)} if solution.grid else {}),
        "layouts": dict(solution.layouts),
        "scratch_bytes": solution.scratch_bytes,
    }
    text = quote(name, solution.sources[0].content, limit)
    return f"{text}\n{quote('launch data', json.dumps(launch), 3_000)}"


def task_sections(brief: Brief) -> list[Section]:
    """Return what is computed, for which shapes, on which device."""
    reference = quote("reference in NumPy", brief.definition.reference, 8_000)
    shapes = "\n".join(f"- {row}" for row in shape_table(
        brief.definition, brief.workloads, brief.facts
    ))  # fmt: skip
    device = "\n".join(f"- {line(fact, 300)}" for fact in brief.facts.lines())
    return [
        Section(weight=0, text=f"# Task\n{definition_text(brief.definition)}"),
        Section(weight=0, text=f"What it computes, as a reference in float64:\n{reference}"),
        Section(weight=0, text=f"# Shapes\n{shapes}"),
        Section(weight=0, text=f"# Device\n{device}"),
    ]


def _base(brief: Brief, step: Step) -> list[Section]:
    sections = []
    base = base_of(step)
    if base is not None:
        shown = sources_text(base, limit=_SOURCE_CHARS, name="base source")
        mark = base.digest.removeprefix("sha256:")[:12]
        numbers = _numbers(brief, step.parent) if step.broken is None else ""
        sections.append(Section(weight=0, text=f"# Base, id {mark}\n{shown}{numbers}"))
    return [*sections, *header_sections(brief)]


def header_sections(brief: Brief) -> list[Section]:
    """Return the files beside the source that a variant may include."""
    sections = []
    for header in brief.headers.sources[1:] if brief.headers is not None else ():
        text = quote(f"header {header.path}", header.content, _HEADER_CHARS)
        sections.append(
            Section(weight=5, text=f'A header that you may include by "{header.path}":\n{text}')
        )
    return sections


def _numbers(brief: Brief, member: Member | None) -> str:
    if member is None:
        return ""
    if member.finding is None:
        return "\nThis is the kernel in production; a variant's speed is relative to it."
    rows = [f"\n{assess(member.finding).said}"]
    shapes = member.finding.verdict.shapes
    rows += [f"- {row}" for row in shape_lines(shapes)]
    rows += [f"- {position(brief.definition, shape, brief.facts)}" for shape in shapes]
    return "\n".join([*rows, f"structure: {member.features.sentence()}"])


def _broken(step: Step, reflection: str) -> list[Section]:
    broken = step.broken
    if broken is None:
        return []
    sections = [Section(weight=0, text=f"# What went wrong\n{what_broke(step)}")]
    if reflection:
        sections.append(
            Section(weight=6, text=f"A reviewer says:\n{quote('review', reflection, 2_000)}")
        )
    if broken.solution is None and broken.answer:
        text = quote("refused answer", broken.answer, _ANSWER_CHARS)
        sections.append(Section(weight=4, text=f"The answer that was refused:\n{text}"))
    return sections


def what_broke(step: Step) -> str:
    """Return why the variant that a step repairs broke: our words, and others' as data."""
    refused = step.broken.refused if step.broken is not None else None
    if refused is not None:
        said, detail = f"The answer was refused ({refused.reason}).", refused.detail
    elif step.failure is not None:
        said, detail = step.failure.said, step.failure.detail
    else:
        return "It was refused."
    return f"{said}\n{quote('message', detail, 1_500)}"


def _partners(step: Step) -> list[Section]:
    sections = []
    for member in step.partners:
        shown = sources_text(member.solution, limit=_PARTNER_CHARS, name="other source")
        head = f"Another variant, {member.merit:.3f}x the incumbent ({member.features.sentence()}):"
        sections.append(Section(weight=1, text=f"{head}\n{shown}"))
    return sections


def _ideas(ideas: Sequence[str]) -> list[Section]:
    if not ideas:
        return []
    first = quote("direction", ideas[0], 800)
    return [Section(weight=7, text=f"# Direction to try\nA colleague suggests:\n{first}")]


def _failures(failures: Sequence[tuple[Solution, str]]) -> list[Section]:
    rows = [
        f"- {solution.structure}: {line(said, 240)}" for solution, said in failures[-_FAILURES:]
    ]
    return [Section(weight=2, text="# Failed before\n" + "\n".join(rows))] if rows else []


def note_sections(brief: Brief) -> list[Section]:
    """Return our notes and people's hints."""
    sections = []
    if brief.knowledge:
        sections.append(Section(weight=3, text=f"# Notes\n{brief.knowledge}"))
    if brief.hint:
        hint = quote("hints of the operators", brief.hint, 6_000)
        sections.append(Section(weight=8, text=f"# Hints\n{hint}"))
    return sections


def _goal(step: Step) -> str:
    if step.action is Action.REPAIR:
        return "# Now\nRepair it: keep its idea, make it right. Answer as described."
    if step.action is Action.FRESH:
        return (
            "# Now\nThere is no base. Write a first kernel from the reference: right before fast, "
            "but not naive. Answer with the whole source."
        )
    return (
        "# Now\nWrite a variant of the base that is faster on the shapes above, weighted as given. "
        "Make one clear change of substance; do not only rename or reformat. Answer as described."
    )


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
    """Read the reflector's answer; None if it is not valid."""
    body = _body(text)
    try:
        return Reflection.model_validate(body) if body is not None else None
    except ValidationError:
        return None


def parse_ideas(text: str) -> tuple[str, ...]:
    """Read the optimizer's answer; empty if it is not valid."""
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
