"""Audit report of an object file: facts, problems and notes per kernel."""

from __future__ import annotations

from collections.abc import Sequence

from retuned.lab.audit import amd, nvidia
from retuned.lab.audit.arch import limits_of
from retuned.lab.audit.elf import (
    EM_AMDGPU,
    EM_CUDA,
    ElfFile,
)
from retuned.lab.audit.facts import KernelFacts
from retuned.lab.audit.findings import (
    NAMED,
    AuditCode,
    AuditLimits,
    AuditProblem,
    AuditReport,
    problem_of,
)
from retuned.lab.audit.object_file import findings_of_file
from retuned.lab.audit.occupancy import occupancy

_NO_THREADS_GIVEN = 256


def audit_object(
    data: bytes,
    *,
    arch: str | None = None,
    entry: str | None = None,
    threads: int | None = None,
    dynamic_shared_bytes: int = 0,
    shared_limit_bytes: int | None = None,
    limits: AuditLimits | None = None,
    where: str = "the compiled object",
) -> tuple[AuditReport, ...]:
    """Audit an object (HSACO or cubin) for an AMD or NVIDIA GPU; one report per kernel.

    `arch` is the required architecture; None accepts the header's. `entry` is the only kernel it
    must have; None accepts all. `threads` per block of None uses the maximum that the kernel was
    compiled for. `dynamic_shared_bytes` is the launch's shared memory, `shared_limit_bytes` the
    device's maximum per block. `where` names the file in messages.

    Raises
    ------
    ObjectUnreadable
        If it is truncated, inconsistent, or not for a GPU.
    """
    elf = ElfFile(data, where=where)
    if elf.machine not in (EM_AMDGPU, EM_CUDA):
        raise elf.broken(f"is for machine {elf.machine}, which is not a GPU of AMD or NVIDIA")
    reader = amd if elf.machine == EM_AMDGPU else nvidia
    found_arch = reader.arch_of(elf)
    kernels = reader.read_kernels(elf)
    if not kernels:
        raise elf.broken("has no kernel")
    shared = findings_of_file(elf, arch=arch, found_arch=found_arch)
    if entry is not None and [facts.name for facts in kernels] != [entry]:
        names = ", ".join(facts.name[:40] for facts in kernels[:NAMED]) or "none"
        shared.append(problem_of(AuditCode.NO_KERNEL, f"kernels are {names}, not '{entry}' alone"))
    reports = [
        _report(
            facts,
            arch=found_arch or arch or "unknown",
            threads=threads or facts.max_threads or _NO_THREADS_GIVEN,
            dynamic_shared_bytes=dynamic_shared_bytes,
            shared_limit_bytes=shared_limit_bytes,
            shared=shared,
        )
        for facts in kernels
    ]
    return tuple(report.within(limits) for report in reports)


def _report(
    facts: KernelFacts,
    *,
    arch: str,
    threads: int,
    dynamic_shared_bytes: int,
    shared_limit_bytes: int | None,
    shared: Sequence[AuditProblem],
) -> AuditReport:
    table = limits_of(arch)
    total = facts.shared_bytes + dynamic_shared_bytes
    most = shared_limit_bytes or (table.shared_per_block_bytes if table else None)
    problems = [*shared, *_of_the_kernel(facts)]
    if most is not None and total > most:
        detail = f"{total} bytes of shared memory, {arch} has {most} for a block"
        problems.append(problem_of(AuditCode.OVER_LIMIT_SHARED, detail))
    if table is not None and facts.registers > table.registers_per_thread:
        detail = f"{facts.registers} registers, a thread has {table.registers_per_thread}"
        problems.append(problem_of(AuditCode.OVER_LIMIT_REGISTERS, detail))
    if facts.max_threads is not None and threads > facts.max_threads:
        detail = f"blocks of {threads} threads, compiled for {facts.max_threads}"
        problems.append(problem_of(AuditCode.OVER_LIMIT_THREADS, detail))
    held = occupancy(facts, table, threads=threads, shared_bytes=total) if table else None
    return AuditReport(
        kernel=facts.name[:200],
        arch=arch,
        threads=threads,
        registers=facts.registers,
        accumulator_registers=facts.accumulators,
        scalar_registers=facts.scalars,
        spilled_registers=facts.spilled,
        shared_bytes=total,
        shared_limit_bytes=most,
        scratch_bytes=facts.scratch_bytes,
        kernarg_bytes=facts.kernarg_bytes,
        occupancy=held,
        problems=tuple(problems),
        notes=_notes(facts, known=table is not None, arch=arch),
    )


def _of_the_kernel(facts: KernelFacts) -> list[AuditProblem]:
    found = []
    if facts.host_calls:
        detail = f"reaches the host by {', '.join(facts.host_calls[:NAMED])}"
        found.append(problem_of(AuditCode.HOST_CALL, detail))
    if facts.contradictions:
        found.append(problem_of(AuditCode.CONTRADICTION, "; ".join(facts.contradictions[:NAMED])))
    return found


def _notes(facts: KernelFacts, *, known: bool, arch: str) -> tuple[str, ...]:
    found = []
    if facts.spilled:
        found.append(f"{facts.spilled} registers are spilled to memory")
    if facts.scratch_bytes:
        found.append(f"every thread uses {facts.scratch_bytes} bytes of scratch")
    if facts.host_buffers:
        found.append(f"is given {', '.join(facts.host_buffers)}, as where a compiler is not sure")
    if facts.dynamic_stack:
        found.append("its stack grows while it runs")
    if not known:
        found.append(f"limits of {arch} are not known; the device decides")
    return tuple(found)
