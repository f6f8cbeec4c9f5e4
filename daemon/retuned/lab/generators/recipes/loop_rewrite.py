"""Rewrites a Triton kernel so that one program does the work of several, by its syntax tree.

``tl.program_id(0)`` becomes the number of a turn of a loop around the whole body. Everything that
the body keeps between its lines is made in it, so no turn reads values of another. A source where
that is not certain is refused. The rewritten text passes the same checks as any untrusted source.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Collection
from dataclasses import dataclass

from retuned.contract import Definition, Solution, SourceFile, TrustClass
from retuned.errors import RetunedError
from retuned.runtime.core.grid import parse_grid
from retuned.runtime.schema import Refused
from retuned.runtime.triton.bind import bind
from retuned.runtime.triton.contract import check_source

_TURN, _PROGRAM = "turn_of_loop", "program_of_turn"
_CALLS = {"cdiv": "cdiv", "min": "minimum", "max": "maximum"}
"""Functions of a grid expression, and what they are called in Triton."""


class NotRewritable(RetunedError):
    """The source is not of the form that can be rewritten; the message says why."""

    code = "not-rewritable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """A way of handing out programs to fewer programs."""

    name: str
    """Added to the structure."""
    param: str
    """New compile-time parameter."""
    turns: str
    """Turns of a program, as Triton; `TOTAL` stands for the programs there were."""
    program: str
    """Number of the old program of a turn, as Triton."""
    grid: str
    """New grid; `TOTAL` stands for the old expression."""


STRIDED = Loop(
    name="persistent",
    param="PROGRAMS",
    turns="tl.cdiv(TOTAL - tl.program_id(0), PROGRAMS)",
    program=f"tl.program_id(0) + {_TURN} * PROGRAMS",
    grid="min(PROGRAMS, TOTAL)",
)
"""Few programs, each of which takes every so manieth part."""
CHUNKED = Loop(
    name="chunks",
    param="EACH",
    turns="tl.minimum(EACH, TOTAL - tl.program_id(0) * EACH)",
    program=f"tl.program_id(0) * EACH + {_TURN}",
    grid="cdiv(TOTAL, EACH)",
)
"""Each program takes some parts that lie next to each other."""


def rewrite(solution: Solution, definition: Definition, *, loop: Loop, value: int) -> Solution:
    """Return the variant with its programs in a loop.

    Parameters
    ----------
    solution
        A Triton variant with a grid of one dimension.
    definition
        What it computes.
    loop
        How programs are handed out.
    value
        Of the new parameter.

    Raises
    ------
    NotRewritable
        If the source is not of a form for which this is sure to mean the same.
    """
    if solution.steps or solution.scratch:
        raise NotRewritable("it has several launches or named scratch")
    if len(solution.grid) != 1:
        raise NotRewritable(f"its grid has {len(solution.grid)} dimensions, one is needed")
    if len(solution.sources) != 1:
        raise NotRewritable("it has several files")
    try:
        check_source(solution.sources[0].content, entry=solution.entry)
        tree = ast.parse(solution.sources[0].content)
        total = ast.parse(solution.grid[0].strip(), mode="eval").body
        _rewrite(tree, solution, definition, total=total, loop=loop)
        rewritten = _solution(solution, ast.unparse(tree) + "\n", loop=loop, value=value)
        _check(rewritten, definition)
    except (Refused, SyntaxError, ValueError, RecursionError) as error:
        raise NotRewritable(f"it cannot be rewritten: {error}"[:300]) from error
    return rewritten


def _rewrite(
    tree: ast.Module, solution: Solution, definition: Definition, *, total: ast.expr, loop: Loop
) -> None:
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    entry = next(node for node in functions if node.name == solution.entry)
    _check_form(entry, [node for node in functions if node is not entry], loop=loop)
    docstring, body = _docstring_of(entry)
    body = [_Replaced().visit(statement) for statement in body]
    known = {argument.arg for argument in entry.args.args}
    for name in sorted(_names(total) - known):
        entry.args.args.insert(0, _parameter(name, constexpr=name not in definition.axes))
    entry.args.args.insert(0, _parameter(loop.param, constexpr=True))
    turns = _expression(loop.turns, total)
    program = _expression(loop.program, total)
    around = ast.For(
        target=ast.Name(id=_TURN, ctx=ast.Store()),
        iter=ast.Call(func=_name("range"), args=[ast.Constant(value=0), turns], keywords=[]),
        body=[
            ast.Assign(targets=[ast.Name(id=_PROGRAM, ctx=ast.Store())], value=program),
            *body,
        ],
        orelse=[],
    )
    entry.body = [*docstring, around]
    # A default would move to another parameter: those in front have none, so the last keep theirs.
    ast.fix_missing_locations(tree)


def _check_form(entry: ast.FunctionDef, others: Collection[ast.FunctionDef], *, loop: Loop) -> None:
    """Raise `NotRewritable` unless a loop around the body is sure to mean the same."""
    parameters = {argument.arg for argument in entry.args.args}
    stored = {
        node.id
        for node in ast.walk(entry)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    if parameters & stored:
        raise NotRewritable(f"it assigns to its parameters {sorted(parameters & stored)}")
    if {_TURN, _PROGRAM, loop.param} & (stored | parameters):
        raise NotRewritable("it was rewritten before")
    if any(isinstance(node, ast.Return | ast.While) for node in ast.walk(entry)):
        raise NotRewritable("it returns early or loops without a bound")
    if _may_keep(entry):
        raise NotRewritable("a variable may keep its value from one program to the next")
    calls = [_program_id(node) for node in ast.walk(entry)]
    if not any(call is not None for call in calls):
        raise NotRewritable("it does not ask which program it is")
    if any(call not in (None, 0) for call in calls):
        raise NotRewritable("it asks for a dimension of the grid that there is not")
    for node in (n for function in (entry, *others) for n in ast.walk(function)):
        if isinstance(node, ast.Attribute) and node.attr == "num_programs":
            raise NotRewritable("it asks how many programs there are")
    if any(_program_id(node) is not None for other in others for node in ast.walk(other)):
        raise NotRewritable("a function that it calls asks which program it is")


def _may_keep(entry: ast.FunctionDef) -> bool:
    """Whether a variable is first set under a condition, so that a turn could see an older one."""
    sure = {name for statement in entry.body for name in _stored_at_top(statement)}
    return any(
        isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id not in sure
        and _is_read(entry, node.id)
        for branch in ast.walk(entry)
        if isinstance(branch, ast.If)
        for node in ast.walk(branch)
    )  # fmt: skip


def _stored_at_top(statement: ast.stmt) -> set[str]:
    if isinstance(statement, ast.Assign):
        targets: list[ast.expr] = list(statement.targets)
    elif isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    else:
        return set()
    return {n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}


def _is_read(entry: ast.FunctionDef, name: str) -> bool:
    """Whether a name is read anywhere; a store alone keeps nothing."""
    return any(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
        for node in ast.walk(entry)
    )


def _program_id(node: ast.AST) -> int | None:
    """Dimension of a call of ``tl.program_id``, -1 where it is not a literal; else None."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    if node.func.attr != "program_id":
        return None
    given = [*node.args, *(keyword.value for keyword in node.keywords)]
    if len(given) == 1 and isinstance(given[0], ast.Constant) and type(given[0].value) is int:
        return given[0].value
    return -1


class _Replaced(ast.NodeTransformer):
    """Replaces the program's number by the one of the turn."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Replace one call, or look into it."""
        return _name(_PROGRAM) if _program_id(node) is not None else self.generic_visit(node)


class _Filled(ast.NodeTransformer):
    """Puts the old number of programs where a template says TOTAL."""

    def __init__(self, total: ast.expr) -> None:
        self._total = total

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """Replace one name."""
        return copy.deepcopy(self._total) if node.id == "TOTAL" else node


class _Device(ast.NodeTransformer):
    """Turns a grid expression into Triton."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Rename one function."""
        self.generic_visit(node)
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name not in _CALLS:
            raise NotRewritable(f"its grid uses '{name[:40]}', which a kernel cannot")
        node.func = ast.Attribute(value=_name("tl"), attr=_CALLS[name], ctx=ast.Load())
        return node


def _expression(template: str, total: ast.expr) -> ast.expr:
    device = _Device().visit(copy.deepcopy(total))
    filled = _Filled(device).visit(ast.parse(template, mode="eval").body)
    assert isinstance(filled, ast.expr), "templates are expressions"
    return filled


def _names(total: ast.expr) -> set[str]:
    names = {node.id for node in ast.walk(total) if isinstance(node, ast.Name)}
    return names - {*_CALLS, "next_pow2"}


def _docstring_of(entry: ast.FunctionDef) -> tuple[list[ast.stmt], list[ast.stmt]]:
    cut = 1 if ast.get_docstring(entry) is not None else 0
    return entry.body[:cut], entry.body[cut:]


def _parameter(name: str, *, constexpr: bool) -> ast.arg:
    annotation = ast.Attribute(value=_name("tl"), attr="constexpr", ctx=ast.Load())
    return ast.arg(arg=name, annotation=annotation if constexpr else None)


def _name(name: str) -> ast.Name:
    return ast.Name(id=name, ctx=ast.Load())


def _solution(solution: Solution, text: str, *, loop: Loop, value: int) -> Solution:
    structure = f"{solution.structure}.{loop.name}"
    return Solution(
        name=f"{solution.definition}.{structure}.{loop.param.lower()}{value}"[-128:].lstrip("._:-"),
        definition=solution.definition,
        language=solution.language,
        entry=solution.entry,
        sources=(SourceFile(path=solution.sources[0].path, content=text),),
        structure=structure[:128],
        params={**solution.params, loop.param: value},
        grid=(loop.grid.replace("TOTAL", f"({solution.grid[0]})"),),
        layouts=solution.layouts,
        scratch_bytes=solution.scratch_bytes,
        trust=TrustClass.GENERATED,
        author=f"recipe {loop.name}",
    )


def _check(solution: Solution, definition: Definition) -> None:
    """Put the result through the contract; raises `Refused`."""
    signature = check_source(solution.sources[0].content, entry=solution.entry)
    integers = {name for name, value in solution.params.items() if isinstance(value, int)}
    parse_grid(solution.grid, {*integers, *definition.axes})
    bind(
        signature,
        params=solution.params,
        grid=solution.grid,
        tensors=[*definition.inputs, *definition.outputs],
        axes=list(definition.axes),
        scratch_bytes=solution.scratch_bytes,
    )
