"""Source of an intercepted kernel with everything it uses: helpers, constants, Triton functions.

Names are resolved as Triton's own cache key resolves them: through the function's closure, then its
globals. The text is only assembled, never executed; what has no text form is listed. The text is
untrusted, and readers must treat it so.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import inspect
import math
import re
import textwrap
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MAX_SOURCE_CHARS = 256 << 10
MAX_FUNCTIONS = 64
_DEF = re.compile(r"^def\s+\w+\s*\(", re.MULTILINE)
_HEADER = "import triton\nimport triton.language as tl\n"
_MODULES = {"triton": "triton", "tl": "triton.language"}
_BUILTINS = frozenset(dir(builtins))


@dataclass(frozen=True, slots=True)
class Gathered:
    text: str | None
    """Module text: imports, constants, helpers, the kernel last; None without a source."""
    digest: str
    """Digest of the text; of the function's code without a text."""
    unresolved: tuple[str, ...]
    """Names that the text uses and does not define, with the reason."""


def gather(function: Any, own_text: str | None = None) -> Gathered:  # noqa: ANN401 - a function
    """Assemble the source of a kernel.

    Parameters
    ----------
    own_text
        What Triton compiles for it, if that is known; otherwise read from its file.
    """
    work = _Gatherer()
    work.add(function, own_text)
    if not work.functions or function.__name__ not in work.functions:
        return Gathered(None, _digest(_code_of(function)), ("source-missing",))
    parts = [_HEADER, *sorted(work.imports), *work.constants.values()]
    text = "\n".join(part.rstrip("\n") for part in parts) + "\n"
    text += "".join(f"\n\n@triton.jit\n{body}\n" for body in work.functions.values())
    if len(text) > MAX_SOURCE_CHARS:
        return Gathered(None, _digest(text), ("source-too-long",))
    return Gathered(text, _digest(text), tuple(sorted(work.unresolved)))


class _Gatherer:
    """Collects what functions use, depth first, each once."""

    def __init__(self) -> None:
        self.functions: dict[str, str] = {}
        self.constants: dict[str, str] = {}
        self.imports: set[str] = set()
        self.unresolved: set[str] = set()
        self._objects: dict[str, Any] = {}

    def add(self, function: Any, text: str | None = None) -> None:  # noqa: ANN401
        name = function.__name__
        if name in self._objects:
            if self._objects[name] is not function:
                self.unresolved.add(f"{name}: two functions have this name")
            return
        body = text if text is not None else _read(function)
        if body is None or len(self._objects) >= MAX_FUNCTIONS or len(body) > MAX_SOURCE_CHARS:
            self.unresolved.add(f"{name}: no source")
            return
        self._objects[name] = function
        try:
            tree = ast.parse(body)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            self.unresolved.add(f"{name}: no Python")
            return
        scope = _scope(function)
        local = _bound_names(tree) - {name}
        for used in sorted(_used_names(tree) - local):
            if used not in _BUILTINS or used in scope:
                self._resolve(used, scope, name)
        self.functions[name] = body.rstrip("\n")

    def _resolve(self, used: str, scope: Mapping[str, Any], where: str) -> None:
        if used not in scope:
            self.unresolved.add(f"{used}: unknown in {where}")
            return
        value = scope[used]
        if isinstance(value, types.ModuleType):
            self._module(used, value.__name__)
            return
        function = getattr(value, "fn", None)
        if inspect.isfunction(function) and hasattr(value, "arg_names"):
            self._helper(used, value, function)
            return
        home = getattr(value, "__module__", None) or ""
        if callable(value) and str(home).split(".")[0] == "triton" and not _is_constexpr(value):
            self.imports.add(f"from {home} import {getattr(value, '__name__', used)} as {used}")
            return
        self._constant(used, value)

    def _helper(self, used: str, value: Any, function: Any) -> None:  # noqa: ANN401
        if str(function.__module__).split(".")[0] == "triton":
            self.imports.add(f"from {function.__module__} import {function.__name__} as {used}")
            return
        if used != function.__name__:
            self.unresolved.add(f"{used}: another name of '{function.__name__}'")
        self.add(function, _text_of(value))

    def _module(self, used: str, module: str) -> None:
        if _MODULES.get(used) == module:
            return
        if module.split(".")[0] in ("triton", "math"):
            self.imports.add(f"import {module} as {used}")
        else:
            self.unresolved.add(f"{used}: the module {module}")

    def _constant(self, used: str, value: Any) -> None:  # noqa: ANN401
        wrapped = _is_constexpr(value)
        inner = value.value if wrapped else value
        if type(inner) is float and not math.isfinite(inner):
            written = f'float("{inner}")'
        elif inner is None or type(inner) in (bool, int, float, str):
            written = repr(inner)
        else:
            self.unresolved.add(f"{used}: a value of type {type(inner).__name__}")
            return
        line = f"{used} = tl.constexpr({written})" if wrapped else f"{used} = {written}"
        if self.constants.setdefault(used, line) != line:
            self.unresolved.add(f"{used}: two constants have this name")


def text_of(target: Any, function: Any) -> str | None:  # noqa: ANN401 - of the server's Triton
    """Return what Triton compiles for a kernel, without decorators; None if it cannot be found."""
    return _text_of(target) or _read(function)


def _text_of(target: Any) -> str | None:  # noqa: ANN401
    text = getattr(target, "src", None)
    return text if isinstance(text, str) else None


def _read(function: Any) -> str | None:  # noqa: ANN401
    try:
        text = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError, SyntaxError, IndentationError):
        return None
    found = _DEF.search(text)
    return text[found.start() :] if found is not None else None


def _scope(function: Any) -> dict[str, Any]:  # noqa: ANN401
    scope: dict[str, Any] = dict(function.__globals__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            scope[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return scope


def _bound_names(tree: ast.AST) -> set[str]:
    """Return names that the function binds itself; a global that is also assigned is local."""
    found = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    return found | {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
    }


def _used_names(tree: ast.AST) -> set[str]:
    return {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }


def _is_constexpr(value: object) -> bool:
    return type(value).__name__ == "constexpr" and hasattr(value, "value")


def _code_of(function: Any) -> str:  # noqa: ANN401
    code = function.__code__
    return f"{code.co_code.hex()}{code.co_names}{code.co_varnames}"


def _digest(text: str) -> str:
    return "sha256:" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
