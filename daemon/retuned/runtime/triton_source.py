"""The static contract of a Triton variant's source: what the file may hold, checked unexecuted.

The file holds a docstring, ``import triton``, ``import triton.language as tl``, where they are used
``from triton.language.extra import libdevice``, constants, and ``@triton.jit`` functions. Nothing
in it then runs on the host: importing it defines functions and numbers, and while Triton compiles
it, only names of allow-lists are ever looked up (see `retuned.runtime.triton_words`). The lab
checks a candidate with this, and the server checks it again before it executes the file.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from dataclasses import dataclass

from retuned.runtime.spec import Refused
from retuned.runtime.triton_device import DeviceCheck
from retuned.runtime.triton_words import BUILTINS, DECORATOR

MAX_SOURCE_CHARS = 256 << 10
"""Longest file."""
_COOKIE = re.compile(r"coding[:=]")
_IMPORTS: dict[tuple[str | None, int, str, str | None], str] = {
    (None, 0, "triton", None): "triton",
    (None, 0, "triton.language", "tl"): "tl",
    ("triton.language.extra", 0, "libdevice", None): "libdevice",
}
"""(from where, dots, what, as what) -> the name that the file then has."""
_RESERVED = BUILTINS | {"tl", "triton", "libdevice"}


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of the entry."""

    name: str
    """As written; it is bound by this name."""
    constexpr: bool
    """Annotated ``tl.constexpr``: part of what is compiled."""


@dataclass(frozen=True, slots=True)
class KernelSignature:
    """What the launcher needs to know of a checked file."""

    entry: str
    """Name of the function to launch."""
    parameters: tuple[Parameter, ...]
    """Of the entry, in order."""
    functions: tuple[str, ...]
    """Every function of the file, in order."""


def check_source(text: str, *, entry: str) -> KernelSignature:
    """Check a file against the contract.

    Parameters
    ----------
    text
        The file; nothing of it is executed.
    entry
        Function to launch.

    Raises
    ------
    Refused
        ``contract-violated``, naming the line and what is not allowed there.
    """
    _check_text(text)
    try:
        functions = _check_module(ast.parse(text))
    except (SyntaxError, ValueError) as error:
        raise _refused(getattr(error, "lineno", None), f"is no Python: {error}"[:200]) from error
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
    """Refuse what Python, Triton and a reader could see differently."""
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
        raise _refused(None, f"is no Python: {error}"[:200]) from error


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
        said = (*home, name.name, name.asname)
        if said in _IMPORTS:
            return _IMPORTS[said]
    raise _refused(
        node.lineno,
        "imports something other than 'triton', 'triton.language as tl' and, from "
        "'triton.language.extra', 'libdevice'",
    )


def _constant(node: ast.Assign, imported: set[str]) -> str:
    target = node.targets[0]
    if len(node.targets) != 1 or not isinstance(target, ast.Name):
        raise _refused(node.lineno, "assigns to something that is no plain name")
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
        raise _refused(node.lineno, f"gives '{target.id}' a value that is no literal")
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
    """Check all of a function that Python evaluates when it is defined."""
    line = node.lineno
    if [_dotted(found) for found in node.decorator_list] != [DECORATOR]:
        raise _refused(line, f"decorates '{node.name}' with something other than @triton.jit")
    if not {"triton", "tl"} <= imported:
        raise _refused(line, "needs 'import triton' and 'import triton.language as tl' before this")
    if node.returns is not None or node.type_comment or getattr(node, "type_params", None):
        raise _refused(line, f"annotates what '{node.name}' returns or its types")
    arguments = node.args
    if arguments.vararg or arguments.kwarg or arguments.kwonlyargs or arguments.posonlyargs:
        raise _refused(line, f"'{node.name}' takes other than plain parameters")
    for argument in arguments.args:
        if argument.annotation is not None and not _is_constexpr(argument.annotation):
            raise _refused(
                argument.lineno, f"annotates '{argument.arg}' with other than tl.constexpr"
            )
    for default in arguments.defaults:
        if not is_literal(default):
            raise _refused(default.lineno, "has a default that is no literal")


def _check_lines(node: ast.FunctionDef, lines: list[str]) -> None:
    r"""Make sure that Triton compiles the function that was checked.

    Triton takes the function's text from its decorator on and searches it for ``def NAME(`` at the
    start of a line. With ``def \`` and the name on the next line, it would find one inside a
    docstring, which to Python is a comment.
    """
    decorator = lines[node.decorator_list[0].lineno - 1]
    first = lines[node.lineno - 1]
    plain = decorator.partition("#")[0].rstrip() == "@triton.jit"
    if not plain or not first.startswith(f"def {node.name}("):
        raise _refused(node.lineno, f"must begin with '@triton.jit' and 'def {node.name}('")


def is_literal(node: ast.expr) -> bool:
    """Whether the node is a number, text, True, False or None, maybe negative."""
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
