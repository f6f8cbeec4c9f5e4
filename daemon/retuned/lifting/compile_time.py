"""Values and branches of a kernel that Triton decides while it compiles.

They follow from constexprs. Code in a branch that is not taken is never compiled: it may use what
the contract excludes.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Final

Plain = int | float | bool | str | None


class Unknown:
    """A value that is known on the device only."""


UNKNOWN: Final = Unknown()

_COMPARED: dict[type[ast.cmpop], Callable[[object, object], object]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_ORDERED: dict[type[ast.cmpop], Callable[[float, float], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def compared(operation: ast.cmpop, one: Plain | Unknown, other: Plain | Unknown) -> Plain | Unknown:
    """Return the result of a comparison that Triton makes at compile time.

    Examples
    --------
    >>> compared(ast.Eq(), "llama", "gemma")
    False
    """
    if isinstance(one, Unknown) or isinstance(other, Unknown):
        return UNKNOWN
    if isinstance(operation, ast.Is | ast.IsNot):
        return _identical(one, other, negated=isinstance(operation, ast.IsNot))
    if type(operation) in _COMPARED:
        return bool(_COMPARED[type(operation)](one, other))
    numbers = isinstance(one, int | float) and isinstance(other, int | float)
    if numbers and type(operation) in _ORDERED:
        return bool(_ORDERED[type(operation)](one, other))  # type: ignore[arg-type]
    return UNKNOWN


def _identical(one: Plain, other: Plain, *, negated: bool) -> Plain | Unknown:
    """Decide ``is``: equal numbers and texts of one type may be two objects."""
    if type(one) is not type(other) or one != other:
        return negated
    return not negated if one is None or isinstance(one, bool) else UNKNOWN


class Pruner(ast.NodeTransformer):
    """Removes the branches of one function that its constexprs exclude.

    Parameters
    ----------
    fixed
        Parameters and their values in every launch. Those that the function assigns are ignored.
    """

    def __init__(self, fixed: Mapping[str, Plain]) -> None:
        self._fixed = dict(fixed)

    def function(self, node: ast.FunctionDef) -> ast.FunctionDef:
        """Return the function without the branches; the node is changed."""
        for each in ast.walk(node):
            if isinstance(each, ast.Name) and not isinstance(each.ctx, ast.Load):
                self._fixed.pop(each.id, None)
        node.body = self._block(node.body) or [ast.Pass()]
        return node

    def visit_If(self, node: ast.If) -> ast.stmt | list[ast.stmt]:
        held = self._truth(node.test)
        if held is not None:
            return self._block(node.body if held else node.orelse) or [ast.Pass()]
        self.generic_visit(node)
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        held = self._truth(node.test)
        if held is not None:
            found: ast.expr = self.visit(node.body if held else node.orelse)
            return found
        self.generic_visit(node)
        return node

    def _block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        found: list[ast.stmt] = []
        for each in body:
            visited = self.visit(each)
            found += visited if isinstance(visited, list) else [visited]
        return found

    def _truth(self, node: ast.expr) -> bool | None:
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            held = self._truth(node.operand)
            return None if held is None else not held
        if isinstance(node, ast.BoolOp):
            return self._either(node)
        value = self._value(node)
        return None if isinstance(value, Unknown) else bool(value)

    def _either(self, node: ast.BoolOp) -> bool | None:
        """Decide as Triton does, from the left: an operand that comes first is evaluated."""
        decides = isinstance(node.op, ast.Or)
        for each in node.values:
            held = self._truth(each)
            if held is None or held is decides:
                return held
        return not decides

    def _value(self, node: ast.expr) -> Plain | Unknown:
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, Plain) else UNKNOWN
        if isinstance(node, ast.Name):
            return self._fixed.get(node.id, UNKNOWN)
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            left, right = self._value(node.left), self._value(node.comparators[0])
            return compared(node.ops[0], left, right)
        return UNKNOWN
