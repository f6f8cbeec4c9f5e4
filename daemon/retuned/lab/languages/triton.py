"""Checks and compiles a Triton candidate, without running it.

Order: static contract on the text (gate G1), compile for the device's architecture in a limited
process, audit of the object (gate G2). Without a GPU it is compiled for another architecture, so
that a source that no GPU could run is refused before it uses GPU time.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retuned.contract import Definition, Solution
from retuned.errors import CandidateError, CompileFailed
from retuned.lab.audit import AuditLimits, AuditReport, refusal
from retuned.lab.languages.compile_process import ask_compiler, complaint
from retuned.lab.languages.gpu import find_gpu, gpu_environment, target_of
from retuned.lab.languages.limits import CompileLimits
from retuned.lab.languages.triton_audit import figures_of, report_of
from retuned.lab.languages.triton_contract import check_contract, launch_of
from retuned.runtime.triton.plan import Plan

FALLBACK_ARCH = "gfx942"
LIMITS = CompileLimits(wall_s=300.0, cpu_s=80, memory_bytes=8 * 2**30, file_bytes=64 * 2**20)
_PROGRAM = Path(__file__).with_name("triton_build.py")
_ROOT = Path(__file__).resolve().parents[3]
_SPECIALISATIONS = 4
"""Maximum of lengths that one candidate is compiled for here; the child compiles others."""
_FORMAT = 3
_ANY_LENGTH = 128
"""Placeholder of a variable axis without a known shape."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonBuilt:
    """A source that passed contract and audit."""

    path: Path
    sha256: str
    arch: str
    figures: tuple[Mapping[str, Any], ...]
    reports: tuple[AuditReport, ...]

    @property
    def note(self) -> str:
        worst = max(self.reports, key=lambda report: (report.shared_bytes, report.registers))
        notes = dict.fromkeys(note for report in self.reports for note in report.notes)
        return "; ".join([f"compiled for {self.arch}: {worst.sentence}", *notes])


def build(
    solution: Solution,
    definition: Definition,
    *,
    cache_dir: Path,
    shapes: Sequence[Mapping[str, int]] = (),
    limits: CompileLimits | None = None,
    arch: str | None = None,
    audit_limits: AuditLimits | None = None,
) -> TritonBuilt:
    """Check, compile and audit one solution; cached by content, compiler and architecture.

    Code that depends on lengths is compiled for the variable axes `shapes`. `arch` of None uses
    this machine's GPU, or else `FALLBACK_ARCH`. `audit_limits` are a policy's limits of scratch and
    spilled registers.

    Raises
    ------
    ContractViolated
        If it is outside the contract.
    CompileFailed
        If the compiler refuses it, dies or exceeds its limits (reason ``compile-failed``).
    BinaryAuditFailed
        If the compiled code calls or keeps something that a kernel does not need.
    CandidateError
        With reason ``over-limit`` if it exceeds the limits of a program or of the policy.
    """
    plan = check_contract(solution, definition, shapes=shapes)
    gpu = find_gpu()
    arch = arch or (gpu.arch if gpu else FALLBACK_ARCH)
    lengths = _specialisations(plan, definition, shapes)
    source = solution.sources[0].content
    key = _cache_key(solution, arch, lengths)
    path, notes = cache_dir / f"{key}.py", cache_dir / f"{key}.json"
    if not notes.exists() or not path.exists():
        cache_dir.mkdir(parents=True, exist_ok=True)
        task = task_of(solution, definition, lengths, arch)
        compiled = run_compiler(task, limits or LIMITS)
        found = [report_of(each, arch=arch) for each in compiled]
        _raise(refusal(found))
        kept = [figures_of(each, report) for each, report in zip(compiled, found, strict=True)]
        for target, text in ((path, source), (notes, json.dumps(kept))):
            partial = target.with_suffix(f".{os.getpid()}.partial")
            partial.write_text(text, "utf-8")
            partial.replace(target)
    figures = json.loads(notes.read_text("utf-8"))
    reports = tuple(AuditReport.model_validate(each["audit"]) for each in figures)
    _raise(refusal([report.within(audit_limits) for report in reports]))
    return TritonBuilt(
        path=path,
        sha256=hashlib.sha256(source.encode()).hexdigest(),
        arch=arch,
        figures=tuple(figures),
        reports=reports,
    )


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
        If the compiled object cannot be read, or its text contradicts its object.
    """
    plan = check_contract(solution, definition, shapes=shapes)
    lengths = _specialisations(plan, definition, shapes)
    task = task_of(solution, definition, lengths, arch)
    compiled = run_compiler(task, limits or LIMITS)
    return tuple(report_of(each, arch=arch, limits=audit_limits) for each in compiled)


def _raise(error: CandidateError | None) -> None:
    if error is not None:
        raise error


def _specialisations(
    plan: Plan, definition: Definition, shapes: Sequence[Mapping[str, int]]
) -> list[list[int]]:
    """Return lengths of all axes, one per compiled specialisation, the largest first."""
    given = shapes or [dict.fromkeys(definition.variable_axes, _ANY_LENGTH)]
    every = sorted((list(definition.lengths(axes).values()) for axes in given), reverse=True)
    distinct = {plan.specialisation(lengths): lengths for lengths in every}
    return list(distinct.values())[:_SPECIALISATIONS]


def task_of(
    solution: Solution,
    definition: Definition,
    lengths: Sequence[Sequence[int]],
    arch: str,
) -> dict[str, Any]:
    launch = launch_of(solution, definition)
    return {
        **launch,
        "tensors": [[name, dtype] for name, dtype, _ in launch["tensors"]],
        "source": solution.sources[0].content,
        "entry": solution.entry,
        "lengths": lengths,
        "target": target_of(arch),
        "paths": [str(_ROOT), *sys.path],
    }


def run_compiler(task: Mapping[str, Any], limits: CompileLimits) -> list[dict[str, Any]]:
    """Return the compiler's response to a task.

    Raises
    ------
    CompileFailed
        If the compiler refuses it, dies or exceeds its limits.
    """
    answer = ask_compiler(_PROGRAM, task, limits=limits, folders=("TRITON_CACHE_DIR",))
    if "failed" in answer:
        raise CompileFailed("compile-failed", detail=complaint(str(answer["failed"])))
    found: list[dict[str, Any]] = answer["compiled"]
    return found


def _cache_key(solution: Solution, arch: str, lengths: Sequence[Sequence[int]]) -> str:
    body = (
        f"{_FORMAT}\n{solution.digest}\n{gpu_environment().digest}\n{arch}\n{json.dumps(lengths)}"
    )
    return hashlib.sha256(body.encode()).hexdigest()
