"""Object file state: data kept between launches, and external symbols."""

from __future__ import annotations

import re
from collections.abc import Sequence

from retuned.lab.audit.elf import STT_OBJECT, ElfFile, Section, Symbol
from retuned.lab.audit.findings import NAMED, AuditCode, AuditProblem, problem_of
from retuned.lab.audit.nvidia import RESERVED_SHARED

_READ_ONLY_LATER = frozenset({".dynamic", ".got", ".got.plt", ".relro_padding", ".data.rel.ro"})
"""Sections that only the loader writes, or their padding."""
_TABLES = {
    "__cudart_i2opi_f": 24,
    "__cudart_i2opi_d": 144,
    "__cudart_sin_cos_coeffs": 128,
}
"""Constants of NVIDIA's math library, placed beside variables; code never writes them."""
_ASKED = re.compile(r"_\$_str(_\$_\d{1,3})?")
_ASKED_BYTES = frozenset(
    len(name) + 1 for name in ("__CUDA_FTZ", "__CUDA_PREC_SQRT", "__CUDA_PREC_DIV", "__CUDA_ARCH")
)
"""Names by which the same library queries its compiler, left by square roots and others."""
_UNIT = "__hip_cuid_"
"""One byte that clang adds to every HIP object so that linkers can distinguish them."""


def findings_of_file(elf: ElfFile, *, arch: str | None, found_arch: str) -> list[AuditProblem]:
    found = []
    if arch is not None and found_arch != arch:
        detail = f"is for {found_arch or 'an unknown architecture'}, not {arch}"
        found.append(problem_of(AuditCode.WRONG_ARCH, detail))
    symbols = elf.symbols()
    within: dict[int, list[Symbol]] = {}
    for symbol in symbols:
        if symbol.kind == STT_OBJECT:
            within.setdefault(symbol.section, []).append(symbol)
    for index, section in enumerate(elf.sections):
        state = _state_of(section, within.get(index, []))
        if state:
            found.append(problem_of(AuditCode.WRITABLE_GLOBAL, state))
    foreign = sorted(
        {s.name[:60] for s in symbols if s.section == 0 and s.name.strip() and not _is_system(s)}
    )
    if foreign:
        detail = f"needs {', '.join(foreign[:NAMED])} from elsewhere"
        found.append(problem_of(AuditCode.FOREIGN_SYMBOL, detail))
    return found


def _is_system(symbol: Symbol) -> bool:
    """Whether the driver provides the symbol: the start of its reserved shared memory."""
    return symbol.name.startswith(RESERVED_SHARED)


def _state_of(section: Section, objects: Sequence[Symbol]) -> str:
    """Return a description of a section's state between launches; empty if there is none.

    On NVIDIA, ``.nv.global`` holds variables, ``.nv.shared`` and ``.nv.local`` sizes only.
    """
    if not section.is_state or section.name in _READ_ONLY_LATER:
        return ""
    if section.name.startswith((".nv.shared", ".nv.local")):
        return ""
    own = [symbol for symbol in objects if not _is_compilers(symbol)]
    tables = sum(symbol.size for symbol in objects) - sum(symbol.size for symbol in own)
    if objects and not own and section.size - tables < 16 * len(objects):  # rest is alignment
        return ""
    names = ", ".join(symbol.name[:40] for symbol in own[:NAMED])
    return f"section {section.name[:40]} keeps {section.size} bytes between launches" + (
        f" ({names})" if names else ""
    )


def _is_compilers(symbol: Symbol) -> bool:
    """Whether the compiler placed it there and no code writes to it."""
    if symbol.name.startswith(_UNIT):
        return symbol.size == 1
    if _ASKED.fullmatch(symbol.name):
        return symbol.size in _ASKED_BYTES
    return _TABLES.get(symbol.name) == symbol.size
