"""Startup of injected processes: wait for PyTorch, which may never be loaded, then attach.

``site/sitecustomize.py`` loads this file by its path when an interpreter starts, so its imports
must be cheap: no typing, no logging, not even this package. A program that never imports one of
`SERVERS` only has one more object on ``sys.meta_path``.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

SERVERS = ("torch", "triton", "vllm", "sglang")
"""A program that imports one of these may be a server."""
_OFF = ("off", "0", "false")


class ImportWatch:
    """Calls back when a module has been imported, then removes itself from ``sys.meta_path``.

    It finds nothing itself: it calls the finders that follow, and wraps the loader of their result
    for one execution. The module keeps its own loader, and a failed import still fails.

    Parameters
    ----------
    names
        Top-level modules.
    then
        Called with the name, after the module's code has run; must not raise.
    once
        Remove itself after the first of them, not after all.
    """

    def __init__(
        self, names: Iterable[str], then: Callable[[str], None], *, once: bool = False
    ) -> None:
        self._names = set(names)
        self._then = then
        self._once = once

    def install(self) -> None:
        sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Stop watching; imports that have begun still call back."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return what the finders after this one find, with a wrapped loader."""
        if name not in self._names:
            return None
        for finder in tuple(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec: ModuleSpec | None = find(name, path, target)
            if spec is not None:
                self._listen_in(spec)
                return spec
        return None

    def _listen_in(self, spec: ModuleSpec) -> None:
        loader: Any = spec.loader
        if loader is None or isinstance(loader, type) or not hasattr(loader, "exec_module"):
            return
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            vars(loader).pop("exec_module", None)  # restored before the module's code runs
            execute(module)
            if module.__name__ == spec.name:
                self._seen(spec.name)

        try:
            loader.exec_module = exec_module
        except (AttributeError, TypeError):
            return  # a loader that cannot be wrapped: the program runs without Retuned

    def _seen(self, name: str) -> None:
        if name in self._names:
            self._names.discard(name)
            if self._once or not self._names:
                self.remove()
            self._then(name)


def is_loaded(name: str) -> bool:
    """Whether a module's code has run to its end."""
    module = sys.modules.get(name)
    return module is not None and not getattr(
        getattr(module, "__spec__", None), "_initializing", False
    )


def start() -> None:
    if os.environ.get("RETUNED_RUNTIME", "").strip().lower() in _OFF:
        return
    if not os.environ.get("RETUNED_SOCKET_DIR"):
        return  # without a socket nothing can use the runtime
    if any(is_loaded(name) for name in SERVERS):
        join("")
    else:
        ImportWatch(SERVERS, join, once=True).install()


def join(name: str) -> None:
    """Attach, by the ``retuned`` of this process, else by the one that this file belongs to."""
    try:
        _bring()
        from retuned.runtime.plugins import register

        register(arrived=name)
    except Exception as error:  # inside the import of the server's PyTorch, which must not fail
        import logging

        log = logging.getLogger("retuned.runtime.plugins")
        log.warning("Retuned cannot join this process, which runs without it: %r", error)
        log.debug("cannot join", exc_info=True)


def _bring() -> None:
    """Make ``retuned`` importable without a new entry on ``sys.path``.

    The folder of this copy may contain a whole environment that is not the server's.
    """
    import importlib.util

    found = importlib.util.find_spec("retuned")
    # without an origin it is any folder of this name, such as /retuned of a server that runs in /
    if found is not None and found.origin is not None:
        return
    root = os.path.realpath(__file__)
    for _ in range(4):  # plugins, runtime, retuned, and its parent folder
        root = os.path.dirname(root)
    spec = PathFinder.find_spec("retuned", [root])
    if spec is None or spec.loader is None:
        raise ImportError(f"no retuned in {root}")
    module = importlib.util.module_from_spec(spec)
    sys.modules["retuned"] = module
    spec.loader.exec_module(module)
