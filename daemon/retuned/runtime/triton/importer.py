"""Importer of Triton sources, and of PyTorch and Triton themselves when a variant is loaded."""

from __future__ import annotations

import linecache
import os
import shutil
import tempfile
import threading
import types
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

from retuned.runtime.schema import Refused

_NUMBER = count()
_IMPORT_LOCK = threading.Lock()


def import_source(source: str) -> tuple[types.ModuleType, Path]:
    """Import checked text from a file in a private folder; Triton reads it back by its name.

    Raises
    ------
    Refused
        ``compile-failed``.
    """
    folder = Path(tempfile.mkdtemp(prefix="retuned-triton-"))
    name = f"retuned_triton_{os.getpid()}_{next(_NUMBER)}"
    path = folder / f"{name}.py"
    path.write_text(source, "utf-8")
    lines = source.splitlines(keepends=True)
    linecache.cache[str(path)] = (len(source), None, lines, str(path))  # reads return checked text
    module = types.ModuleType(name)
    module.__file__ = str(path)
    try:
        with _IMPORT_LOCK:
            exec(compile(source, str(path), "exec", dont_inherit=True), module.__dict__)
    except Exception as error:  # triton.jit refuses the source
        shutil.rmtree(folder, ignore_errors=True)
        raise Refused("compile-failed", detail=f"{type(error).__name__}: {error}"[:400]) from error
    return module, folder


def unspecialised(function: Any, names: Sequence[str]) -> Any:  # noqa: ANN401 - JITFunction
    """Return a copy of a kernel that compiles to one code for all values of these arguments."""
    return needed("triton").jit(function.fn, do_not_specialize=list(names))


def needed(name: str) -> Any:  # noqa: ANN401 - the module
    """Import PyTorch or Triton when a Triton variant is first loaded.

    Raises
    ------
    Refused
        ``triton-missing`` or ``torch-missing``.
    """
    try:
        return __import__(name)
    except ImportError as error:
        raise Refused(f"{name}-missing", detail=f"this process cannot import {name}") from error
