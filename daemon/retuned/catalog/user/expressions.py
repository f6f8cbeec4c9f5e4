"""Expressions in a definition file: valid points, number of operations, size of scratch.

They come from files, so they are never evaluated as Python. They are parsed, every node is checked
against an allow-list, and a small evaluator computes them.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

MAX_CHARS = 400
_MOST = 2**62

Value = int | str | bool


class BadExpression(ValueError):
    """An invalid expression; the message names the invalid part."""


@dataclass(frozen=True, slots=True)
class Expression:
    """A checked expression."""

    text: str
    names: frozenset[str]
    _tree: ast.expr

    def __call__(self, values: Mapping[str, int | str]) -> Value:
        """Return its value for these values of the names.

        Raises
        ------
        BadExpression
            If a step divides by zero, leaves 62 bits or mixes text with numbers.
        """
        return _value(self._tree, values)

    def number(self, values: Mapping[str, int | str]) -> int:
        """Return its value as an integer.

        Raises
        ------
        BadExpression
            As calling it, or if it is not a number.
        """
        found = self(values)
        if isinstance(found, str):
            raise BadExpression(f"'{self.text}' is text, not a number")
        return int(found)


def parse_expression(text: str, names: Collection[str]) -> Expression:
    """Parse an expression.

    Parameters
    ----------
    text
        Integers, texts in quotes, `names`, ``+ - * // %``, comparisons, ``and or not``,
        parentheses, and ``min max cdiv next_pow2``.
    names
        Names that it may use.

    Raises
    ------
    BadExpression
        With the forbidden part.

    Examples
    --------
    >>> parse_expression("ROWS * VEC <= 64 and H % VEC == 0", ["ROWS", "VEC", "H"])(
    ...     {"ROWS": 4, "VEC": 16, "H": 1024}
    ... )
    True
    >>> parse_expression("2 * M * cdiv(H, 3)", ["M", "H"]).number({"M": 5, "H": 10})
    40
    """
    if not text.isascii() or len(text) > MAX_CHARS:
        raise BadExpression(f"is not an ASCII text of up to {MAX_CHARS} letters")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        used: set[str] = set()
        _check(tree, frozenset(names), used)
    except (SyntaxError, MemoryError, RecursionError) as error:
        raise BadExpression(f"cannot be read: {type(error).__name__}") from error
    return Expression(text, frozenset(used), tree)


def _check(node: ast.expr, names: frozenset[str], used: set[str]) -> None:
    for part in _parts(node):
        _check(part, names, used)
    if isinstance(node, ast.Name):
        if node.id not in names:
            known = ", ".join(sorted(names)) or "nothing"
            raise BadExpression(f"names '{node.id[:40]}'; it may use {known}")
        used.add(node.id)


def _parts(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.Constant) and _is_plain(node.value):
        return []
    if isinstance(node, ast.Name):
        return []
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        return [node.left, node.right]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        return [node.operand]
    if isinstance(node, ast.BoolOp):
        return node.values
    if isinstance(node, ast.Compare) and all(type(op) in _COMPARISONS for op in node.ops):
        return [node.left, *node.comparators]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        least, most, _ = _FUNCTIONS.get(node.func.id, (1, 0, min))
        if least <= len(node.args) <= most:
            return node.args
        known = ", ".join(_FUNCTIONS)
        raise BadExpression(
            f"calls '{node.func.id[:40]}' with {len(node.args)} arguments; it may call {known}"
        )
    raise BadExpression(f"uses {type(node).__name__}, which is not allowed here")


def _is_plain(value: object) -> bool:
    if type(value) is str:
        return len(value) <= 64
    return type(value) in (int, bool) and abs(value) <= _MOST  # type: ignore[arg-type]


def _value(node: ast.expr, values: Mapping[str, int | str]) -> Value:
    if isinstance(node, ast.Constant):
        constant: Value = node.value  # type: ignore[assignment]  # checked when it was parsed
        return constant
    if isinstance(node, ast.Name):
        return values[node.id]
    if isinstance(node, ast.BinOp):
        compute = _ARITHMETIC[type(node.op)]
        return _bounded(compute(_number(node.left, values), _number(node.right, values)))
    if isinstance(node, ast.UnaryOp):
        if isinstance(node.op, ast.Not):
            return not _value(node.operand, values)
        return -_number(node.operand, values)
    if isinstance(node, ast.BoolOp):
        return _both_or_either(node, values)
    if isinstance(node, ast.Compare):
        return _compare(node, values)
    assert isinstance(node, ast.Call), "nothing else passes the check"
    assert isinstance(node.func, ast.Name), "nothing else passes the check"
    _, _, function = _FUNCTIONS[node.func.id]
    return _bounded(function(*[_number(arg, values) for arg in node.args]))


def _both_or_either(node: ast.BoolOp, values: Mapping[str, int | str]) -> bool:
    parts = (bool(_value(part, values)) for part in node.values)
    return all(parts) if isinstance(node.op, ast.And) else any(parts)


def _compare(node: ast.Compare, values: Mapping[str, int | str]) -> bool:
    left = _value(node.left, values)
    for op, each in zip(node.ops, node.comparators, strict=True):
        right = _value(each, values)
        if isinstance(left, str) != isinstance(right, str):
            raise BadExpression("compares text with a number")
        if not _COMPARISONS[type(op)](left, right):
            return False
        left = right
    return True


def _number(node: ast.expr, values: Mapping[str, int | str]) -> int:
    found = _value(node, values)
    if isinstance(found, str):
        raise BadExpression("calculates with text")
    return int(found)


def _bounded(value: int) -> int:
    if not -_MOST <= value <= _MOST:
        raise BadExpression("leaves 62 bits on the way")
    return value


def _divide(left: int, right: int) -> int:
    if right == 0:
        raise BadExpression("divides by zero")
    return left // right


def _modulo(left: int, right: int) -> int:
    return left - _divide(left, right) * right


def _cdiv(left: int, right: int) -> int:
    return -_divide(-left, right)


def _next_pow2(value: int) -> int:
    return 1 if value <= 1 else 1 << (value - 1).bit_length()


_ARITHMETIC: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: _divide,
    ast.Mod: _modulo,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[object, object], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,  # type: ignore[dict-item]  # both sides are text or both numbers
    ast.LtE: operator.le,  # type: ignore[dict-item]
    ast.Gt: operator.gt,  # type: ignore[dict-item]
    ast.GtE: operator.ge,  # type: ignore[dict-item]
}
_FUNCTIONS: dict[str, tuple[int, int, Callable[..., int]]] = {
    "min": (2, 8, min),
    "max": (2, 8, max),
    "cdiv": (2, 2, _cdiv),
    "next_pow2": (1, 1, _next_pow2),
}
