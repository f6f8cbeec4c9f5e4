"""What an audit says: stable codes, the facts of one kernel, and what refuses it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from pydantic import Field

from retuned.contract import Record
from retuned.errors import CandidateError
from retuned.lab.audit.occupancy import Occupancy

NAMED = 5
"""Most names that a finding lists."""


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
            found.append(problem_of(AuditCode.OVER_LIMIT_SCRATCH, detail))
        if spill is not None and (self.spilled_registers or 0) > spill:
            detail = f"{self.spilled_registers} registers spilled, the policy allows {spill}"
            found.append(problem_of(AuditCode.OVER_LIMIT_SPILL, detail))
        return self.model_copy(update={"problems": (*self.problems, *found)})


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


def problem_of(code: AuditCode, detail: str) -> AuditProblem:
    """Return a finding; names in it are a stranger's, and shortened."""
    return AuditProblem(code=code, detail=detail[:300])
