"""Audit findings: stable codes, the facts of one kernel, and the refusal."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from pydantic import Field

from retuned.contract import Record
from retuned.errors import CandidateError
from retuned.lab.audit.occupancy import Occupancy

NAMED = 5


class AuditCode(StrEnum):
    """Stable codes of refusals by the audit."""

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
    """One reason to refuse an object."""

    code: AuditCode
    detail: str
    """One sentence with the location; names in it are untrusted."""


class AuditLimits(Record):
    """Limits of a policy, stricter than the architecture's; None means no limit."""

    max_scratch_bytes: int | None = Field(default=None, ge=0)
    max_spilled_registers: int | None = Field(default=None, ge=0)
    """Spilled registers; where a format does not count them, only scratch is checked."""


class AuditReport(Record):
    kernel: str
    """Symbol; untrusted text."""
    arch: str
    threads: int = Field(ge=1)
    registers: int = Field(ge=0)
    accumulator_registers: int | None = Field(default=None, ge=0)
    """Accumulators among them; None if not applicable."""
    scalar_registers: int | None = Field(default=None, ge=0)
    """Per wave; None if not applicable."""
    spilled_registers: int | None = Field(default=None, ge=0)
    """Spilled to memory; None if the format does not count them."""
    shared_bytes: int = Field(ge=0)
    """Shared memory (LDS) of a block, from the object and the launch."""
    shared_limit_bytes: int | None = Field(default=None, ge=0)
    """Maximum per block; None if the architecture is unknown."""
    scratch_bytes: int = Field(ge=0)
    kernarg_bytes: int = Field(ge=0)
    occupancy: Occupancy | None = None
    """Estimate; None if the architecture is unknown."""
    problems: tuple[AuditProblem, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
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
        """Return the report with violations of a policy's limits added to its problems."""
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
    """Return the refusal of an object, or None.

    The reason is ``over-limit`` if only resource limits are violated, else ``binary-audit-failed``.
    """
    problems = [problem for report in reports for problem in report.problems]
    if not problems:
        return None
    over = all(problem.code.startswith("over-limit") for problem in problems)
    details = dict.fromkeys(f"{problem.code}: {problem.detail}" for problem in problems)
    reason = "over-limit" if over else "binary-audit-failed"
    return CandidateError(reason, detail="; ".join(details)[:400])


def problem_of(code: AuditCode, detail: str) -> AuditProblem:
    """Return a finding; names in it are untrusted and shortened."""
    return AuditProblem(code=code, detail=detail[:300])
