"""Rejection cache: rejections of earlier experiments are not measured again. Pure.

A rejection applies to the same source except for comments and layout, with the same parameters, on
the same definition by content, in the same environment. The experiment must include every shape at
which it failed. Verdicts relative to the incumbent also need the same incumbent. Verdicts on speed
also need nearly the same mix of shapes. Failures that the machine may have caused (a time-out, a
clock that stepped, short memory) never apply. Wins are always measured again.
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
"""The machine's state may have been the cause."""
_SPEED = frozenset({Reason.SLOWER, Reason.NOT_FASTER_ENOUGH, Reason.LOST_SEARCH})
_RELATIVE = _SPEED | {Reason.WRONG_OUTPUT, Reason.NAN_MISMATCH, Reason.ROW_DEPENDENT}
_SAME_SHARE = 0.05
"""Largest change of a shape's share for which a speed verdict stays valid."""
_COMMENT = re.compile(
    r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|//[^\n]*|/\*.*?\*/', flags=re.DOTALL
)

Remembered = Mapping[Digest, Finding]


def definition_digest(definition: Definition) -> Digest:
    """Identify a definition by its content: a user may change it and keep its name."""
    return digest_of(definition.model_dump(mode="json"))


def sameness(solution: Solution) -> Digest:
    """Identify a candidate by what decides its execution, without comments and layout.

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
    """Return the rejections of `earlier` experiments that apply to `plan`.

    `definition` is the digest from `definition_digest`.
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
    if verdict.gate == "G0":  # a refusal of its origin, not of its behaviour
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
    """Share of each shape in the launches; equal shares if no shape has a weight."""
    total = sum(each.weight for each in workloads)
    return {
        tuple(sorted(each.axes.items())): each.weight / total if total > 0.0 else 1.0
        for each in workloads
    }
