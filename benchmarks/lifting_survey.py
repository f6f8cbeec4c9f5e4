"""Survey of a package's Triton kernels: which of them the lifter refuses by their source alone.

``python -m benchmarks.lifting_survey NAME=FOLDER [...] --label LABEL`` parses every Python file
below each FOLDER, which is a package, and asks the lifter's questions that need no launch. It
executes and launches nothing. It writes ``benchmarks/results/lifting_refusals.json``: per label and
package the counts by reason code and one row per refused kernel. Other labels in the file remain,
so that a later run can be compared with an earlier one.
"""

from __future__ import annotations

import argparse
import ast
import json
import platform
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retuned.contract import DType
from retuned.lifting.compile_time import UNKNOWN
from retuned.lifting.data_flow import flow_of
from retuned.lifting.records import NotLifted
from retuned.lifting.roles import roles_of
from retuned.lifting.source import read_source

RESULT = Path(__file__).resolve().parent / "results" / "lifting_refusals.json"
METHOD = (
    "Every function of the package that @triton.jit decorates and that no other such function "
    "names is a kernel, unless it returns a value. Its text is assembled from the syntax trees as "
    "the runtime assembles it from the live objects: helpers, constants, imports. A constexpr that "
    "is a condition by itself is a flag. Of names that a module binds in several "
    "branches, the binding of a CUDA machine without environment variables counts. A constant "
    "that Python computes at import is a stand-in number. Parameters that are bases of addresses "
    "count as pointers to float32, constexprs have an unknown value, so both branches of their "
    "conditions count. The questions are those of read_source, flow_of and roles_of; 'accepted' "
    "means that they refuse nothing. Lengths, strides and grids need launches and are not asked. "
    "A code ending in -here is the survey's: it could not assemble the text. Nothing was executed."
)
_HEADER = "import triton\nimport triton.language as tl\n"
_NUMBERS = re.compile(r"(offset|start|stride)s?$")
_MISSING = "unassembled-here"
_MOST_HOPS = 12
_NOTED = 200
Function = ast.FunctionDef


@dataclass(frozen=True, slots=True)
class Row:
    """The lifter's answer to one kernel."""

    module: str
    kernel: str
    code: str
    code_with_flags_off: str
    """The answer to launches that switch off every constexpr which is a condition by itself."""
    line: str
    """The line that caused the refusal; the refusal's text where no line is known."""


@dataclass(slots=True)
class Module:
    name: str
    bound: dict[str, ast.stmt] = field(default_factory=dict)
    """Statement that binds a name of the module."""
    kernels: dict[str, Function] = field(default_factory=dict)


class Package:
    """Syntax trees of a package's files, and how names of one module lead to another."""

    def __init__(self, folder: Path) -> None:
        self._files: dict[str, Path] = {}
        self._modules: dict[str, Module] = {}
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder.parent).with_suffix("").parts
            self._files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path

    def kernels(self) -> Iterator[tuple[Module, Function]]:
        for name, path in self._files.items():
            if "triton" in path.read_text("utf-8"):
                module = self.module(name)
                assert module is not None, "it is one of the files"
                yield from ((module, function) for function in module.kernels.values())

    def module(self, name: str) -> Module | None:
        """Return a module of the package, parsed when it is first asked for."""
        if name in self._files and name not in self._modules:
            path = self._files[name]
            self._modules[name] = Module(name)
            tree = ast.parse(path.read_text("utf-8"))
            self._read(self._modules[name], tree, is_package=path.name == "__init__.py")
        return self._modules.get(name)

    def _read(self, module: Module, tree: ast.Module, *, is_package: bool) -> None:
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.level:
                up = module.name.split(".")
                up = up[: len(up) - node.level + is_package]
                node.module = ".".join([*up, *([node.module] if node.module else [])])
        for statement in _top(tree.body, self, module):
            for name in _bound_by(statement):
                module.bound.setdefault(name, statement)
        for node in ast.walk(tree):
            if isinstance(node, Function) and _is_jitted(node):
                module.kernels.setdefault(node.name, node)

    def find(self, module: str, name: str) -> tuple[Module, ast.stmt | None, str] | None:
        """Return the statement that binds a name, through imports, and its name there."""
        for _ in range(_MOST_HOPS):
            home = self.module(module)
            if home is None:
                return None
            if name in home.kernels:
                return home, home.kernels[name], name
            statement = home.bound.get(name)
            if not isinstance(statement, ast.ImportFrom) or statement.module is None:
                return home, statement, name
            (alias,) = (each for each in statement.names if (each.asname or each.name) == name)
            inner = f"{statement.module}.{alias.name}"
            if inner in self._files or statement.module not in self._files:
                return home, statement, name
            module, name = statement.module, alias.name
        return None


def _top(body: list[ast.stmt], package: Package, module: Module) -> Iterator[ast.stmt]:
    """Yield the statements of a module's top level that a CUDA machine runs."""
    for node in body:
        if isinstance(node, ast.If):
            held = _decided(node.test, package, module)
            yield from _top(node.body if held is not False else [], package, module)
            yield from _top(node.orelse if held is not True else [], package, module)
        elif isinstance(node, ast.Try):
            yield from _top([*node.body, *node.orelse], package, module)
        else:
            yield node


def _decided(test: ast.expr, package: Package, module: Module) -> bool | None:
    text = ast.unparse(test)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        held = _decided(test.operand, package, module)
        return None if held is None else not held
    if isinstance(test, ast.Name) and test.id not in ("HAS_TRITON", "TYPE_CHECKING"):
        found = package.find(module.name, test.id)
        statement = found[1] if found else module.bound.get(test.id)
        if found and isinstance(statement, ast.Assign):
            return _decided(statement.value, package, found[0])
        return None
    if re.search(r"HAS_TRITON|TYPE_CHECKING|is_cuda", text):
        return True
    if re.search(r"is_rocm|is_xpu|is_cpu|_experimental_|environ", text):
        return False
    return True if text.startswith("hasattr(t") else None


def _bound_by(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.Assign):
        return [each.id for each in node.targets if isinstance(each, ast.Name)]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    if isinstance(node, ast.Import):
        return [each.asname or each.name.partition(".")[0] for each in node.names]
    if isinstance(node, ast.ImportFrom):
        return [each.asname or each.name for each in node.names]
    return [node.name] if isinstance(node, ast.FunctionDef | ast.ClassDef) else []


def _is_jitted(node: Function) -> bool:
    calls = [each.func if isinstance(each, ast.Call) else each for each in node.decorator_list]
    return any(ast.unparse(each) in ("triton.jit", "jit") for each in calls) and not any(
        "nopython" in ast.unparse(each) for each in node.decorator_list
    )


class Unassembled(Exception):
    """The survey cannot assemble a kernel's text; the runtime, with live objects, may."""


class _Assembler:
    """Writes a kernel's text with everything it uses, as `runtime.intercept.sources` does."""

    def __init__(self, package: Package) -> None:
        self._package = package
        self._functions: dict[str, str] = {}
        self._nodes: dict[str, Function] = {}
        self._lines: dict[str, str] = {}

    def text(self, module: Module, function: Function) -> str:
        self._add(module, function)
        bodies = "".join(f"\n\n@triton.jit\n{body}\n" for body in self._functions.values())
        imports = sorted(each for each in self._lines.values() if "import " in each)
        constants = [each for each in self._lines.values() if "import " not in each]
        return _HEADER + "\n".join([*imports, *constants]) + "\n" + bodies

    def _add(self, module: Module, function: Function) -> None:
        if function.name in self._nodes:
            if self._nodes[function.name] is not function:
                raise Unassembled(f"two functions are called {function.name}")
            return
        self._nodes[function.name] = function
        plain = ast.parse(ast.unparse(function)).body[0]
        assert isinstance(plain, Function)
        plain.decorator_list = []
        local = {each.arg for each in ast.walk(plain) if isinstance(each, ast.arg)}
        named = [each for each in ast.walk(plain) if isinstance(each, ast.Name)]
        local |= {each.id for each in named if not isinstance(each.ctx, ast.Load)}
        for used in sorted({each.id for each in named} - local):
            self._use(used, module)
        self._functions[function.name] = ast.unparse(plain)

    def _use(self, used: str, module: Module) -> None:
        found = self._package.find(module.name, used)
        home, statement, name = found or (module, None, used)
        if isinstance(statement, Function) and statement.name in home.kernels:
            self._add(home, home.kernels[statement.name])
        elif isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            self._assigned(used, statement.value, home)
        elif isinstance(statement, ast.Import):
            names = {each.asname or each.name.partition(".")[0]: each for each in statement.names}
            inner = names[name].name if names[name].asname else name
            if inner.split(".")[0] in ("triton", "math"):
                self._lines.setdefault(used, f"import {inner} as {used}")
        elif isinstance(statement, ast.ImportFrom):
            found_as = {each.asname or each.name: each.name for each in statement.names}
            if (statement.module or "").split(".")[0] == "triton":
                line = f"from {statement.module} import {found_as[name]} as {used}"
                self._lines.setdefault(used, line)

    def _assigned(self, used: str, value: ast.expr, home: Module) -> None:
        if isinstance(value, ast.IfExp) and "HAS_TRITON" in ast.unparse(value.test):
            value = value.body
        wrapped = isinstance(value, ast.Call) and ast.unparse(value.func).endswith("constexpr")
        inner = value.args[0] if wrapped and isinstance(value, ast.Call) else value
        dotted = ast.unparse(inner)
        first, _, last = dotted.rpartition(".")
        if re.search(r"(^tldevice|\blibdevice)$", dotted):
            self._lines.setdefault(used, f"import triton.language.extra.libdevice as {used}")
            return
        if last.isidentifier() and first in (
            "tl",
            "tl.math",
            "tldevice",
            "triton.language",
            "triton",
        ):
            homes = {"tldevice": "triton.language.extra.libdevice", "triton": "triton"}
            text = f"from {homes.get(first, 'triton.language')} import {last} as {used}"
            self._lines.setdefault(used, text)
            return
        if isinstance(inner, ast.Name):
            found = self._package.find(home.name, inner.id)
            if found and isinstance(found[1], Function):
                raise Unassembled(f"{used} is another name of {inner.id}")
        text = _literal(inner)
        line = f"{used} = tl.constexpr({text})" if wrapped else f"{used} = {text}"
        if self._lines.setdefault(used, line) != line:
            raise Unassembled(f"two constants are called {used}")


def _literal(node: ast.expr) -> str:
    try:
        found = ast.literal_eval(node)
    except ValueError:
        text = ast.unparse(node)
        return "1" if re.search(r"int|//|<<|len\(", text) else "1.0"
    return repr(found)


@dataclass(frozen=True, slots=True)
class _Kinds:
    """What a function's parameters are, by their use."""

    bases: frozenset[str]
    numbers: frozenset[str]


class _Parameters:
    """Finds parameters that are bases of addresses: added to, never multiplied or compared."""

    _SINKS = ("load", "store", "make_block_ptr", "make_tensor_descriptor")

    def __init__(self, functions: Mapping[str, Function]) -> None:
        self._functions = functions
        self._known: dict[str, _Kinds] = {}

    def pointers(self, entry: str) -> frozenset[str]:
        for _ in range(6):
            before = dict(self._known)
            for name, function in self._functions.items():
                self._known[name] = self._kinds(function)
            if self._known == before:
                break
        found = self._known[entry]
        plain = {
            each.arg
            for each in self._functions[entry].args.args
            if not re.search(r"constexpr|int", ast.unparse(each.annotation or ast.Constant("")))
        }
        sure = {each for each in found.bases if "ptr" in each.lower()}
        return frozenset(((found.bases - found.numbers) | sure) & plain)

    def _kinds(self, function: Function) -> _Kinds:
        names = {each.arg: {each.arg} for each in function.args.args}
        assigns = [n for n in ast.walk(function) if isinstance(n, ast.Assign | ast.AugAssign)]
        for _ in range(3):
            for bound in assigns:
                target = bound.targets[0] if isinstance(bound, ast.Assign) else bound.target
                if isinstance(target, ast.Name):
                    added = self._roots(bound.value, names)
                    names[target.id] = names.get(target.id, set()) | added
        bases: set[str] = set()
        numbers: set[str] = set()
        for node in ast.walk(function):
            if isinstance(node, ast.Call):
                self._call(node, names, bases, numbers)
            elif isinstance(node, ast.Attribute) and node.attr == "element_ty":
                inner = node.value.value if isinstance(node.value, ast.Attribute) else node.value
                bases |= self._roots(inner, names)
            elif isinstance(node, ast.BinOp) and not isinstance(node.op, ast.Add | ast.Sub):
                numbers |= _direct(node.left) | _direct(node.right)
            elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Lt | ast.GtE):
                for each in (node.left, *node.comparators):
                    numbers |= _direct(each)
        return _Kinds(frozenset(bases), frozenset(numbers))

    def _call(
        self,
        node: ast.Call,
        names: Mapping[str, set[str]],
        bases: set[str],
        numbers: set[str],
    ) -> None:
        word = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if isinstance(node.func, ast.Name):
            word = node.func.id
        if word in self._SINKS or word.startswith("atomic_"):
            for each in [*node.args[:1], *(k.value for k in node.keywords if k.arg == "base")]:
                found = self._roots(each, names)
                plain = {name for name in found if not _NUMBERS.search(name)}
                bases |= plain or found  # a base may be called 'offsets', beside none that is not
        elif word in ("range", "cdiv", "arange", "min", "max", "static_range"):
            for each in node.args:
                numbers |= _direct(each)
        elif word in self._functions and word in self._known:
            order = [each.arg for each in self._functions[word].args.args]
            given = dict(zip(order, node.args, strict=False))
            given |= {each.arg: each.value for each in node.keywords if each.arg}
            for name, value in given.items():
                if name in self._known[word].bases - self._known[word].numbers:
                    bases |= self._roots(value, names)
                elif name in self._known[word].numbers:
                    numbers |= _direct(value)

    def _roots(self, node: ast.expr, names: Mapping[str, set[str]]) -> set[str]:
        if isinstance(node, ast.Name):
            return names.get(node.id, set())
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
            return self._roots(node.left, names) | self._roots(node.right, names)
        if isinstance(node, ast.Subscript):
            return self._roots(node.value, names)
        if isinstance(node, ast.IfExp):
            return self._roots(node.body, names) | self._roots(node.orelse, names)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in ("to", "cast"):
                inner = node.func.value
                plain = isinstance(inner, ast.Name) and inner.id == "tl"
                return self._roots(node.args[0] if plain else inner, names)
            if node.func.attr in ("advance", "multiple_of", "make_block_ptr") and node.args:
                return self._roots(node.args[0], names)
        return set()


def _direct(node: ast.expr) -> set[str]:
    """Return the names that a sum adds."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        return _direct(node.left) | _direct(node.right)
    return {node.id} if isinstance(node, ast.Name) else set()


def texts_of(folder: Path, names: Collection[str]) -> dict[str, str]:
    """Return the assembled texts of kernels ``module:kernel`` of a package."""
    package = Package(folder)
    found: dict[str, str] = {}
    for name in names:
        home, _, kernel = name.partition(":")
        module = package.module(home)
        if module is None or kernel not in module.kernels:
            raise LookupError(f"{name} is not in {folder.name}")
        found[name] = _Assembler(package).text(module, module.kernels[kernel])
    return found


def answer(text: str, *, entry: str, fixed: Mapping[str, bool] | None = None) -> tuple[str, str]:
    r"""Return the lifter's code for an assembled text, and the line that caused it.

    `fixed` are constexprs with a value that every launch has.

    Examples
    --------
    >>> text = "@triton.jit\ndef copy(x, y):\n    tl.store(y, tl.load(x))\n"
    >>> answer(text, entry="copy")
    ('accepted', '')
    >>> answer(text.replace("tl.load(x)", "y"), entry="copy")[0]
    'pointer-stored'
    """
    functions = {n.name: n for n in ast.parse(text).body if isinstance(n, Function)}
    pointers = _Parameters(functions).pointers(entry)
    try:
        source = read_source(text, entry=entry, fixed=fixed)
        constants = {name: UNKNOWN for name, constant in source.parameters.items() if constant}
        flow = flow_of(source, pointers=pointers, constants=constants)
        roles_of(flow, {name: DType.FLOAT32 for name in sorted(pointers)}, bounded=frozenset())
    except NotLifted as error:
        return str(error.code), (error.line or error.message)[:_NOTED]
    return "accepted", ""


def flags_of(text: str, *, entry: str) -> dict[str, bool]:
    """Return the constexprs of a kernel that are conditions by themselves, switched off."""
    (function,) = (
        node for node in ast.parse(text).body if isinstance(node, Function) and node.name == entry
    )
    parts = [node.test for node in ast.walk(function) if isinstance(node, ast.If | ast.IfExp)]
    parts += [part for node in parts if isinstance(node, ast.BoolOp) for part in node.values]
    parts += [node.operand for node in parts if isinstance(node, ast.UnaryOp)]
    tested = {node.id for node in parts if isinstance(node, ast.Name)}
    constant = {each.arg for each in function.args.args if each.annotation}
    return dict.fromkeys(sorted(tested & constant), False)


def rows_of(folder: Path) -> tuple[list[Row], int]:
    """Return a row per kernel of a package, and its number of helpers."""
    package = Package(folder)
    every = list(package.kernels())
    called: set[int] = set()
    for module, function in every:
        local = {each.arg for each in ast.walk(function) if isinstance(each, ast.arg)}
        named = {each.id for each in ast.walk(function) if isinstance(each, ast.Name)}
        for name in named - local:
            found = package.find(module.name, name)
            if found and isinstance(found[1], Function) and found[1] is not function:
                called.add(id(found[1]))
    rows = []
    for module, function in every:
        if id(function) in called or _returns(function):
            continue
        rows.append(_row(package, module, function))
    return rows, len(called)


def _returns(function: Function) -> bool:
    """Whether a function returns a value, which a kernel cannot."""
    return any(isinstance(each, ast.Return) and each.value for each in ast.walk(function))


def _row(package: Package, module: Module, function: Function) -> Row:
    try:
        text = _Assembler(package).text(module, function)
    except Unassembled as error:
        return Row(module.name, function.name, _MISSING, _MISSING, str(error))
    code, line = answer(text, entry=function.name)
    off = code
    flags = flags_of(text, entry=function.name)
    if code not in ("accepted", "index-bounds-unknown") and flags:
        off, _ = answer(text, entry=function.name, fixed=flags)
    return Row(module.name, function.name, code, off, line)


def _ranked(counts: Counter[str]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def survey(folder: Path) -> dict[str, Any]:
    """Return a package's counts, and a row for each kernel that is refused."""
    rows, helpers = rows_of(folder)
    off = Counter(row.code_with_flags_off for row in rows)
    return {
        "kernels": len(rows),
        "helpers": helpers,
        "counts": _ranked(Counter(row.code for row in rows)),
        "counts_with_flags_off": _ranked(off),
        "refused": [
            {"module": r.module, "kernel": r.kernel, "code": r.code}
            | ({"with_flags_off": r.code_with_flags_off} if r.code_with_flags_off != r.code else {})
            | {"line": r.line}
            for r in sorted(rows, key=lambda row: (row.code, row.module, row.kernel))
            if r.code != "accepted"
        ],
    }


def main() -> None:
    """Survey the packages that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("packages", nargs="+", help="NAME=FOLDER, such as vllm-0.26.0=.../vllm")
    parser.add_argument("--label", required=True, help="name of this run in the result")
    parser.add_argument("--out", type=Path, default=RESULT)
    given = parser.parse_args()
    before = json.loads(given.out.read_text()) if given.out.exists() else {}
    found = {}
    for each in given.packages:
        name, _, folder = each.partition("=")
        found[name] = survey(Path(folder))
        print(given.label, name, found[name]["kernels"], found[name]["counts"])
        print("with flags off", found[name]["counts_with_flags_off"])
    runs = {**before.get("runs", {}), given.label: found}
    body = {"method": METHOD, "python": platform.python_version(), "runs": runs}
    given.out.write_text(json.dumps(body, indent=1) + "\n")


if __name__ == "__main__":
    main()
