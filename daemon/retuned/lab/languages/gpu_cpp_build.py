"""Compiles one GPU C++ source without a GPU; runs as a separate program.

The source is untrusted, so the parent runs this process with limits and kills it when needed. One
JSON object comes in on stdin, one goes out on stdout. NVRTC and hipRTC have the same interface
under different names; clang is started in the working folder.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import resource
import signal
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1
_OBJECT_MAX = 16 << 20
_LOG_MAX = 1 << 20
_KEPT = 4000
_BUNDLE = b"__CLANG_OFFLOAD_BUNDLE__"
_CODE = {"nvrtc": ("GetCUBINSize", "GetCUBIN"), "hiprtc": ("GetCodeSize", "GetCode")}


class _Failed(Exception):
    """The compiler failed; the text is its output."""


def main() -> None:
    task = json.load(sys.stdin)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != task["parent"]:  # the parent is gone
        return
    for which, bound in (
        (resource.RLIMIT_AS, task["memory_bytes"]),
        (resource.RLIMIT_CPU, task["cpu_s"]),
        (resource.RLIMIT_FSIZE, task["file_bytes"]),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(which, (bound, bound))
    answer = os.dup(1)
    os.dup2(2, 1)  # a compiler that prints must not write the answer
    try:
        body = _clang(task) if task["kind"] == "clang" else _library(task)
    except _Failed as error:
        body = {"failed": str(error)[:_KEPT]}
    except (OSError, AttributeError, MemoryError) as error:  # no such library, no such symbol
        body = {"broken": f"{type(error).__name__}: {error}"[:_KEPT]}
    os.write(answer, json.dumps(body).encode())


def _library(task: Mapping[str, Any]) -> dict[str, Any]:
    kind = task["kind"]
    library = ctypes.CDLL(task["path"])

    def call(name: str, *args: Any) -> int:  # noqa: ANN401 - whatever ctypes takes
        return int(getattr(library, kind + name)(*args))

    numbers = ctypes.c_int(), ctypes.c_int()
    _expect(call("Version", *map(ctypes.byref, numbers)), f"{kind}Version")
    version = f"{kind} {numbers[0].value}.{numbers[1].value}"
    if not task["source"]:
        return {"version": version}
    program = ctypes.c_void_p()
    headers = list(task["headers"].items())
    _expect(
        call(
            "CreateProgram",
            ctypes.byref(program),
            task["source"].encode(),
            task["name"].encode(),
            len(headers),
            _texts([text for _, text in headers]),
            _texts([name for name, _ in headers]),
        ),
        f"{kind}CreateProgram",
    )
    options = task["options"]
    code = call("CompileProgram", program, len(options), _texts(options))
    log = _bytes(call, program, "GetProgramLogSize", "GetProgramLog", most=_LOG_MAX)
    if code != 0:
        raise _Failed(log.rstrip(b"\0").decode("utf-8", "replace") or f"{kind} error {code}")
    made = _bytes(call, program, *_CODE[kind], most=_OBJECT_MAX)
    return {"version": version, "object": base64.b64encode(_unbundled(made)).decode()}


def _bytes(call: Any, program: Any, size_of: str, get: str, *, most: int) -> bytes:  # noqa: ANN401
    size = ctypes.c_size_t()
    _expect(call(size_of, program, ctypes.byref(size)), size_of)
    if size.value > most:
        raise _Failed(f"{get} has {size.value} bytes, more than {most}")
    buffer = ctypes.create_string_buffer(max(1, size.value))
    _expect(call(get, program, buffer), get)
    return buffer.raw[: size.value]


def _texts(texts: Sequence[str]) -> Any:  # noqa: ANN401 - an array of char*
    return (ctypes.c_char_p * max(1, len(texts)))(*(text.encode() for text in texts))


def _expect(code: int, name: str) -> None:
    if code != 0:
        raise _Failed(f"{name} answered {code}")


def _clang(task: Mapping[str, Any]) -> dict[str, Any]:
    """Compile by a program in this folder, which is empty and temporary."""
    if not task["source"]:
        done = subprocess.run([task["path"], "--version"], capture_output=True, check=False)
        words = done.stdout.decode("utf-8", "replace").split()
        at = words.index("version") + 1 if "version" in words[:-1] else 0
        return {"version": f"clang {words[at] if at else 'unknown'}"}
    for name, text in (*task["headers"].items(), (task["name"], task["source"])):
        Path(name).write_text(text, "utf-8")
    words = [task["path"], *task["options"], "-o", "kernel.hsaco", task["name"]]
    done = subprocess.run(words, capture_output=True, check=False)
    if done.returncode != 0:
        text = done.stderr[:_LOG_MAX].decode("utf-8", "replace")
        raise _Failed(text or f"clang ended with status {done.returncode}")
    made = Path("kernel.hsaco").read_bytes()
    if len(made) > _OBJECT_MAX:
        raise _Failed(f"the object has {len(made)} bytes, more than {_OBJECT_MAX}")
    return {"object": base64.b64encode(_unbundled(made)).decode()}


def _unbundled(data: bytes) -> bytes:
    if not data.startswith(_BUNDLE):
        return data
    at = len(_BUNDLE) + 8
    try:
        (count,) = struct.unpack_from("<Q", data, len(_BUNDLE))
        for _ in range(min(count, 16)):
            start, size, length = struct.unpack_from("<QQQ", data, at)
            name = data[at + 24 : at + 24 + min(length, 256)]
            if b"amdgcn" in name and size:
                return data[start : start + size]
            at += 24 + length
    except struct.error:
        pass
    raise _Failed("the compiler's bundle has no device code")


if __name__ == "__main__":
    main()
