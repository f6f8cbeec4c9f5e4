"""What earlier experiments rejected is not measured again: bad news is paid for once. Pure.

A rejection holds for the same source, but for comments and layout, with the same parameters, on the
same definition by content, in the same environment, where every shape that it failed at is asked
about again. What was said relative to the incumbent holds beside the same incumbent; what was said
about speed, besides, at nearly the same mix of shapes. What the machine may have caused (a
time-out, a clock that stepped, memory that was short) holds never. A win is always measured anew.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence

from retuned.contract import Definition, Digest, Language, Solution, Workload, digest_of
from retuned.lab.generators.transfer import Earlier
from retuned.ports import Finding
from retuned.stages.experiment import ExperimentPlan
from retuned.stages.verdict import Reason, Status

_PASSING = frozenset({Reason.TIMED_OUT, Reason.CLOCKS_DISAGREE, Reason.OUT_OF_MEMORY})
"""The machine's mood may have been the cause."""
_SPEED = frozenset({Reason.SLOWER, Reason.NOT_FASTER_ENOUGH, Reason.LOST_SEARCH})
"""What holds at the same incumbent and the same mix."""
_RELATIVE = _SPEED | {Reason.WRONG_OUTPUT, Reason.NAN_MISMATCH, Reason.ROW_DEPENDENT}
"""What was said relative to the incumbent."""
_SAME_SHARE = 0.05
"""Most that the share of a shape may have moved for a slow candidate to be slow still."""
_COMMENT = re.compile(
    r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|//[^\n]*|/\*.*?\*/', flags=re.DOTALL
)

Remembered = Mapping[Digest, Finding]
"""Rejections that hold, by `sameness`."""


def definition_digest(definition: Definition) -> Digest:
    """Name what is computed by its content: a user may change a definition and keep its name."""
    return digest_of(definition.model_dump(mode="json"))


def sameness(solution: Solution) -> Digest:
    """Name a candidate by what decides what runs, but for comments and layout of its sources.

    Examples
    --------
    >>> plain("int a;   /* one */  int  b; // two", Language.CPU_CPP)
    'int a; int b;'
    >>> plain("x = 1  # one", Language.TRITON) == plain("x=1", Language.TRITON)
    True
    """
    sources = tuple(
        each.model_copy(update={"content": plain(each.content, solution.language)})
        for each in solution.sources
    )
    return solution.model_copy(update={"sources": sources}).digest


def plain(source: str, language: Language) -> str:
    """Return source without comments and with plain spaces; unchanged where it does not parse."""
    if language is Language.TRITON:
        try:
            return ast.unparse(ast.parse(source))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return source
    without = _COMMENT.sub(lambda m: " " if m[0].startswith(("//", "/*")) else m[0], source)
    lines = (" ".join(line.split()) for line in without.splitlines())
    return "\n".join(line for line in lines if line)


def remembered(
    earlier: Sequence[Earlier], plan: ExperimentPlan, *, definition: Digest
) -> Remembered:
    """Return the rejections of earlier experiments that hold in this one.

    Parameters
    ----------
    earlier
        What other experiments found.
    plan
        This one.
    definition
        Content of what is tuned; see `definition_digest`.
    """
    return {
        sameness(each.finding.solution): each.finding
        for each in earlier
        if _holds(each, plan, definition)
    }


def _holds(each: Earlier, plan: ExperimentPlan, definition: Digest) -> bool:
    found, verdict = each.finding, each.finding.verdict
    if verdict.status is not Status.REJECT or verdict.reason in _PASSING:
        return False
    if verdict.gate == "G0":  # that was about where it came from, not about what it does
        return False
    if found.solution.definition != plan.definition or found.definition != definition:
        return False
    if each.environment != plan.environment:
        return False
    if verdict.reason in _RELATIVE and verdict.incumbent != plan.incumbent:
        return False
    before, now = _shares(each.workloads), _shares(plan.workloads)
    if not before or not set(before) <= set(now):
        return False
    if verdict.reason not in _SPEED:
        return True
    return set(before) == set(now) and all(
        abs(before[shape] - now[shape]) <= _SAME_SHARE for shape in now
    )


def _shares(workloads: Sequence[Workload]) -> dict[tuple[tuple[str, int], ...], float]:
    """Share of each shape in the launches; equal shares where nothing has a weight."""
    total = sum(each.weight for each in workloads)
    return {
        tuple(sorted(each.axes.items())): each.weight / total if total > 0.0 else 1.0
        for each in workloads
    }
