"""Cubin kernels: facts from ``.nv.info`` and from names and sizes of sections.

A cubin does not count spilled registers; they are part of a thread's frame in local memory. It does
not include the launch's dynamic shared memory either.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from retuned.lab.audit.elf import EM_CUDA, ElfFile, Section
from retuned.lab.audit.facts import KernelFacts

_TEXT, _INFO, _SHARED = ".text.", ".nv.info", ".nv.shared."
RESERVED_SHARED = ".nv.reservedSmem."
"""Symbols of shared memory that the driver reserves in every block."""
_RESERVED_BYTES = 1024
_SIZED, _VALUE = 4, 3
_MAX_THREADS, _EXTERNS, _REQUIRED_THREADS = 0x05, 0x0F, 0x10
_FRAME, _STACK_LEAST, _PARAMS, _STACK_MOST, _REGISTERS = 0x11, 0x12, 0x19, 0x23, 0x2F
_KERNEL = 0x10
_LANES = 32
_ARCHES = range(50, 200)


@dataclass(slots=True)
class _Info:
    numbers: dict[int, int] = field(default_factory=dict)
    threads: int = 0
    externs: list[str] = field(default_factory=list)


def arch_of(elf: ElfFile) -> str:
    """Return the architecture in the header; empty if it is in none of the known places."""
    if elf.machine != EM_CUDA:
        return ""
    # The low byte until CUDA 12; the second one since, with the ABI version in the header's.
    for number in (elf.flags & 0xFF, elf.flags >> 8 & 0xFF):
        if number in _ARCHES:
            return f"sm_{number}"
    return ""


def read_kernels(elf: ElfFile) -> list[KernelFacts]:
    """Read every kernel of a cubin.

    Raises
    ------
    ObjectUnreadable
        If it is truncated or has a kernel without attributes.
    """
    symbols = elf.symbols()
    sections = {section.name: section for section in elf.sections}
    infos: dict[str, _Info] = {}
    common = sections.get(_INFO)
    for attribute, value in _entries(elf, common) if common else ():
        if len(value) == 8:
            index, number = struct.unpack("<II", value)
            if index >= len(symbols):
                raise elf.broken(f"{_INFO} refers to symbol {index} of {len(symbols)}")
            infos.setdefault(symbols[index].name, _Info()).numbers[attribute] = number
    names = [s.name.removeprefix(_TEXT) for s in elf.sections if s.name.startswith(_TEXT)]
    entries = {s.name for s in symbols if s.other & _KERNEL and s.section}
    called = [s.name for s in symbols]
    taken = any(name.startswith(RESERVED_SHARED) for name in called)
    return [
        _kernel(elf, name, sections, infos.get(name), called, taken=taken)
        for name in names
        if name in entries or f"{_INFO}.{name}" in sections
    ]


def _kernel(
    elf: ElfFile,
    name: str,
    sections: dict[str, Section],
    info: _Info | None,
    symbols: list[str],
    *,
    taken: bool,
) -> KernelFacts:
    if info is None or _REGISTERS not in info.numbers:
        raise elf.broken(f"kernel '{name[:60]}' does not say how many registers it uses")
    own = sections.get(f"{_INFO}.{name}")
    kernarg = 0
    for attribute, value in _entries(elf, own) if own else ():
        if attribute == _PARAMS and len(value) == 2:
            kernarg = struct.unpack("<H", value)[0]
        elif attribute in (_MAX_THREADS, _REQUIRED_THREADS) and len(value) == 12:
            x, y, z = struct.unpack("<III", value)
            info.threads = min(x * y * z, 1 << 20)
        elif attribute == _EXTERNS and len(value) % 4 == 0:
            elf.charge(len(value) // 4)
            for (index,) in struct.iter_unpack("<I", value):
                info.externs.append(symbols[index] if index < len(symbols) else f"symbol {index}")
    shared = sections.get(f"{_SHARED}{name}")
    numbers = info.numbers
    return KernelFacts(
        name=name,
        registers=min(numbers[_REGISTERS], 1 << 16),
        shared_bytes=max(0, shared.size - (_RESERVED_BYTES if taken else 0)) if shared else 0,
        scratch_bytes=max(numbers.get(kind, 0) for kind in (_FRAME, _STACK_LEAST, _STACK_MOST)),
        kernarg_bytes=kernarg,
        max_threads=info.threads or None,
        lanes=_LANES,
        host_calls=tuple(sorted({extern[:60] for extern in info.externs})),
        dynamic_stack=numbers.get(_STACK_MOST, 0) == 0xFFFFFFFF,
    )


def _entries(elf: ElfFile, section: Section) -> Iterator[tuple[int, bytes]]:
    """Iterate over attributes: form, number, and a sized value or one of two bytes."""
    data = elf.content(section)
    at = 0
    while at + 4 <= len(data):
        elf.charge(1)
        form, attribute, value = struct.unpack_from("<BBH", data, at)
        if form != _SIZED:
            yield attribute, data[at + 2 : at + 4] if form == _VALUE else b""
            at += 4
            continue
        if at + 4 + value > len(data):
            raise elf.broken(f"section '{section.name[:60]}' is cut off at byte {at}")
        yield attribute, data[at + 4 : at + 4 + value]
        at += 4 + value
