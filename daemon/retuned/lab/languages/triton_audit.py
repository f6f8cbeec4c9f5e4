"""Audit of Triton's output: the object file, and the launcher's additions."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from retuned.lab.audit import AuditLimits, AuditReport, ObjectUnreadable, audit_object
from retuned.lab.languages.binary_audit import BinaryAuditFailed
from retuned.lab.languages.gpu import shared_limit


def report_of(
    compiled: Mapping[str, Any], *, arch: str, limits: AuditLimits | None = None
) -> AuditReport:
    """Audit one compiled specialisation of one step, from the compiler's response.

    Raises
    ------
    BinaryAuditFailed
        If its text calls or keeps something forbidden, or its object cannot be read.
    """
    if compiled["odd"]:
        raise BinaryAuditFailed(f"the compiled kernel {'; '.join(compiled['odd'])}"[:400])
    try:
        # Triton's launcher requests all shared memory; the object reserves none.
        reports = audit_object(
            base64.b64decode(compiled["object"], validate=True),
            arch=arch,
            entry=str(compiled["name"]),
            threads=int(compiled["threads"]),
            dynamic_shared_bytes=int(compiled["shared_bytes"]),
            shared_limit_bytes=shared_limit(arch),
            limits=limits,
            where=f"the compiled kernel '{compiled['entry']}'",
        )
    except (ObjectUnreadable, binascii.Error) as error:
        raise BinaryAuditFailed(str(error)[:400]) from error
    return reports[0]


def figures_of(compiled: Mapping[str, Any], report: AuditReport) -> dict[str, Any]:
    return {
        "lengths": compiled["lengths"],
        "entry": compiled["entry"],
        "shared_bytes": report.shared_bytes,
        "registers": report.registers,
        "spilled": report.spilled_registers or 0,
        "private_bytes": report.scratch_bytes,
        "audit": report.model_dump(mode="json"),
    }
