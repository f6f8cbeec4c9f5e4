"""Compiler processes with limits, killed when they take too long.

The compiler reads untrusted source. It works in a separate folder, without the user's settings, and
its output is untrusted data.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from retuned.errors import CompileFailed
from retuned.lab.languages.gpu import variables
from retuned.lab.languages.limits import CompileLimits

_KEPT = 400


def ask_compiler(
    program: Path,
    task: Mapping[str, Any],
    *,
    limits: CompileLimits,
    folders: Sequence[str] = (),
) -> dict[str, Any]:
    """Send a task to a compiler's process and return its response.

    `program` reads one JSON object from stdin, writes one to stdout, and applies the limits that
    the task names. This function adds the parent and the limits to `task`. `folders` are
    environment variables, besides ``HOME`` and ``TMPDIR``, that are set to its working folder.

    Raises
    ------
    CompileFailed
        If it dies, takes too long or returns something else.
    """
    body = {
        **task,
        "parent": os.getpid(),
        "memory_bytes": limits.memory_bytes,
        "cpu_s": limits.cpu_s,
        "file_bytes": limits.file_bytes,
    }
    with tempfile.TemporaryDirectory(prefix="retuned-build-") as folder:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", str(program)],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**variables(), **dict.fromkeys(("TMPDIR", "HOME", *folders), folder)},
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
        answer = json.loads(out)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        detail = f"the compiler ended with status {process.returncode}"
        raise CompileFailed("compile-failed", detail=detail)
    return answer


def complaint(text: str) -> str:
    r"""Shorten a compiler's message: no paths of this machine, no control characters.

    >>> complaint("/tmp/x/kernel.cu(3): error:\n\texpected a ;")
    'kernel.cu(3): error: expected a ;'
    """
    text = re.sub(r"/[\w./+-]*/", "", text)
    return re.sub(r"[^\x20-\x7e]+", " ", text).strip()[:_KEPT]
