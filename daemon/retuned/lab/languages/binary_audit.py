"""Binary audit of a compiled CPU variant: rules over the contents of its shared object.

A source text can be disguised; the linker's output cannot. A variant may compute and call a few
mathematical functions. The audit finds anything that runs at load time, keeps state between
launches, reaches the operating system or replaces another symbol.
"""

from __future__ import annotations

from pathlib import Path

from retuned.errors import CandidateError, UnreadableInput
from retuned.lab.audit.elf import (
    DT_NEEDED,
    ET_DYN,
    SHT_DYNSYM,
    SHT_SYMTAB,
    ElfFile,
    Symbol,
    read_bytes,
)

_MATH = """
acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp2 expm1 fabs fdim
floor fma fmax fmin fmod frexp ldexp lgamma llrint log log10 log1p log2 lrint modf nearbyint pow
remainder rint round roundeven scalbn sin sincos sinh sqrt tan tanh tgamma trunc
"""
ALLOWED_IMPORTS = frozenset(
    {name + suffix for name in _MATH.split() for suffix in ("", "f")}
    | {"memcpy", "memmove", "memset", "memcmp"}
)
_ALLOWED_LIBRARIES = frozenset({"libm.so.6", "libc.so.6", "libm.so", "libc.so"})
# Read-only after relocation, written by the loader only.
_RELRO = frozenset({".dynamic", ".got", ".got.plt", ".data.rel.ro", ".data.rel.ro.local"})
_AT_LOAD = (".init", ".fini", ".init_array", ".fini_array", ".preinit_array", ".ctors", ".dtors")
_STT_IFUNC, _STT_TLS = 10, 6
_DT_TEXTREL, _DT_FLAGS, _DF_TEXTREL = 22, 30, 4
_DT_AT_LOAD = {
    12: "DT_INIT",
    13: "DT_FINI",
    15: "DT_RPATH",
    25: "DT_INIT_ARRAY",
    26: "DT_FINI_ARRAY",
    29: "DT_RUNPATH",
    32: "DT_PREINIT_ARRAY",
    0x6FFFFEFB: "DT_DEPAUDIT",
    0x6FFFFEFC: "DT_AUDIT",
    0x7FFFFFFD: "DT_AUXILIARY",
    0x7FFFFFFF: "DT_FILTER",
}
_PT_LOAD, _PT_INTERP, _PT_GNU_STACK = 1, 3, 0x6474E551


class BinaryAuditFailed(CandidateError):
    """The compiled variant holds something that a kernel does not need."""

    def __init__(self, detail: str) -> None:
        super().__init__("binary-audit-failed", detail=detail)


def audit(path: Path, *, entry: str) -> None:
    """Check a shared object.

    Raises
    ------
    BinaryAuditFailed
        On the first finding, or if the file is not a 64-bit little-endian ELF shared object.
    """
    try:
        elf = ElfFile(read_bytes(path), where=path.name)
        if elf.kind != ET_DYN:
            raise BinaryAuditFailed("is not a shared object")
        _check_segments(elf)
        _check_sections(elf)
        _check_dynamic(elf)
        _check_symbols(elf, entry=entry)
    except UnreadableInput as error:
        raise BinaryAuditFailed(f"malformed object file: {error}") from None


def _check_segments(elf: ElfFile) -> None:
    stack_seen = False
    for segment in elf.segments():
        if segment.kind == _PT_INTERP:
            raise BinaryAuditFailed("names a program interpreter")
        if segment.kind == _PT_LOAD and segment.flags & 1 and segment.flags & 2:
            raise BinaryAuditFailed("a segment is writable and executable")
        if segment.kind == _PT_GNU_STACK:
            stack_seen = True
            if segment.flags & 1:
                raise BinaryAuditFailed("asks for an executable stack")
    if not stack_seen:
        raise BinaryAuditFailed("does not refuse an executable stack")


def _check_sections(elf: ElfFile) -> None:
    for section in elf.sections:
        if section.size == 0:
            continue
        if section.name.startswith(_AT_LOAD):
            raise BinaryAuditFailed(f"section {section.name} runs code at load time")
        if section.is_state and section.name not in _RELRO:
            raise BinaryAuditFailed(
                f"section {section.name} keeps {section.size} writable bytes between launches"
            )


def _check_dynamic(elf: ElfFile) -> None:
    for tag, value, name in elf.dynamic():
        if tag == _DT_TEXTREL or (tag == _DT_FLAGS and value & _DF_TEXTREL):
            raise BinaryAuditFailed("needs relocations in its code")
        if tag in _DT_AT_LOAD:
            raise BinaryAuditFailed(f"has {_DT_AT_LOAD[tag]}")
        if tag == DT_NEEDED and name not in _ALLOWED_LIBRARIES:
            raise BinaryAuditFailed(f"needs library {name[:60]}")


def _check_symbols(elf: ElfFile, *, entry: str) -> None:
    dynamic = elf.symbols_of(SHT_DYNSYM)
    for symbol in (*dynamic, *elf.symbols_of(SHT_SYMTAB)):
        if symbol.kind == _STT_IFUNC:
            raise BinaryAuditFailed(f"'{symbol.name[:60]}' is chosen by code at load time")
        if symbol.kind == _STT_TLS:
            raise BinaryAuditFailed(f"'{symbol.name[:60]}' is thread-local state")
        plain = _plain(symbol)
        if symbol.section == 0 and plain and plain not in ALLOWED_IMPORTS:
            raise BinaryAuditFailed(f"calls '{plain[:60]}', which is not on the allow-list")
        if symbol.section != 0 and plain in ALLOWED_IMPORTS:
            raise BinaryAuditFailed(f"replaces the library's '{plain}'")
    exported = {_plain(symbol) for symbol in dynamic if symbol.section != 0} - {""}
    if exported != {entry}:
        raise BinaryAuditFailed(f"exports {sorted(exported)[:5]} instead of '{entry}' alone")


def _plain(symbol: Symbol) -> str:
    """Return a symbol's name without its version."""
    return symbol.name.partition("@")[0]
