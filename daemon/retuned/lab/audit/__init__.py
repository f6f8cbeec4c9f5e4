"""Audit of compiled GPU kernels, read from the object file; no device is needed.

The driver loads the object file, so its bytes are the evidence, not the compiler's report. For code
objects of AMD GPUs and for cubins, the audit reads registers, shared memory, scratch and host
calls, and computes the occupancy that they leave.
"""

from retuned.lab.audit.arch import ArchLimits, known_architectures, limits_of
from retuned.lab.audit.elf import ElfFile, ObjectUnreadable, read_bytes
from retuned.lab.audit.facts import KernelFacts
from retuned.lab.audit.findings import AuditCode, AuditLimits, AuditProblem, AuditReport, refusal
from retuned.lab.audit.occupancy import Occupancy, occupancy
from retuned.lab.audit.report import audit_object

__all__ = [
    "ArchLimits",
    "AuditCode",
    "AuditLimits",
    "AuditProblem",
    "AuditReport",
    "ElfFile",
    "KernelFacts",
    "ObjectUnreadable",
    "Occupancy",
    "audit_object",
    "known_architectures",
    "limits_of",
    "occupancy",
    "read_bytes",
    "refusal",
]
