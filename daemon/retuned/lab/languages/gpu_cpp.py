"""Check and compile a GPU C++ candidate for either vendor, or say why not; nothing of it runs here.

Order: static contract on the text (gate G1), compile for the device's architecture in a limited
process, audit of what came out (gate G2). Without a GPU it is compiled for another machine's, so
that a source that no GPU could run is refused before anybody's time is spent on it.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from retuned.contract import Definition, Environment, Language, Solution
from retuned.errors import CompileFailed, MissingDependency
from retuned.lab.audit import AuditLimits, AuditReport, ObjectUnreadable, audit_object, refusal
from retuned.lab.languages.elf import BinaryAuditFailed
from retuned.lab.languages.gpu import (
    INTERPRETED,
    find_gpu,
    gpu_environment,
    shared_limit,
    variables,
)
from retuned.lab.languages.gpu_compilers import Compiler, compiler_for, find_nvrtc
from retuned.lab.languages.gpu_cpp_contract import HEADER, check_contract, header_text
from retuned.lab.languages.limits import CompileLimits
from retuned.lab.subject import numpy_dtype
from retuned.runtime.gpu_bind import LaunchShape

FALLBACK_ARCHES = ("sm_90", "gfx942")
"""What is compiled for where there is no GPU: the first with libnvrtc, else the second."""
LIMITS = CompileLimits(wall_s=60.0, cpu_s=50, memory_bytes=8 * 2**30, file_bytes=64 * 2**20)
"""Bounds of one compilation."""
_PROGRAM = Path(__file__).with_name("gpu_cpp_build.py")
_FORMAT = 1
"""Of what is kept beside a compiled source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCppBuilt:
    """A source that passed contract and audit."""

    path: Path
    """The object, named by its content key in the cache folder."""
    sha256: str
    """Hex digest of the file."""
    arch: str
    """What it was compiled for."""
    report: AuditReport
    """The audit of the object."""

    @property
    def note(self) -> str:
        """The figures in one sentence."""
        head = f"compiled for {self.arch}: {self.report.sentence}"
        return "; ".join([head, *self.report.notes])


def build(
    solution: Solution,
    definition: Definition,
    *,
    cache_dir: Path,
    shapes: Sequence[Mapping[str, int]] = (),
    limits: CompileLimits | None = None,
    arch: str | None = None,
    audit_limits: AuditLimits | None = None,
) -> GpuCppBuilt:
    """Check, compile and audit one solution; cached by content, compiler and architecture.

    Parameters
    ----------
    solution
        What to build.
    definition
        What it computes.
    cache_dir
        Private folder.
    shapes
        Variable axes it will run at; the grid is checked there.
    limits
        Bounds of the compiler.
    arch
        Architecture; None takes this machine's GPU, or else one of `FALLBACK_ARCHES`.
    audit_limits
        A policy's, for scratch and spilled registers.

    Raises
    ------
    ContractViolated
        If it is outside the contract.
    CompileFailed
        If the compiler refuses it, dies or exceeds its limits (reason ``compile-failed``).
    BinaryAuditFailed
        If the object cannot be read.
    CandidateError
        With reason ``binary-audit-failed`` or ``over-limit`` if the object calls or keeps what a
        kernel has no use for, or wants more than a block may have.
    MissingDependency
        If nothing here compiles for the architecture.
    """
    shape = check_contract(solution, definition, shapes=shapes)
    arch = arch or default_arch()
    compiler = compiler_for(arch)
    key = _cache_key(solution, compiler, arch)
    path = cache_dir / f"{key}{'.cubin' if arch.startswith('sm_') else '.hsaco'}"
    data = path.read_bytes() if path.exists() else None
    made = data if data is not None else _compile(solution, compiler, arch, shape, limits or LIMITS)
    report = _audited(made, solution, arch, shape, audit_limits)
    error = refusal([report])
    if error is not None:
        raise error
    if data is None:
        cache_dir.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}.partial")
        partial.write_bytes(made)
        partial.replace(path)
    return GpuCppBuilt(path=path, sha256=hashlib.sha256(made).hexdigest(), arch=arch, report=report)


def launch_of(solution: Solution, definition: Definition) -> dict[str, Any]:
    """Return what the child needs to launch a solution, as plain JSON."""
    tensors = {**definition.inputs, **definition.outputs}
    return {
        "language": str(Language.GPU_CPP),
        "params": dict(solution.params),
        "grid": list(solution.grid),
        "axes": list(definition.axes),
        "scratch_bytes": solution.scratch_bytes,
        "tensors": [
            [name, numpy_dtype(spec).itemsize, list(spec.shape)] for name, spec in tensors.items()
        ],
    }


def default_arch() -> str:
    """Return this machine's architecture, or one that can be compiled for without a GPU."""
    gpu = find_gpu()
    if gpu is not None:
        return gpu.arch
    return FALLBACK_ARCHES[0] if find_nvrtc() is not None else FALLBACK_ARCHES[1]


@cache
def gpu_cpp_environment() -> Environment:
    """Describe this machine's GPU and the compiler; the architecture of none where there is none.

    Raises
    ------
    MissingDependency
        If PyTorch or the compiler is not installed.
    """
    arch = default_arch()
    compiler = compiler_for(arch)
    base = gpu_environment()
    options = " ".join(compiler.options(arch, threads=0)[1:])
    return base.model_copy(
        update={
            "arch": arch if find_gpu() is not None else INTERPRETED,
            "compiler": version_of(compiler),
            "numerics": {
                **base.numerics,
                "GPU_CXX_FLAGS": options,
                "GPU_CXX_HEADER": _header_mark(),
            },
        }
    )


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


def _compile(
    solution: Solution,
    compiler: Compiler,
    arch: str,
    shape: LaunchShape,
    limits: CompileLimits,
) -> bytes:
    defines = [f"-D{name}={value}" for name, value in sorted(solution.params.items())]
    headers = {HEADER: header_text()}
    headers |= {source.path: source.content for source in solution.sources[1:]}
    main = Path(solution.sources[0].path).stem
    task = {
        **_task(compiler),
        "source": solution.sources[0].content,
        "name": f"{main}.hip" if compiler.kind == "clang" else f"{main}.cu",
        "headers": headers,
        "options": [*compiler.options(arch, threads=shape.threads), *defines],
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


def _audited(
    data: bytes,
    solution: Solution,
    arch: str,
    shape: LaunchShape,
    limits: AuditLimits | None,
) -> AuditReport:
    try:
        reports = audit_object(
            data,
            arch=arch,
            entry=solution.entry,
            threads=shape.threads,
            dynamic_shared_bytes=shape.shared_bytes,
            shared_limit_bytes=shared_limit(arch),
            limits=limits,
            where="the compiled kernel",
        )
    except ObjectUnreadable as error:
        raise BinaryAuditFailed(str(error)[:400]) from error
    return reports[0]


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


def _header_mark() -> str:
    return hashlib.sha256(header_text().encode()).hexdigest()[:12]


def _cache_key(solution: Solution, compiler: Compiler, arch: str) -> str:
    options = " ".join(compiler.options(arch, threads=0))
    said = (str(_FORMAT), solution.digest, version_of(compiler), _header_mark(), arch, options)
    return hashlib.sha256("\n".join(said).encode()).hexdigest()
