"""Runs a compiler of GPU C++ in a limited process that is killed when it takes too long."""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from retuned.errors import CompileFailed, MissingDependency
from retuned.lab.languages.gpu import variables
from retuned.lab.languages.gpu_compilers import Compiler
from retuned.lab.languages.limits import CompileLimits

LIMITS = CompileLimits(wall_s=60.0, cpu_s=50, memory_bytes=8 * 2**30, file_bytes=64 * 2**20)
"""Bounds of one compilation."""
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

    Parameters
    ----------
    compiler
        Which.
    text
        The source; it met the contract.
    stem
        Its name without an ending, for messages.
    headers
        Text of what it may include, by name.
    options
        Of the compiler.
    limits
        Bounds of its process.

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
    answer = _run(task, limits)
    if "broken" in answer:
        raise MissingDependency(f"{compiler.kind} does not work: {answer['broken']}")
    if "failed" in answer:
        raise CompileFailed("compile-failed", detail=_sanitised(str(answer["failed"])))
    try:
        return base64.b64decode(answer["object"], validate=True)
    except (KeyError, binascii.Error) as error:
        detail = "the compiler's process gave no object"
        raise CompileFailed("compile-failed", detail=detail) from error


@cache
def version_of(compiler: Compiler) -> str:
    """Return a compiler's name and version, as it says itself.

    Raises
    ------
    MissingDependency
        If it cannot be loaded or started.
    """
    answer = _run({**_task(compiler), "source": ""}, LIMITS)
    if "version" not in answer:
        reason = answer.get("broken") or answer.get("failed") or "no answer"
        raise MissingDependency(f"{compiler.kind} at {compiler.path} does not work: {reason}")
    return str(answer["version"])


def _task(compiler: Compiler) -> dict[str, Any]:
    return {"kind": compiler.kind, "path": compiler.path, "parent": os.getpid()}


def _run(task: Mapping[str, Any], limits: CompileLimits) -> dict[str, Any]:
    """Run the compiler's process in a folder of its own.

    Raises
    ------
    CompileFailed
        If it dies or takes too long.
    """
    body = {
        **task,
        "memory_bytes": limits.memory_bytes,
        "cpu_s": limits.cpu_s,
        "file_bytes": limits.file_bytes,
    }
    with tempfile.TemporaryDirectory(prefix="retuned-gpu-build-") as folder:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", str(_PROGRAM)],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**variables(), "TMPDIR": folder, "HOME": folder},
            start_new_session=True,
        )
        try:
            out, _ = process.communicate(json.dumps(body).encode(), timeout=limits.wall_s)
        except subprocess.TimeoutExpired:
            detail = f"took more than {limits.wall_s:g} s"
            raise CompileFailed("compile-failed", detail=detail) from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    try:
        answer: dict[str, Any] = json.loads(out)
    except ValueError:
        detail = f"the compiler ended with status {process.returncode}"
        raise CompileFailed("compile-failed", detail=detail) from None
    return answer


def _sanitised(text: str) -> str:
    """Shorten a compiler's complaint: no paths of this machine, no control characters."""
    lines = [line for line in text.splitlines() if "error" in line]
    text = " | ".join(lines[:3]) or text
    text = re.sub(r"/[\w./+-]*/", "", text)
    return re.sub(r"[^\x20-\x7e]+", " ", text).strip()[:400]
