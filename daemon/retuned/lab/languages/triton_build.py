"""Compiles one Triton variant for a target, without that device; run as a program of its own.

The compiler reads what a stranger wrote, so it runs in a process with limits that its parent kills.
One JSON object comes in on stdin, one goes out on stdout. Nothing is launched and no device is
looked for: Triton compiles for any target on any machine.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import resource
import signal
import struct
import sys
from collections.abc import Mapping, Sequence
from typing import Any

_PR_SET_PDEATHSIG = 1
_POINTERS = {
    "float64": "*fp64", "float32": "*fp32", "float16": "*fp16", "bfloat16": "*bf16",
    "int64": "*i64", "int32": "*i32", "int8": "*i8", "uint8": "*u8", "bool": "*i1",
    "float8_e4m3fn": "*fp8e4nv", "float8_e4m3fnuz": "*fp8e4b8",
}  # fmt: skip
_ALIGNED = [["tt.divisibility", 16]]
_AMD = {
    "registers": r"\.vgpr_count:\s+(\d+)",
    "spilled": r"\.vgpr_spill_count:\s+(\d+)",
    "private_bytes": r"\.private_segment_fixed_size:\s+(\d+)",
}
_CALLS = re.compile(r"^\s*\.extern\s+\.func[^;]*?(\w+)\s*\(|\b(vprintf|__assertfail)\b", re.M)
_HOST_CALLS = re.compile(r"__ockl_hostcall\w*|__ockl_printf\w*|__assert_fail")
_VARIABLES = re.compile(r"^\s*(?:\.visible\s+)?\.global\b[^;=\[]*?(\w+)\s*[;=\[]", re.M)
_SIZED, _REGCOUNT = 4, 0x2F
_CONSTANTS = "__cudart_"
"""Tables of the vendor's mathematics, which nothing writes to."""


def main() -> None:
    """Read the task, compile, answer."""
    task = json.load(sys.stdin)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != task["parent"]:  # nobody waits for the answer
        return
    for which, bound in (
        (resource.RLIMIT_AS, task["memory_bytes"]),
        (resource.RLIMIT_CPU, task["cpu_s"]),
        (resource.RLIMIT_FSIZE, task["file_bytes"]),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(which, (bound, bound))
    sys.path[:0] = task["paths"]
    answer = os.dup(1)
    os.dup2(2, 1)  # a compiler that prints must not write the answer
    try:
        body: dict[str, Any] = {
            "compiled": [_compile(task, lengths) for lengths in task["lengths"]]
        }
    except Exception as error:  # whatever a compiler raises on a stranger's source
        body = {"failed": _short(error)}
    os.write(answer, json.dumps(body).encode())


def _compile(task: Mapping[str, Any], lengths: Sequence[int]) -> dict[str, Any]:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from retuned.runtime.triton_bind import bind
    from retuned.runtime.triton_source import check_source

    signature = check_source(task["source"], entry=task["entry"])
    names = [name for name, _ in task["tensors"]]
    binding = bind(
        signature,
        params=task["params"],
        grid=task["grid"],
        tensors=names,
        axes=task["axes"],
        scratch_bytes=task["scratch_bytes"],
    )
    # Nobody but this process can write there, and the text was checked above.
    function = getattr(_load(task["source"]), task["entry"])
    types = [_POINTERS[dtype] for _, dtype in task["tensors"]]
    args = binding.arguments(lengths, tensors=types, scratch="*fp32")
    pointers = [place for place, _ in binding.tensors]
    pointers += [binding.scratch_at] if binding.scratch_at is not None else []
    runtime = set(binding.runtime_axes)
    kinds, constants = {}, {}
    for place, (parameter, value) in enumerate(zip(binding.parameters, args, strict=True)):
        if place in pointers:
            kinds[parameter.name] = str(value)
        elif parameter.name in runtime:
            kinds[parameter.name] = "i32"
        else:
            kinds[parameter.name] = "constexpr"
            constants[parameter.name] = value
    source = ASTSource(
        fn=function,
        signature=kinds,
        constexprs=constants,
        attrs={(place,): _ALIGNED for place in pointers},
    )
    target = GPUTarget(*task["target"])
    compiled = triton.compile(source, target=target, options=dict(binding.options))
    return {"lengths": list(lengths), **_figures(compiled)}


def _load(source: str) -> Any:  # noqa: ANN401 - the module
    import importlib.util
    from pathlib import Path

    path = Path("variant.py").resolve()
    path.write_text(source, "utf-8")
    spec = importlib.util.spec_from_file_location("variant", path)
    assert spec is not None, "a path always has a spec"
    assert spec.loader is not None, "a .py file always has a loader"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _figures(compiled: Any) -> dict[str, Any]:  # noqa: ANN401 - triton.CompiledKernel
    """Return resources of the binary, and what in it a kernel has no use for."""
    text = str(compiled.asm.get("ptx") or compiled.asm.get("amdgcn") or "")
    figures: dict[str, Any] = {"shared_bytes": int(compiled.metadata.shared)}
    if "ptx" in compiled.asm:
        figures["registers"] = _registers(bytes(compiled.asm.get("cubin", b"")))
        called = [next(filter(None, found), "?") for found in _CALLS.findall(text)]
        stored = [name for name in _VARIABLES.findall(text) if not name.startswith(_CONSTANTS)]
    else:
        for name, pattern in _AMD.items():
            found = re.search(pattern, text)
            figures[name] = int(found[1]) if found else 0
        called = sorted(set(_HOST_CALLS.findall(text)))
        stored = [".data"] if re.search(r"^\s*\.(data|bss)\b", text, re.M) else []
    figures["odd"] = [f"calls {name}" for name in called] + [f"keeps {name}" for name in stored]
    return figures


def _registers(binary: bytes) -> int:
    """Most registers of a cubin's functions: ``REGCOUNT`` in its ``.nv.info``; 0 where absent."""
    if binary[:5] != b"\x7fELF\x02":
        return 0
    (offset,) = struct.unpack_from("<Q", binary, 40)
    size, count, names_at = struct.unpack_from("<3H", binary, 58)
    headers = [struct.unpack_from("<IIQQQQII", binary, offset + size * n) for n in range(count)]
    names = headers[names_at][4]
    most = 0
    for header in headers:
        if binary[names + header[0] :].startswith(b".nv.info\0"):
            most = max(most, _regcount(binary[header[4] : header[4] + header[5]]))
    return most


def _regcount(info: bytes) -> int:
    """Walk the entries: form, attribute, and where the form has one, a sized value."""
    at, most = 0, 0
    while at + 4 <= len(info):
        form, attribute, value = struct.unpack_from("<BBH", info, at)
        if form == _SIZED and attribute == _REGCOUNT and at + 12 <= len(info):
            most = max(most, struct.unpack_from("<II", info, at + 4)[1])
        at += 4 + (value if form == _SIZED else 0)
    return most


def _short(error: Exception) -> str:
    """Last error of a chain: Triton wraps the useful one in the position."""
    cause = error
    while cause.__cause__ is not None and isinstance(cause.__cause__, Exception):
        cause = cause.__cause__
    text = f"{type(error).__name__}: {error}"
    return text if cause is error else f"{text} ({type(cause).__name__}: {cause})"


if __name__ == "__main__":
    main()
