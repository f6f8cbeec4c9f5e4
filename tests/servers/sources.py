"""What a file of a server says, read without running it, and its files run without the server.

A server's dependencies are not here, so a file that a test runs meets stand-ins for all modules of
its package that the test does not name.
"""

from __future__ import annotations

import ast
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

Function = ast.FunctionDef | ast.AsyncFunctionDef


def file_of(folder: Path, module: str) -> Path:
    """Return the module's file below the folder of an unpacked wheel."""
    base = folder.joinpath(*module.split("."))
    return base / "__init__.py" if base.is_dir() else base.with_suffix(".py")


def parsed(folder: Path, module: str) -> ast.Module:
    return ast.parse(file_of(folder, module).read_text("utf-8"))


def function(tree: ast.AST, name: str) -> Function:
    """Return a function, or a method where the name is ``Class.method``."""
    owner, _, own = name.rpartition(".")
    scope = class_of(tree, owner) if owner else tree
    (found,) = (
        each
        for each in ast.iter_child_nodes(scope)
        if isinstance(each, Function) and each.name == own
    )
    return found


def class_of(tree: ast.AST, name: str) -> ast.ClassDef:
    (found,) = (
        each
        for each in ast.iter_child_nodes(tree)
        if isinstance(each, ast.ClassDef) and each.name == name
    )
    return found


def parameters(tree: ast.AST, name: str) -> list[str]:
    """Return the names of a function's parameters, in order."""
    arguments = function(tree, name).args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return [each.arg for each in every]


def names(tree: ast.Module) -> set[str]:
    """Return what a module assigns at its top."""
    targets = (
        each.targets if isinstance(each, ast.Assign) else [each.target]
        for each in tree.body
        if isinstance(each, ast.Assign | ast.AnnAssign)
    )
    return {one.id for listed in targets for one in listed if isinstance(one, ast.Name)}


def attributes(tree: ast.AST, name: str) -> set[str]:
    """Return what the methods of a class assign to ``self``, and its own methods and names."""
    owner = class_of(tree, name)
    found = {each.name for each in owner.body if isinstance(each, Function)}
    for each in ast.walk(owner):
        match each:
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=attr, ctx=ast.Store()):
                found.add(attr)
            case ast.AnnAssign(target=ast.Name(id=own)) | ast.Assign(targets=[ast.Name(id=own)]):
                found.add(own)
    return found


def launches(tree: ast.AST, kernel: str) -> list[ast.Call]:
    """Return the launches ``kernel[grid](..)`` in a file."""
    return [
        each
        for each in ast.walk(tree)
        if isinstance(each, ast.Call)
        and isinstance(each.func, ast.Subscript)
        and isinstance(each.func.value, ast.Name)
        and each.func.value.id == kernel
    ]


def keywords(call: ast.Call) -> set[str]:
    """Return the names that a call passes by keyword; ``**`` where it passes others too."""
    return {each.arg or "**" for each in call.keywords}


def importers(folder: Path, *, module: str, name: str) -> set[str]:
    """Return the modules that import a name of another at their top: each holds it for itself."""
    found = set()
    for path in folder.rglob("*.py"):
        text = path.read_text("utf-8")
        if name in text and module in text:
            imports = (each for each in ast.parse(text).body if isinstance(each, ast.ImportFrom))
            wanted = (each.names for each in imports if each.module == module)
            if name in [alias.name for names in wanted for alias in names]:
                found.add(".".join(path.relative_to(folder).with_suffix("").parts))
    return found


def decorated(folder: Path, decorator: str) -> list[str]:
    """Return the functions that bear a decorator ``a.b(..)``, as ``module:function``."""
    found = []
    for path in sorted(folder.rglob("*.py")):
        text = path.read_text("utf-8")
        if f"@{decorator}(" not in text:
            continue
        module = ".".join(path.relative_to(folder).with_suffix("").parts)
        for each in ast.walk(ast.parse(text)):
            if isinstance(each, Function):
                calls = [one for one in each.decorator_list if isinstance(one, ast.Call)]
                if any(ast.unparse(one.func) == decorator for one in calls):
                    found.append(f"{module}:{each.name}")
    return found


class _Kind(type):
    """Type of a stand-in: each of its attributes is another, so that any import finds its name."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Kind(name, (_Anything,), {})


class _Anything(metaclass=_Kind):
    """A class to inherit from, a function or a value, whichever a file takes it for."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take what any function would take."""

    def __getattr__(self, name: str) -> Any:
        return getattr(type(self), name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _Anything()


class _StandIn(ModuleType):
    """A module of which any name may be imported."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_Anything, name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the named modules of a package in a folder, and a stand-in for each other one."""

    def __init__(
        self, folder: Path, real: Collection[str], names: Mapping[str, Mapping[str, Any]]
    ) -> None:
        self._folder = folder
        self._real = real
        self._names = names
        self._tops = {each.partition(".")[0] for each in (*real, *names)}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] not in self._tops:
            return None
        if fullname in self._real:
            return importlib.util.spec_from_file_location(fullname, file_of(self._folder, fullname))
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = _StandIn(spec.name)
        vars(module).update(self._names.get(spec.name, {}))
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is left to run: a stand-in has its names when it is made."""

    def owns(self, name: str) -> bool:
        return name.partition(".")[0] in self._tops


@contextmanager
def running(
    folder: Path, real: Collection[str], names: Mapping[str, Mapping[str, Any]]
) -> Iterator[dict[str, ModuleType]]:
    """Import the named modules of a package from a folder; nothing of it is left afterwards."""
    finder = _Finder(folder, real, names)
    before = {name: sys.modules.pop(name) for name in list(sys.modules) if finder.owns(name)}
    sys.meta_path.insert(0, finder)
    try:
        yield {name: importlib.import_module(name) for name in real}
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if finder.owns(name)]:
            del sys.modules[name]
        sys.modules.update(before)
