"""As much of CEL as the rules of the custom resources use; anything else is an error.

Its operators are written as Python's, Python parses it, and the tree is walked: nothing is run.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

Values = Mapping[str, Any]
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
}


class Unknown(Exception):
    """The expression uses what is not known here, or a field that is not there."""


def holds(expression: str, values: Values) -> bool:
    """Return what a rule says."""
    found = _value(_parsed(expression), values)
    if not isinstance(found, bool):
        raise Unknown(f"{expression!r} is neither true nor false")
    return found


@cache
def _parsed(expression: str) -> ast.expr:
    # `~` binds as tightly as CEL's `!`; Python's `not` does not
    parts = re.split(r"('(?:[^'\\]|\\.)*')", expression)
    for n in range(0, len(parts), 2):
        parts[n] = re.sub(r"!(?!=)", "~", parts[n]).replace("&&", " and ").replace("||", " or ")
        parts[n] = re.sub(r"\.from\b", ".from_", parts[n])
    return ast.parse("".join(parts).strip(), mode="eval").body


def _value(node: ast.expr, values: Values) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id="true"):
            return True
        case ast.Name(id="false"):
            return False
        case ast.Name(id=name) if name in values:
            return values[name]
        case ast.List(elts=elements):
            return [_value(each, values) for each in elements]
        case ast.Attribute(value=of, attr=name):
            return _field(_value(of, values), name)
        case ast.Subscript(value=of, slice=index):
            return _value(of, values)[_value(index, values)]
        case ast.UnaryOp(op=ast.Invert(), operand=operand):
            return not _value(operand, values)
        case ast.BoolOp(op=ast.And(), values=terms):
            return all(_value(each, values) for each in terms)
        case ast.BoolOp(op=ast.Or(), values=terms):
            return any(_value(each, values) for each in terms)
        case ast.BinOp(op=ast.Sub(), left=left, right=right):
            return _value(left, values) - _value(right, values)
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARE:
            return _COMPARE[type(op)](_value(left, values), _value(right, values))
        case ast.Call(func=ast.Name(id="has"), args=[ast.Attribute(value=of, attr=name)]):
            return name.rstrip("_") in _value(of, values)
        case ast.Call(func=ast.Attribute(value=of, attr=method), args=arguments):
            return _called(method, _value(of, values), arguments, values)
    raise Unknown(ast.unparse(node))


def _called(method: str, of: Any, arguments: list[ast.expr], values: Values) -> Any:
    match method, arguments:
        case "size", []:
            return len(of)
        case "matches", [pattern]:
            return re.search(_value(pattern, values), of) is not None
        case "all" | "exists" | "exists_one", [ast.Name(id=name), body]:
            found = [bool(_value(body, {**values, name: each})) for each in of]
            return {"all": all(found), "exists": any(found), "exists_one": sum(found) == 1}[method]
    raise Unknown(method)


def _field(of: Any, name: str) -> Any:
    name = name.rstrip("_")
    if not isinstance(of, Mapping) or name not in of:
        raise Unknown(f"no such key: {name}")
    return of[name]
