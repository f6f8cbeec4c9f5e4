"""Launch grid of a GPU variant: integer expressions over axes and parameters.

Expressions come from candidates, so they are never evaluated as Python. They are parsed, every node
is checked against a short allow-list, and a small evaluator of this module computes them.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from retuned.runtime.schema import Refused

MAX_EXPRESSION_CHARS = 200
MAX_GRID = 2**31 - 1
_MAX_INTERMEDIATE = 2**62

_Lengths = Mapping[str, int]
_Eval = Callable[[_Lengths], int]


@dataclass(frozen=True, slots=True)
class Grid:
    expressions: tuple[str, ...]
    names: frozenset[str]
    _evaluators: tuple[_Eval, ...]

    def at(self, lengths: _Lengths) -> tuple[int, int, int]:
        """Return the number of programs per dimension; missing dimensions are 1.

        Raises
        ------
        Refused
            ``grid-invalid`` if a result is below 1 or above 2**31 - 1, or a step of the computation
            divides by zero or exceeds 62 bits.
        """
        found = [1, 1, 1]
        for index, evaluate in enumerate(self._evaluators):
            value = evaluate(lengths)
            if not 1 <= value <= MAX_GRID:
                raise _invalid(self.expressions[index], f"gives {value}, which no device launches")
            found[index] = value
        return found[0], found[1], found[2]


def parse_grid(expressions: Sequence[str], names: Collection[str]) -> Grid:
    """Parse the grid of a variant.

    Parameters
    ----------
    expressions
        One to three, x first. Allowed are whole numbers, `names`, ``+ - * // %``, parentheses and
        ``min(a, b, ...)``, ``max(a, b, ...)``, ``cdiv(a, b)``, ``next_pow2(a)``.
    names
        Axes and integer parameters.

    Raises
    ------
    Refused
        ``grid-invalid``, naming the expression and its unsupported part.

    Examples
    --------
    >>> parse_grid(["cdiv(M, BLOCK)"], ["M", "BLOCK"]).at({"M": 33, "BLOCK": 16})
    (3, 1, 1)
    """
    if isinstance(expressions, str) or not 1 <= len(expressions) <= 3:
        raise Refused("grid-invalid", detail="a grid has one to three expressions")
    used: set[str] = set()
    known = frozenset(names)
    evaluators = tuple(_parse(text, known, used) for text in expressions)
    return Grid(tuple(expressions), frozenset(used), evaluators)


def parse_expression(text: object, names: Collection[str]) -> Callable[[Mapping[str, int]], int]:
    """Parse one integer expression as `parse_grid` does; return the function that computes it.

    Raises
    ------
    Refused
        ``grid-invalid``, when it is parsed or computed.
    """
    return _parse(text, frozenset(names), set())


def _parse(text: object, names: frozenset[str], used: set[str]) -> _Eval:
    if not isinstance(text, str) or not text.isascii() or len(text) > MAX_EXPRESSION_CHARS:
        raise _invalid(str(text)[:80], f"is not ASCII text of up to {MAX_EXPRESSION_CHARS} letters")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        return _build(tree, text, names, used)
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise _invalid(text, f"cannot be parsed: {type(error).__name__}") from error


def _build(node: ast.expr, text: str, names: frozenset[str], used: set[str]) -> _Eval:
    if isinstance(node, ast.Constant):
        value = node.value
        if type(value) is not int or value > MAX_GRID:
            raise _invalid(text, f"holds {str(value)[:20]!r}, which is not a whole number in range")
        return lambda _: value
    if isinstance(node, ast.Name):
        name = node.id
        if name not in names:
            raise _invalid(text, f"names '{name}', which is neither an axis nor an integer param")
        used.add(name)
        return lambda lengths: lengths[name]
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        operator = _OPERATORS[type(node.op)]
        left = _build(node.left, text, names, used)
        right = _build(node.right, text, names, used)
        return lambda lengths: _bounded(operator(left(lengths), right(lengths)), text)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        return _call(node.func.id, node.args, text, names, used)
    raise _invalid(text, f"uses {type(node).__name__}, which a grid may not")


def _call(
    function: str, args: Sequence[ast.expr], text: str, names: frozenset[str], used: set[str]
) -> _Eval:
    least, most, compute = _FUNCTIONS.get(function, (1, 0, min))
    if not least <= len(args) <= most:
        raise _invalid(text, f"calls '{function}' with {len(args)} arguments")
    parts = [_build(arg, text, names, used) for arg in args]
    return lambda lengths: _bounded(compute(*[part(lengths) for part in parts]), text)


def _divide(left: int, right: int) -> int:
    if right == 0:
        raise Refused("grid-invalid", detail="an expression divides by zero at these lengths")
    return left // right


def _modulo(left: int, right: int) -> int:
    return left - _divide(left, right) * right


def _cdiv(left: int, right: int) -> int:
    return -_divide(-left, right)


def _next_pow2(value: int) -> int:
    return 1 if value <= 1 else 1 << (value - 1).bit_length()


_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: lambda left, right: left + right,
    ast.Sub: lambda left, right: left - right,
    ast.Mult: lambda left, right: left * right,
    ast.FloorDiv: _divide,
    ast.Mod: _modulo,
}
_FUNCTIONS: dict[str, tuple[int, int, Callable[..., int]]] = {
    "min": (2, 8, min),
    "max": (2, 8, max),
    "cdiv": (2, 2, _cdiv),
    "next_pow2": (1, 1, _next_pow2),
}


def _bounded(value: int, text: str) -> int:
    if not -_MAX_INTERMEDIATE <= value <= _MAX_INTERMEDIATE:
        raise _invalid(text, "exceeds 62 bits in an intermediate result")
    return value


def _invalid(text: str, problem: str) -> Refused:
    return Refused("grid-invalid", detail=f"grid expression {text[:80]!r} {problem}")
