"""The body of a ``@triton.jit`` function: only what device code needs, name by name."""

from __future__ import annotations

import ast

from retuned.runtime.spec import Refused
from retuned.runtime.triton_words import BUILTINS, HOST, LANGUAGE, LIBDEVICE, MATH, VALUES

_MODULES = {"tl": LANGUAGE, "triton": HOST, "libdevice": LIBDEVICE}
_DEVICE_RESERVED = frozenset(_MODULES) | BUILTINS
_STATEMENTS = (
    ast.Return,
    ast.Assign,
    ast.AugAssign,
    ast.AnnAssign,
    ast.For,
    ast.While,
    ast.If,
    ast.Expr,
    ast.Pass,
    ast.Break,
    ast.Continue,
)
_EXPRESSIONS = (
    ast.BoolOp,
    ast.BinOp,
    ast.UnaryOp,
    ast.IfExp,
    ast.Compare,
    ast.Call,
    ast.Constant,
    ast.Attribute,
    ast.Subscript,
    ast.Name,
    ast.Tuple,
    ast.List,
    ast.Slice,
)
_CONSTANTS = (int, float, bool, str, type(None))


class DeviceCheck:
    """One function, checked against the allow-lists.

    Parameters
    ----------
    constants
        Constants of the file.
    functions
        Functions of the file.
    node
        The function; its header has been checked.
    imported
        Modules that the file imports, by the names they have there.
    """

    def __init__(
        self,
        constants: frozenset[str],
        functions: frozenset[str],
        node: ast.FunctionDef,
        *,
        imported: frozenset[str],
    ) -> None:
        self._imported = imported
        self._functions = functions
        self._fixed = constants | functions | _DEVICE_RESERVED
        self._node = node
        self._locals: set[str] = set()

    def check(self) -> None:
        """Check the function.

        Raises
        ------
        Refused
            ``contract-violated``, naming the line.
        """
        for argument in self._node.args.args:
            self._bind(argument.arg, argument.lineno)
        for child in ast.walk(self._node):
            if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
                self._bind(child.id, child.lineno)
        for statement in self._node.body:
            self._statement(statement)

    def _bind(self, name: str, line: int) -> None:
        if "__" in name or name in self._fixed:
            raise _refused_in_device(
                line, f"assigns to '{name}', which is reserved or defined in the file"
            )
        self._locals.add(name)

    def _statement(self, node: ast.stmt) -> None:
        if not isinstance(node, _STATEMENTS):
            raise _refused_in_device(node.lineno, f"uses {type(node).__name__} in device code")
        if isinstance(node, ast.Expr) and _is_text_node(node.value):
            return  # a docstring
        if isinstance(node, ast.AugAssign):
            _check_operator(node.op, node.lineno)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt):
                self._statement(child)
            elif isinstance(child, ast.expr):
                self._expression(child)

    def _expression(self, node: ast.expr) -> None:
        if not isinstance(node, _EXPRESSIONS):
            raise _refused_in_device(node.lineno, f"uses {type(node).__name__} in device code")
        if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
            raise _refused_in_device(node.lineno, "assigns to something that is no plain name")
        if isinstance(node, ast.Attribute):
            self._attribute(node)
            return
        if isinstance(node, ast.Name):
            self._name(node)
            return
        if isinstance(node, ast.Constant) and type(node.value) not in _CONSTANTS:
            raise _refused_in_device(node.lineno, f"holds a {type(node.value).__name__}")
        if isinstance(node, ast.BinOp):
            _check_operator(node.op, node.lineno)
        if _is_text_node(node):
            raise _refused_in_device(
                node.lineno, "holds text elsewhere than in a call or a comparison"
            )
        if isinstance(node, ast.Call):
            self._call(node)
        for child in ast.iter_child_nodes(node):
            inner = child.value if isinstance(child, ast.keyword) else child
            if isinstance(node, ast.Call | ast.Compare) and _is_text_node(inner):
                continue  # a name that is handed on or compared; nothing is computed with it
            if isinstance(inner, ast.expr):
                self._expression(inner)

    def _name(self, node: ast.Name) -> None:
        name = node.id
        if name in _MODULES or (name not in self._locals and name not in self._fixed):
            what = "as a value" if name in _MODULES else "which nothing in the file defines"
            raise _refused_in_device(node.lineno, f"uses '{name}' {what}")

    def _attribute(self, node: ast.Attribute) -> None:
        base, name = node.value, node.attr
        if name.startswith("_"):
            raise _refused_in_device(node.lineno, f"uses the private attribute '{name}'")
        if isinstance(base, ast.Name) and base.id in _MODULES:
            if base.id not in self._imported:
                raise _refused_in_device(
                    node.lineno, f"uses '{base.id}', which the file does not import"
                )
            if name not in _MODULES[base.id]:
                raise _refused_in_device(
                    node.lineno, f"uses '{base.id}.{name}', which is not allowed"
                )
        elif isinstance(base, ast.Attribute) and _is_math(base):
            if name not in MATH:
                raise _refused_in_device(
                    node.lineno, f"uses 'tl.math.{name}', which is not allowed"
                )
        else:
            if name not in VALUES:
                raise _refused_in_device(
                    node.lineno, f"uses the attribute '{name}', which is not allowed"
                )
            self._expression(base)

    def _call(self, node: ast.Call) -> None:
        callee = node.func
        if isinstance(callee, ast.Name):
            if callee.id not in self._functions and callee.id not in BUILTINS:
                raise _refused_in_device(node.lineno, f"calls '{callee.id}', which is not allowed")
        elif not isinstance(callee, ast.Attribute):
            raise _refused_in_device(node.lineno, "calls something that is no plain name")
        for keyword in node.keywords:
            if keyword.arg is None or keyword.arg.startswith("_"):
                raise _refused_in_device(node.lineno, "passes arguments by ** or a private name")


def _check_operator(operator: ast.operator, line: int) -> None:
    """Refuse what makes a number as long as memory: Triton computes constants in Python.

    Whoever compiles, the server's own process included, would hold its lock for minutes.
    """
    if isinstance(operator, ast.Pow):
        raise _refused_in_device(line, "uses **; write the product, or tl.exp2")
    if isinstance(operator, ast.LShift):
        raise _refused_in_device(line, "uses <<; write the product")


def _is_text_node(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _is_math(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id == "tl" and node.attr == "math"


def _refused_in_device(line: int, problem: str) -> Refused:
    return Refused("contract-violated", detail=f"line {line} of the Triton source {problem}")
