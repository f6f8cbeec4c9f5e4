"""Tensors that a Triton kernel may write, from its source. Pure.

A parameter is not written only if every use of it, and of values made from it, is harmless: an
argument of `tl.load`, arithmetic, a comparison, an attribute such as ``dtype``. Any other use is
counted as a write, so that the answer may name too many parameters and never too few.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator

_LOADS = frozenset({"load", "_experimental_descriptor_load"})
"""Functions of the language that read through a pointer; their result is not a pointer."""
_WRITES = ("store", "atomic", "inline_asm", "extern", "call", "copy", "scatter", "map_")
"""Parts of names of functions that may write through a pointer, or call one that does."""
_METHODS = (
    frozenset(
        ["to", "cast", "load", "reshape", "view", "permute", "trans", "expand_dims", "broadcast_to"]
    )
    | frozenset(
        ["split", "join", "item", "ravel", "sum", "max", "min", "argmax", "argmin", "abs", "exp"]
    )
    | frozenset(
        ["exp2", "log", "log2", "sqrt", "rsqrt", "sin", "cos", "sigmoid", "softmax", "cdiv"]
    )
)
"""Methods of the language's values that write nothing."""
_LANGUAGE = frozenset({"tl", "language", "triton", "tlx", "libdevice", "math"})
_SIZES = frozenset({"range", "min", "max", "abs", "len", "int", "float", "bool", "print"})
"""Builtins that write nothing."""
_ABOUT = frozenset({"dtype", "type", "shape", "element_ty", "numel"})
"""Attributes that describe a tensor and lead to no pointer."""
_CASTS = ("pointer_type", "int_to_ptr", "bitcast")
"""A number may become a pointer: nothing is known."""
_MOST_PASSES = 32


def written_by(source: str) -> frozenset[str] | None:
    """Return the parameters that may be written; None if the source does not tell.

    Numbers that an address is computed from are among them.

    Examples
    --------
    >>> sorted(written_by('''
    ... def kernel(x_ptr, out_ptr, n):
    ...     at = tl.arange(0, n)
    ...     place = out_ptr + at
    ...     tl.store(place, tl.load(x_ptr + at).to(out_ptr.dtype.element_ty))
    ... '''))
    ['n', 'out_ptr']
    >>> written_by("x = 1") is None
    True
    """
    function = _function(source)
    if function is None or any(word in source for word in _CASTS):
        return None
    arguments = function.args
    names = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    if arguments.vararg is not None or arguments.kwarg is not None:
        return None
    flow = _Flow(frozenset(each.arg for each in names))
    flow.know(function.body)
    for _ in range(_MOST_PASSES):
        if not flow.passed(function.body):
            return None if flow.stores_elsewhere() else frozenset(flow.written)
    return None


def _function(source: str) -> ast.FunctionDef | None:
    try:
        tree = ast.parse(textwrap.dedent(source))
    except SyntaxError:
        return None
    functions = [each for each in tree.body if isinstance(each, ast.FunctionDef)]
    return functions[0] if len(functions) == 1 and len(tree.body) == 1 else None


class _Flow:
    """Which parameters each name leads to, until nothing new is found."""

    def __init__(self, parameters: frozenset[str]) -> None:
        self._leads: dict[str, set[str]] = {name: {name} for name in parameters}
        self.written: set[str] = set()
        self.stores: list[ast.expr | None] = []
        """Where stores and atomics write, in the last pass."""

    def stores_elsewhere(self) -> bool:
        """Whether a store writes to a place that leads to no parameter, as an address in memory."""
        return any(not self._of(place) for place in self.stores)

    def know(self, body: list[ast.stmt]) -> None:
        """Note which names are values of the kernel, before any use is looked at."""
        for statement in body:
            for node in ast.walk(statement):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    self._leads.setdefault(node.id, set())

    def passed(self, body: list[ast.stmt]) -> bool:
        """Go over the statements once; return whether something new was found."""
        before = sum(map(len, self._leads.values())) + len(self.written)
        self.stores = []
        for statement in body:
            for node in ast.walk(statement):
                self._visit(node)
        return sum(map(len, self._leads.values())) + len(self.written) > before

    def _visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._assign(target, node.value)
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign, ast.NamedExpr)):
            if node.value is not None:
                self._bind(node.target, self._of(node.value))
        elif isinstance(node, (ast.For, ast.comprehension)):
            self._bind(node.target, self._of(node.iter))
        elif isinstance(node, ast.With):
            for item in node.items:
                self.written |= self._of(item.context_expr)
        elif isinstance(node, ast.Call):
            self._call(node)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        both = (ast.Tuple, ast.List)
        if isinstance(target, both) and isinstance(value, both):
            starred = any(isinstance(each, ast.Starred) for each in (*target.elts, *value.elts))
            if not starred and len(target.elts) == len(value.elts):
                for one, other in zip(target.elts, value.elts, strict=True):
                    self._assign(one, other)
                return
        self._bind(target, self._of(value))

    def _bind(self, target: ast.expr, leads: set[str]) -> None:
        if isinstance(target, ast.Name):
            self._leads.setdefault(target.id, set()).update(leads)
        elif isinstance(target, (ast.Tuple, ast.List)):
            for each in target.elts:
                self._bind(each, leads)
        elif isinstance(target, ast.Starred):
            self._bind(target.value, leads)
        else:  # an element or an attribute: what is bound there is lost
            self.written |= leads | self._of(target)

    def _call(self, node: ast.Call) -> None:
        if self._is_harmless(node):
            return
        for each in self._arguments(node):
            self.written |= self._of(each)
        name = _last(node.func)
        if any(word in name for word in ("store", "atomic")):
            place = node.args[0] if node.args else None
            if isinstance(node.func, ast.Attribute) and _root(node.func) not in _LANGUAGE:
                place = node.func.value  # a descriptor's method
            self.stores.append(place)
        if isinstance(node.func, ast.Attribute):  # a method, such as a descriptor's `store`
            self.written |= self._of(node.func.value)

    def _is_harmless(self, node: ast.Call) -> bool:
        name = _last(node.func)
        if any(word in name for word in _WRITES):
            return False
        if isinstance(node.func, ast.Name):
            return name in _SIZES
        return isinstance(node.func, ast.Attribute) and (
            _root(node.func) in _LANGUAGE or name in _METHODS
        )

    def _of(self, node: ast.AST | None) -> set[str]:
        """Return the parameters that a value leads to."""
        if node is None or isinstance(node, ast.Constant):
            return set()
        if isinstance(node, ast.Name):
            return set(self._leads.get(node.id, ()))
        if isinstance(node, ast.Attribute) and node.attr in _ABOUT:
            return set()
        if isinstance(node, ast.Compare):
            return set()
        if isinstance(node, ast.Call) and _last(node.func) in _LOADS:
            return set()
        found: set[str] = set()
        for each in ast.iter_child_nodes(node):
            found |= self._of(each)
        return found

    @staticmethod
    def _arguments(node: ast.Call) -> Iterator[ast.expr]:
        yield from node.args
        yield from (each.value for each in node.keywords)


def _last(node: ast.expr) -> str:
    """Return the last name of a called expression; empty if it has none."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _root(node: ast.expr) -> str:
    while isinstance(node, (ast.Attribute, ast.Call, ast.Subscript)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""
