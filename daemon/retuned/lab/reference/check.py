"""Static check of a reference: it may hold formulas over NumPy arrays, and nothing else.

The text comes from a file and is untrusted. Text that passes is compiled without its imports and
runs with a few of Python's functions, in a process without files, network and most memory. This
check is the first barrier, and it reports the line to the author.
"""

from __future__ import annotations

import ast
import builtins as python
from dataclasses import dataclass, field

from retuned.lab.reference.words import ARRAY, BUILTINS, LINALG, MATH, NUMPY

MAX_CHARS = 64 << 10
_MOST_PARTS = 20_000
_WORDS = {"numpy": NUMPY, "math": MATH}
_PLAIN = (
    ast.Module, ast.FunctionDef, ast.arguments, ast.arg, ast.Return, ast.Assign, ast.AugAssign,
    ast.AnnAssign, ast.For, ast.While, ast.If, ast.IfExp, ast.Expr, ast.Pass, ast.Break,
    ast.Continue, ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.Compare, ast.Call, ast.keyword,
    ast.Constant, ast.Attribute, ast.Subscript, ast.Slice, ast.Starred, ast.Name, ast.List,
    ast.Tuple, ast.Dict, ast.ListComp, ast.DictComp, ast.GeneratorExp, ast.comprehension, ast.With,
    ast.withitem, ast.boolop, ast.operator, ast.unaryop, ast.cmpop, ast.expr_context, ast.Lambda,
)  # fmt: skip


class ReferenceRefused(Exception):
    """A reference that must not run.

    `line` counts from 1; None means the whole reference. `problem` is a phrase after "the
    reference" or "line 3".
    """

    def __init__(self, line: int | None, problem: str) -> None:
        super().__init__(f"line {line} {problem}" if line else f"the reference {problem}")
        self.line = line
        self.problem = problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A reference that may run."""

    tree: ast.Module
    modules: dict[str, str]
    """Name in the text to module: ``numpy`` or ``math``."""
    parameters: tuple[str, ...]
    optional: frozenset[str]
    any_keyword: bool


def check_reference(text: str) -> Checked:
    """Check a reference without executing it.

    Raises
    ------
    ReferenceRefused
        With the line and the violation.
    """
    if len(text) > MAX_CHARS:
        raise ReferenceRefused(None, f"has more than {MAX_CHARS} characters")
    try:
        tree = ast.parse(text)
        if sum(1 for _ in ast.walk(tree)) > _MOST_PARTS:
            raise ReferenceRefused(None, f"has more than {_MOST_PARTS} parts")
        check = _Check()
        run = check.module(tree)
    except SyntaxError as error:
        raise ReferenceRefused(error.lineno, f"is not valid Python: {error.msg}") from error
    except (ValueError, MemoryError, RecursionError) as error:
        raise ReferenceRefused(None, "is nested too deeply, or no text") from error
    arguments = run.args
    if arguments.posonlyargs:
        raise ReferenceRefused(run.lineno, "takes inputs by position only; they come by name")
    ordinary = [each.arg for each in arguments.args]
    named = [each.arg for each in arguments.kwonlyargs]
    optional = ordinary[len(ordinary) - len(arguments.defaults) :]
    optional += [n for n, d in zip(named, arguments.kw_defaults, strict=True) if d is not None]
    return Checked(
        tree=tree,
        modules=check.modules,
        parameters=(*ordinary, *named),
        optional=frozenset(optional),
        any_keyword=arguments.kwarg is not None,
    )


def builtins() -> dict[str, object]:
    return {name: getattr(python, name) for name in BUILTINS}


@dataclass(slots=True)
class _Check:
    """Checks a text; `modules` are the names that its imports bind."""

    modules: dict[str, str] = field(default_factory=dict)

    def module(self, tree: ast.Module) -> ast.FunctionDef:
        kept: list[ast.stmt] = []
        for node in tree.body:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                self._import(node)
                continue
            is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            if not (isinstance(node, (ast.FunctionDef, ast.Assign)) or is_text):
                raise ReferenceRefused(node.lineno, "does more than define functions and constants")
            kept.append(node)
        tree.body = kept
        runs = [n for n in kept if isinstance(n, ast.FunctionDef) and n.name == "run"]
        if len(runs) != 1:
            raise ReferenceRefused(None, "has no `def run(...)`, or more than one")
        for each in ast.walk(tree):
            _strip(each)
        for each in ast.walk(tree):
            self._node(each)
        return runs[0]

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        if isinstance(node, ast.ImportFrom):
            if node.module == "__future__" and [n.name for n in node.names] == ["annotations"]:
                return
            raise ReferenceRefused(node.lineno, "imports other than by `import numpy as np`")
        for name in node.names:
            if name.name == "numpy.typing":  # only annotations use it, and those are removed
                continue
            if name.name not in _WORDS:
                problem = f"imports '{name.name[:40]}'; a reference has numpy and math"
                raise ReferenceRefused(node.lineno, problem)
            called = name.asname or name.name
            if "__" in called or called == "run" or called in builtins():
                raise ReferenceRefused(node.lineno, f"calls a module '{called[:40]}'")
            self.modules[called] = name.name

    def _node(self, node: ast.AST) -> None:
        line = getattr(node, "lineno", None)
        if not isinstance(node, _PLAIN):
            raise ReferenceRefused(line, f"uses {type(node).__name__}, which no formula needs")
        if isinstance(node, ast.FunctionDef) and node.decorator_list:
            raise ReferenceRefused(line, "decorates a function")
        if isinstance(node, ast.With):
            self._with(node)
        if isinstance(node, ast.Attribute):
            self._attribute(node)
        name, binds = _name(node)
        if "__" in name:
            raise ReferenceRefused(line, f"uses the name '{name[:40]}'")
        if binds and name in self.modules:
            raise ReferenceRefused(line, f"gives '{name[:40]}' another meaning")

    def _with(self, node: ast.With) -> None:
        for item in node.items:
            call = item.context_expr
            well = isinstance(call, ast.Call) and self._dotted(call.func) == "numpy.errstate"
            if not well or item.optional_vars is not None:
                raise ReferenceRefused(node.lineno, "uses `with` for other than np.errstate(...)")

    def _attribute(self, node: ast.Attribute) -> None:
        value, name = node.value, node.attr
        if not isinstance(node.ctx, ast.Load):
            raise ReferenceRefused(node.lineno, f"assigns to the attribute '{name[:40]}'")
        allowed = ARRAY
        if isinstance(value, ast.Name) and value.id in self.modules:
            allowed = _WORDS[self.modules[value.id]]
        elif self._dotted(value) == "numpy.linalg":
            allowed = LINALG
        if name not in allowed:
            raise ReferenceRefused(node.lineno, f"uses '.{name[:40]}', which is not on the list")

    def _dotted(self, node: ast.expr) -> str:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = self.modules.get(node.value.id, "")
            return f"{module}.{node.attr}" if module else ""
        return ""


def _strip(node: ast.AST) -> None:
    if isinstance(node, ast.FunctionDef):
        node.returns = None
    elif isinstance(node, ast.arg):
        node.annotation = None
    elif isinstance(node, ast.AnnAssign):
        node.annotation = ast.copy_location(ast.Constant(value=None), node)


def _name(node: ast.AST) -> tuple[str, bool]:
    if isinstance(node, ast.Name):
        return node.id, not isinstance(node.ctx, ast.Load)
    if isinstance(node, ast.arg):
        return node.arg, True
    if isinstance(node, ast.FunctionDef):
        return node.name, True
    if isinstance(node, ast.keyword):
        return node.arg or "", False
    return "", False
