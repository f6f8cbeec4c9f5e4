"""Compiles one Triton variant for a target without that device; runs as a separate program.

The source is untrusted, so the parent runs this process with limits and kills it when needed. One
JSON object comes in on stdin, one goes out on stdout. It launches no kernel and queries no device:
Triton compiles for any target on any machine.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import re
import resource
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any

_PR_SET_PDEATHSIG = 1
_POINTERS = {
    "float64": "*fp64", "float32": "*fp32", "float16": "*fp16", "bfloat16": "*bf16",
    "int64": "*i64", "int32": "*i32", "int8": "*i8", "uint8": "*u8", "bool": "*i1",
    "float8_e4m3fn": "*fp8e4nv", "float8_e4m3fnuz": "*fp8e4b8",
}  # fmt: skip
_OBJECT_MAX = 16 << 20
_ALIGNED = [["tt.divisibility", 16]]
_CALLS = re.compile(r"^\s*\.extern\s+\.func[^;]*?(\w+)\s*\(|\b(vprintf|__assertfail)\b", re.M)
_HOST_CALLS = re.compile(r"__ockl_hostcall\w*|__ockl_printf\w*|__assert_fail")


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
    sys.path[:0] = task["paths"]
    answer = os.dup(1)
    os.dup2(2, 1)  # a compiler that prints must not write the answer
    try:
        body: dict[str, Any] = {"compiled": _all(task)}
    except Exception as error:  # on untrusted source a compiler may raise anything
        body = {"failed": _short(error)}
    os.write(answer, json.dumps(body).encode())


def _all(task: Mapping[str, Any]) -> list[dict[str, Any]]:
    if task.get("ship"):
        from retuned.lab.languages.triton_precompile import compile_entries

        return compile_entries(task)
    return [each for lengths in task["lengths"] for each in _compile(task, lengths)]


def _compile(task: Mapping[str, Any], lengths: Sequence[int]) -> list[dict[str, Any]]:
    from retuned.runtime.triton.plan import plan_launches

    plan = plan_launches(
        task["source"],
        entry=task["entry"],
        params=task["params"],
        grid=task["grid"],
        tensors=[name for name, _ in task["tensors"]],
        axes=task["axes"],
        scratch_bytes=task["scratch_bytes"],
        steps=task.get("steps", ()),
        scratch=task.get("scratch", ()),
    )
    # Only this process can write there, and the text was checked above.
    module = _load(task["source"])
    types = [_POINTERS[dtype] for _, dtype in task["tensors"]]
    types += [_POINTERS[each.dtype] for each in plan.scratch]
    found = []
    for number, step in enumerate(plan.steps):
        made = _compile_step(
            getattr(module, step.entry), step.binding, lengths, types=types, target=task["target"]
        )
        found.append({"lengths": list(lengths), "step": number, "entry": step.entry, **made})
    return found


def _compile_step(
    function: Any,  # noqa: ANN401 - JITFunction
    binding: Any,  # noqa: ANN401 - Binding, which is imported late
    lengths: Sequence[int],
    *,
    types: Sequence[str],
    target: Sequence[Any],
) -> dict[str, Any]:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

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
    device = GPUTarget(*target)
    compiled = triton.compile(source, target=device, options=dict(binding.options))
    return figures(compiled, device.warp_size)


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


def figures(compiled: Any, lanes: int) -> dict[str, Any]:  # noqa: ANN401
    """Return the binary, its launch data, and forbidden parts of its text."""
    text = str(compiled.asm.get("ptx") or compiled.asm.get("amdgcn") or "")
    if "ptx" in compiled.asm:
        binary = compiled.asm["cubin"]
        called = [next(filter(None, found), "?") for found in _CALLS.findall(text)]
    else:
        binary = compiled.asm["hsaco"]
        called = sorted(set(_HOST_CALLS.findall(text)))
    if len(binary) > _OBJECT_MAX:
        raise ValueError(f"the compiled kernel has {len(binary)} bytes, more than {_OBJECT_MAX}")
    return {
        "shared_bytes": int(compiled.metadata.shared),
        "threads": lanes * int(compiled.metadata.num_warps),
        "name": str(compiled.metadata.name),
        "odd": [f"calls {name}" for name in called],
        "object": base64.b64encode(binary).decode(),
    }


def _short(error: Exception) -> str:
    """Last error of a chain: Triton wraps the useful one in the position."""
    cause = error
    while cause.__cause__ is not None and isinstance(cause.__cause__, Exception):
        cause = cause.__cause__
    text = f"{type(error).__name__}: {error}"
    return text if cause is error else f"{text} ({type(cause).__name__}: {cause})"


if __name__ == "__main__":
    main()
