"""Compiles GPU C++ with an installed compiler, in a separate process."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from retuned.errors import CompileFailed, MissingDependency
from retuned.lab.languages.compile_process import ask_compiler, complaint
from retuned.lab.languages.gpu_compilers import Compiler
from retuned.lab.languages.limits import CompileLimits

LIMITS = CompileLimits(wall_s=240.0, cpu_s=50, memory_bytes=8 * 2**30, file_bytes=64 * 2**20)
_PROGRAM = Path(__file__).with_name("gpu_cpp_build.py")


def compile_source(
    compiler: Compiler,
    text: str,
    *,
    stem: str,
    headers: Mapping[str, str],
    options: Sequence[str],
    limits: CompileLimits,
) -> bytes:
    """Compile one source to an object.

    `text` must have passed the contract. `stem` is its name without an ending, for messages;
    `headers` holds the texts that it may include, by name.

    Raises
    ------
    CompileFailed
        If the compiler refuses it, dies or exceeds its limits.
    MissingDependency
        If the compiler itself does not work.
    """
    task = {
        **_task(compiler),
        "source": text,
        "name": f"{stem}.hip" if compiler.kind == "clang" else f"{stem}.cu",
        "headers": dict(headers),
        "options": list(options),
    }
    answer = ask_compiler(_PROGRAM, task, limits=limits)
    if "broken" in answer:
        raise MissingDependency(f"{compiler.kind} does not work: {answer['broken']}")
    if "failed" in answer:
        raise CompileFailed("compile-failed", detail=_complaint(str(answer["failed"])))
    try:
        return base64.b64decode(answer["object"], validate=True)
    except (KeyError, binascii.Error) as error:
        detail = "the compiler's process gave no object"
        raise CompileFailed("compile-failed", detail=detail) from error


@cache
def version_of(compiler: Compiler) -> str:
    """Return a compiler's name and version, as it reports them.

    Raises
    ------
    MissingDependency
        If it cannot be loaded or started.
    """
    answer = ask_compiler(_PROGRAM, {**_task(compiler), "source": ""}, limits=LIMITS)
    if "version" not in answer:
        reason = answer.get("broken") or answer.get("failed") or "no answer"
        raise MissingDependency(f"{compiler.kind} at {compiler.path} does not work: {reason}")
    return str(answer["version"])


def _task(compiler: Compiler) -> dict[str, Any]:
    return {"kind": compiler.kind, "path": compiler.path}


def _complaint(text: str) -> str:
    """Return a compiler's output, errors before warnings."""
    lines = [line for line in text.splitlines() if "error" in line]
    return complaint(" | ".join(lines[:3]) or text)
