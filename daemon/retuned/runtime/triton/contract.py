"""Contract of a Triton variant's source: what the file and its device code may contain.

The source is checked without executing it. The names that device code may use are allow-lists, not
deny-lists: Triton resolves an attribute chain on Python objects while it compiles and calls what it
finds, so that ``tl.core.os.system(...)`` would run on the host.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from dataclasses import dataclass

from retuned.runtime.schema import Refused


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


LANGUAGE = _words(
    """
    abs add arange argmax argmin associative_scan assume atomic_add atomic_and atomic_cas atomic_max
    atomic_min atomic_or atomic_xchg atomic_xor bfloat16 broadcast broadcast_to cast cat cdiv ceil
    clamp constexpr cos cumprod cumsum debug_barrier div_rn dot dot_scaled erf exp exp2 expand_dims
    fdiv flip float16 float32 float64 float8e4b8 float8e4nv float8e5 float8e5b16 floor fma full
    gather histogram int1 int16 int32 int64 int8 interleave join load log log2 make_block_ptr max
    advance max_constancy max_contiguous maximum min minimum multiple_of num_programs permute
    pointer_type program_id range ravel reduce reshape rsqrt sigmoid sin softmax sort split sqrt
    sqrt_rn squeeze static_assert static_range store sub mul sum swizzle2d trans uint16 uint32
    uint64 uint8 umulhi unsqueeze view where xor_sum zeros zeros_like
    """
)
"""Names of ``triton.language``."""

MATH = _words(
    "abs ceil cos div_rn erf exp exp2 fdiv floor fma log log2 rsqrt sin sqrt sqrt_rn umulhi"
)
"""Names of ``triton.language.math``."""

LIBDEVICE = _words(
    """
    abs acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh div_rn erf erfc exp exp2
    expm1 fast_cosf fast_dividef fast_expf fast_log10f fast_log2f fast_logf fast_powf fast_sinf
    fast_tanf fast_tanhf floor fma fmod hypot log log10 log1p log2 nearbyint pow rint round rsqrt
    sin sinh sqrt sqrt_rn tan tanh trunc
    """
)
"""Names of ``triton.language.extra.libdevice``: pure functions of numbers."""

HOST = frozenset(("cdiv", "next_power_of_2"))
"""Names of ``triton``: compile-time arithmetic."""

VALUES = _words(
    """
    T abs advance argmax argmin associative_scan atomic_add atomic_and atomic_cas atomic_max
    atomic_min atomic_or atomic_xchg atomic_xor broadcast_to cast cdiv ceil cos cumprod cumsum
    dtype element_ty erf exp exp2 expand_dims fdiv flip floor fma gather is_floating is_int log
    log2 logical_and logical_or max maximum min minimum permute primitive_bitwidth ravel reduce
    reshape rsqrt shape sigmoid sin softmax sort split sqrt sqrt_rn store sum to trans view where
    xor_sum
    """
)
"""Attributes of tensors, types and other values."""

BUILTINS = frozenset(("range", "min", "max", "float", "int", "bool", "len", "abs"))
"""Python names that Triton supports."""

DECORATOR = ("triton", "jit")


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
    """Check of one function against the allow-lists.

    Parameters
    ----------
    node
        The function; its header has been checked.
    imported
        Modules that the file imports, by their names in the file.
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
            raise _refused_in_device(node.lineno, "assigns to something that is not a plain name")
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
                continue  # a name that is passed or compared; nothing is computed with it
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
            raise _refused_in_device(node.lineno, "calls something that is not a plain name")
        for keyword in node.keywords:
            if keyword.arg is None or keyword.arg.startswith("_"):
                raise _refused_in_device(node.lineno, "passes arguments by ** or a private name")


def _check_operator(operator: ast.operator, line: int) -> None:
    """Refuse operators that make numbers of unlimited length: Triton computes constants in Python.

    The compiling process, possibly the server itself, would hold its interpreter lock for minutes.
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


MAX_SOURCE_CHARS = 256 << 10
_COOKIE = re.compile(r"coding[:=]")
_IMPORTS: dict[tuple[str | None, int, str, str | None], str] = {
    (None, 0, "triton", None): "triton",
    (None, 0, "triton.language", "tl"): "tl",
    ("triton.language.extra", 0, "libdevice", None): "libdevice",
}
"""(module, level, name, alias) -> the name in the file."""
_RESERVED = BUILTINS | {"tl", "triton", "libdevice"}


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    """As written; it is bound by this name."""
    constexpr: bool
    """Annotated ``tl.constexpr``: part of what is compiled."""


@dataclass(frozen=True, slots=True)
class KernelSignature:
    """Facts of a checked file that the launcher needs."""

    entry: str
    parameters: tuple[Parameter, ...]
    functions: tuple[str, ...]


def check_source(text: str, *, entry: str) -> KernelSignature:
    """Check a file against the contract.

    Parameters
    ----------
    text
        The file; none of it is executed.

    Raises
    ------
    Refused
        ``contract-violated``, naming the line and what is not allowed there.
    """
    _check_text(text)
    try:
        functions = _check_module(ast.parse(text))
    except (SyntaxError, ValueError) as error:
        raise _refused(getattr(error, "lineno", None), f"is not Python: {error}"[:200]) from error
    except (MemoryError, RecursionError) as error:
        raise _refused(None, "is nested too deeply") from error
    lines = text.split("\n")
    for function in functions.values():
        _check_lines(function, lines)
    found = functions.get(entry)
    if found is None:
        raise _refused(None, f"has no @triton.jit function '{entry[:80]}'")
    return KernelSignature(entry, _parameters(found), tuple(functions))


def _check_text(text: str) -> None:
    """Refuse text that Python, Triton and a reader may interpret differently."""
    if not isinstance(text, str) or len(text) > MAX_SOURCE_CHARS:
        raise _refused(None, f"has more than {MAX_SOURCE_CHARS} characters")
    lines = text.split("\n")
    for number, line in enumerate(lines, start=1):
        if not line.replace("\t", "").isprintable():
            raise _refused(number, "holds control or invisible characters")
    for number, line in enumerate(lines[:2], start=1):
        if _COOKIE.search(line):
            raise _refused(number, "declares an encoding; the file is UTF-8")
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type not in (tokenize.COMMENT, tokenize.STRING) and not token.string.isascii():
                raise _refused(token.start[0], "holds a name that is not ASCII")
    except (tokenize.TokenError, SyntaxError, RecursionError, MemoryError) as error:
        raise _refused(None, f"is not Python: {error}"[:200]) from error


def _check_module(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    constants: set[str] = set()
    functions: dict[str, ast.FunctionDef] = {}
    imported: set[str] = set()
    for number, node in enumerate(tree.body):
        if isinstance(node, ast.Expr) and number == 0 and _is_text(node.value):
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            imported.add(_import(node))
        elif isinstance(node, ast.Assign):
            constants.add(_new(_constant(node, imported), node, constants, functions))
        elif isinstance(node, ast.FunctionDef):
            _new(node.name, node, constants, functions)
            _check_header(node, imported)
            functions[node.name] = node
        else:
            raise _refused(node.lineno, f"has {type(node).__name__} outside a @triton.jit function")
    for function in functions.values():
        DeviceCheck(
            frozenset(constants), frozenset(functions), function, imported=frozenset(imported)
        ).check()
    return functions


def _import(node: ast.Import | ast.ImportFrom) -> str:
    if len(node.names) == 1:
        name = node.names[0]
        home = (node.module, node.level) if isinstance(node, ast.ImportFrom) else (None, 0)
        found = (*home, name.name, name.asname)
        if found in _IMPORTS:
            return _IMPORTS[found]
    raise _refused(
        node.lineno,
        "imports something other than 'triton', 'triton.language as tl' and, from "
        "'triton.language.extra', 'libdevice'",
    )


def _constant(node: ast.Assign, imported: set[str]) -> str:
    target = node.targets[0]
    if len(node.targets) != 1 or not isinstance(target, ast.Name):
        raise _refused(node.lineno, "assigns to something that is not a plain name")
    value = node.value
    if (
        isinstance(value, ast.Call)
        and "tl" in imported
        and _dotted(value.func) == ("tl", "constexpr")
        and len(value.args) == 1
        and not value.keywords
    ):
        value = value.args[0]
    if not is_literal(value):
        raise _refused(node.lineno, f"gives '{target.id}' a value that is not a literal")
    return target.id


def _new(
    name: str,
    node: ast.stmt,
    constants: set[str],
    functions: dict[str, ast.FunctionDef],
) -> str:
    if "__" in name or name in _RESERVED:
        raise _refused(node.lineno, f"defines '{name}', which is reserved")
    if name in constants or name in functions:
        raise _refused(node.lineno, f"defines '{name}' twice")
    return name


def _check_header(node: ast.FunctionDef, imported: set[str]) -> None:
    """Check all of a function that Python evaluates at its definition."""
    line = node.lineno
    if [_dotted(found) for found in node.decorator_list] != [DECORATOR]:
        raise _refused(line, f"decorates '{node.name}' with something other than @triton.jit")
    if not {"triton", "tl"} <= imported:
        raise _refused(line, "needs 'import triton' and 'import triton.language as tl' before this")
    if node.returns is not None or node.type_comment or getattr(node, "type_params", None):
        raise _refused(line, f"annotates the result or the types of '{node.name}'")
    arguments = node.args
    if arguments.vararg or arguments.kwarg or arguments.kwonlyargs or arguments.posonlyargs:
        raise _refused(line, f"'{node.name}' has parameters that are not plain")
    for argument in arguments.args:
        if argument.annotation is not None and not _is_constexpr(argument.annotation):
            raise _refused(
                argument.lineno, f"annotates '{argument.arg}' with other than tl.constexpr"
            )
    for default in arguments.defaults:
        if not is_literal(default):
            raise _refused(default.lineno, "has a default that is not a literal")


def _check_lines(node: ast.FunctionDef, lines: list[str]) -> None:
    r"""Verify that Triton compiles the function that was checked.

    Triton takes the function's text from its decorator on and searches it for ``def NAME(`` at the
    start of a line. With ``def \`` and the name on the next line, it would find one inside a
    docstring, which Python ignores.
    """
    decorator = lines[node.decorator_list[0].lineno - 1]
    first = lines[node.lineno - 1]
    plain = decorator.partition("#")[0].rstrip() == "@triton.jit"
    if not plain or not first.startswith(f"def {node.name}("):
        raise _refused(node.lineno, f"must begin with '@triton.jit' and 'def {node.name}('")


def is_literal(node: ast.expr) -> bool:
    """Whether the node is a number, text, True, False or None; numbers may be negative."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node = node.operand
        return isinstance(node, ast.Constant) and type(node.value) in (int, float)
    return isinstance(node, ast.Constant) and type(node.value) in (
        int,
        float,
        bool,
        str,
        type(None),
    )


def _parameters(node: ast.FunctionDef) -> tuple[Parameter, ...]:
    return tuple(Parameter(one.arg, one.annotation is not None) for one in node.args.args)


def _is_constexpr(node: ast.expr) -> bool:
    return _dotted(node) == ("tl", "constexpr")


def _dotted(node: ast.expr) -> tuple[str, ...]:
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return node.value.id, node.attr
    return ()


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _refused(line: int | None, problem: str) -> Refused:
    where = "the Triton source" if line is None else f"line {line} of the Triton source"
    return Refused("contract-violated", detail=f"{where} {problem}")
