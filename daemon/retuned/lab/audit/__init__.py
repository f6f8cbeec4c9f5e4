"""What a compiled GPU kernel holds and uses, read from its own bytes; no device is needed.

A compiler says what it likes; what a driver loads is the object file. Read here are registers,
shared memory, scratch and calls to the host of code objects for AMD GPUs and of cubins, and what
of an architecture's limits they leave.
"""

from retuned.lab.audit.arch import ArchLimits, known_architectures, limits_of
from retuned.lab.audit.elf_file import ElfFile, ObjectUnreadable, read_bytes
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
