"""ELF audit of a compiled variant: contents of the shared object, read from its bytes.

A source text can be disguised; the linker's output cannot. A variant may compute and call a few
mathematical functions. The audit finds anything that runs at load time, keeps state between
launches, reaches the operating system or replaces another symbol.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from retuned.errors import CandidateError

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
_SHF_WRITE, _SHF_ALLOC = 1, 2
_SHT_SYMTAB, _SHT_DYNAMIC, _SHT_DYNSYM = 2, 6, 11
_STT_IFUNC, _STT_TLS = 10, 6
_DT_NEEDED, _DT_TEXTREL, _DT_FLAGS, _DF_TEXTREL = 1, 22, 30, 4
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Section:
    name: str
    kind: int
    flags: int
    offset: int
    size: int
    link: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Symbol:
    name: str
    kind: int
    binding: int
    section: int


def audit(path: Path, *, entry: str) -> None:
    """Check a shared object.

    Raises
    ------
    BinaryAuditFailed
        On the first finding, or if the file is not a 64-bit little-endian ELF shared object.
    """
    data = path.read_bytes()
    try:
        sections = _sections(data)
        _check_segments(data)
        _check_sections(sections)
        _check_dynamic(data, sections)
        _check_symbols(data, sections, entry=entry)
    except (struct.error, IndexError, ValueError, OverflowError) as error:
        raise BinaryAuditFailed(f"malformed object file: {error}") from None


def _sections(data: bytes) -> list[_Section]:
    if data[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<H", data, 16)[0] != 3:
        raise BinaryAuditFailed("not a 64-bit little-endian ELF shared object")
    table = struct.unpack_from("<Q", data, 40)[0]
    size, count, names_index = struct.unpack_from("<HHH", data, 58)
    raw = [struct.unpack_from("<IIQQQQIIQQ", data, table + i * size) for i in range(count)]
    if not raw:
        raise BinaryAuditFailed("no section headers; nothing can be checked")
    names = raw[names_index][4]
    return [
        _Section(
            name=_text(data, names + row[0]),
            kind=row[1],
            flags=row[2],
            offset=row[4],
            size=row[5],
            link=row[6],
        )
        for row in raw
    ]


def _text(data: bytes, offset: int) -> str:
    return data[offset : data.index(b"\0", offset)].decode("ascii")


def _check_segments(data: bytes) -> None:
    table = struct.unpack_from("<Q", data, 32)[0]
    size, count = struct.unpack_from("<HH", data, 54)
    stack_seen = False
    for index in range(count):
        kind, flags = struct.unpack_from("<II", data, table + index * size)
        if kind == _PT_INTERP:
            raise BinaryAuditFailed("names a program interpreter")
        if kind == _PT_LOAD and flags & 1 and flags & 2:
            raise BinaryAuditFailed("a segment is writable and executable")
        if kind == _PT_GNU_STACK:
            stack_seen = True
            if flags & 1:
                raise BinaryAuditFailed("asks for an executable stack")
    if not stack_seen:
        raise BinaryAuditFailed("does not refuse an executable stack")


def _check_sections(sections: list[_Section]) -> None:
    for section in sections:
        if section.size == 0:
            continue
        if section.name.startswith(_AT_LOAD):
            raise BinaryAuditFailed(f"section {section.name} runs code at load time")
        writable = section.flags & _SHF_WRITE and section.flags & _SHF_ALLOC
        if writable and section.name not in _RELRO:
            raise BinaryAuditFailed(
                f"section {section.name} keeps {section.size} writable bytes between launches"
            )


def _check_dynamic(data: bytes, sections: list[_Section]) -> None:
    for section in sections:
        if section.kind != _SHT_DYNAMIC:
            continue
        strings = sections[section.link].offset
        for offset in range(section.offset, section.offset + section.size, 16):
            tag, value = struct.unpack_from("<QQ", data, offset)
            if tag == 0:
                break
            if tag == _DT_TEXTREL or (tag == _DT_FLAGS and value & _DF_TEXTREL):
                raise BinaryAuditFailed("needs relocations in its code")
            if tag in _DT_AT_LOAD:
                raise BinaryAuditFailed(f"has {_DT_AT_LOAD[tag]}")
            if tag == _DT_NEEDED and _text(data, strings + value) not in _ALLOWED_LIBRARIES:
                raise BinaryAuditFailed(f"needs library {_text(data, strings + value)[:60]}")


def _check_symbols(data: bytes, sections: list[_Section], *, entry: str) -> None:
    exported = set()
    for section in sections:
        if section.kind not in (_SHT_DYNSYM, _SHT_SYMTAB):
            continue
        for symbol in _symbols(data, section, sections[section.link].offset):
            if symbol.kind == _STT_IFUNC:
                raise BinaryAuditFailed(f"'{symbol.name[:60]}' is chosen by code at load time")
            if symbol.kind == _STT_TLS:
                raise BinaryAuditFailed(f"'{symbol.name[:60]}' is thread-local state")
            undefined = symbol.section == 0
            plain = symbol.name.partition("@")[0]
            if undefined and plain and plain not in ALLOWED_IMPORTS:
                raise BinaryAuditFailed(f"calls '{plain[:60]}', which is not on the allow-list")
            if not undefined and plain in ALLOWED_IMPORTS:
                raise BinaryAuditFailed(f"replaces the library's '{plain}'")
            if not undefined and plain and section.kind == _SHT_DYNSYM:
                exported.add(plain)
    if exported != {entry}:
        raise BinaryAuditFailed(f"exports {sorted(exported)[:5]} instead of '{entry}' alone")


def _symbols(data: bytes, section: _Section, strings: int) -> list[_Symbol]:
    found = []
    for offset in range(section.offset, section.offset + section.size, 24):
        name, info, _, index = struct.unpack_from("<IBBH", data, offset)
        found.append(
            _Symbol(
                name=_text(data, strings + name), kind=info & 15, binding=info >> 4, section=index
            )
        )
    return found
