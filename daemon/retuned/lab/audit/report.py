"""The audit of an object file: facts of every kernel, what is wrong, what is worth a note."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum

from pydantic import Field

from retuned.contract import Record
from retuned.errors import CandidateError
from retuned.lab.audit import amd, nvidia
from retuned.lab.audit.arch import limits_of
from retuned.lab.audit.elf_file import (
    EM_AMDGPU,
    EM_CUDA,
    STT_OBJECT,
    ElfFile,
    Section,
    Symbol,
)
from retuned.lab.audit.facts import KernelFacts
from retuned.lab.audit.nvidia import RESERVED_SHARED
from retuned.lab.audit.occupancy import Occupancy, occupancy

_READ_ONLY_LATER = frozenset({".dynamic", ".got", ".got.plt", ".relro_padding", ".data.rel.ro"})
"""Written by the loader alone, or padding of what is."""
_TABLES = {
    "__cudart_i2opi_f": 24,
    "__cudart_i2opi_d": 144,
    "__cudart_sin_cos_coeffs": 128,
}
"""Constants of NVIDIA's mathematics: compilers put them beside variables; nothing writes there."""
_ASKED = re.compile(r"_\$_str(_\$_\d{1,3})?")
_ASKED_BYTES = frozenset(
    len(name) + 1 for name in ("__CUDA_FTZ", "__CUDA_PREC_SQRT", "__CUDA_PREC_DIV", "__CUDA_ARCH")
)
"""Names that the same library asks its compiler about, left behind by square roots and others."""
_UNIT = "__hip_cuid_"
"""One byte that clang gives every object for HIP, so that linkers tell them apart."""
_NAMED = 5
_NO_THREADS_GIVEN = 256


class AuditCode(StrEnum):
    """Stable codes of what an audit refuses."""

    OVER_LIMIT_SHARED = "over-limit-shared"
    OVER_LIMIT_REGISTERS = "over-limit-registers"
    OVER_LIMIT_THREADS = "over-limit-threads"
    OVER_LIMIT_SCRATCH = "over-limit-scratch"
    OVER_LIMIT_SPILL = "over-limit-spill"
    WRITABLE_GLOBAL = "writable-global"
    HOST_CALL = "host-call"
    FOREIGN_SYMBOL = "foreign-symbol"
    WRONG_ARCH = "wrong-arch"
    NO_KERNEL = "no-kernel"
    CONTRADICTION = "metadata-contradiction"


class AuditProblem(Record):
    """One thing that an object must not have."""

    code: AuditCode
    """Stable code."""
    detail: str
    """What and where, one sentence; names in it are a stranger's."""


class AuditLimits(Record):
    """What a policy allows beyond the architecture's limits; None allows all."""

    max_scratch_bytes: int | None = Field(default=None, ge=0)
    """Private memory of a thread."""
    max_spilled_registers: int | None = Field(default=None, ge=0)
    """Registers kept in memory; where a format does not count them, scratch is all that shows."""


class AuditReport(Record):
    """One kernel of an object file."""

    kernel: str
    """Symbol; a stranger's text."""
    arch: str
    """What it was compiled for, as its header says."""
    threads: int = Field(ge=1)
    """Threads of a block that the estimate is for."""
    registers: int = Field(ge=0)
    """Vector registers of a thread, accumulators included."""
    accumulator_registers: int | None = Field(default=None, ge=0)
    """Accumulators among them; None where there are none."""
    scalar_registers: int | None = Field(default=None, ge=0)
    """Of a wave; None where there are none."""
    spilled_registers: int | None = Field(default=None, ge=0)
    """Kept in memory; None where the format does not say."""
    shared_bytes: int = Field(ge=0)
    """Shared memory (LDS) of a block: of the object and of the launch."""
    shared_limit_bytes: int | None = Field(default=None, ge=0)
    """Most that a block may have; None where this version does not know the architecture."""
    scratch_bytes: int = Field(ge=0)
    """Private memory of a thread."""
    kernarg_bytes: int = Field(ge=0)
    """Arguments."""
    occupancy: Occupancy | None = None
    """Estimate; None where this version does not know the architecture."""
    problems: tuple[AuditProblem, ...] = ()
    """What refuses it; empty where it passed."""
    notes: tuple[str, ...] = ()
    """What is worth knowing and refuses nothing."""

    @property
    def sentence(self) -> str:
        """The figures in one sentence."""
        spilled = "" if self.spilled_registers is None else f", {self.spilled_registers} spilled"
        held = ""
        if self.occupancy is not None:
            found = self.occupancy
            held = f", {found.waves} of {found.of} waves ({found.limited_by})"
        return (
            f"{self.shared_bytes} bytes shared memory, {self.registers} registers{spilled}, "
            f"{self.scratch_bytes} bytes scratch{held}"
        )

    def within(self, limits: AuditLimits | None) -> AuditReport:
        """Return the report with what is beyond a policy's limits among its problems."""
        limits = limits or AuditLimits()
        scratch, spill = limits.max_scratch_bytes, limits.max_spilled_registers
        found = []
        if scratch is not None and self.scratch_bytes > scratch:
            detail = f"{self.scratch_bytes} bytes of scratch a thread, the policy allows {scratch}"
            found.append(_problem(AuditCode.OVER_LIMIT_SCRATCH, detail))
        if spill is not None and (self.spilled_registers or 0) > spill:
            detail = f"{self.spilled_registers} registers spilled, the policy allows {spill}"
            found.append(_problem(AuditCode.OVER_LIMIT_SPILL, detail))
        return self.model_copy(update={"problems": (*self.problems, *found)})


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
    """Audit an object for an AMD or NVIDIA GPU; one report per kernel.

    Parameters
    ----------
    data
        A code object (HSACO) or a cubin.
    arch
        What it must be for; None takes its header's word.
    entry
        The one kernel it must have; None takes all there are.
    threads
        Of a block; None takes the largest that the kernel was compiled for.
    dynamic_shared_bytes
        Shared memory that the launch adds.
    shared_limit_bytes
        Most that a block may have, where the device itself was asked.
    limits
        A policy's.
    where
        Name of the file, for messages.

    Raises
    ------
    ObjectUnreadable
        If it is cut off, lies about its parts, or is for no GPU.
    """
    elf = ElfFile(data, where=where)
    if elf.machine not in (EM_AMDGPU, EM_CUDA):
        raise elf.broken(f"is for machine {elf.machine}, which is no GPU of AMD or NVIDIA")
    reader = amd if elf.machine == EM_AMDGPU else nvidia
    found_arch = reader.arch_of(elf)
    kernels = reader.read_kernels(elf)
    if not kernels:
        raise elf.broken("has no kernel")
    shared = _of_the_file(elf, arch=arch, found_arch=found_arch)
    if entry is not None and [facts.name for facts in kernels] != [entry]:
        names = ", ".join(facts.name[:40] for facts in kernels[:_NAMED]) or "none"
        shared.append(_problem(AuditCode.NO_KERNEL, f"kernels are {names}, not '{entry}' alone"))
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


def refusal(reports: Sequence[AuditReport]) -> CandidateError | None:
    """Return what refuses an object; None where nothing does.

    The reason is ``over-limit`` where resources are all that is wrong, else
    ``binary-audit-failed``.
    """
    problems = [problem for report in reports for problem in report.problems]
    if not problems:
        return None
    over = all(problem.code.startswith("over-limit") for problem in problems)
    details = dict.fromkeys(f"{problem.code}: {problem.detail}" for problem in problems)
    reason = "over-limit" if over else "binary-audit-failed"
    return CandidateError(reason, detail="; ".join(details)[:400])


def _of_the_file(elf: ElfFile, *, arch: str | None, found_arch: str) -> list[AuditProblem]:
    """Return findings that concern every kernel of the file."""
    found = []
    if arch is not None and found_arch != arch:
        detail = f"is for {found_arch or 'an unknown architecture'}, not {arch}"
        found.append(_problem(AuditCode.WRONG_ARCH, detail))
    symbols = elf.symbols()
    within: dict[int, list[Symbol]] = {}
    for symbol in symbols:
        if symbol.kind == STT_OBJECT:
            within.setdefault(symbol.section, []).append(symbol)
    for index, section in enumerate(elf.sections):
        state = _state_of(section, within.get(index, []))
        if state:
            found.append(_problem(AuditCode.WRITABLE_GLOBAL, state))
    foreign = sorted(
        {s.name[:60] for s in symbols if s.section == 0 and s.name.strip() and not _is_system(s)}
    )
    if foreign:
        detail = f"needs {', '.join(foreign[:_NAMED])} from elsewhere"
        found.append(_problem(AuditCode.FOREIGN_SYMBOL, detail))
    return found


def _is_system(symbol: Symbol) -> bool:
    """Whether the driver itself gives it: where its reserved shared memory begins."""
    return symbol.name.startswith(RESERVED_SHARED)


def _state_of(section: Section, objects: Sequence[Symbol]) -> str:
    """Say what a section keeps between launches; empty where it keeps nothing.

    On NVIDIA, ``.nv.global`` holds variables, ``.nv.shared`` and ``.nv.local`` sizes only.
    """
    if not section.is_state or section.name in _READ_ONLY_LATER:
        return ""
    if section.name.startswith((".nv.shared", ".nv.local")):
        return ""
    own = [symbol for symbol in objects if not _is_compilers(symbol)]
    tables = sum(symbol.size for symbol in objects) - sum(symbol.size for symbol in own)
    if objects and not own and section.size - tables < 16 * len(objects):  # rest is alignment
        return ""
    names = ", ".join(symbol.name[:40] for symbol in own[:_NAMED])
    return f"section {section.name[:40]} keeps {section.size} bytes between launches" + (
        f" ({names})" if names else ""
    )


def _is_compilers(symbol: Symbol) -> bool:
    """Whether a compiler put it there, and nothing writes to it."""
    if symbol.name.startswith(_UNIT):
        return symbol.size == 1
    if _ASKED.fullmatch(symbol.name):
        return symbol.size in _ASKED_BYTES
    return _TABLES.get(symbol.name) == symbol.size


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
        problems.append(_problem(AuditCode.OVER_LIMIT_SHARED, detail))
    if table is not None and facts.registers > table.registers_per_thread:
        detail = f"{facts.registers} registers, a thread has {table.registers_per_thread}"
        problems.append(_problem(AuditCode.OVER_LIMIT_REGISTERS, detail))
    if facts.max_threads is not None and threads > facts.max_threads:
        detail = f"blocks of {threads} threads, compiled for {facts.max_threads}"
        problems.append(_problem(AuditCode.OVER_LIMIT_THREADS, detail))
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
        detail = f"reaches the host by {', '.join(facts.host_calls[:_NAMED])}"
        found.append(_problem(AuditCode.HOST_CALL, detail))
    if facts.contradictions:
        found.append(_problem(AuditCode.CONTRADICTION, "; ".join(facts.contradictions[:_NAMED])))
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


def _problem(code: AuditCode, detail: str) -> AuditProblem:
    return AuditProblem(code=code, detail=detail[:300])
