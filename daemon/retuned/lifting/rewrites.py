"""Equal spellings, within the contract, of constructs that it excludes.

Each rewrite keeps what Triton computes. Where equality cannot be decided from the text, the
construct remains and the contract refuses it.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from itertools import count

from retuned.lifting.records import NotLifted
from retuned.runtime.triton.contract import BUILTINS, is_literal

_MOST_SHIFTED = 62
_MOST_POWER = 128
WHOLE_TYPES = frozenset(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))


class Rewriter(ast.NodeTransformer):
    """Rewrites one function.

    Parameters
    ----------
    entry
        Whether a launch passes the parameters: then they are pointers and numbers, never blocks.
    """

    def __init__(self, *, entry: bool) -> None:
        self._entry = entry
        self._scalars: frozenset[str] = frozenset()
        self._renamed: dict[str, str] = {}

    def function(self, node: ast.FunctionDef) -> ast.FunctionDef:
        """Return the function; the node is changed."""
        parameters = {each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)}
        names = [each for each in ast.walk(node) if isinstance(each, ast.Name)]
        stored = {each.id for each in names if not isinstance(each.ctx, ast.Load)}
        self._scalars = frozenset(parameters - stored if self._entry else ())
        used = {each.id for each in names} | parameters
        for name in sorted((stored & BUILTINS) - parameters):
            free = (f"{name}_{number}" for number in count(2))
            self._renamed[name] = next(each for each in free if each not in used)
        node.body = [self.visit(each) for each in node.body]
        return node

    def visit_Name(self, node: ast.Name) -> ast.Name:
        """Rename a local that has the name of a Python function."""
        return ast.copy_location(ast.Name(self._renamed.get(node.id, node.id), node.ctx), node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """Write a scalar pointer's ``type`` as ``dtype``: for a block they differ."""
        inner = node.value
        if node.attr == "element_ty" and isinstance(inner, ast.Attribute) and inner.attr == "type":
            base = inner.value
            if isinstance(base, ast.Name) and base.id in self._scalars:
                inner.attr = "dtype"
        self.generic_visit(node)
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        word = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if word == "static_assert":
            messages = [ast.Constant("") if _is_composed(each) else each for each in node.args[1:]]
            node.args[1:] = messages
        if word == "is_fp8" and not node.args and isinstance(node.func, ast.Attribute):
            kind = node.func.value
            if _is_dotted(kind):  # of a pointer they differ: the data flow refuses it
                name = ast.unparse(kind)
                text = f"{name}.is_floating() and {name}.primitive_bitwidth == 8"
                found: ast.expr = self.visit(_located(ast.parse(text, mode="eval").body, node))
                return found
        self.generic_visit(node)
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt:
        self.generic_visit(node)
        if isinstance(node.op, ast.LShift) and isinstance(node.target, ast.Name):
            product = _product(ast.BinOp(node.target, node.op, node.value))
            if isinstance(product, ast.BinOp) and isinstance(product.op, ast.Mult):
                node.op, node.value = product.op, product.right
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.op, ast.LShift):
            return _product(node)
        if isinstance(node.op, ast.Pow):
            return _power(node)
        return node


def _is_composed(node: ast.expr) -> bool:
    return any(isinstance(each, ast.JoinedStr) for each in ast.walk(node))


def _product(node: ast.BinOp) -> ast.expr:
    """Write a shift by a literal as a product, which is the same modulo the type's range."""
    by = node.right.value if isinstance(node.right, ast.Constant) else None
    if type(by) is not int or not 0 <= by <= _MOST_SHIFTED:
        return node
    return _located(ast.BinOp(node.left, ast.Mult(), ast.Constant(2**by)), node)


def _power(node: ast.BinOp) -> ast.expr:
    """Compute a power of literals, as Triton does in Python."""
    base, by = _whole(node.left), _whole(node.right)
    if base is None or by is None or not 1 <= base <= 16 or abs(by) > _MOST_POWER:
        return node
    found = base**by
    if isinstance(found, int) and found >= 2**63:
        return node
    return _located(ast.Constant(found), node)


def _whole(node: ast.expr) -> int | None:
    sign = 1
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        sign, node = -1, node.operand
    value = node.value if isinstance(node, ast.Constant) else None
    return sign * value if type(value) is int else None


def _located(node: ast.expr, old: ast.expr) -> ast.expr:
    return ast.fix_missing_locations(ast.copy_location(node, old))


def _is_dotted(node: ast.expr) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)


def is_constexpr(node: ast.arg) -> bool:
    """Whether a parameter is annotated as a constexpr.

    Raises
    ------
    NotLifted
        ``parameter-annotated`` if the annotation names it in another way.
    """
    text = _annotation(node)
    if "constexpr" in text and text.split(".")[-1] != "constexpr":
        raise _annotated(node, text)
    return "constexpr" in text


def annotated_type(node: ast.arg) -> str | None:
    """Return the type that an annotation gives a whole number of a launch; None without effect.

    It holds for the parameters of a kernel; Triton ignores those of the functions that it calls.

    Raises
    ------
    NotLifted
        ``parameter-annotated`` if it changes what Triton compiles in another way.
    """
    text = _annotation(node)
    last = text.split(".")[-1]
    if last in ("", "constexpr", "Tensor", "tensor") or "|" in text:
        return None  # Triton reads types of its language, and no union
    if last == "int":
        return "int32"
    if last in WHOLE_TYPES:
        return last
    raise _annotated(node, text)


def _annotation(node: ast.arg) -> str:
    said = node.annotation
    if said is None:
        return ""
    return (str(said.value) if isinstance(said, ast.Constant) else ast.unparse(said)).strip()


def _annotated(node: ast.arg, text: str) -> NotLifted:
    detail = f"parameter '{node.arg}' is annotated {text[:40]}"
    return NotLifted("parameter-annotated", detail=detail, line=f"{node.arg}: {text[:40]}")


def defaults_of(
    node: ast.FunctionDef, constants: Mapping[str, ast.expr], *, entry: bool
) -> list[ast.expr]:
    """Return a function's defaults as literals.

    The lifted entry passes every argument of the kernel, so that it needs no default.
    """
    found = [_as_literal(each, constants) for each in node.args.defaults]
    return [] if entry and not all(is_literal(each) for each in found) else found


def _as_literal(node: ast.expr, constants: Mapping[str, ast.expr]) -> ast.expr:
    found = constants.get(node.id, node) if isinstance(node, ast.Name) else node
    if isinstance(found, ast.Call) and ast.unparse(found.func).endswith("constexpr"):
        found = found.args[0] if len(found.args) == 1 else found
    return found if is_literal(found) else node
