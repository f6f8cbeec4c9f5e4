"""Source translation of untrusted Triton text into the contract, by its syntax tree.

The runtime assembles a live kernel's text: imports, constants, helpers, the kernel. This module
parses it, spells it in the contract's names, and keeps only the code that the kernel reaches. It
executes nothing. Text outside the contract is refused with a reason, and the kernel runs unchanged.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from retuned.lifting.compile_time import Plain, Pruner
from retuned.lifting.dialect import DEVICE_LIBRARY, FORBIDDEN, function_of, module_of
from retuned.lifting.records import MAX_SOURCE_CHARS, NotLifted
from retuned.lifting.rewrites import Rewriter, annotated_type, defaults_of, is_constexpr
from retuned.runtime.schema import Refused
from retuned.runtime.triton.contract import BUILTINS, check_source, is_literal

HEADER = "import triton\nimport triton.language as tl\n"
DEVICE_HEADER = f"from triton.language.extra import {DEVICE_LIBRARY}\n"
_MOST_NODES = 30_000
_LINE = re.compile(r"line (\d{1,6}) of ")
_DECORATORS = frozenset(("jit", "autotune", "heuristics"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    entry: str
    functions: dict[str, ast.FunctionDef]
    constants: dict[str, ast.expr]
    types: dict[str, str]
    """Types that annotations give whole numbers of a launch, by parameter."""

    @property
    def text(self) -> str:
        lines = [f"{name} = {ast.unparse(value)}" for name, value in self.constants.items()]
        header = HEADER + (DEVICE_HEADER if self._uses_device_library else "")
        constants = "\n".join([header, *lines]) if lines else header
        bodies = [ast.unparse(function) for function in self.functions.values()]
        return "\n\n\n".join([constants.rstrip("\n"), *bodies]) + "\n"

    @property
    def _uses_device_library(self) -> bool:
        nodes = (node for function in self.functions.values() for node in ast.walk(function))
        return any(isinstance(node, ast.Name) and node.id == DEVICE_LIBRARY for node in nodes)

    @property
    def parameters(self) -> dict[str, bool]:
        found = self.functions[self.entry].args.args
        return {argument.arg: argument.annotation is not None for argument in found}


def read_source(text: str, *, entry: str, fixed: Mapping[str, Plain] | None = None) -> Source:
    """Translate a live kernel's text, which is untrusted.

    `fixed` are constexprs with one value in all launches. If the whole text is refused, branches
    that these values exclude are removed: Triton does not compile them.

    Raises
    ------
    NotLifted
        ``source-unreadable``, ``global-unknown``, ``extern-function``, ``inline-asm``,
        ``device-print``, ``tensor-descriptor``, ``pointer-of-pointers``, ``kernel-missing``,
        ``parameter-annotated`` or ``source-outside-contract``.
    """
    try:
        return _read(text, entry, {})
    except NotLifted:
        if not fixed:
            raise
    return _read(text, entry, fixed)


def _read(text: str, entry: str, fixed: Mapping[str, Plain]) -> Source:
    reader = _Reader(_parsed(text), text.split("\n"))
    if entry not in reader.functions:
        raise NotLifted("kernel-missing", detail=f"the source has no function '{entry}'")
    if fixed:
        reader.without_branches(entry, fixed)
    source = reader.reached(entry)
    try:
        check_source(source.text, entry=entry)
    except Refused as error:
        line = _named_line(source.text, error.detail)
        raise NotLifted("source-outside-contract", detail=error.detail, line=line) from error
    except RecursionError as error:
        raise NotLifted("source-unreadable", detail="it is nested too deeply") from error
    return source


def _named_line(text: str, detail: str) -> str:
    """Return the line that a refusal of the contract names by its number."""
    found = _LINE.match(detail)
    return text.split("\n")[int(found[1]) - 1].strip() if found else ""


def _parsed(text: str) -> ast.Module:
    if len(text) > MAX_SOURCE_CHARS:
        detail = f"it has more than {MAX_SOURCE_CHARS} characters"
        raise NotLifted("source-unreadable", detail=detail)
    try:
        tree = ast.parse(text)
        nodes = sum(1 for _ in ast.walk(tree))
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        detail = f"it is not valid Python: {type(error).__name__}"
        raise NotLifted("source-unreadable", detail=detail) from error
    if nodes > _MOST_NODES:
        raise NotLifted("source-unreadable", detail=f"it has {nodes} parts, too many")
    return tree


class _Reader:
    """Names of one file."""

    def __init__(self, tree: ast.Module, lines: Sequence[str]) -> None:
        self._lines = lines
        self.functions: dict[str, ast.FunctionDef] = {}
        self._constants: dict[str, ast.expr] = {}
        self._modules = {"tl": "tl", "triton": "triton"}
        self._aliases: dict[str, tuple[str, str]] = {}
        for node in tree.body:
            self._statement(node)

    def reached(self, entry: str) -> Source:
        functions: dict[str, ast.FunctionDef] = {}
        constants: dict[str, ast.expr] = {}
        begun: set[str] = set()
        try:
            self._reach(entry, functions, constants, begun, entry=entry)
        except RecursionError as error:
            raise NotLifted("source-unreadable", detail="it is nested too deeply") from error
        types = {each.arg: annotated_type(each) for each in self.functions[entry].args.args}
        return Source(
            entry=entry,
            functions=functions,
            constants=constants,
            types={name: found for name, found in types.items() if found is not None},
        )

    def defaults(self, node: ast.FunctionDef, *, entry: bool) -> list[ast.expr]:
        return defaults_of(node, self._constants, entry=entry)

    def without_branches(self, entry: str, fixed: Mapping[str, Plain]) -> None:
        """Remove the branches of the kernel that its constexprs exclude."""
        try:
            Pruner(fixed).function(self.functions[entry])
        except RecursionError as error:
            raise NotLifted("source-unreadable", detail="it is nested too deeply") from error

    def _reach(
        self,
        name: str,
        functions: dict[str, ast.FunctionDef],
        constants: dict[str, ast.expr],
        begun: set[str],
        *,
        entry: str,
    ) -> None:
        if name in begun:
            return
        begun.add(name)
        spelled = _Speller(self, name).function(self.functions[name], entry=name == entry)
        used = {n.id for n in ast.walk(spelled) if isinstance(n, ast.Name)}
        for other in sorted(used):
            if other in self.functions:
                self._reach(other, functions, constants, begun, entry=entry)
            elif other in self._constants:
                constants[other] = self._constants[other]
        functions[name] = spelled

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Import | ast.ImportFrom):
            self._import(node)
        elif isinstance(node, ast.FunctionDef):
            if any(_last(each) not in _DECORATORS for each in node.decorator_list):
                raise NotLifted("source-outside-contract", detail=f"'{node.name}' is decorated")
            self.functions[node.name] = node
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            self._assign(node.targets[0], node.value)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._assign(node.target, node.value)
        elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            what = type(node).__name__
            raise NotLifted("source-outside-contract", detail=f"line {node.lineno} is {what}")

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        inner = value
        if isinstance(value, ast.Call) and _last(value.func) == "constexpr" and len(value.args):
            inner = value.args[0]
        if not isinstance(target, ast.Name) or not is_literal(inner):
            raise NotLifted("global-unknown", detail=f"{ast.unparse(target)[:80]} is not a literal")
        wrapped = ast.parse(f"tl.constexpr({ast.unparse(inner)})", mode="eval").body
        self._constants[target.id] = wrapped

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        for each in node.names:
            if isinstance(node, ast.Import):
                known, alias = module_of(each.name), each.asname or each.name
                if known is None or (each.asname is None and "." in each.name):
                    continue  # unknown names are refused where they are used
                self._modules[alias] = known
                continue
            alias = each.asname or each.name
            module = module_of(f"{node.module}.{each.name}")
            home = module_of(node.module or "")
            if module is not None:
                self._modules[alias] = module
            elif home is not None:
                self._aliases[alias] = (home, each.name)

    def line(self, node: ast.AST) -> str:
        number = getattr(node, "lineno", 0)
        return self._lines[number - 1].strip() if 0 < number <= len(self._lines) else ""

    def module(self, name: str) -> str | None:
        return self._modules.get(name)

    def alias(self, name: str) -> ast.expr | None:
        if name not in self._aliases or name in self.functions:
            return None
        return self.word(*self._aliases[name])

    def word(self, module: str, name: str) -> ast.expr:
        found = function_of(module, name)
        if name in FORBIDDEN:
            raise NotLifted(FORBIDDEN[name], detail=f"the source uses '{name}'")
        if found is None:
            code = "extern-function" if module == DEVICE_LIBRARY else "source-outside-contract"
            raise NotLifted(code, detail=f"the source uses '{module}.{name}'")
        home = DEVICE_LIBRARY if module == DEVICE_LIBRARY else "tl"
        return ast.Attribute(ast.Name(home, ast.Load()), found, ast.Load())

    def is_known(self, name: str) -> bool:
        return name in self.functions or name in self._constants


class _Speller(ast.NodeTransformer):
    """Spells one function in the contract's names."""

    def __init__(self, reader: _Reader, name: str) -> None:
        self._reader = reader
        self._name = name
        self._local: set[str] = set()

    def function(self, node: ast.FunctionDef, *, entry: bool) -> ast.FunctionDef:
        self._local = {each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)} | {
            each.id
            for each in ast.walk(node)
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
        }
        for part in ast.walk(node):
            part_name = getattr(part, "attr", None) or getattr(part, "id", None)
            if part_name in FORBIDDEN and part_name not in self._local:
                detail = f"'{self._name}' uses '{part_name}'"
                line = self._reader.line(part)
                raise NotLifted(FORBIDDEN[part_name], detail=detail, line=line)
        arguments = ast.arguments(
            posonlyargs=[],
            args=[_parameter(each) for each in node.args.args],
            kwonlyargs=[],
            kw_defaults=[],
            defaults=[self.visit(each) for each in self._reader.defaults(node, entry=entry)],
        )
        plain = node.args
        if plain.vararg or plain.kwarg or plain.kwonlyargs or plain.posonlyargs:
            detail = f"'{self._name}' takes other than plain parameters"
            raise NotLifted("source-outside-contract", detail=detail)
        body = [self.visit(each) for each in _without_text(node.body)]
        made = ast.FunctionDef(
            name=node.name,
            args=arguments,
            body=body or [ast.Pass()],
            decorator_list=[ast.parse("triton.jit", mode="eval").body],
        )
        return Rewriter(entry=entry).function(ast.fix_missing_locations(made))

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in self._local or not isinstance(node.ctx, ast.Load):
            return node
        module = self._reader.module(node.id)
        if module in ("tl", "triton"):
            return ast.Name(module, ast.Load())
        found = self._reader.alias(node.id)
        if found is None and not self._reader.is_known(node.id) and node.id not in BUILTINS:
            detail = f"'{self._name}' uses '{node.id}', which nothing in the source defines"
            raise NotLifted("global-unknown", detail=detail, line=self._reader.line(node))
        return found or node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        dotted = _dotted(node)
        if dotted and dotted[0] not in self._local:
            module = self._reader.module(dotted[0])
            if module == DEVICE_LIBRARY and len(dotted) == 2:
                return self._reader.word(module, dotted[1])
            full = ".".join(("triton.language" if module == "tl" else "?", *dotted[1:-1]))
            if len(dotted) > 2 and module_of(full) == DEVICE_LIBRARY:
                return self._reader.word(DEVICE_LIBRARY, dotted[-1])
            if module == "tl" and len(dotted) == 2 and dotted[1] in (DEVICE_LIBRARY, "extra"):
                detail = f"uses {'.'.join(dotted)}"
                raise NotLifted("extern-function", detail=detail, line=self._reader.line(node))
        self.generic_visit(node)
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        """Write small powers as products: the contract has no power."""
        self.generic_visit(node)
        power = node.right.value if isinstance(node.right, ast.Constant) else None
        plain = isinstance(node.left, ast.Name)
        if isinstance(node.op, ast.Pow) and plain and type(power) is int and 2 <= power <= 4:
            found: ast.expr = node.left
            for _ in range(power - 1):
                found = ast.BinOp(found, ast.Mult(), node.left)
            return found
        return node


def _parameter(node: ast.arg) -> ast.arg:
    """Keep the annotation of a constexpr only."""
    if is_constexpr(node):
        return ast.arg(node.arg, ast.parse("tl.constexpr", mode="eval").body)
    return ast.arg(node.arg)


def _without_text(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        yield node


def _last(node: ast.expr) -> str:
    inner = node.func if isinstance(node, ast.Call) else node
    return inner.attr if isinstance(inner, ast.Attribute) else getattr(inner, "id", "")


def _dotted(node: ast.expr) -> tuple[str, ...]:
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return (node.id, *reversed(names)) if isinstance(node, ast.Name) else ()
