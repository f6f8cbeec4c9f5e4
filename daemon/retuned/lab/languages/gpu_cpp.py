"""Checks and compiles a GPU C++ candidate for either vendor, without running it.

Order: static contract on the text (gate G1), compile for the device's architecture in a limited
process, audit of the object (gate G2). Without a GPU it is compiled for another architecture, so
that a source that no GPU could run is refused before it uses GPU time.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from retuned.contract import Definition, Environment, Language, Solution
from retuned.lab.audit import AuditLimits, AuditReport, ObjectUnreadable, audit_object, refusal
from retuned.lab.languages.binary_audit import BinaryAuditFailed
from retuned.lab.languages.gpu import INTERPRETED, find_gpu, gpu_environment, shared_limit
from retuned.lab.languages.gpu_compile import LIMITS, compile_source, version_of
from retuned.lab.languages.gpu_compilers import Compiler, compiler_for, find_nvrtc
from retuned.lab.languages.gpu_cpp_contract import HEADER, check_contract, header_text
from retuned.lab.languages.limits import CompileLimits
from retuned.lab.subject import numpy_dtype
from retuned.runtime.native.gpu_bind import LaunchShape

FALLBACK_ARCHES = ("sm_90", "gfx942")
"""Architectures without a GPU: the first with libnvrtc, else the second."""
_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCppBuilt:
    """A source that passed contract and audit."""

    path: Path
    sha256: str
    arch: str
    report: AuditReport

    @property
    def note(self) -> str:
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

    The grid is checked at the variable axes `shapes`. `arch` of None uses this machine's GPU, or
    else one of `FALLBACK_ARCHES`. `audit_limits` are a policy's limits of scratch and spilled
    registers.

    Raises
    ------
    ContractViolated
        If it is outside the contract.
    CompileFailed
        If the compiler refuses it, dies or exceeds its limits (reason ``compile-failed``).
    BinaryAuditFailed
        If the object cannot be read.
    CandidateError
        With reason ``binary-audit-failed`` or ``over-limit``.
    MissingDependency
        If no installed compiler supports the architecture.
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


def audit_solution(
    solution: Solution,
    definition: Definition,
    *,
    arch: str,
    shapes: Sequence[Mapping[str, int]] = (),
    limits: CompileLimits | None = None,
    audit_limits: AuditLimits | None = None,
) -> tuple[AuditReport, ...]:
    """Check, compile and audit one solution; return findings instead of raising them.

    Raises
    ------
    ContractViolated
        If it is outside the contract.
    CompileFailed
        As `build`.
    BinaryAuditFailed
        If the object cannot be read.
    MissingDependency
        If no installed compiler supports the architecture.
    """
    shape = check_contract(solution, definition, shapes=shapes)
    made = _compile(solution, compiler_for(arch), arch, shape, limits or LIMITS)
    return (_audited(made, solution, arch, shape, audit_limits),)


def launch_of(solution: Solution, definition: Definition) -> dict[str, Any]:
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
    gpu = find_gpu()
    if gpu is not None:
        return gpu.arch
    return FALLBACK_ARCHES[0] if find_nvrtc() is not None else FALLBACK_ARCHES[1]


@cache
def gpu_cpp_environment() -> Environment:
    """Describe this machine's GPU and the compiler for evidence.

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


def _compile(
    solution: Solution,
    compiler: Compiler,
    arch: str,
    shape: LaunchShape,
    limits: CompileLimits,
) -> bytes:
    defines = [f"-D{name}={value}" for name, value in sorted(solution.params.items())]
    main, *others = solution.sources
    return compile_source(
        compiler,
        main.content,
        stem=Path(main.path).stem,
        headers={HEADER: header_text(), **{other.path: other.content for other in others}},
        options=[*compiler.options(arch, threads=shape.threads), *defines],
        limits=limits,
    )


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


def _header_mark() -> str:
    return hashlib.sha256(header_text().encode()).hexdigest()[:12]


def _cache_key(solution: Solution, compiler: Compiler, arch: str) -> str:
    options = " ".join(compiler.options(arch, threads=0))
    said = (str(_FORMAT), solution.digest, version_of(compiler), _header_mark(), arch, options)
    return hashlib.sha256("\n".join(said).encode()).hexdigest()
