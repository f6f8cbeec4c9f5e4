"""``retuned audit FILE``: what a compiled GPU kernel uses, on a machine that need not have one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from retuned import catalog
from retuned.cli.output import JsonFlag, cell, emit_json, safe, stdout
from retuned.cli.validate import read_candidate
from retuned.contract import Language
from retuned.errors import CandidateError, UsageError
from retuned.lab.audit import (
    AuditLimits,
    AuditReport,
    audit_object,
    known_architectures,
    read_bytes,
    refusal,
)
from retuned.lab.languages import gpu_cpp, triton

_SOLUTIONS = (".py", ".cu", ".hip", ".json")
_ARCH = re.compile(r"sm_[0-9]{2,3}[af]?|gfx[0-9a-f]{3,4}")


def audit(
    file: Annotated[
        Path,
        typer.Argument(
            help="A compiled kernel (.hsaco, .cubin), or a candidate for GPUs as `retuned "
            "validate` takes it: Triton (.py), C++ (.cu, .hip), or a .json of either."
        ),
    ],
    arch: Annotated[
        str | None,
        typer.Option(help="GPU to compile for, or that the object must be for: gfx942, sm_90."),
    ] = None,
    definition: Annotated[
        str | None, typer.Option(help="What a candidate computes, such as rmsnorm_h1024.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Threads of a block, for the estimate.")
    ] = None,
    shared_bytes: Annotated[
        int, typer.Option(min=0, help="Shared memory that the launch adds to an object's own.")
    ] = 0,
    max_scratch_bytes: Annotated[
        int | None, typer.Option(min=0, help="Refuse more private memory a thread than this.")
    ] = None,
    max_spilled_registers: Annotated[
        int | None, typer.Option(min=0, help="Refuse more spilled registers than this.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Read registers, shared memory, scratch, occupancy and state of a GPU kernel; run nothing.

    Exit code 0 if it passes, 1 if it is refused.
    """
    if arch is not None and not _ARCH.fullmatch(arch):
        raise UsageError(f"--arch {arch[:40]}: write a GPU such as gfx942, gfx950 or sm_90")
    limits = AuditLimits(
        max_scratch_bytes=max_scratch_bytes, max_spilled_registers=max_spilled_registers
    )
    reports: tuple[AuditReport, ...] = ()
    refused: CandidateError | None = None
    try:
        if file.suffix in _SOLUTIONS:
            reports = _of_candidate(file, arch=arch, definition=definition, limits=limits)
        else:
            reports = audit_object(
                read_bytes(file),
                arch=arch,
                threads=threads,
                dynamic_shared_bytes=shared_bytes,
                limits=limits,
                where=file.name,
            )
        refused = refusal(reports)
    except CandidateError as error:
        refused = error
    body = answer(reports, refused)
    if as_json:
        emit_json(body)
    else:
        _print(reports, refused)
    raise typer.Exit(0 if refused is None else 1)


def answer(reports: tuple[AuditReport, ...], refused: CandidateError | None) -> dict[str, Any]:
    """Return the object that ``--json`` prints; fields are added, never renamed."""
    return {
        "passed": refused is None,
        "refusal": None
        if refused is None
        else {"reason": refused.reason, "detail": safe(refused.detail, limit=2000)},
        "kernels": [report.model_dump(mode="json") for report in reports],
    }


def _of_candidate(
    file: Path, *, arch: str | None, definition: str | None, limits: AuditLimits
) -> tuple[AuditReport, ...]:
    """Compile a candidate for a GPU that need not be here, and audit what came out."""
    solution, shapes = read_candidate(file, definition=definition)
    if solution.language is Language.CPU_CPP:
        raise UsageError(
            f"{file}: a candidate in {solution.language} is audited as its compiled object; "
            "name that file"
        )
    if arch is None:
        raise UsageError(f"{file}: say for which GPU to compile it, such as --arch gfx942")
    if arch not in known_architectures():
        known = ", ".join(known_architectures())
        raise UsageError(f"--arch {arch[:40]}: candidates are compiled for {known}")
    entry = catalog.get(solution.definition)  # the definition is the same in every language
    audited = triton.audit_solution
    if solution.language is Language.GPU_CPP:
        audited = gpu_cpp.audit_solution
    return audited(solution, entry.definition, arch=arch, shapes=shapes, audit_limits=limits)


def _print(reports: tuple[AuditReport, ...], refused: CandidateError | None) -> None:
    console = stdout()
    for report in reports:
        console.print(f"{safe(report.kernel)} for {report.arch}, {report.threads} threads a block")
        table = Table(box=None, show_header=False, pad_edge=False)
        for name, value in _rows(report):
            table.add_row(f"  {name}", cell(value))
        console.print(table)
        for note in report.notes:
            console.print(f"  note: {safe(note)}")
        for problem in report.problems:
            console.print(f"  {problem.code}: {safe(problem.detail, limit=400)}")
    if refused is None:
        console.print("passed")
    else:
        console.print(f"refused: {refused.reason}: {safe(refused.detail, limit=2000)}")


def _rows(report: AuditReport) -> list[tuple[str, str]]:
    def shown(value: int | None, unit: str = "") -> str:
        return "not in this format" if value is None else f"{value}{unit}"

    limit = report.shared_limit_bytes
    rows = [
        ("registers", shown(report.registers)),
        ("  accumulators", shown(report.accumulator_registers)),
        ("scalar registers", shown(report.scalar_registers)),
        ("spilled", shown(report.spilled_registers)),
        ("shared memory", f"{report.shared_bytes} of {'?' if limit is None else limit} bytes"),
        ("scratch", f"{report.scratch_bytes} bytes a thread"),
        ("arguments", f"{report.kernarg_bytes} bytes"),
    ]
    held = report.occupancy
    if held is not None:
        percent = 100.0 * held.waves / held.of
        found = f"{held.waves} of {held.of} waves ({percent:.0f} %), {held.blocks} blocks"
        rows += [("occupancy", f"{found}, limited by {held.limited_by}"), ("", held.source)]
    return rows
